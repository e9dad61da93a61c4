//! From a file's bytes to the file system's: extents in bytes, holes told too, whatever the inode uses.

use std::sync::Arc;

use super::block_map::BlockMapWalk;
use super::cache::Cached;
use super::error::{Fault, Result, Structure};
use super::extent::{NodeLimits, RawExtent, check_node, index_entry, leaf_entry, verify_node};
use super::filesystem::Ext4;
use super::inode::{FileType, Inode, InodeFlags};

/// What a run of a file's bytes is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ExtentKind {
    /// Bytes on disk.
    Written,
    /// Allocated but never written: reads as zeros. No decryption applies.
    Unwritten,
    /// Not allocated: reads as zeros. No decryption applies.
    Hole,
}

/// A run of a file's bytes. All fields are in bytes and multiples of the block size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Extent {
    /// First byte within the file.
    pub logical: u64,
    /// First byte within the file system ([`Ext4::device`] reads there); 0 for a hole.
    pub physical: u64,
    /// Length; never 0.
    pub len: u64,
    /// What it is.
    pub kind: ExtentKind,
}

impl Extent {
    /// The byte behind it, within the file.
    pub fn end(&self) -> u64 {
        self.logical + self.len
    }
}

#[derive(Debug)]
enum Source {
    Tree(TreeWalk),
    Map(BlockMapWalk),
    /// What fast commits have made of it.
    Changed(Arc<[RawExtent]>, usize),
    Nothing,
}

/// A file's extents in order: contiguous from the byte asked for, up to the end of the last block that holds data or
/// is mapped. Neighbours of one kind are one extent. After an error nothing more comes.
#[derive(Debug)]
pub struct Extents {
    fs: Ext4,
    source: Source,
    /// In blocks.
    next: u64,
    end: u64,
    pending: Option<Result<RawExtent>>,
    failed: bool,
}

impl Extents {
    pub(crate) fn new(fs: &Ext4, inode: &Inode, from: u64) -> Self {
        let block_size = u64::from(fs.superblock().block_size);
        let from = from / block_size;
        let mapped = matches!(inode.file_type, FileType::Regular | FileType::Directory | FileType::Symlink)
            && !inode.has_inline_data()
            && !inode.is_fast_symlink();
        let end = if mapped { inode.size.div_ceil(block_size) } else { 0 };
        let source = if !mapped {
            Source::Nothing
        } else if let Some(extents) = fs.changed_extents(inode.ino) {
            Source::Changed(extents.clone(), extents.partition_point(|extent| extent.end() <= from))
        } else if inode.flags.contains(InodeFlags::EXTENTS) {
            Source::Tree(TreeWalk::new(inode, from))
        } else {
            Source::Map(BlockMapWalk::new(inode.ino, inode.block, from, end))
        };
        Self { fs: fs.clone(), source, next: from, end, pending: None, failed: false }
    }

    fn raw(&mut self) -> Result<Option<RawExtent>> {
        if let Some(pending) = self.pending.take() {
            return pending.map(Some);
        }
        match &mut self.source {
            Source::Tree(walk) => walk.next(&self.fs),
            Source::Map(walk) => walk.next(&self.fs),
            Source::Changed(extents, next) => {
                *next += 1;
                Ok(extents.get(*next - 1).copied())
            }
            Source::Nothing => Ok(None),
        }
    }

    fn step(&mut self) -> Result<Option<Extent>> {
        let block_size = u64::from(self.fs.superblock().block_size);
        let Some(mut extent) = self.raw()? else {
            if self.next >= self.end {
                return Ok(None);
            }
            let hole = (self.next, self.end - self.next);
            self.next = self.end;
            return Ok(Some(hole_of(hole, block_size)));
        };
        if extent.logical > self.next {
            self.pending = Some(Ok(extent));
            let hole = (self.next, extent.logical - self.next);
            self.next = extent.logical;
            return Ok(Some(hole_of(hole, block_size)));
        }
        // The first one may begin before the byte asked for.
        let skip = self.next - extent.logical;
        extent.logical += skip;
        extent.physical += skip;
        extent.len -= skip;
        loop {
            match self.raw() {
                Ok(Some(after))
                    if after.logical == extent.end()
                        && after.physical == extent.physical + extent.len
                        && after.unwritten == extent.unwritten =>
                {
                    extent.len += after.len;
                }
                Ok(None) => break,
                // A failure of the next one is told after this one.
                other => {
                    self.pending = other.transpose();
                    break;
                }
            }
        }
        self.next = extent.end();
        Ok(Some(of(extent, block_size)))
    }
}

impl Iterator for Extents {
    type Item = Result<Extent>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let result = self.step().transpose();
        self.failed = matches!(result, Some(Err(_)));
        result
    }
}

