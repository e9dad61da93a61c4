//! The journal's structures, all big-endian.
//!
//! Layout from the kernel's documentation, `Documentation/filesystems/ext4/journal.rst`.

use crate::ext4::bytes::{be16, be32, be64, join, to_u64, to_usize};
use crate::ext4::checksum::crc32c;
use crate::ext4::error::Fault;

/// The magic number at the start of every block of the journal's own.
pub(crate) const MAGIC: u32 = 0xc03b_3998;

pub(crate) const DESCRIPTOR: u32 = 1;
pub(crate) const COMMIT: u32 = 2;
pub(crate) const REVOKE: u32 = 5;

const SUPERBLOCK_V1: u32 = 3;
const SUPERBLOCK_V2: u32 = 4;

const COMPAT_CHECKSUM: u32 = 0x1;
const INCOMPAT_REVOKE: u32 = 0x1;
const INCOMPAT_64BIT: u32 = 0x2;
const INCOMPAT_ASYNC_COMMIT: u32 = 0x4;
const INCOMPAT_CSUM_V2: u32 = 0x8;
const INCOMPAT_CSUM_V3: u32 = 0x10;
const INCOMPAT_FAST_COMMIT: u32 = 0x20;
const INCOMPAT_KNOWN: u32 = 0x3f;

/// A journal smaller than this keeps no blocks for fast commits (`JBD2_MIN_JOURNAL_BLOCKS`).
const MIN_BLOCKS: u32 = 1024;

/// Blocks for fast commits if the superblock gives no number (`JBD2_DEFAULT_FAST_COMMIT_BLOCKS`).
const DEFAULT_FAST_COMMIT_BLOCKS: u32 = 256;

/// How the blocks of a journal are protected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Checksums {
    None,
    /// CRC-32 over a whole transaction, in the commit block.
    V1,
    /// CRC-32C in every block; of data the low 16 bits, in the tag.
    V2,
    /// CRC-32C in every block; of data in the tag.
    V3,
}

/// The journal's superblock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct JournalSuperblock {
    pub(crate) block_size: u32,
    /// Blocks of the journal.
    pub(crate) len: u32,
    /// First block of the log, and the one after its last.
    pub(crate) first: u32,
    pub(crate) end: u32,
    /// First transaction to replay, and its block; 0 when there is nothing to replay.
    pub(crate) sequence: u32,
    pub(crate) start: u32,
    pub(crate) bit64: bool,
    pub(crate) async_commit: bool,
    pub(crate) fast_commit: bool,
    pub(crate) checksums: Checksums,
    pub(crate) seed: u32,
}

impl JournalSuperblock {
    pub(crate) fn parse(bytes: &[u8], verify: bool) -> Result<Self, Fault> {
        if bytes.len() < 1024 {
            return Err(Fault::Truncated { len: bytes.len(), needed: 1024 });
        }
        let bytes = &bytes[..1024];
        if be32(bytes, 0) != MAGIC {
            return Err(Fault::Magic { found: be32(bytes, 0), wanted: MAGIC });
        }
        let version = be32(bytes, 4);
        let (compat, incompat) = match version {
            SUPERBLOCK_V1 => (0, 0),
            SUPERBLOCK_V2 => (be32(bytes, 36), be32(bytes, 40)),
            _ => return Err(Fault::Field { field: "the block type", value: version.into() }),
        };
        if incompat & !INCOMPAT_KNOWN != 0 {
            return Err(Fault::Field { field: "the unknown feature bits", value: (incompat & !INCOMPAT_KNOWN).into() });
        }
        let checksums = match (incompat & INCOMPAT_CSUM_V2 != 0, incompat & INCOMPAT_CSUM_V3 != 0) {
            (true, true) => return Err(Fault::Rule("checksums of both version 2 and 3")),
            (true, false) => Checksums::V2,
            (false, true) => Checksums::V3,
            (false, false) if compat & COMPAT_CHECKSUM != 0 => Checksums::V1,
            (false, false) => Checksums::None,
        };
        if matches!(checksums, Checksums::V2 | Checksums::V3) {
            if bytes[80] != 4 {
                return Err(Fault::Field { field: "the checksum type", value: bytes[80].into() });
            }
            let found = be32(bytes, 252);
            let wanted = crc32c(crc32c(crc32c(!0, &bytes[..252]), &[0; 4]), &bytes[256..]);
            if verify && found != wanted {
                return Err(Fault::Checksum { found, wanted });
            }
        }
        let (len, first) = (be32(bytes, 16), be32(bytes, 20));
        let fast_commit = incompat & INCOMPAT_FAST_COMMIT != 0;
        let mut end = len;
        if fast_commit {
            let blocks = match be32(bytes, 84) {
                0 => DEFAULT_FAST_COMMIT_BLOCKS,
                blocks => blocks,
            };
            if let Some(left) = len.checked_sub(blocks).filter(|&left| left >= MIN_BLOCKS) {
                end = left;
            }
        }
        let start = be32(bytes, 28);
        let last = end.saturating_sub(1);
        if first == 0 || first > last {
            return Err(Fault::Range { field: "the first block", value: first.into(), first: 1, last: last.into() });
        }
        if start != 0 && !(first..=last).contains(&start) {
            let (first, last) = (first.into(), last.into());
            return Err(Fault::Range { field: "the block to start with", value: start.into(), first, last });
        }
        // Old journals have no revoke blocks; the layout is the same.
        let _ = INCOMPAT_REVOKE;
        Ok(Self {
            block_size: be32(bytes, 12),
            len,
            first,
            end,
            sequence: be32(bytes, 24),
            start,
            bit64: incompat & INCOMPAT_64BIT != 0,
            async_commit: incompat & INCOMPAT_ASYNC_COMMIT != 0,
            fast_commit,
            checksums,
            seed: crc32c(!0, &bytes[48..64]),
        })
    }

