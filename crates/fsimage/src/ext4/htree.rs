//! Index blocks of hashed directories. To a reader that goes through all blocks they look like blocks without
//! entries (the first one holds `.` and `..`), so only their checksums matter here.
//!
//! Layout from the kernel's documentation, `Documentation/filesystems/ext4/directory.rst`.

use super::bytes::{le16, le32};
use super::checksum::crc32c;
use super::error::Fault;

/// The index's root as it describes itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct HtreeRoot {
    /// 0 legacy, 1 half MD4, 2 TEA, plus 3 where characters are unsigned; 6 SipHash.
    pub hash_version: u8,
    /// Levels of inner nodes below the root.
    pub indirect_levels: u8,
}

/// Parses block 0 of a hashed directory.
pub fn parse_htree_root(block: &[u8]) -> Option<HtreeRoot> {
    let valid = block.len() >= 1024 && le16(block, 4) == 12 && le32(block, 24) == 0 && block[29] == 8;
    valid.then(|| HtreeRoot { hash_version: block[28], indirect_levels: block[30] })
}

/// True for an inner node: one unused entry takes the whole block.
pub(crate) fn is_node(block: &[u8]) -> bool {
    let rec_len = usize::from(le16(block, 4));
    le32(block, 0) == 0 && (rec_len == block.len() || (block.len() == 1 << 16 && matches!(rec_len, 0 | 0xffff)))
}

/// Verifies the checksum of an index block, the root (`root`) or a node.
pub(crate) fn verify(block: &[u8], root: bool, seed: u32) -> Result<(), Fault> {
    if root && parse_htree_root(block).is_none() {
        return Err(Fault::Rule("the index root does not describe itself as one"));
    }
    let at = if root { 32 } else { 8 };
    let (limit, count) = (usize::from(le16(block, at)), usize::from(le16(block, at + 2)));
    let tail = at + 8 * limit;
    if tail + 8 > block.len() {
        return Err(Fault::Limit { field: "the room for entries", value: limit as u64, limit: block.len() as u64 / 8 });
    }
    if count > limit {
        return Err(Fault::Limit { field: "the number of entries", value: count as u64, limit: limit as u64 });
    }
    // The entries in use, then the tail with its checksum taken as zero.
    let crc = crc32c(crc32c(seed, &block[..at + 8 * count]), &block[tail..tail + 4]);
    let (found, wanted) = (le32(block, tail + 4), crc32c(crc, &[0; 4]));
    if found == wanted { Ok(()) } else { Err(Fault::Checksum { found, wanted }) }
}
