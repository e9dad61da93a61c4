//! A plain positional read: what parsers of images need, and no more.

use std::io;
use std::sync::Arc;

/// Positional reads from bytes at rest, for code that walks metadata. The read path itself uses sources and bios.
pub trait ReadAt: Send + Sync {
    /// Length in bytes.
    fn len(&self) -> io::Result<u64>;

    /// True if there are no bytes at all.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Reads at most `buf.len()` bytes at `offset`; fewer only at the end, 0 at or past it.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Fills `buf` from `offset`, or fails with [`io::ErrorKind::UnexpectedEof`].
    fn read_exact_at(&self, mut buf: &mut [u8], mut offset: u64) -> io::Result<()> {
        while !buf.is_empty() {
            match self.read_at(buf, offset) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => {
                    buf = &mut buf[n..];
                    offset += n as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl<T: ReadAt + ?Sized> ReadAt for Arc<T> {
    fn len(&self) -> io::Result<u64> {
        (**self).len()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        (**self).read_at(buf, offset)
    }
}

impl ReadAt for [u8] {
    fn len(&self) -> io::Result<u64> {
        Ok(<[u8]>::len(self) as u64)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let rest = usize::try_from(offset).ok().and_then(|start| self.get(start..)).unwrap_or(&[]);
        let n = rest.len().min(buf.len());
        buf[..n].copy_from_slice(&rest[..n]);
        Ok(n)
    }
}

impl ReadAt for Vec<u8> {
    fn len(&self) -> io::Result<u64> {
        ReadAt::len(self.as_slice())
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.as_slice().read_at(buf, offset)
    }
}

/// A file or block device. A block device's length is found by seeking, since its metadata says 0.
impl ReadAt for std::fs::File {
    fn len(&self) -> io::Result<u64> {
        use std::io::{Seek, SeekFrom};
        use std::os::unix::fs::FileTypeExt;
        let meta = self.metadata()?;
        if meta.file_type().is_block_device() {
            let mut file: &std::fs::File = self;
            return file.seek(SeekFrom::End(0));
        }
        Ok(meta.len())
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        std::os::unix::fs::FileExt::read_at(self, buf, offset)
    }
}
