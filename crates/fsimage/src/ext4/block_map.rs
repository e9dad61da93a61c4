//! The classic map: 12 direct blocks, then an indirect, a double and a triple indirect one.

use std::collections::HashMap;

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
    /// Each indirect block seen, with the file block its subtree starts with: one that turns up at two places is a
    /// loop.
    seen: HashMap<u64, (u64, u8)>,
    leaf: Option<(u64, Cached)>,
}

impl BlockMapWalk {
    /// `from` and `end` are in file blocks.
    pub(crate) fn new(ino: u32, root: [u8; 60], from: u64, end: u64) -> Self {
        Self { ino, root, next: from, end, seen: HashMap::new(), leaf: None }
    }

    /// The next run of blocks.
    pub(crate) fn next(&mut self, fs: &Ext4) -> Result<Option<RawExtent>> {
        let mut run: Option<RawExtent> = None;
        while self.next < self.end {
            let (physical, span) = self.lookup(fs, self.next)?;
            match (&mut run, physical) {
                (None, 0) => self.next = self.next.saturating_add(span),
                (Some(_), 0) => break,
                (None, _) => {
                    run = Some(RawExtent { logical: self.next, len: 1, physical, unwritten: false });
                    self.next += 1;
                }
                (Some(run), _) if run.physical + run.len == physical => {
                    run.len += 1;
                    self.next += 1;
                }
                (Some(_), _) => break,
            }
        }
        Ok(run)
    }

    /// The block that file block `logical` lies in, or 0 and how many blocks from `logical` on are surely not mapped.
    fn lookup(&mut self, fs: &Ext4, logical: u64) -> Result<(u64, u64)> {
        let per = u64::from(fs.superblock().block_size / 4);
        if logical < DIRECT {
            let block = self.check(fs, le32(&self.root, 4 * logical as usize).into(), None)?;
            return Ok((block, 1));
        }
        let mut rest = logical - DIRECT;
        if let Some((start, leaf)) = &self.leaf
            && logical >= *start
            && logical - start < per
        {
            let block = le32(leaf, 4 * (logical - start) as usize).into();
            return Ok((self.check(fs, block, None)?, 1));
        }
        let mut level = 1u8;
        let mut covered = per;
        while rest >= covered {
            rest -= covered;
            level += 1;
            if level > 3 {
                // Past what the map can address.
                return Ok((0, u64::MAX));
            }
            covered = covered.saturating_mul(per);
        }
        let mut block = u64::from(le32(&self.root, 4 * (DIRECT as usize + usize::from(level) - 1)));
        while level > 0 {
            let start = logical - rest % covered;
            if block == 0 {
                return Ok((0, covered - rest % covered));
            }
            block = self.check(fs, block, Some((start, level)))?;
            let bytes = fs.block(block)?;
            covered /= per;
            let slot = (rest / covered) % per;
            let pointer = le32(&bytes, 4 * slot as usize).into();
            if level == 1 {
                self.leaf = Some((start, bytes));
            }
            block = pointer;
            level -= 1;
        }
        Ok((self.check(fs, block, None)?, 1))
    }

    fn check(&mut self, fs: &Ext4, block: u64, place: Option<(u64, u8)>) -> Result<u64> {
        let fault = |fault: Fault| fault.of(Structure::BlockMap).in_inode(self.ino);
        let limit = fs.superblock().blocks_count;
        if block != 0 && (block <= u64::from(fs.superblock().first_data_block) || block >= limit) {
            return Err(fault(Fault::Limit { field: "a block number", value: block, limit }).into());
        }
        if let Some(place) = place
            && self.seen.insert(block, place).is_some_and(|before| before != place)
        {
            return Err(fault(Fault::Rule("an indirect block stands at two places")).in_block(block).into());
        }
        Ok(block)
    }
}
