//! Nodes of extent trees.
//!
//! Layout from the kernel's documentation, `Documentation/filesystems/ext4/ifork.rst`.

use super::bytes::{join, le16, le32};
use super::checksum::crc32c;
use super::error::Fault;

/// The magic number of a node.
pub const EXTENT_MAGIC: u16 = 0xf30a;

/// A tree is never deeper than this.
pub const EXTENT_MAX_DEPTH: u16 = 5;

/// Lengths above this mean an extent whose blocks are allocated but not written.
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
        self.logical + self.len
    }
}

/// What an entry of an inner node points to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExtentIndex {
    /// First block of the file that the child covers.
    pub(crate) logical: u64,
    /// The child's block.
    pub(crate) child: u64,
}

/// The limits that a node has to keep, from its parent and the file system.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NodeLimits {
    /// The depth that the parent implies; none for the root.
    pub(crate) depth: Option<u16>,
    /// Blocks of the file that the node may map.
    pub(crate) logical: (u64, u64),
    /// First and end block of the file system.
    pub(crate) physical: (u64, u64),
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
        let limit = (bytes.len() / ENTRY - 1) as u64;
        for (field, value, limit) in [
            ("the room for entries", u64::from(header.max), limit),
            ("the number of entries", u64::from(header.entries), u64::from(header.max)),
            ("the depth", u64::from(header.depth), u64::from(EXTENT_MAX_DEPTH)),
        ] {
            if value > limit {
                return Err(Fault::Limit { field, value, limit });
            }
        }
        Ok(header)
    }
}

/// Checks a node and everything in it: order, ranges, depth.
pub(crate) fn check_node(bytes: &[u8], limits: NodeLimits) -> Result<ExtentHeader, Fault> {
    let header = ExtentHeader::parse(bytes)?;
    if let Some(depth) = limits.depth {
        if header.depth != depth {
            return Err(Fault::Limit { field: "the depth", value: header.depth.into(), limit: depth.into() });
        }
        if depth > 0 && header.entries == 0 {
            return Err(Fault::Rule("an inner node without entries"));
        }
    }
    let (mut from, end) = limits.logical;
    for i in 0..header.entries {
        let (logical, next, physical, blocks) = if header.depth == 0 {
            let extent = leaf_entry(bytes, i);
            if extent.len == 0 {
                return Err(Fault::Rule("an extent without blocks"));
            }
            (extent.logical, extent.end(), extent.physical, extent.len)
        } else {
            let index = index_entry(bytes, i);
            (index.logical, index.logical + 1, index.child, 1)
        };
        if logical < from || next > end {
            return Err(Fault::Limit { field: "a file block (out of order or range)", value: logical, limit: end });
        }
        if physical < limits.physical.0 || blocks > limits.physical.1 || physical > limits.physical.1 - blocks {
            return Err(Fault::Limit { field: "a block number", value: physical, limit: limits.physical.1 });
        }
        from = next;
    }
    Ok(header)
}

/// Entry `i` of a leaf.
pub(crate) fn leaf_entry(bytes: &[u8], i: u16) -> RawExtent {
    let at = ENTRY * (1 + usize::from(i));
    let len = u32::from(le16(bytes, at + 4));
    let unwritten = len > EXTENT_MAX_LEN;
    RawExtent {
        logical: le32(bytes, at).into(),
        len: (if unwritten { len - EXTENT_MAX_LEN } else { len }).into(),
        physical: join(le32(bytes, at + 8), le16(bytes, at + 6).into()),
        unwritten,
    }
}

/// Entry `i` of an inner node.
pub(crate) fn index_entry(bytes: &[u8], i: u16) -> ExtentIndex {
    let at = ENTRY * (1 + usize::from(i));
    ExtentIndex { logical: le32(bytes, at).into(), child: join(le32(bytes, at + 4), le16(bytes, at + 8).into()) }
}

/// Verifies the checksum behind the room for entries of a node that is a block of its own.
pub(crate) fn verify_node(bytes: &[u8], seed: u32) -> Result<(), Fault> {
    let header = ExtentHeader::parse(bytes)?;
    let tail = ENTRY * (1 + usize::from(header.max));
    if tail + 4 > bytes.len() {
        return Err(Fault::Truncated { len: bytes.len(), needed: tail + 4 });
    }
    let (found, wanted) = (le32(bytes, tail), crc32c(seed, &bytes[..tail]));
    if found == wanted { Ok(()) } else { Err(Fault::Checksum { found, wanted }) }
}

/// Parses a node that is a block of its own or an inode's block map (60 bytes) and returns its extents, or nothing
/// for an inner node: what a fuzzer drives. `blocks` is the file system's size.
pub fn parse_extent_node(bytes: &[u8], blocks: u64) -> Option<Vec<RawExtent>> {
    let limits = NodeLimits { depth: None, logical: (0, 1 << 32), physical: (1, blocks) };
    let header = check_node(bytes, limits).ok()?;
    match header.depth {
        0 => Some((0..header.entries).map(|i| leaf_entry(bytes, i)).collect()),
        _ => Some(Vec::new()),
    }
}
