//! The rule for reading a file: verified where it has fs-verity, against the trusted digest where there is one.

use postread_fsimage::ext4::{FileType, Inode};
use postread_verity::FileDigest;

use super::{Image, ImageError};
use crate::plan::Plan;

impl Image {
    /// The plan for reading a regular file: verified where it has fs-verity, against `trusted` where there is one, else
    /// against its own descriptor; decrypted where it is encrypted.
    ///
    /// # Errors
    /// If `trusted` is given, and the file has another digest or no fs-verity.
    pub fn read_plan(&self, inode: &Inode, trusted: Option<&FileDigest>) -> Result<Plan, ImageError> {
        match (self.verity(inode)?, trusted) {
            (Some(verity), trusted) => {
                let verity = match trusted {
                    Some(digest) => verity.trust(digest)?,
                    None => verity.self_consistent(),
                };
                Ok(verity.plan()?.0)
            }
            (None, Some(trusted)) => Err(ImageError::NoVerity { wanted: Box::new(*trusted) }),
            (None, None) => Ok(self.contents(inode)?.plan()),
        }
    }
}

impl Image {
    /// Reads a whole file that is not encrypted, of at most `limit` bytes. `None` for anything else.
    pub fn read_plain(&self, file: &Inode, limit: u64) -> Result<Option<Vec<u8>>, ImageError> {
        if file.file_type != FileType::Regular || file.is_encrypted() || file.size > limit {
            return Ok(None);
        }
        let mut bytes = vec![0; file.size as usize];
        self.fs().open_raw(file)?.read_raw_at(&mut bytes, 0)?;
        Ok(Some(bytes))
    }
}
