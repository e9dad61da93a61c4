//! Files opened with `O_DIRECT`.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use crate::read_at::ReadAt;

/// A file that may have been opened with `O_DIRECT`, read synchronously.
///
/// With `O_DIRECT` only the end of the file makes a read short by less than a sector. The kernel would refuse to read
/// on from there because of alignment, so this reports end of file instead.
pub(crate) struct DirectFile(Arc<File>);

impl DirectFile {
    /// The alignment of offsets, lengths and buffers, in bytes: enough for every device with sectors up to 4 KiB.
    pub(crate) const ALIGN: u32 = 4096;

    pub(crate) fn new(file: Arc<File>) -> Self {
        Self(file)
    }
}

impl ReadAt for DirectFile {
    fn len(&self) -> io::Result<u64> {
        ReadAt::len(&*self.0)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        match std::os::unix::fs::FileExt::read_at(&*self.0, buf, offset) {
            Err(error)
                if error.raw_os_error() == Some(libc::EINVAL)
                    && !offset.is_multiple_of(512)
                    && offset >= ReadAt::len(&*self.0)? =>
            {
                Ok(0)
            }
            result => result,
        }
    }
}

/// Opens a file for reads that bypass the page cache, with the alignment that its bios need.
///
/// # Errors
/// If the file can't be opened, or its file system has no `O_DIRECT` (`EINVAL`).
pub fn open_direct(path: impl AsRef<Path>) -> io::Result<(File, u32)> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path)?;
    Ok((file, DirectFile::ALIGN))
}
