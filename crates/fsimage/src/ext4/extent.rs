//! Nodes of extent trees.
//!
//! Layout from the kernel's documentation, `Documentation/filesystems/ext4/ifork.rst`.

use super::bytes::{join, le16, le32, to_u64};
use super::checksum::crc32c;
use super::error::Fault;

/// The magic number of a node.
pub const EXTENT_MAGIC: u16 = 0xf30a;

/// A tree is never deeper than this.
pub const EXTENT_MAX_DEPTH: u16 = 5;

/// A length above this marks an extent whose blocks are allocated but not written.
const EXTENT_MAX_LEN: u32 = 32768;

const ENTRY: usize = 12;

/// A run of blocks, in blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RawExtent {
    /// First block of the file.
    pub logical: u64,
    /// Number of blocks.
    pub len: u64,
    /// First block of the file system.
    pub physical: u64,
    /// Allocated but not written: reads as zeros.
    pub unwritten: bool,
}

impl RawExtent {
    pub(crate) fn end(&self) -> u64 {
        self.logical.saturating_add(self.len)
    }

    /// From an entry of a leaf, of 12 bytes.
    pub(crate) fn parse(entry: &[u8]) -> Self {
        let len = u32::from(le16(entry, 4));
        let unwritten = len.checked_sub(EXTENT_MAX_LEN).filter(|&rest| rest > 0);
        Self {
            logical: le32(entry, 0).into(),
            len: unwritten.unwrap_or(len).into(),
            physical: join(le32(entry, 8), le16(entry, 6).into()),
            unwritten: unwritten.is_some(),
        }
    }

    /// The rest of it, without its first blocks.
    pub(crate) fn without(self, blocks: u64) -> Self {
        Self {
            logical: self.logical.saturating_add(blocks),
            physical: self.physical.saturating_add(blocks),
            len: self.len.saturating_sub(blocks),
            ..self
        }
    }

    /// The part of it before file block `end`, if there is any.
    pub(crate) fn before(self, end: u64) -> Option<Self> {
        let len = self.len.min(end.checked_sub(self.logical)?);
        (len > 0).then_some(Self { len, ..self })
    }
}

/// An entry of an inner node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExtentIndex {
    /// First block of the file that the child covers.
    pub(crate) logical: u64,
    /// The child's block.
    pub(crate) child: u64,
}

/// A parsed header. Entries are read from the node's bytes when they are needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExtentHeader {
    pub(crate) entries: u16,
    pub(crate) max: u16,
    pub(crate) depth: u16,
}

impl ExtentHeader {
    fn parse(bytes: &[u8]) -> Result<Self, Fault> {
        if bytes.len() < ENTRY {
            return Err(Fault::Truncated { len: bytes.len(), needed: ENTRY });
        }
        let magic = le16(bytes, 0);
        if magic != EXTENT_MAGIC {
            return Err(Fault::Magic { found: magic.into(), wanted: EXTENT_MAGIC.into() });
        }
        let header = Self { entries: le16(bytes, 2), max: le16(bytes, 4), depth: le16(bytes, 6) };
        let room = to_u64((bytes.len() / ENTRY).saturating_sub(1));
        for (field, value, first, last) in [
            ("the room for entries", header.max, 1, room),
            ("the number of entries", header.entries, 0, header.max.into()),
            ("the depth", header.depth, 0, EXTENT_MAX_DEPTH.into()),
        ] {
            let value = u64::from(value);
            if !(first..=last).contains(&value) {
                return Err(Fault::Range { field, value, first, last });
            }
        }
        Ok(header)
    }
}

/// Checks a node and everything in it: order, agreement with its parent, and whether the blocks can be a file's, which
/// `allow(logical, physical, blocks)` judges. `parent` is the depth that the parent implies, and the file block that its
/// entry for this node begins with; nothing for the root.
pub(crate) fn check_node(
    bytes: &[u8],
    parent: Option<(u16, u64)>,
    allow: impl Fn(u64, u64, u64) -> Result<(), Fault>,
) -> Result<ExtentHeader, Fault> {
    let header = ExtentHeader::parse(bytes)?;
    let mut from = 0;
    if let Some((depth, start)) = parent {
        if header.depth != depth {
            let (value, depth) = (header.depth.into(), depth.into());
            return Err(Fault::Range { field: "the depth", value, first: depth, last: depth });
        }
        if header.entries > 0 && first_block(bytes) != start {
            let value = first_block(bytes);
            return Err(Fault::Range { field: "the first file block", value, first: start, last: start });
        }
        from = start;
    }
    if header.depth > 0 && header.entries == 0 {
        return Err(Fault::Rule("an inner node without entries"));
    }
    for i in 0..header.entries {
        let (logical, next, physical, blocks) = if header.depth == 0 {
            let extent = leaf_entry(bytes, i);
            // The last block that 32 bits can number is no file's.
            if extent.len == 0 || extent.end() > u32::MAX.into() {
                return Err(Fault::Field { field: "the number of blocks of an extent", value: extent.len });
            }
            (extent.logical, extent.end(), extent.physical, extent.len)
        } else {
            let index = index_entry(bytes, i);
            (index.logical, index.logical.saturating_add(1), index.child, 1)
        };
        if logical < from {
            return Err(Fault::Range { field: "a file block", value: logical, first: from, last: u32::MAX.into() });
        }
        allow(logical, physical, blocks)?;
        from = next;
    }
    Ok(header)
}

/// The file block that the first entry begins with.
fn first_block(bytes: &[u8]) -> u64 {
    le32(bytes, ENTRY).into()
}

fn entry_at(i: u16) -> usize {
    ENTRY.saturating_mul(usize::from(i).saturating_add(1))
}

/// Entry `i` of a leaf.
pub(crate) fn leaf_entry(bytes: &[u8], i: u16) -> RawExtent {
    RawExtent::parse(&bytes[entry_at(i)..])
}

/// Entry `i` of an inner node.
pub(crate) fn index_entry(bytes: &[u8], i: u16) -> ExtentIndex {
    let entry = &bytes[entry_at(i)..];
    ExtentIndex { logical: le32(entry, 0).into(), child: join(le32(entry, 4), le16(entry, 8).into()) }
}

/// Verifies the checksum after the room for entries of a node that is a block of its own.
pub(crate) fn verify_node(bytes: &[u8], seed: u32) -> Result<(), Fault> {
    let header = ExtentHeader::parse(bytes)?;
    let tail = entry_at(header.max);
    if bytes.len() < tail.saturating_add(4) {
        return Err(Fault::Truncated { len: bytes.len(), needed: tail.saturating_add(4) });
    }
    let (found, wanted) = (le32(bytes, tail), crc32c(seed, &bytes[..tail]));
    if found == wanted { Ok(()) } else { Err(Fault::Checksum { found, wanted }) }
}

/// Parses a node that is a block of its own or an inode's block map (60 bytes) and returns its extents, none for an inner
/// node: an entry point for fuzzers. `blocks` is the file system's size.
pub fn parse_extent_node(bytes: &[u8], blocks: u64) -> Option<Vec<RawExtent>> {
    let inside = |_, physical: u64, count| match physical.checked_add(count) {
        Some(end) if physical > 0 && end <= blocks => Ok(()),
        _ => Err(Fault::Field { field: "a block number", value: physical }),
    };
    let header = check_node(bytes, None, inside).ok()?;
    match header.depth {
        0 => Some((0..header.entries).map(|i| leaf_entry(bytes, i)).collect()),
        _ => Some(Vec::new()),
    }
}
