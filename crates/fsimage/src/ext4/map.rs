//! From a file's bytes to the file system's: extents in bytes, holes included, whatever the inode is mapped by.

use std::ops::Range;
use std::sync::Arc;

use super::block_map::BlockMapWalk;
use super::bytes::to_u64;
use super::cache::Cached;
use super::error::{Fault, Result, Structure};
use super::extent::{RawExtent, check_node, index_entry, leaf_entry, verify_node};
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
    /// The byte after it, within the file.
    pub fn end(&self) -> u64 {
        self.logical.saturating_add(self.len)
    }

    /// The rest of it, without its first bytes.
    pub(crate) fn without(self, bytes: u64) -> Self {
        Self {
            logical: self.logical.saturating_add(bytes),
            physical: self.physical.saturating_add(bytes),
            len: self.len.saturating_sub(bytes),
            ..self
        }
    }
}

#[derive(Debug)]
enum Source {
    Tree(TreeWalk),
    Map(BlockMapWalk),
    /// The extents as changed by fast commits.
    Changed(Arc<[RawExtent]>, usize),
    Nothing,
}

/// A file's extents in order: contiguous from the byte asked for, up to the end of the last block that holds data or
/// is mapped. Adjacent extents of one kind are joined. An error ends the iteration, unless [`Extents::skip_broken`]
/// continues it.
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

impl Ext4 {
    /// The extents of an inode's contents in order, from the one with byte `from` on, holes included, up to the end
    /// of the last block that is mapped or comes before the end of the file. Empty if the data is in the inode
    /// (inline data, fast symbolic links) and for what has no data.
    pub fn extents_from(&self, inode: &Inode, from: u64) -> Extents {
        Extents::new(self, inode, from)
    }

    /// All extents of an inode's contents: see [`Ext4::extents_from`], which needs less memory.
    pub fn extents(&self, inode: &Inode) -> Result<Vec<Extent>> {
        self.extents_from(inode, 0).collect()
    }
}

