//! Directory blocks: entries one behind the other, each with the distance to the next.
//!
//! Layout from the kernel's documentation, `Documentation/filesystems/ext4/directory.rst`.

use super::bytes::{le16, le32};
use super::checksum::crc32c;
use super::error::Fault;
use super::inode::FileType;
use super::name_hash::clear_reserved;

/// The length of a directory block's checksum entry.
const TAIL: usize = 12;

/// The file type that marks the checksum entry.
const TAIL_TYPE: u8 = 0xde;

/// The directory hash that stands behind the name in directories that are encrypted and fold case: it can't be
/// computed without the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DirHash {
    /// The hash proper.
    pub hash: u32,
    /// The lower half.
    pub minor_hash: u32,
}

impl DirHash {
    /// What ext4 keeps of a SipHash: the upper half as the hash, and the lower as the minor hash. Bit 0 of a hash is the
    /// index's own, and the highest hash is the directory's end.
    pub fn from_siphash(siphash: u64) -> Self {
        Self { hash: clear_reserved((siphash >> 32) as u32), minor_hash: siphash as u32 }
    }
}

/// A directory entry, raw.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DirEntry {
    /// The inode's number, not checked yet.
    pub ino: u32,
    /// The name as it lies on disk, at most 255 bytes: ciphertext in an encrypted directory. May hold anything, `/`
    /// and zeros too.
    pub name: Box<[u8]>,
    /// What the entry says of the inode's type; nothing where the file system does not keep it.
    pub file_type: Option<FileType>,
    /// The hash that a directory with encryption and case folding keeps with the name.
    pub hash: Option<DirHash>,
}

impl DirEntry {
    /// True for `.` and `..`, which are never encrypted.
    pub fn is_dot_or_dotdot(&self) -> bool {
        matches!(&*self.name, b"." | b"..")
    }
}

/// How a directory's blocks are to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirFormat {
    /// Entries tell the file type (feature `filetype`).
    pub filetype: bool,
    /// Hashes stand behind the names (encrypted and case folding).
    pub hashes: bool,
}

/// Reads the entry at `at` of a directory block or of inline entries. Gives the position of the next one, and the
/// entry where the slot is in use.
pub(crate) fn entry_at(block: &[u8], at: usize, format: DirFormat) -> Result<(usize, Option<DirEntry>), Fault> {
    let rest = block.get(at..).unwrap_or(&[]);
    if rest.len() < 8 {
        return Err(Fault::Truncated { len: rest.len(), needed: 8 });
    }
    let rec_len = rec_len(le16(rest, 4), block.len());
    let (name_len, file_type) = match format.filetype {
        true => (usize::from(rest[6]), rest[7]),
        false => (usize::from(le16(rest, 6)), 0),
    };
    if rec_len < 12 || !rec_len.is_multiple_of(4) || rec_len > rest.len() {
        return Err(Fault::Limit {
            field: "the distance to the next entry",
            value: rec_len as u64,
            limit: rest.len() as u64,
        });
    }
    let ino = le32(rest, 0);
    if ino == 0 {
        return Ok((at + rec_len, None));
    }
    if name_len == 0 || name_len > 255 || 8 + name_len > rec_len {
        return Err(Fault::Limit { field: "the name's length", value: name_len as u64, limit: rec_len as u64 - 8 });
    }
    let name = &rest[8..8 + name_len];
    let hash_at = (8 + name_len).next_multiple_of(4);
    let dots = matches!(name, b"." | b"..");
    let hash = match format.hashes && !dots {
        true if hash_at + 8 > rec_len => {
            return Err(Fault::Limit {
                field: "the end of the entry's hash",
                value: hash_at as u64 + 8,
                limit: rec_len as u64,
            });
        }
        true => Some(DirHash { hash: le32(rest, hash_at), minor_hash: le32(rest, hash_at + 4) }),
        false => None,
    };
    let entry = DirEntry { ino, name: name.into(), file_type: FileType::from_entry(file_type), hash };
    Ok((at + rec_len, Some(entry)))
}

