//! Checks whole devices: every block, whatever fails.

use std::io;

use postread_io::ReadAt;
use postread_verity::Digest;
use postread_verity::dm_verity::{BadBlock, Verifier};

use super::{Device, Threads, parallel};

/// Bytes of data that are read at a time (at least a block).
const CHUNK: usize = 1 << 20;

/// Bytes of data in the blocks of level 0 that a thread takes at a time (at least a block's).
const JOB: u64 = 8 << 20;

/// What a block belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Area {
    /// A level of the tree; the highest is the root's.
    Hash {
        /// The level: 0 is the one with digests of data blocks.
        level: usize,
    },
    /// The data.
    Data,
}

/// What is wrong with a run of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// Their digests are not those that their parents, or the root hash, name.
    Mismatch {
        /// The digest expected of the first block.
        wanted: Digest,
        /// Its digest.
        found: Digest,
    },
    /// They could not be read.
    Unreadable {
        /// The kind of error of the first one.
        kind: io::ErrorKind,
    },
    /// The hash block above them is bad, so their state is unknown.
    Unverifiable,
}

impl Cause {
    fn same_kind(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

/// A run of bad blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BadRun {
    /// What they belong to.
    pub area: Area,
    /// The first one: counted in its level, or on the data device.
    pub first: u64,
    /// How many there are.
    pub count: u64,
    /// What is wrong.
    pub cause: Cause,
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct VerifyReport {
    /// Every run of bad blocks: hash blocks from the highest level down, then data.
    pub bad: Vec<BadRun>,
    /// Hash blocks in which bytes that no digest covers are not zero. The kernel ignores those; `veritysetup verify`
    /// refuses such a tree.
    pub nonzero_spare: u64,
}

/// What one thread found, in order.
#[derive(Default)]
struct Found {
    bad: Vec<BadRun>,
    nonzero_spare: u64,
}

impl Found {
    fn push(&mut self, area: Area, first: u64, count: u64, cause: Cause) {
        if let Some(last) = self.bad.last_mut()
            && last.area == area
            && last.first + last.count == first
            && last.cause.same_kind(&cause)
        {
            last.count += count;
            return;
        }
        self.bad.push(BadRun { area, first, count, cause });
    }

    fn mismatch(&mut self, block: BadBlock) {
        let area = block.level.map_or(Area::Data, |level| Area::Hash { level });
        self.push(area, block.index, 1, Cause::Mismatch { wanted: block.wanted, found: block.found });
    }
}

/// Reads whole blocks. If that fails, they are read one at a time, and those that fail again are returned.
pub(super) fn read_blocks(
    source: &dyn ReadAt,
    offset: u64,
    block_size: usize,
    buf: &mut [u8],
    bad: &mut dyn FnMut(u64, io::ErrorKind),
) {
    if source.read_exact_at(buf, offset).is_ok() {
        return;
    }
    for (i, block) in buf.chunks_exact_mut(block_size).enumerate() {
        if let Err(error) = source.read_exact_at(block, offset + (i * block_size) as u64) {
            block.fill(0);
            bad(i as u64, error.kind());
        }
    }
}

/// The hash blocks of a level that were read and checked: their bytes, and which of them are bad.
struct Level {
    first: u64,
    bytes: Vec<u8>,
    bad: Vec<bool>,
}

/// Reads and checks hash blocks `first..first + count` of a level, below `parents`.
fn read_level(
    device: &Device<'_>,
    verifier: &Verifier,
    level: usize,
    first: u64,
    count: u64,
    parents: Option<&Level>,
    found: &mut Found,
) -> Level {
    let size = verifier.params().hash_block_size();
    let area = Area::Hash { level };
    let mut out = Level { first, bytes: vec![0; count as usize * size], bad: vec![false; count as usize] };
    let offset = device.hash_area + verifier.geometry().level_offset(level) + first * size as u64;
    let mut unreadable = Vec::new();
    read_blocks(device.hash, offset, size, &mut out.bytes, &mut |i, kind| unreadable.push((i, kind)));
    let arity = verifier.geometry().hashes_per_block();
    // One parent's children at a time, since a parent may be bad.
    let mut at = first;
    while at < first + count {
        let end = ((at / arity + 1) * arity).min(first + count);
        let range = (at - first) as usize..(end - first) as usize;
        let parent = match parents {
            None => Some(&[][..]),
            Some(parents) => parents.good(at / arity, size),
        };
        match parent {
            None => {
                out.bad[range].fill(true);
                found.push(area, at, end - at, Cause::Unverifiable);
            }
            Some(parent) => {
                let blocks = &out.bytes[range.start * size..range.end * size];
                let bad = &mut out.bad;
                verifier.verify_hash_blocks(level, at, blocks, parent, &mut |block| {
                    let i = block.index - first;
                    bad[i as usize] = true;
                    match unreadable.iter().find(|(index, _)| *index == i) {
                        Some(&(_, kind)) => found.push(area, block.index, 1, Cause::Unreadable { kind }),
                        None => found.mismatch(block),
                    }
                });
                for i in range.filter(|&i| !out.bad[i]) {
                    let block = &out.bytes[i * size..(i + 1) * size];
                    let spare = verifier.nonzero_spare(level, first + i as u64, block);
                    found.nonzero_spare += u64::from(spare.is_some());
                }
            }
        }
        at = end;
    }
    out
}

impl Level {
    /// A block that is good; nothing if it is bad.
    fn good(&self, index: u64, size: usize) -> Option<&[u8]> {
        let i = (index - self.first) as usize;
        (!self.bad[i]).then(|| &self.bytes[i * size..(i + 1) * size])
    }
}

/// Checks all hash blocks and all data blocks. Blocks that cannot be read are bad blocks; there is no error.
///
/// All levels above level 0 are held in memory: a sixteen-thousandth of the data with the default parameters.
pub fn verify(device: &Device<'_>, verifier: &Verifier, threads: Threads) -> VerifyReport {
    let g = verifier.geometry();
    let mut top = Found::default();
    let mut above: Option<Level> = None;
    for level in (1..g.num_levels()).rev() {
        above = Some(read_level(device, verifier, level, 0, g.level_blocks(level), above.as_ref(), &mut top));
    }
    let block_size = verifier.params().data_block_size();
    let arity = if g.num_levels() == 0 { 1 } else { g.hashes_per_block() };
    let leaves = if g.num_levels() == 0 { 1 } else { g.level_blocks(0) };
    let per_job = (JOB / (arity * block_size as u64)).max(1);
    let chunk = CHUNK.max(block_size);
    let jobs = leaves.div_ceil(per_job);
    let found = parallel(
        threads,
        jobs,
        || vec![0; chunk],
        |buf, job| {
            let mut found = Found::default();
            let first = job * per_job;
            let count = per_job.min(leaves - first);
            let level =
                (g.num_levels() > 0).then(|| read_level(device, verifier, 0, first, count, above.as_ref(), &mut found));
            for leaf in first..first + count {
                let blocks = leaf * arity..((leaf + 1) * arity).min(g.data_blocks());
                let parent = match &level {
                    None => Some(&[][..]),
                    Some(level) => level.good(leaf, verifier.params().hash_block_size()),
                };
                match parent {
                    None => found.push(Area::Data, blocks.start, blocks.end - blocks.start, Cause::Unverifiable),
                    Some(parent) => verify_data(device, verifier, blocks, parent, buf, &mut found),
                }
            }
            found
        },
    );
    let mut all = top;
    let mut data = Vec::new();
    for one in found {
        all.nonzero_spare += one.nonzero_spare;
        for run in one.bad {
            if run.area == Area::Data { data.push(run) } else { all.push(run.area, run.first, run.count, run.cause) }
        }
    }
    for run in data {
        all.push(run.area, run.first, run.count, run.cause);
    }
    VerifyReport { bad: all.bad, nonzero_spare: all.nonzero_spare }
}

/// Checks data blocks below one block of level 0.
fn verify_data(
    device: &Device<'_>,
    verifier: &Verifier,
    blocks: std::ops::Range<u64>,
    parent: &[u8],
    buf: &mut [u8],
    found: &mut Found,
) {
    let block_size = verifier.params().data_block_size();
    let per_read = (buf.len() / block_size) as u64;
    let mut at = blocks.start;
    while at < blocks.end {
        let count = per_read.min(blocks.end - at);
        let buf = &mut buf[..count as usize * block_size];
        let mut unreadable = Vec::new();
        read_blocks(device.data, at * block_size as u64, block_size, buf, &mut |i, kind| {
            unreadable.push((at + i, kind));
        });
        let mut bad = Vec::new();
        verifier.verify_data(at, buf, parent, &mut |block| bad.push(block));
        // A block that could not be read may have been zeros, which its buffer holds: it counts as bad all the same.
        let mut unreadable = unreadable.into_iter().peekable();
        for block in bad {
            while let Some((index, kind)) = unreadable.next_if(|(index, _)| *index <= block.index) {
                found.push(Area::Data, index, 1, Cause::Unreadable { kind });
                if index == block.index {
                    break;
                }
            }
            let was_unreadable = found.bad.last().is_some_and(|last| {
                matches!(last.cause, Cause::Unreadable { .. })
                    && last.area == Area::Data
                    && last.first + last.count == block.index + 1
            });
            if !was_unreadable {
                found.mismatch(block);
            }
        }
        for (index, kind) in unreadable {
            found.push(Area::Data, index, 1, Cause::Unreadable { kind });
        }
        at += count;
    }
}