impl Extents {
    fn new(fs: &Ext4, inode: &Inode, from: u64) -> Self {
        let block_size = fs.block_size();
        let from = from.checked_div(block_size).unwrap_or(0);
        let mapped = matches!(inode.file_type, FileType::Regular | FileType::Directory | FileType::Symlink)
            && !inode.has_inline_data()
            && !inode.is_fast_symlink();
        let end = if mapped { inode.size.div_ceil(block_size.max(1)) } else { 0 };
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

    /// Continues after an error that concerns a part of the map, and returns the bytes of the file that this part would
    /// map: their place is unknown. `None` if iteration cannot continue after the error.
    pub fn skip_broken(&mut self) -> Option<Range<u64>> {
        if !self.failed {
            return None;
        }
        let blocks = match &mut self.source {
            Source::Tree(walk) => walk.broken.take(),
            Source::Map(walk) => walk.skip_broken(),
            Source::Changed(..) | Source::Nothing => None,
        }?;
        let start = blocks.start.max(self.next);
        self.next = blocks.end.max(start);
        self.failed = false;
        let block_size = self.fs.block_size();
        Some(start.saturating_mul(block_size)..self.next.saturating_mul(block_size))
    }

    fn raw(&mut self) -> Result<Option<RawExtent>> {
        if let Some(pending) = self.pending.take() {
            return pending.map(Some);
        }
        match &mut self.source {
            Source::Tree(walk) => walk.next(&self.fs),
            Source::Map(walk) => walk.next(&self.fs),
            Source::Changed(extents, next) => {
                let extent = extents.get(*next).copied();
                *next = next.saturating_add(1);
                Ok(extent)
            }
            Source::Nothing => Ok(None),
        }
    }

    fn step(&mut self) -> Result<Option<Extent>> {
        let block_size = self.fs.block_size();
        let Some(mut extent) = self.raw()? else {
            let Some(rest) = self.end.checked_sub(self.next).filter(|&rest| rest > 0) else { return Ok(None) };
            let hole = hole(self.next, rest, block_size);
            self.next = self.end;
            return Ok(Some(hole));
        };
        if let Some(gap) = extent.logical.checked_sub(self.next).filter(|&gap| gap > 0) {
            self.pending = Some(Ok(extent));
            let hole = hole(self.next, gap, block_size);
            self.next = extent.logical;
            return Ok(Some(hole));
        }
        // The first one may begin before the byte asked for.
        extent = extent.without(self.next.saturating_sub(extent.logical));
        loop {
            match self.raw() {
                Ok(Some(after))
                    if after.logical == extent.end()
                        && after.physical == extent.physical.saturating_add(extent.len)
                        && after.unwritten == extent.unwritten =>
                {
                    extent.len = extent.len.saturating_add(after.len);
                }
                Ok(None) => break,
                // A failure of the next one comes after this one.
                other => {
                    self.pending = other.transpose();
                    break;
                }
            }
        }
        self.next = extent.end();
        Ok(Some(in_bytes(extent, block_size)))
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

fn in_bytes(extent: RawExtent, block_size: u64) -> Extent {
    Extent {
        logical: extent.logical.saturating_mul(block_size),
        physical: extent.physical.saturating_mul(block_size),
        len: extent.len.saturating_mul(block_size),
        kind: if extent.unwritten { ExtentKind::Unwritten } else { ExtentKind::Written },
    }
}

fn hole(start: u64, len: u64, block_size: u64) -> Extent {
    let logical = start.saturating_mul(block_size);
    Extent { logical, physical: 0, len: len.saturating_mul(block_size), kind: ExtentKind::Hole }
}

/// The end of the last extent of a file that is mapped by extents, in bytes; 0 without any.
pub(crate) fn last_mapped_end(fs: &Ext4, inode: &Inode) -> Result<u64> {
    let last = match fs.changed_extents(inode.ino) {
        Some(extents) => extents.last().copied(),
        None => TreeWalk::new(inode, u64::MAX).next(fs)?,
    };
    Ok(last.map_or(0, |extent| extent.end()).saturating_mul(fs.block_size()))
}

/// All extents of an inode's tree, in blocks; an error if there are more than `limit`.
pub(crate) fn raw_extents(fs: &Ext4, inode: &Inode, limit: usize) -> Result<Vec<RawExtent>> {
    let mut walk = TreeWalk::new(inode, 0);
    let mut out = Vec::new();
    while let Some(extent) = walk.next(fs)? {
        if out.len() >= limit {
            let limit = to_u64(limit);
            let fault = Fault::Limit { field: "the number of extents", value: limit.saturating_add(1), limit };
            return Err(fault.of(Structure::ExtentNode).in_inode(inode.ino).into());
        }
        out.push(extent);
    }
    Ok(out)
}

/// A walk through an extent tree, depth first. A child covers the blocks from its own entry to the next one, so no node
/// is visited twice and the walk ends.
#[derive(Debug)]
struct TreeWalk {
    ino: u32,
    seed: u32,
    root: [u8; 60],
    /// The block to begin with; `u64::MAX` for the last extent.
    from: u64,
    stack: Vec<Level>,
    started: bool,
    /// The file blocks that the node covers that could not be read last.
    broken: Option<Range<u64>>,
}

#[derive(Debug)]
struct Level {
    bytes: Option<Cached>,
    depth: u16,
    entries: u16,
    next: u16,
    /// The end of the file's blocks that this node is responsible for.
    end: u64,
}

/// A node in a separate block, as its parent describes it.
struct Child {
    block: u64,
    depth: u16,
    /// The file blocks that it covers.
    start: u64,
    end: u64,
}

impl TreeWalk {
    fn new(inode: &Inode, from: u64) -> Self {
        let (ino, seed, root) = (inode.ino, inode.checksum_seed, inode.block);
        Self { ino, seed, root, from, stack: Vec::new(), started: false, broken: None }
    }

    fn next(&mut self, fs: &Ext4) -> Result<Option<RawExtent>> {
        if !self.started {
            self.started = true;
            self.broken = Some(self.from..1 << 32);
            self.push(fs, None)?;
        }
        while let Some(level) = self.stack.last_mut() {
            if level.next >= level.entries {
                self.stack.pop();
                continue;
            }
            let (i, end) = (level.next, level.end);
            level.next = level.next.saturating_add(1);
            let bytes: &[u8] = level.bytes.as_deref().unwrap_or(&self.root);
            if level.depth == 0 {
                // A part past the node's end belongs to the next node, as in Linux.
                match leaf_entry(bytes, i).before(end) {
                    Some(extent) => return Ok(Some(extent)),
                    None => continue,
                }
            }
            let index = index_entry(bytes, i);
            if index.logical >= end {
                continue;
            }
            let after = if level.next < level.entries { index_entry(bytes, level.next).logical } else { end };
            let depth = level.depth.saturating_sub(1);
            let child = Child { block: index.child, depth, start: index.logical, end: after.min(end) };
            self.broken = Some(child.start..child.end);
            self.push(fs, Some(child))?;
        }
        Ok(None)
    }

    /// Goes into a node: a child, or the root.
    fn push(&mut self, fs: &Ext4, child: Option<Child>) -> Result<()> {
        let corrupt = |fault: Fault| {
            let corrupt = fault.of(Structure::ExtentNode).in_inode(self.ino);
            child.as_ref().map_or(corrupt.clone(), |child| corrupt.in_block(child.block))
        };
        let cached = child.as_ref().map(|child| fs.block(child.block)).transpose()?;
        let bytes: &[u8] = cached.as_deref().unwrap_or(&self.root);
        if child.is_some() && fs.verifies_checksums() {
            verify_node(bytes, self.seed).map_err(corrupt)?;
        }
        let allow = |logical, physical, blocks| fs.may_have(self.ino, logical, physical, blocks);
        let parent = child.as_ref().map(|child| (child.depth, child.start));
        let header = check_node(bytes, parent, allow).map_err(corrupt)?;
        // The last entry that begins at or before the block asked for.
        let mut next = 0;
        let (mut low, mut high) = (0, header.entries);
        while low < high {
            let middle = low.midpoint(high);
            let start = match header.depth {
                0 => leaf_entry(bytes, middle).logical,
                _ => index_entry(bytes, middle).logical,
            };
            if start <= self.from {
                next = middle;
                low = middle.saturating_add(1);
            } else {
                high = middle;
            }
        }
        let wants_last = self.from == u64::MAX;
        if header.depth == 0 && next < header.entries && !wants_last && leaf_entry(bytes, next).end() <= self.from {
            next = next.saturating_add(1);
        }
        let end = child.map_or(1 << 32, |child| child.end);
        self.stack.push(Level { depth: header.depth, entries: header.entries, next, end, bytes: cached });
        Ok(())
    }
}
