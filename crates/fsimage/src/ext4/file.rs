//! A file's raw contents at any offset.

use std::io;

use postread_io::ReadAt;

use super::error::{Error, Result};
use super::filesystem::Ext4;
use super::inode::Inode;
use super::map::{Extent, ExtentKind};

/// A file's contents as they lie on disk: no decryption, no verification. As [`ReadAt`] it ends at the file's size;
/// [`File::read_raw_at`] goes on behind it, where fs-verity metadata lies.
#[derive(Debug)]
pub struct File {
    fs: Ext4,
    size: u64,
    extents: Vec<Extent>,
    inline: Option<Vec<u8>>,
}

impl File {
    pub(crate) fn new(fs: &Ext4, inode: &Inode) -> Result<Self> {
        let inline = fs.inline_data(inode)?;
        let extents = if inline.is_some() { Vec::new() } else { fs.extents(inode)? };
        Ok(Self { fs: fs.clone(), size: inode.size, extents, inline })
    }

    /// The file's size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The extents, in order.
    pub fn extents(&self) -> &[Extent] {
        &self.extents
    }

    /// Fills `buf` from byte `offset`; what is not mapped, past the end of the file too, is zeros.
    pub fn read_raw_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        if let Some(data) = &self.inline {
            buf.fill(0);
            let rest = usize::try_from(offset).ok().and_then(|start| data.get(start..)).unwrap_or(&[]);
            let n = rest.len().min(buf.len());
            buf[..n].copy_from_slice(&rest[..n]);
            return Ok(());
        }
        let mut at = self.extents.partition_point(|extent| extent.end() <= offset);
        let mut done = 0;
        while done < buf.len() {
            let position = offset.saturating_add(done as u64);
            let rest = &mut buf[done..];
            let Some(extent) = self.extents.get(at) else {
                rest.fill(0);
                break;
            };
            let skip = position - extent.logical;
            let n = usize::try_from(extent.len - skip).map_or(rest.len(), |left| left.min(rest.len()));
            match extent.kind {
                ExtentKind::Written => {
                    let from = extent.physical + skip;
                    let result = self.fs.device().read_exact_at(&mut rest[..n], from);
                    result.map_err(|source| Error::Io { offset: from, len: n, source })?;
                }
                ExtentKind::Unwritten | ExtentKind::Hole => rest[..n].fill(0),
            }
            done += n;
            at += 1;
        }
        Ok(())
    }
}

impl ReadAt for File {
    fn len(&self) -> io::Result<u64> {
        Ok(self.size)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let n = self.size.saturating_sub(offset).min(buf.len() as u64) as usize;
        self.read_raw_at(&mut buf[..n], offset).map_err(io::Error::other)?;
        Ok(n)
    }
}
