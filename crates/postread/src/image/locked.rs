//! Which keys an image's inodes lack.

use postread_fsimage::ext4::Inode;

use super::{Image, ImageError};

impl Image {
    /// Why an encrypted inode can't be read with the keys given: a missing key (a directory's names are then no-key
    /// names), or one that cannot be used. `None` if it is not encrypted, or can be read.
    pub fn locked(&self, inode: &Inode) -> Result<Option<ImageError>, ImageError> {
        let Some(context) = self.context(inode)? else { return Ok(None) };
        let found = match inode.is_dir() {
            true => self.names(inode)?.missing().cloned().map_or(Ok(()), Err),
            false => self.master_key(&context).map(|_| ()),
        };
        match found {
            Ok(()) => Ok(self.key_trouble(inode, &context).map(|error| ImageError::Key { ino: inode.ino, error })),
            Err(missing) => Ok(Some(ImageError::MissingKey { ino: inode.ino, missing })),
        }
    }
}