fn of(extent: RawExtent, block_size: u64) -> Extent {
    Extent {
        logical: extent.logical * block_size,
        physical: extent.physical * block_size,
        len: extent.len * block_size,
        kind: if extent.unwritten { ExtentKind::Unwritten } else { ExtentKind::Written },
    }
}

fn hole_of((start, len): (u64, u64), block_size: u64) -> Extent {
    Extent { logical: start * block_size, physical: 0, len: len * block_size, kind: ExtentKind::Hole }
}

/// The end of the last extent of a file that is mapped by extents, in bytes; 0 without any.
pub(crate) fn last_mapped_end(fs: &Ext4, inode: &Inode) -> Result<u64> {
    if let Some(extents) = fs.changed_extents(inode.ino) {
        return Ok(extents.last().map_or(0, RawExtent::end) * u64::from(fs.superblock().block_size));
    }
    let mut walk = TreeWalk::new(inode, u64::MAX);
    let last = walk.next(fs)?;
    Ok(last.map_or(0, |extent| extent.end()) * u64::from(fs.superblock().block_size))
}

/// All extents of an inode's tree, in blocks; an error where there are more than `limit`.
pub(crate) fn raw_extents(fs: &Ext4, inode: &Inode, limit: usize) -> Result<Vec<RawExtent>> {
    let mut walk = TreeWalk::new(inode, 0);
    let mut out = Vec::new();
    while let Some(extent) = walk.next(fs)? {
        if out.len() >= limit {
            let fault = Fault::Limit { field: "the number of extents", value: limit as u64 + 1, limit: limit as u64 };
            return Err(fault.of(Structure::ExtentNode).in_inode(inode.ino).into());
        }
        out.push(extent);
    }
    Ok(out)
}

/// A walk through an extent tree, depth first. A child must lie within its parent's range of file blocks, so no node
/// is met twice and the walk ends.
#[derive(Debug)]
struct TreeWalk {
    ino: u32,
    seed: u32,
    root: [u8; 60],
    /// The block to begin with; `u64::MAX` for the last extent.
    from: u64,
    stack: Vec<Level>,
    started: bool,
}

#[derive(Debug)]
struct Level {
    bytes: Option<Cached>,
    depth: u16,
    entries: u16,
    next: u16,
    end: u64,
}

impl TreeWalk {
    fn new(inode: &Inode, from: u64) -> Self {
        Self { ino: inode.ino, seed: inode.checksum_seed, root: inode.block, from, stack: Vec::new(), started: false }
    }

    fn next(&mut self, fs: &Ext4) -> Result<Option<RawExtent>> {
        if !self.started {
            self.started = true;
            self.push(fs, None, None, (0, 1 << 32))?;
        }
        while let Some(level) = self.stack.last_mut() {
            if level.next >= level.entries {
                self.stack.pop();
                continue;
            }
            let i = level.next;
            level.next += 1;
            let bytes: &[u8] = level.bytes.as_deref().unwrap_or(&self.root);
            if level.depth == 0 {
                return Ok(Some(leaf_entry(bytes, i)));
            }
            let index = index_entry(bytes, i);
            let end = if i + 1 < level.entries { index_entry(bytes, i + 1).logical } else { level.end };
            let depth = level.depth - 1;
            self.push(fs, Some(index.child), Some(depth), (index.logical, end))?;
        }
        Ok(None)
    }

    fn push(&mut self, fs: &Ext4, block: Option<u64>, depth: Option<u16>, logical: (u64, u64)) -> Result<()> {
        let superblock = fs.superblock();
        let limits = NodeLimits {
            depth,
            logical,
            physical: (u64::from(superblock.first_data_block) + 1, superblock.blocks_count),
        };
        let corrupt = |fault: Fault| {
            let corrupt = fault.of(Structure::ExtentNode).in_inode(self.ino);
            if let Some(block) = block { corrupt.in_block(block) } else { corrupt }
        };
        let cached = block.map(|block| fs.block(block)).transpose()?;
        let bytes: &[u8] = cached.as_deref().unwrap_or(&self.root);
        if block.is_some() && fs.verifies_checksums() {
            verify_node(bytes, self.seed).map_err(corrupt)?;
        }
        let header = check_node(bytes, limits).map_err(corrupt)?;
        // The last entry that begins at or before the block asked for.
        let mut next = 0;
        let (mut low, mut high) = (0, header.entries);
        while low < high {
            let middle = low + (high - low) / 2;
            let start = match header.depth {
                0 => leaf_entry(bytes, middle).logical,
                _ => index_entry(bytes, middle).logical,
            };
            if start <= self.from {
                next = middle;
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let wants_last = self.from == u64::MAX;
        if header.depth == 0 && next < header.entries && !wants_last && leaf_entry(bytes, next).end() <= self.from {
            next += 1;
        }
        let level = Level { depth: header.depth, entries: header.entries, next, end: logical.1, bytes: cached };
        self.stack.push(level);
        Ok(())
    }
}
