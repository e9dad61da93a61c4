//! Replaying the journal, into an overlay.
//!
//! Whole transactions first, then the fast commits on top of them. The transactions take three passes, as in the kernel's
//! `jbd2_journal_recover`: find where the log ends, collect what is revoked, take the newest copy of every block.

mod apply;
mod device;
mod fast_commit;
mod format;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use postread_io::ReadAt;

use super::bytes::{le32, to_u64};
use super::cache::{Cache, Cached};
use super::changes::Changes;
use super::checksum::crc32_be;
use super::error::{Corrupt, Error, Fault, Result, Structure};
use super::features::Compat;
use super::filesystem::Ext4;
use super::map::{Extent, ExtentKind};
use super::overlay::{Copy, Overlay};
use super::replay::Replay;
use fast_commit::{Change, Scan};
use format::{
    COMMIT, Checksums, Commit, DESCRIPTOR, Header, JournalSuperblock, MAGIC, REVOKE, revoked, tags, tail_is_right,
};

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

/// Checks that `device` is the one that the journal of `fs` is on.
pub(super) fn check_device(fs: &Ext4, device: &dyn ReadAt) -> Result<()> {
    device::blocks(fs, device).map(|_| ())
}

/// Replays the journal of a file system. Nothing if the journal is empty, or if there is none.
pub(super) fn replay(fs: &Ext4, device: Option<&Arc<dyn ReadAt>>) -> Result<Option<Replayed>> {
    let superblock = fs.superblock();
    if !superblock.compat.contains(Compat::HAS_JOURNAL) {
        return Ok(None);
    }
    let block_size = fs.block_size();
    let (log, at, limit) = if superblock.journal_inode != 0 {
        let inode = fs.any_inode(superblock.journal_inode)?;
        let place = Place::Inode(inode.ino, fs.extents(&inode)?);
        (Log { fs, place }, 0, inode.size.checked_div(block_size).unwrap_or(0))
    } else if let Some(device) = device {
        let blocks = device::blocks(fs, &**device)?;
        let place = Place::Device { cache: Box::new(Cache::new(device.clone(), 0)), blocks };
        // After the block with the superblock of the device.
        (Log { fs, place }, if block_size > 1024 { 1 } else { 2 }, blocks)
    } else if superblock.needs_recovery() {
        return Err(Error::ExternalJournal { uuid: superblock.journal_uuid });
    } else {
        return Ok(None);
    };
    let first = log.block(at)?;
    let journal = JournalSuperblock::parse(&first, fs.wants_checksums()).map_err(|fault| log.corrupt(at, fault))?;
    if u64::from(journal.block_size) != block_size {
        let fault = Fault::Range {
            field: "the block size",
            value: journal.block_size.into(),
            first: block_size,
            last: block_size,
        };
        return Err(log.corrupt(at, fault).into());
    }
    if u64::from(journal.len) > limit {
        let fault = Fault::Limit { field: "the number of blocks", value: journal.len.into(), limit };
        return Err(log.corrupt(at, fault).into());
    }
    if journal.start == 0 {
        return Ok(None);
    }
    let end = log.scan(&journal)?;
    let (fast, fast_commits) = if journal.fast_commit { log.fast_commits(&journal, end)? } else { (vec![], 0) };
    let revoked = log.revoke_pass(&journal, end)?;
    let (copies, left_out) = log.replay_pass(&journal, end, &revoked)?;
    let transactions = end.wrapping_sub(journal.sequence);
    let replay = Replay { transactions, blocks: to_u64(copies.len()), revoked: left_out, fast_commits };
    let source = match &log.place {
        Place::Inode(..) => fs.device(),
        Place::Device { cache, .. } => cache.source(),
    };
    let overlay = Overlay::new(fs.device().clone(), source.clone(), block_size, copies, MAGIC.to_be_bytes());
    Ok(Some(Replayed { device: Arc::new(overlay), replay, fast }))
}

/// Lays the fast commits in `area` over a file system, whatever transaction they are on top of and without verifying
/// them: an entry point for fuzzers.
pub(super) fn changes_of(fs: &Ext4, area: &[u8]) -> Result<Changes> {
    let corrupt = |fault: Fault| fault.of(Structure::Journal);
    let sequence = area.get(8..12).map_or(0, |bytes| le32(bytes, 0));
    let mut scan = Scan::new(sequence, false);
    let mut go_on = true;
    for block in area.chunks(usize::try_from(fs.block_size()).unwrap_or(usize::MAX)) {
        go_on = go_on && scan.block(block).map_err(corrupt)?;
    }
    apply::apply(fs, scan.finish(go_on).map_err(corrupt)?.0)
}

/// The journal's blocks by their number in it.
struct Log<'a> {
    fs: &'a Ext4,
    place: Place,
}

/// Where a journal is.
enum Place {
    /// In an inode of the file system.
    Inode(u32, Vec<Extent>),
    /// On a device of its own, whose blocks are the journal's.
    Device { cache: Box<Cache>, blocks: u64 },
}

/// A position in the log, which is a ring.
struct Cursor<'a> {
    superblock: &'a JournalSuperblock,
    next: u32,
    /// Blocks until the ring is complete.
    left: u32,
}

impl<'a> Cursor<'a> {
    fn new(superblock: &'a JournalSuperblock) -> Self {
        let left = superblock.end.saturating_sub(superblock.first);
        Self { superblock, next: superblock.start, left }
    }