    /// True if every block of the journal's own has a checksum.
    pub(crate) fn block_checksums(&self) -> bool {
        matches!(self.checksums, Checksums::V2 | Checksums::V3)
    }

    fn tag_len(&self) -> usize {
        match (self.checksums, self.bit64) {
            (Checksums::V3, _) => 16,
            (Checksums::V2, true) => 14,
            (Checksums::V2, false) => 10,
            (_, true) => 12,
            (_, false) => 8,
        }
    }
}

/// The 12 bytes that begin each block of the journal's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: u32,
    pub(crate) sequence: u32,
}

impl Header {
    /// Nothing if the block is not one of the journal's own.
    pub(crate) fn parse(block: &[u8]) -> Option<Self> {
        (block.len() >= 12 && be32(block, 0) == MAGIC).then(|| Self { kind: be32(block, 4), sequence: be32(block, 8) })
    }
}

/// The record in a descriptor block of one of the data blocks after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tag {
    /// The file system's block.
    pub(crate) block: u64,
    pub(crate) escaped: bool,
    checksum: u32,
}

/// All tags of a descriptor block.
pub(crate) fn tags(block: &[u8], journal: &JournalSuperblock) -> Vec<Tag> {
    let (tag_len, v3) = (journal.tag_len(), journal.checksums == Checksums::V3);
    let mut rest = &without_tail(block, journal)[12..];
    let mut out = Vec::new();
    while rest.len() >= tag_len {
        let (checksum, flags) = match v3 {
            true => (be32(rest, 12), be32(rest, 4)),
            false => (be16(rest, 4).into(), be16(rest, 6).into()),
        };
        let high = if journal.bit64 { be32(rest, 8) } else { 0 };
        out.push(Tag { block: join(be32(rest, 0), high), escaped: flags & 1 != 0, checksum });
        // Bit 1: the UUID is the same as before, else 16 bytes of it follow. Bit 3: the last tag.
        let uuid = if flags & 2 == 0 { 16 } else { 0 };
        rest = rest.get(tag_len.saturating_add(uuid)..).unwrap_or_default();
        if flags & 8 != 0 {
            break;
        }
    }
    out
}

/// A block of the journal's own without the checksum at its end, if there is one.
fn without_tail<'b>(block: &'b [u8], journal: &JournalSuperblock) -> &'b [u8] {
    match block.split_last_chunk::<4>() {
        Some((rest, _)) if journal.block_checksums() => rest,
        _ => block,
    }
}

impl Tag {
    /// Verifies the data block as it is in the journal.
    pub(crate) fn verify(&self, data: &[u8], sequence: u32, journal: &JournalSuperblock) -> Result<(), Fault> {
        let mut wanted = crc32c(crc32c(journal.seed, &sequence.to_be_bytes()), data);
        match journal.checksums {
            Checksums::V3 => {}
            Checksums::V2 => wanted &= 0xffff,
            Checksums::V1 | Checksums::None => return Ok(()),
        }
        if self.checksum == wanted { Ok(()) } else { Err(Fault::Checksum { found: self.checksum, wanted }) }
    }
}

/// True if the checksum at the end of a descriptor or revoke block is right, or there is none.
pub(crate) fn tail_is_right(block: &[u8], journal: &JournalSuperblock) -> bool {
    let rest = without_tail(block, journal);
    let Some(tail) = block[rest.len()..].first_chunk() else { return true };
    u32::from_be_bytes(*tail) == crc32c(crc32c(journal.seed, rest), &[0; 4])
}

/// The blocks that a revoke block names.
pub(crate) fn revoked(block: &[u8], journal: &JournalSuperblock) -> Result<Vec<u64>, Fault> {
    let records = without_tail(block, journal);
    let used = be32(block, 12);
    let Some(records) = records.get(..to_usize(used)) else {
        let limit = to_u64(records.len());
        return Err(Fault::Limit { field: "the bytes of revoke records", value: used.into(), limit });
    };
    let len = if journal.bit64 { 8 } else { 4 };
    let records = records.get(16..).unwrap_or_default().chunks_exact(len);
    Ok(records.map(|record| if len == 8 { be64(record, 0) } else { be32(record, 0).into() }).collect())
}

/// A commit block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Commit {
    /// Seconds since 1970.
    pub(crate) time: u64,
    kind: u8,
    size: u8,
    checksum: u32,
}

impl Commit {
    pub(crate) fn parse(block: &[u8]) -> Self {
        Self { time: be64(block, 48), kind: block[12], size: block[13], checksum: be32(block, 16) }
    }

    /// True if the block's own checksum is right, or there is none.
    pub(crate) fn block_is_right(&self, block: &[u8], journal: &JournalSuperblock) -> bool {
        let wanted = || crc32c(crc32c(crc32c(journal.seed, &block[..16]), &[0; 4]), &block[20..]);
        !journal.block_checksums() || self.checksum == wanted()
    }

    /// True if the transaction's CRC-32 is right, or there is none.
    pub(crate) fn transaction_is_right(&self, crc: u32) -> bool {
        (self.kind, self.size, self.checksum) == (1, 4, crc) || (self.kind, self.size, self.checksum) == (0, 0, 0)
    }
}