/// Whether the slot at `at` of a directory's first block is its own `.` (the first, leading to `ino`) or `..` (the
/// second).
pub(crate) fn own_dots(block: &[u8], at: usize, ino: u32) -> bool {
    if block.len() < 12 || block.len() - at < 12 {
        return false;
    }
    let slot = &block[at..];
    if at == 0 {
        slot[6] == 1 && slot[8] == b'.' && le32(slot, 0) == ino
    } else {
        at == rec_len(le16(block, 4), block.len()) && slot[6] == 2 && slot[8..10] == *b".."
    }
}

/// All entries in use of a directory block or of inline entries, `.` and `..` included.
pub fn parse_dir_block(block: &[u8], format: DirFormat) -> Option<Vec<DirEntry>> {
    let mut entries = Vec::new();
    let mut at = 0;
    while at < block.len() {
        let (next, entry) = entry_at(block, at, format).ok()?;
        entries.extend(entry);
        at = next;
    }
    Some(entries)
}

/// 65535 and 0 mean a whole block of 64 KiB; else the two low bits are bits 16 and 17.
fn rec_len(raw: u16, block_len: usize) -> usize {
    match usize::from(raw) {
        0 | 0xffff if block_len >= 1 << 16 => block_len,
        raw if block_len >= 1 << 16 => (raw & 0xfffc) | (raw & 3) << 16,
        raw => raw,
    }
}

/// Verifies the checksum of a block of entries; `seed` is the directory inode's.
pub(crate) fn verify_leaf(block: &[u8], seed: u32) -> Result<(), Fault> {
    let Some(at) = block.len().checked_sub(TAIL) else {
        return Err(Fault::Truncated { len: block.len(), needed: TAIL });
    };
    let tail = &block[at..];
    if le32(tail, 0) != 0 || usize::from(le16(tail, 4)) != TAIL || tail[6] != 0 || tail[7] != TAIL_TYPE {
        return Err(Fault::Rule("no checksum at its end"));
    }
    let (found, wanted) = (le32(tail, 8), crc32c(seed, &block[..at]));
    if found == wanted { Ok(()) } else { Err(Fault::Checksum { found, wanted }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMAT: DirFormat = DirFormat { filetype: true, hashes: false };

    #[test]
    fn distances_that_leave_the_block_are_errors() {
        let mut block = vec![0; 1024];
        block[..12].copy_from_slice(&[12, 0, 0, 0, 12, 0, 1, 1, b'a', 0, 0, 0]);
        block[16..18].copy_from_slice(&1012u16.to_le_bytes());
        assert_eq!(parse_dir_block(&block, FORMAT).unwrap().len(), 1);
        for bad in [0u16, 4, 11, 13, 1016, 0xffff] {
            block[16..18].copy_from_slice(&bad.to_le_bytes());
            assert_eq!(parse_dir_block(&block, FORMAT), None, "{bad}");
        }
    }

    /// Only the first two slots of a directory are its own; a third of such a name, or one that leads elsewhere, is not.
    #[test]
    fn dots_name_the_directory_and_its_parent_in_their_places_only() {
        let mut block = vec![0; 1024];
        block[..12].copy_from_slice(&[12, 0, 0, 0, 12, 0, 1, 2, b'.', 0, 0, 0]);
        block[12..24].copy_from_slice(&[2, 0, 0, 0, 12, 0, 2, 2, b'.', b'.', 0, 0]);
        block[24..36].copy_from_slice(&[2, 0, 0, 0, 12, 0, 2, 2, b'.', b'.', 0, 0]);
        block[36..48].copy_from_slice(&[12, 0, 0, 0, 12, 0, 1, 2, b'.', 0, 0, 0]);
        let own = |block: &[u8], ino| [0, 12, 24, 36].map(|at| own_dots(block, at, ino));
        assert_eq!(own(&block, 12), [true, true, false, false]);
        assert_eq!(own(&block, 13), [false, true, false, false]);
        block[20] = b'x';
        assert_eq!(own(&block, 12), [true, false, false, false]);
    }

    #[test]
    fn a_block_of_64_kib_in_one_entry() {
        assert_eq!(rec_len(0xffff, 65536), 65536);
        assert_eq!(rec_len(0, 65536), 65536);
        assert_eq!(rec_len(12, 65536), 12);
        assert_eq!(rec_len(65524, 65536), 65524);
        assert_eq!(rec_len(0, 4096), 0);
    }
}
