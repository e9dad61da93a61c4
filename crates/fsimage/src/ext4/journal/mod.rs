//! The journal's replay, into an overlay.
//!
//! Whole transactions first, then the fast commits on top of them. Of the former three passes, as the kernel's `jbd2_journal_recover` has: find where the log ends, collect what is revoked, take
//! the newest copy of every block.

mod apply;
mod fast_commit;
mod format;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use postread_io::ReadAt;

use super::cache::Cached;
use super::changes::Changes;
use super::checksum::crc32_be;
use super::error::{Corrupt, Error, Fault, Result, Structure};
use super::filesystem::Ext4;
use super::map::{Extent, ExtentKind};
use super::overlay::{Copy, Overlay};
use fast_commit::{Change, Scan};
use format::{
    COMMIT, Checksums, Commit, DESCRIPTOR, Header, JournalSuperblock, MAGIC, REVOKE, revoked, tags, tail_is_right,
};

/// What a journal's replay did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Replay {
    /// Transactions replayed.
    pub transactions: u32,
    /// Blocks of the file system that now come from the journal.
    pub blocks: u64,
    /// Copies left out because a later transaction revoked them.
    pub revoked: u64,
    /// Fast commits replayed on top of the transactions.
    pub fast_commits: u32,
}

/// What a journal holds.
pub(super) struct Replayed {
    /// The file system's bytes after the whole transactions.
    pub(super) device: Arc<dyn ReadAt>,
    pub(super) replay: Replay,
    fast: Vec<Change>,
}

impl Replayed {
    /// What the fast commits change in `fs`, which is the file system on the replayed device.
    pub(super) fn changes(self, fs: &Ext4) -> Result<Option<Changes>> {
        if self.fast.is_empty() { Ok(None) } else { apply::apply(fs, self.fast).map(Some) }
    }
}

/// Replays the journal of a file system that needs it. Nothing where the journal is empty.
pub(super) fn replay(fs: &Ext4) -> Result<Option<Replayed>> {
    let ino = fs.superblock().journal_inode;
    if ino == 0 {
        return Err(Error::UnsupportedJournal("it lies on another device"));
    }
    let inode = fs.any_inode(ino)?;
    let block_size = fs.superblock().block_size;
    let extents: Vec<Extent> = fs.extents(&inode)?;
    let log = Log { fs, ino, extents };
    let first = log.block(0)?;
    let superblock = JournalSuperblock::parse(&first, fs.verifies_journal()).map_err(|fault| log.corrupt(0, fault))?;
    if superblock.block_size != block_size {
        let fault = Fault::Field { field: "the block size", value: superblock.block_size.into() };
        return Err(log.corrupt(0, fault).into());
    }
    if u64::from(superblock.len) * u64::from(block_size) > inode.size {
        let limit = inode.size / u64::from(block_size);
        let fault = Fault::Limit { field: "the number of blocks", value: superblock.len.into(), limit };
        return Err(log.corrupt(0, fault).into());
    }
    if superblock.start == 0 {
        return Ok(None);
    }
    let end = log.scan(&superblock)?;
    let (fast, fast_commits) = if superblock.fast_commit { log.fast_commits(&superblock, end)? } else { (vec![], 0) };
    let revoked = log.revoke_pass(&superblock, end)?;
    let (copies, left_out) = log.replay_pass(&superblock, end, &revoked)?;
    let transactions = end.wrapping_sub(superblock.sequence);
    let replay = Replay { transactions, blocks: copies.len() as u64, revoked: left_out, fast_commits };
    let overlay = Overlay::new(fs.device().clone(), block_size.into(), copies, MAGIC.to_be_bytes());
    Ok(Some(Replayed { device: Arc::new(overlay), replay, fast }))
}

