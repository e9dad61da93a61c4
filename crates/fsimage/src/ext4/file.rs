//! A file's raw contents at any offset.

use std::io;
use std::ops::Range;

use postread_io::ReadAt;

use super::bytes::to_u64;
use super::error::{Corrupt, Error, Fault, Result, Structure};
use super::filesystem::Ext4;
use super::inode::Inode;
use super::map::{Extent, ExtentKind};

/// A file's contents as they are on disk: no decryption, no verification. As [`ReadAt`] it ends at the file's size;
/// [`File::read_raw_at`] reads past it too, where fs-verity metadata is.
#[derive(Debug)]
pub struct File {
    fs: Ext4,
    size: u64,
    extents: Vec<Extent>,
    inline: Option<Vec<u8>>,
    /// The ranges covered by corrupt parts of the map, in order.
    broken: Vec<Broken>,
}

/// Bytes of a file whose place is unknown, and why.
#[derive(Debug, Clone)]
struct Broken {
    range: Range<u64>,
    corrupt: Corrupt,
}

impl Ext4 {
    /// An inode's contents as they are on disk (ciphertext if they are encrypted; holes and unwritten extents as
    /// zeros). Reads are not limited to the file's size: see [`File`].
    ///
    /// If part of the map is corrupt, reads of what it covers fail, and the rest can be read.
    pub fn open_raw(&self, inode: &Inode) -> Result<File> {
        let (mut extents, mut broken) = (Vec::new(), Vec::new());
        let inline = self.inline_data(inode)?;
        if inline.is_none() {
            let mut walk = self.extents_from(inode, 0);
            while let Some(extent) = walk.next() {
                match extent {
                    Ok(extent) => extents.push(extent),
                    Err(Error::Corrupt(corrupt)) => match walk.skip_broken() {
                        Some(range) => broken.push(Broken { range, corrupt }),
                        None => return Err(corrupt.into()),
                    },
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(File { fs: self.clone(), size: inode.size, extents, inline, broken })
    }

    /// Fills `buf` with the first bytes of an inode whose contents are metadata. As Linux does, this reads blocks that
    /// are marked as not written, and fails in a hole.
    pub(crate) fn read_metadata(&self, inode: &Inode, buf: &mut [u8]) -> Result<()> {
        self.read_metadata_at(inode, 0, buf)
    }

    /// The same from byte `from`, at the start of a block.
    pub(crate) fn read_metadata_at(&self, inode: &Inode, from: u64, buf: &mut [u8]) -> Result<()> {
        let hole = || Fault::Rule("blocks are missing").of(Structure::Inode).in_inode(inode.ino);
        let mut rest = buf;
        for extent in self.extents_from(inode, from) {
            if rest.is_empty() {
                break;
            }
            let extent = extent?;
            if extent.kind == ExtentKind::Hole {
                return Err(hole().into());
            }
            let len = usize::try_from(extent.len).unwrap_or(usize::MAX).min(rest.len());
            let (part, after) = rest.split_at_mut(len);
            read_exact(self, part, extent.physical)?;
            rest = after;
        }
        if rest.is_empty() { Ok(()) } else { Err(hole().into()) }
    }
}

fn read_exact(fs: &Ext4, buf: &mut [u8], offset: u64) -> Result<()> {
    fs.device().read_exact_at(buf, offset).map_err(|source| fs.read_failed(offset, buf.len(), source))
}

impl File {
    /// The file's size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The extents, in order; of a map that is corrupt in part, those of the other parts.
    pub fn extents(&self) -> &[Extent] {
        &self.extents
    }

    /// The first broken range that ends after `offset`.
    fn broken_from(&self, offset: u64) -> Option<&Broken> {
        self.broken.get(self.broken.partition_point(|broken| broken.range.end <= offset))
    }

    /// Fills `buf` from byte `offset`; what is not mapped, past the end of the file too, is zeros.
    pub fn read_raw_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        if let Some(data) = &self.inline {
            buf.fill(0);
            let rest = usize::try_from(offset).ok().and_then(|start| data.get(start..)).unwrap_or(&[]);
            let len = rest.len().min(buf.len());
            buf[..len].copy_from_slice(&rest[..len]);
            return Ok(());
        }
        let end = offset.saturating_add(to_u64(buf.len()));
        if let Some(broken) = self.broken_from(offset).filter(|broken| broken.range.start < end && offset < end) {
            return Err(broken.corrupt.clone().into());
        }
        let mut rest = buf;
        let mut position = offset;
        let first = self.extents.partition_point(|extent| extent.end() <= offset);
        for extent in &self.extents[first..] {
            // A hole before a broken part is not among the extents.
            let gap = usize::try_from(extent.logical.saturating_sub(position)).unwrap_or(usize::MAX).min(rest.len());
            let (hole, after) = rest.split_at_mut(gap);
            hole.fill(0);
            position = position.saturating_add(to_u64(gap));
            rest = after;
            if rest.is_empty() {
                return Ok(());
            }
            let skip = position.saturating_sub(extent.logical);
            let len = usize::try_from(extent.len.saturating_sub(skip)).unwrap_or(usize::MAX).min(rest.len());
            let (part, after) = rest.split_at_mut(len);
            match extent.kind {
                ExtentKind::Written => read_exact(&self.fs, part, extent.physical.saturating_add(skip))?,
                ExtentKind::Unwritten | ExtentKind::Hole => part.fill(0),
            }
            position = position.saturating_add(to_u64(len));
            rest = after;
        }
        rest.fill(0);
        Ok(())
    }
}

impl ReadAt for File {
    fn len(&self) -> io::Result<u64> {
        Ok(self.size)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut end = self.size;
        // Up to the next broken part, if there is anything to read before.
        if let Some(broken) = self.broken_from(offset).filter(|broken| offset < broken.range.start) {
            end = end.min(broken.range.start);
        }
        let len = usize::try_from(end.saturating_sub(offset)).unwrap_or(usize::MAX).min(buf.len());
        self.read_raw_at(&mut buf[..len], offset).map_err(io::Error::other)?;
        Ok(len)
    }
}
