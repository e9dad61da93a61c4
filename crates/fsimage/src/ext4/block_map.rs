//! The classic map: 12 direct blocks, then an indirect, a double and a triple indirect one.

use std::collections::HashMap;
use std::ops::Range;

use super::bytes::le32;
use super::cache::Cached;
use super::error::{Fault, Result, Structure};
use super::extent::RawExtent;
use super::filesystem::Ext4;

const DIRECT: u64 = 12;

/// Walks the map from a file block on. Memory is bounded by the number of the file's own indirect blocks.
#[derive(Debug)]
pub(crate) struct BlockMapWalk {
    ino: u32,
    root: [u8; 60],
    next: u64,
    end: u64,
    /// Each indirect block seen, with its place in the map: one that turns up in two places is a loop.
    seen: HashMap<u64, Place>,
    leaf: Option<(u64, Cached)>,
    /// How many blocks from `next` on cannot be looked up, after a failure.
    broken: u64,
}

/// The first file block of a subtree, and its level.
type Place = (u64, u8);

/// What a file block is mapped to.
enum Mapped {
    Block(u64),
    /// Nothing, and so are as many blocks from this one on.
    Hole(u64),
}

/// Pointer `slot` of a block of them.
fn pointer(block: &[u8], slot: u64) -> u64 {
    let slot = usize::try_from(slot).unwrap_or(usize::MAX);
    block.chunks_exact(4).nth(slot).map_or(0, |pointer| le32(pointer, 0).into())
}

impl BlockMapWalk {
    /// `from` and `end` are in file blocks.
    pub(crate) fn new(ino: u32, root: [u8; 60], from: u64, end: u64) -> Self {
        Self { ino, root, next: from, end, seen: HashMap::new(), leaf: None, broken: 0 }
    }

    /// After a failure: the blocks that cannot be looked up because of it. The walk continues after them.
    pub(crate) fn skip_broken(&mut self) -> Option<Range<u64>> {
        let broken = self.next..self.next.saturating_add(std::mem::take(&mut self.broken));
        self.next = broken.end;
        Some(broken).filter(|broken| !broken.is_empty())
    }

    /// The next run of blocks.
    pub(crate) fn next(&mut self, fs: &Ext4) -> Result<Option<RawExtent>> {
        let mut run: Option<RawExtent> = None;
        while self.next < self.end {
            let mapped = match self.lookup(fs, self.next) {
                // The run before the failure comes first.
                Err(_) if run.is_some() => break,
                mapped => mapped?,
            };
            match (&mut run, mapped) {
                (None, Mapped::Hole(span)) => {
                    self.next = self.next.saturating_add(span);
                    continue;
                }
                (None, Mapped::Block(physical)) => {
                    run = Some(RawExtent { logical: self.next, len: 1, physical, unwritten: false });
                }
                (Some(run), Mapped::Block(physical)) if run.physical.saturating_add(run.len) == physical => {
                    run.len = run.len.saturating_add(1);
                }
                (Some(_), _) => break,
            }
            self.next = self.next.saturating_add(1);
        }
        Ok(run)
    }

    fn lookup(&mut self, fs: &Ext4, logical: u64) -> Result<Mapped> {
        let per = u64::from(fs.superblock().block_size / 4);
        let Some(mut rest) = logical.checked_sub(DIRECT) else {
            let block = pointer(&self.root, logical);
            return self.data(fs, logical, block);
        };
        if let Some((start, leaf)) = &self.leaf
            && let Some(slot) = logical.checked_sub(*start).filter(|&slot| slot < per)
        {
            let block = pointer(leaf, slot);
            return self.data(fs, logical, block);
        }
        // The level whose subtree covers the block, and how many blocks that is.
        let (mut level, mut covered) = (1u8, per);
        while let Some(left) = rest.checked_sub(covered) {
            rest = left;
            level = level.saturating_add(1);
            covered = covered.saturating_mul(per);
        }
        if level > 3 {
            // Past what the map can address.
            return Ok(Mapped::Hole(u64::MAX));
        }
        let mut block = pointer(&self.root, DIRECT.saturating_add(level.into()).saturating_sub(1));
        loop {
            let offset = rest.checked_rem(covered).unwrap_or(0);
            if block == 0 {
                return Ok(Mapped::Hole(covered.saturating_sub(offset)));
            }
            let start = logical.saturating_sub(offset);
            self.broken = covered.saturating_sub(offset);
            self.enter(fs, logical, block, (start, level))?;
            let bytes = fs.block(block)?;
            covered = covered.checked_div(per).unwrap_or(0);
            block = pointer(&bytes, offset.checked_div(covered).unwrap_or(0));
            level = level.saturating_sub(1);
            if level == 0 {
                self.leaf = Some((start, bytes));
                return self.data(fs, logical, block);
            }
        }
    }

    fn data(&mut self, fs: &Ext4, logical: u64, block: u64) -> Result<Mapped> {
        self.broken = 1;
        if block == 0 {
            return Ok(Mapped::Hole(1));
        }
        self.check(fs, logical, block)?;
        Ok(Mapped::Block(block))
    }

    fn check(&self, fs: &Ext4, logical: u64, block: u64) -> Result<()> {
        let corrupt = |fault: Fault| fault.of(Structure::BlockMap).in_inode(self.ino);
        Ok(fs.may_have(self.ino, logical, block, 1).map_err(corrupt)?)
    }

    /// Checks an indirect block, and that it is not met in two places.
    fn enter(&mut self, fs: &Ext4, logical: u64, block: u64, place: Place) -> Result<()> {
        self.check(fs, logical, block)?;
        if self.seen.insert(block, place).is_some_and(|before| before != place) {
            let fault = Fault::Rule("an indirect block is in two places of the map");
            return Err(fault.of(Structure::BlockMap).in_inode(self.ino).in_block(block).into());
        }
        Ok(())
    }
}