/// Lays the fast commits in `area` over a file system, whatever transaction they are on top of and without verifying
/// them: what a fuzzer drives.
pub(super) fn changes_of(fs: &Ext4, area: &[u8]) -> Result<Changes> {
    let corrupt = |fault: Fault| fault.of(Structure::Journal);
    let sequence = area.get(8..12).map_or(0, |bytes| super::bytes::le32(bytes, 0));
    let mut scan = Scan::new(sequence, false);
    let mut go_on = true;
    for block in area.chunks(fs.superblock().block_size as usize) {
        go_on = go_on && scan.block(block).map_err(corrupt)?;
    }
    apply::apply(fs, scan.finish(go_on).map_err(corrupt)?.0)
}

/// The journal's blocks by their number in it.
struct Log<'a> {
    fs: &'a Ext4,
    ino: u32,
    extents: Vec<Extent>,
}

/// A position in the log, which is a ring.
struct Cursor<'a> {
    superblock: &'a JournalSuperblock,
    next: u32,
    /// Blocks until the ring has been gone round once.
    left: u32,
}

impl<'a> Cursor<'a> {
    fn new(superblock: &'a JournalSuperblock) -> Self {
        Self { superblock, next: superblock.start, left: superblock.end - superblock.first }
    }

    /// The number of the next block; nothing after a whole round.
    fn take(&mut self) -> Option<u32> {
        self.left = self.left.checked_sub(1)?;
        let block = self.next;
        self.next = if block + 1 >= self.superblock.end { self.superblock.first } else { block + 1 };
        Some(block)
    }
}

