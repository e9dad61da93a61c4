//! Index blocks of hashed directories. To a reader of all blocks they look like blocks without entries (the first one
//! holds `.` and `..`). Only their checksums matter here, and where the index expects names.
//!
//! Layout from the kernel's documentation, `Documentation/filesystems/ext4/directory.rst`.

use super::bytes::{le16, le32, to_u64};
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

/// Where the entries of a root and of an inner node start.
const ROOT_ENTRIES: usize = 32;
const NODE_ENTRIES: usize = 8;

/// The entries of an index block: the lowest hash of the names beneath each, and its block. Nothing if the block does not
/// have the form of one; Linux then goes through the directory without the index.
pub(crate) fn entries(block: &[u8], root: bool, has_checksum: bool) -> Option<Vec<(u32, u32)>> {
    let area = block.get(if root { ROOT_ENTRIES } else { NODE_ENTRIES }..)?;
    let tail = if has_checksum { 8 } else { 0 };
    let (limit, count) = (usize::from(le16(area, 0)), usize::from(le16(area, 2)));
    if limit != area.len().saturating_sub(tail) / 8 || count == 0 || count > limit {
        return None;
    }
    let mut out: Vec<(u32, u32)> =
        area.chunks_exact(8).take(count).map(|entry| (le32(entry, 0), le32(entry, 4) & 0x0fff_ffff)).collect();
    // The first entry has no hash: the limit and count are in its place.
    if let Some(first) = out.first_mut() {
        first.0 = 0;
    }
    Some(out)
}

/// Verifies the checksum of an index block, the root (`root`) or a node.
pub(crate) fn verify(block: &[u8], root: bool, seed: u32) -> Result<(), Fault> {
    if root && parse_htree_root(block).is_none() {
        return Err(Fault::Rule("the index root does not describe itself as one"));
    }
    let at = if root { ROOT_ENTRIES } else { NODE_ENTRIES };
    let (limit, count) = (le16(block, at), le16(block, at.saturating_add(2)));
    let entries = |number: u16| at.saturating_add(usize::from(number).saturating_mul(8));
    let tail = block.get(entries(limit)..).filter(|tail| tail.len() >= 8);
    let (Some(tail), true) = (tail, count <= limit) else {
        let last = to_u64(block.len() / 8);
        let (field, value, last) = match tail {
            None => ("the room for entries", limit, last),
            Some(_) => ("the number of entries", count, limit.into()),
        };
        return Err(Fault::Limit { field, value: value.into(), limit: last });
    };
    // The entries in use, then the tail with its checksum as zeros.
    let crc = crc32c(crc32c(seed, &block[..entries(count)]), &tail[..4]);
    let (found, wanted) = (le32(tail, 4), crc32c(crc, &[0; 4]));
    if found == wanted { Ok(()) } else { Err(Fault::Checksum { found, wanted }) }
}
