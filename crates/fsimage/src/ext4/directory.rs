//! Directory blocks: entries one after the other, each with the distance to the next.
//!
//! Layout from the kernel's documentation, `Documentation/filesystems/ext4/directory.rst`.

use super::bytes::{le16, le32, low32, to_u64};
use super::checksum::crc32c;
use super::error::Fault;
use super::inode::FileType;
use super::name_hash::clear_reserved;

/// The length of a directory block's checksum entry.
const TAIL: usize = 12;

/// The file type that marks the checksum entry.
const TAIL_TYPE: u8 = 0xde;

/// The directory hash stored after each name in directories that are encrypted and fold case: without the key it cannot be
/// computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DirHash {
    /// The hash proper.
    pub hash: u32,
    /// The lower half.
    pub minor_hash: u32,
}

impl DirHash {
    /// The hash that ext4 makes of a SipHash: the upper half is the hash, the lower half the minor hash. Bit 0 of a hash is
    /// reserved for the index, and the highest hash marks the end of a directory.
    pub fn from_siphash(siphash: u64) -> Self {
        Self { hash: clear_reserved(low32(siphash >> 32)), minor_hash: low32(siphash) }
    }
}

/// A directory entry, raw.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DirEntry {
    /// The inode's number, not checked yet.
    pub ino: u32,
    /// The name as it is on disk, at most 255 bytes: ciphertext in an encrypted directory. It may hold anything, even `/`
    /// and zero bytes.
    pub name: Box<[u8]>,
    /// The type of the inode according to the entry; nothing if the file system does not record it.
    pub file_type: Option<FileType>,
    /// The hash stored with the name in a directory with encryption and case folding.
    pub hash: Option<DirHash>,
}

impl DirEntry {
    /// True for `.` and `..`, which are never encrypted.
    pub fn is_dot_or_dotdot(&self) -> bool {
        matches!(&*self.name, b"." | b"..")
    }
}

/// How to read the blocks of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirFormat {
    /// Entries have the file type (feature `filetype`).
    pub filetype: bool,
    /// Hashes follow the names (encrypted and case folding).
    pub hashes: bool,
}

/// What is at a place in a directory block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Slot {
    /// Free space, or an entry that was deleted.
    Unused,
    /// An entry.
    Entry(DirEntry),
    /// An entry without a name. Those after it can be read.
    Nameless,
}

/// Reads the slot at `at` of a directory block or of inline entries. Gives the position of the next one too. After an
/// error the rest of the block cannot be read.
pub(crate) fn slot_at(block: &[u8], at: usize, format: DirFormat) -> Result<(usize, Slot), Fault> {
    let rest = block.get(at..).unwrap_or(&[]);
    if rest.len() < 8 {
        return Err(Fault::Truncated { len: rest.len(), needed: 8 });
    }
    let rec_len = rec_len(le16(rest, 4), block.len());
    let slot = match rest.get(..rec_len) {
        Some(slot) if rec_len >= 12 && rec_len.is_multiple_of(4) => slot,
        _ => {
            let (value, last) = (to_u64(rec_len), to_u64(rest.len()));
            return Err(Fault::Range { field: "the distance to the next entry", value, first: 12, last });
        }
    };
    let next = at.saturating_add(rec_len);
    let ino = le32(slot, 0);
    if ino == 0 {
        return Ok((next, Slot::Unused));
    }
    // Without `filetype` the byte after the length is its upper half, which Linux ignores: no name is that long.
    let name_len = usize::from(slot[6]);
    if name_len == 0 {
        return Ok((next, Slot::Nameless));
    }
    let Some(name) = slot[8..].get(..name_len) else {
        let limit = to_u64(rec_len.saturating_sub(8));
        return Err(Fault::Limit { field: "the name's length", value: to_u64(name_len), limit });
    };
    let file_type = if format.filetype { FileType::from_entry(slot[7]) } else { None };
    let mut entry = DirEntry { ino, name: name.into(), file_type, hash: None };
    if format.hashes && !entry.is_dot_or_dotdot() {
        let hash = slot[8..].get(name_len.next_multiple_of(4)..).filter(|hash| hash.len() >= 8);
        let Some(hash) = hash else { return Err(Fault::Rule("an entry has no room for its hash")) };
        entry.hash = Some(DirHash { hash: le32(hash, 0), minor_hash: le32(hash, 4) });
    }
    Ok((next, Slot::Entry(entry)))
}

/// Whether the slot at `at` of a directory's first block is its own `.` (the first, leading to `ino`) or `..` (the
/// second).
pub(crate) fn own_dots(block: &[u8], at: usize, ino: u32) -> bool {
    let Some(slot) = block.get(at..).filter(|slot| slot.len() >= 12) else { return false };
    if at == 0 {
        slot[6] == 1 && slot[8] == b'.' && le32(slot, 0) == ino
    } else {
        at == rec_len(le16(block, 4), block.len()) && slot[6] == 2 && slot[8..10] == *b".."
    }
}

/// All entries in use of a directory block or of inline entries, `.` and `..` included; nothing if any is corrupt.
pub fn parse_dir_block(block: &[u8], format: DirFormat) -> Option<Vec<DirEntry>> {
    let mut entries = Vec::new();
    let mut at = 0;
    while at < block.len() {
        let (next, slot) = slot_at(block, at, format).ok()?;
        match slot {
            Slot::Entry(entry) => entries.push(entry),
            Slot::Unused => {}
            Slot::Nameless => return None,
        }
        at = next;
    }
    Some(entries)
}

/// 65535 and 0 mean a whole block of 64 KiB; else the two low bits are bits 16 and 17.
fn rec_len(raw: u16, block_len: usize) -> usize {
    let raw_len = usize::from(raw);
    match raw {
        _ if block_len < 1 << 16 => raw_len,
        0 | 0xffff => block_len,
        _ => (raw_len & 0xfffc) | (raw_len & 3) << 16,
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

    /// An entry without a name is skipped, whatever is in the byte that has the file type in other file systems.
    #[test]
    fn names_without_length_and_without_types() {
        let mut block = vec![0; 1024];
        block[..12].copy_from_slice(&[12, 0, 0, 0, 12, 0, 0, 1, 0, 0, 0, 0]);
        block[12..24].copy_from_slice(&[13, 0, 0, 0, 0xf4, 3, 1, 2, b'a', 0, 0, 0]);
        assert_eq!(slot_at(&block, 0, FORMAT), Ok((12, Slot::Nameless)));
        for filetype in [true, false] {
            let Ok((1024, Slot::Entry(entry))) = slot_at(&block, 12, DirFormat { filetype, hashes: false }) else {
                panic!("no entry")
            };
            assert_eq!((&*entry.name, entry.file_type), (&b"a"[..], filetype.then_some(FileType::Directory)));
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