impl Log<'_> {
    fn corrupt(&self, block: u32, fault: Fault) -> Corrupt {
        let corrupt = fault.of(Structure::Journal).in_inode(self.ino);
        match self.place(block) {
            Some(block) => corrupt.in_block(block),
            None => corrupt,
        }
    }

    /// The block of the file system that block `block` of the journal is.
    fn place(&self, block: u32) -> Option<u64> {
        let block_size = u64::from(self.fs.superblock().block_size);
        let at = u64::from(block) * block_size;
        let extent = self.extents.get(self.extents.partition_point(|extent| extent.end() <= at))?;
        (extent.kind == ExtentKind::Written).then(|| (extent.physical + (at - extent.logical)) / block_size)
    }

    fn block(&self, block: u32) -> Result<Cached> {
        match self.place(block) {
            Some(place) => self.fs.block(place),
            None => {
                Err(self.corrupt(block, Fault::Field { field: "a block without a place", value: block.into() }).into())
            }
        }
    }

    fn take(&self, cursor: &mut Cursor<'_>) -> Result<u32> {
        let at = cursor.next;
        cursor.take().ok_or_else(|| self.corrupt(at, Fault::Rule("the log overtakes its own start")).into())
    }

    /// Finds the end of the log: the first sequence number that is not to be replayed.
    fn scan(&self, superblock: &JournalSuperblock) -> Result<u32> {
        let verify = self.fs.verifies_journal();
        let mut cursor = Cursor::new(superblock);
        let mut sequence = superblock.sequence;
        let mut crc = !0;
        let mut last_time = 0;
        // A block with a bad checksum may be a stale one from before, which ends the log, or a damaged one: the time
        // of the commit tells.
        let mut doubtful = false;
        while let Some(at) = cursor.take() {
            let block = self.block(at)?;
            let Some(header) = Header::parse(&block).filter(|header| header.sequence == sequence) else { break };
            match header.kind {
                DESCRIPTOR => {
                    doubtful |= verify && !tail_is_right(&block, superblock);
                    if superblock.checksums == Checksums::V1 {
                        crc = crc32_be(crc, &block);
                    }
                    for _ in tags(&block, superblock) {
                        let at = self.take(&mut cursor)?;
                        if superblock.checksums == Checksums::V1 {
                            crc = crc32_be(crc, &self.block(at)?);
                        }
                    }
                }
                REVOKE => doubtful |= verify && !tail_is_right(&block, superblock),
                COMMIT => {
                    let commit = Commit::parse(&block);
                    if doubtful {
                        if commit.time < last_time {
                            break;
                        }
                        return Err(self
                            .corrupt(at, Fault::Rule("a block of the transaction has a bad checksum"))
                            .into());
                    }
                    let right = commit.block_is_right(&block, superblock)
                        && (superblock.checksums != Checksums::V1 || commit.transaction_is_right(crc));
                    if verify && !right {
                        // An asynchronous commit may be on disk before what it commits: such a log ends here.
                        if commit.time < last_time || superblock.async_commit {
                            break;
                        }
                        return Err(self.corrupt(at, Fault::Rule("a commit block has a bad checksum")).into());
                    }
                    last_time = commit.time;
                    sequence = sequence.wrapping_add(1);
                    crc = !0;
                }
                _ => break,
            }
        }
        Ok(sequence)
    }

    /// The fast commits on top of the transactions before `end`. They lie behind the log; the block between belongs to
    /// neither.
    fn fast_commits(&self, superblock: &JournalSuperblock, end: u32) -> Result<(Vec<Change>, u32)> {
        let mut scan = Scan::new(end, self.fs.verifies_journal());
        let mut go_on = true;
        let mut at = superblock.end;
        while go_on && at + 1 < superblock.len {
            at += 1;
            go_on = scan.block(&self.block(at)?).map_err(|fault| self.corrupt(at, fault))?;
        }
        Ok(scan.finish(go_on).map_err(|fault| self.corrupt(at, fault))?)
    }

    /// Which blocks were revoked last by which transaction.
    fn revoke_pass(&self, superblock: &JournalSuperblock, end: u32) -> Result<HashMap<u64, u32>> {
        let mut cursor = Cursor::new(superblock);
        let mut sequence = superblock.sequence;
        let mut latest = HashMap::new();
        while sequence != end {
            let at = self.take(&mut cursor)?;
            let block = self.block(at)?;
            match self.kind(&block, at)? {
                DESCRIPTOR => {
                    for _ in tags(&block, superblock) {
                        self.take(&mut cursor)?;
                    }
                }
                REVOKE => {
                    for block in revoked(&block, superblock).map_err(|fault| self.corrupt(at, fault))? {
                        latest.insert(block, sequence);
                    }
                }
                _ => sequence = sequence.wrapping_add(1),
            }
        }
        Ok(latest)
    }

    /// Takes the newest copy of each block that was not revoked after it; tells how many were left out.
    fn replay_pass(
        &self,
        superblock: &JournalSuperblock,
        end: u32,
        revoked: &HashMap<u64, u32>,
    ) -> Result<(BTreeMap<u64, Copy>, u64)> {
        let verify = self.fs.verifies_journal();
        let limit = self.fs.superblock().blocks_count;
        let mut cursor = Cursor::new(superblock);
        let mut sequence = superblock.sequence;
        let mut copies = BTreeMap::new();
        let mut left_out = 0;
        while sequence != end {
            let at = self.take(&mut cursor)?;
            let block = self.block(at)?;
            match self.kind(&block, at)? {
                DESCRIPTOR => {
                    for tag in tags(&block, superblock) {
                        let at = self.take(&mut cursor)?;
                        // Sequence numbers wrap; a revocation holds for its own transaction and those before.
                        if revoked.get(&tag.block).is_some_and(|by| by.wrapping_sub(sequence) as i32 >= 0) {
                            left_out += 1;
                            continue;
                        }
                        let data = self.block(at)?;
                        if verify {
                            tag.verify(&data, sequence, superblock).map_err(|fault| self.corrupt(at, fault))?;
                        }
                        let place = self.place(at).filter(|_| tag.block < limit).ok_or_else(|| {
                            self.corrupt(at, Fault::Limit { field: "a block number", value: tag.block, limit })
                        })?;
                        copies.insert(tag.block, Copy { block: place, escaped: tag.escaped });
                    }
                }
                REVOKE => {}
                _ => sequence = sequence.wrapping_add(1),
            }
        }
        Ok((copies, left_out))
    }

    /// The kind of a block that the scan has found to be one of the journal's own.
    fn kind(&self, block: &[u8], at: u32) -> Result<u32> {
        match Header::parse(block) {
            Some(header) => Ok(header.kind),
            None => Err(self.corrupt(at, Fault::Rule("the log changed while it was read")).into()),
        }
    }
}