    /// The number of the next block; nothing after a whole round.
    fn take(&mut self) -> Option<u32> {
        self.left = self.left.checked_sub(1)?;
        let block = self.next;
        let next = block.saturating_add(1);
        self.next = if next >= self.superblock.end { self.superblock.first } else { next };
        Some(block)
    }
}

impl Log<'_> {
    fn corrupt(&self, block: u32, fault: Fault) -> Corrupt {
        let corrupt = fault.of(Structure::Journal);
        let corrupt = match self.place {
            Place::Inode(ino, _) => corrupt.in_inode(ino),
            Place::Device { .. } => corrupt,
        };
        match self.find(block) {
            Some(block) => corrupt.in_block(block),
            None => corrupt,
        }
    }

    /// The block of the file system, or of the journal's device, that block `block` of the journal is.
    fn find(&self, block: u32) -> Option<u64> {
        match &self.place {
            Place::Inode(_, extents) => {
                let block_size = self.fs.block_size();
                let at = u64::from(block).saturating_mul(block_size);
                let extent = extents.get(extents.partition_point(|extent| extent.end() <= at))?;
                let byte = extent.physical.saturating_add(at.saturating_sub(extent.logical));
                (extent.kind == ExtentKind::Written).then(|| byte.checked_div(block_size)).flatten()
            }
            Place::Device { blocks, .. } => Some(block.into()).filter(|block| block < blocks),
        }
    }

    fn block(&self, block: u32) -> Result<Cached> {
        let Some(place) = self.find(block) else {
            return Err(self
                .corrupt(block, Fault::Field { field: "a block without a place", value: block.into() })
                .into());
        };
        match &self.place {
            Place::Inode(..) => self.fs.block(place),
            Place::Device { cache, .. } => {
                let offset = place.saturating_mul(self.fs.block_size());
                let len = usize::try_from(self.fs.block_size()).unwrap_or(usize::MAX);
                cache.read(offset, len).map_err(|source| Error::Io { offset, len, source })
            }
        }
    }

    fn take(&self, cursor: &mut Cursor<'_>) -> Result<u32> {
        let at = cursor.next;
        cursor.take().ok_or_else(|| self.corrupt(at, Fault::Rule("the log overtakes its own start")).into())
    }

    /// Finds the end of the log: the first sequence number that is not to be replayed.
    fn scan(&self, superblock: &JournalSuperblock) -> Result<u32> {
        let verify = self.fs.wants_checksums();
        let mut cursor = Cursor::new(superblock);
        let mut sequence = superblock.sequence;
        let mut crc = !0;
        let mut last_time = 0;
        // A block with a wrong checksum is either a stale one from before, which ends the log, or a damaged one: the
        // time of the commit decides.
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
                        return Err(self.corrupt(at, Fault::WrongChecksum("a block of the transaction")).into());
                    }
                    let right = commit.block_is_right(&block, superblock)
                        && (superblock.checksums != Checksums::V1 || commit.transaction_is_right(crc));
                    if verify && !right {
                        // An asynchronous commit may be on disk before what it commits: such a log ends here.
                        if commit.time < last_time || superblock.async_commit {
                            break;
                        }
                        return Err(self.corrupt(at, Fault::WrongChecksum("a commit block")).into());
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

    /// The fast commits on top of the transactions before `end`. They follow the log; the block between belongs to
    /// neither.
    fn fast_commits(&self, superblock: &JournalSuperblock, end: u32) -> Result<(Vec<Change>, u32)> {
        let mut scan = Scan::new(end, self.fs.wants_checksums());
        let mut go_on = true;
        let mut at = superblock.end;
        while go_on && at.saturating_add(1) < superblock.len {
            at = at.saturating_add(1);
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

    /// Takes the newest copy of each block that was not revoked after it; gives how many were left out too.
    fn replay_pass(
        &self,
        superblock: &JournalSuperblock,
        end: u32,
        revoked: &HashMap<u64, u32>,
    ) -> Result<(BTreeMap<u64, Copy>, u64)> {
        let verify = self.fs.wants_checksums();
        let limit = self.fs.superblock().blocks_count;
        let mut cursor = Cursor::new(superblock);
        let mut sequence = superblock.sequence;
        let mut copies = BTreeMap::new();
        let mut left_out = 0u64;
        while sequence != end {
            let at = self.take(&mut cursor)?;
            let block = self.block(at)?;
            match self.kind(&block, at)? {
                DESCRIPTOR => {
                    for tag in tags(&block, superblock) {
                        let at = self.take(&mut cursor)?;
                        // Sequence numbers wrap; a revocation holds for its own transaction and those before.
                        if revoked
                            .get(&tag.block)
                            .is_some_and(|by| !by.wrapping_sub(sequence).cast_signed().is_negative())
                        {
                            left_out = left_out.saturating_add(1);
                            continue;
                        }
                        let data = self.block(at)?;
                        if verify {
                            tag.verify(&data, sequence, superblock).map_err(|fault| self.corrupt(at, fault))?;
                        }
                        let place = self.find(at).filter(|_| tag.block < limit).ok_or_else(|| {
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
            None => Err(self.corrupt(at, Fault::Rule("the log changed while it was being read")).into()),
        }
    }
}
