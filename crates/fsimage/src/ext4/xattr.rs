//! Extended attributes: in the inode, in a block, and large values in separate inodes.
//!
//! Layout from the kernel's documentation, `Documentation/filesystems/ext4/attributes.rst`.

use super::bytes::{le16, le32, to_u64, to_usize};
use super::checksum::crc32c;
use super::error::Fault;

/// The magic number before in-inode attributes and at the start of a block of them.
pub(crate) const MAGIC: u32 = 0xea02_0000;

/// Name index of fscrypt's context, whose name is `c`.
pub const XATTR_INDEX_ENCRYPTION: u8 = 9;

/// Name index of `system.` names without an index of their own; `data` holds inline data.
pub const XATTR_INDEX_SYSTEM: u8 = 7;

/// Largest value that Linux reads (`XATTR_SIZE_MAX`).
pub const XATTR_SIZE_MAX: u32 = 65536;

const HEADER: usize = 32;

/// An extended attribute, raw: access control lists are as ext4 stores them (see [`posix_acl_xattr`]).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Xattr {
    /// Which prefix the name has.
    pub index: u8,
    /// The name after its prefix.
    pub name: Box<[u8]>,
    /// The value.
    pub value: Vec<u8>,
}

impl Xattr {
    /// The whole name as Linux shows it, or nothing if Linux hides it: fscrypt's context, inline data, unknown
    /// prefixes, and a prefix alone.
    pub fn full_name(&self) -> Option<Vec<u8>> {
        let prefix: &[u8] = match self.index {
            1 | 4 | 6 | 10 if self.name.is_empty() => return None,
            1 => b"user.",
            2 if self.name.is_empty() => b"system.posix_acl_access",
            3 if self.name.is_empty() => b"system.posix_acl_default",
            4 => b"trusted.",
            6 => b"security.",
            10 => b"gnu.",
            _ => return None,
        };
        Some([prefix, &self.name].concat())
    }
}

/// Where an attribute's value is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ValuePlace {
    Here(Vec<u8>),
    Inode { ino: u32, size: u32 },
}

/// An attribute whose value may still have to be fetched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RawXattr {
    pub(crate) index: u8,
    pub(crate) name: Box<[u8]>,
    pub(crate) value: ValuePlace,
}

impl RawXattr {
    /// True for `system.data`.
    pub(crate) fn is_inline_data(&self) -> bool {
        self.index == XATTR_INDEX_SYSTEM && &*self.name == b"data"
    }
}

/// The attributes after an inode's fixed fields; `bytes` starts with the magic number. `ea_inode` is whether the file
/// system has that feature.
pub(crate) fn parse_body(bytes: &[u8], ea_inode: bool) -> Result<Vec<RawXattr>, Fault> {
    match bytes.get(4..) {
        Some(entries) => parse_entries(entries, 0, ea_inode),
        None => Ok(Vec::new()),
    }
}

/// Whether the attributes after an inode's fixed fields include `system.data`. Its value is always in the inode.
pub(crate) fn has_inline_data(body: &[u8], ea_inode: bool) -> Result<bool, Fault> {
    let data = parse_body(body, ea_inode)?.into_iter().find(|raw| raw.is_inline_data());
    match data.map(|raw| raw.value) {
        None => Ok(false),
        Some(ValuePlace::Here(_)) => Ok(true),
        Some(ValuePlace::Inode { ino, .. }) => {
            Err(Fault::Field { field: "the inode of the inline data", value: ino.into() })
        }
    }
}

/// The attributes in a separate block. With `seed` (the file system's) the block's checksum is verified.
pub(crate) fn parse_block(bytes: &[u8], block: u64, seed: Option<u32>, ea_inode: bool) -> Result<Vec<RawXattr>, Fault> {
    if bytes.len() < HEADER {
        return Err(Fault::Truncated { len: bytes.len(), needed: HEADER });
    }
    let magic = le32(bytes, 0);
    if magic != MAGIC {
        return Err(Fault::Magic { found: magic, wanted: MAGIC });
    }
    if le32(bytes, 8) != 1 {
        return Err(Fault::Field { field: "the number of blocks", value: le32(bytes, 8).into() });
    }
    if let Some(seed) = seed {
        let crc = crc32c(crc32c(seed, &block.to_le_bytes()), &bytes[..16]);
        let wanted = crc32c(crc32c(crc, &[0; 4]), &bytes[20..]);
        let found = le32(bytes, 16);
        if found != wanted {
            return Err(Fault::Checksum { found, wanted });
        }
    }
    parse_entries(bytes, HEADER, ea_inode)
}

/// The entries from `at` on, up to the zero word that ends them; values are counted from the start of `bytes`. If one
/// breaks a rule of Linux, none of them is used.
fn parse_entries(bytes: &[u8], at: usize, ea_inode: bool) -> Result<Vec<RawXattr>, Fault> {
    // Values come after all entries, so these have to be found first.
    let end = entries_end(bytes, at)?;
    let mut out = Vec::new();
    // Values of one block together can't be longer than the block, unless they overlap.
    let mut room = bytes.len();
    let mut rest = &bytes[at..end];
    while !rest.is_empty() {
        let name_len = usize::from(rest[0]);
        let name = &rest[ENTRY..][..name_len];
        let (start, ino, size) = (usize::from(le16(rest, 2)), le32(rest, 4), le32(rest, 8));
        if name.contains(&0) {
            return Err(Fault::Rule("a name holds a zero byte"));
        }
        if size > XATTR_SIZE_MAX {
            return Err(Fault::Limit { field: "the value's size", value: size.into(), limit: XATTR_SIZE_MAX.into() });
        }
        let value = if ino != 0 {
            if !ea_inode {
                return Err(Fault::Rule("a value is in an inode, and the file system does not have the feature"));
            }
            ValuePlace::Inode { ino, size }
        } else if size == 0 {
            // An empty value has no place.
            ValuePlace::Here(Vec::new())
        } else {
            let len = to_usize(size);
            if start < end.saturating_add(4) {
                return Err(Fault::Rule("a value overlaps the entries"));
            }
            let padded = bytes.get(start..).filter(|rest| rest.len() >= len.next_multiple_of(4));
            let (Some(value), Some(left)) = (padded, room.checked_sub(len)) else {
                let (value, limit) = (to_u64(start.saturating_add(len)), to_u64(bytes.len()));
                return Err(Fault::Limit { field: "the end of the value", value, limit });
            };
            room = left;
            ValuePlace::Here(value[..len].to_vec())
        };
        out.push(RawXattr { index: rest[1], name: name.into(), value });
        rest = &rest[entry_len(name_len)..];
    }
    Ok(out)
}

/// Bytes of an entry before its name.
const ENTRY: usize = 16;

fn entry_len(name_len: usize) -> usize {
    ENTRY.saturating_add(name_len).next_multiple_of(4)
}

/// Where the zero word after the entries is.
fn entries_end(bytes: &[u8], mut at: usize) -> Result<usize, Fault> {
    loop {
        let rest = bytes.get(at..).unwrap_or(&[]);
        if rest.len() < 4 {
            return Err(Fault::Rule("the entries do not end"));
        }
        if le32(rest, 0) == 0 {
            return Ok(at);
        }
        let len = entry_len(rest[0].into());
        if len > rest.len() {
            let limit = to_u64(rest.len());
            return Err(Fault::Limit { field: "the end of a name", value: to_u64(len), limit });
        }
        at = at.saturating_add(len);
    }
}

/// Parses a block of attributes as read from disk, without values in other inodes: an entry point for fuzzers.
pub fn parse_xattr_block(bytes: &[u8]) -> Option<Vec<Xattr>> {
    Some(here(parse_block(bytes, 0, None, true).ok()?))
}

/// Parses in-inode attributes from their magic number on: an entry point for fuzzers.
pub fn parse_xattr_body(bytes: &[u8]) -> Option<Vec<Xattr>> {
    Some(here(parse_body(bytes, true).ok()?))
}

fn here(raw: Vec<RawXattr>) -> Vec<Xattr> {
    raw.into_iter()
        .filter_map(|raw| match raw.value {
            ValuePlace::Here(value) => Some(Xattr { index: raw.index, name: raw.name, value }),
            ValuePlace::Inode { .. } => None,
        })
        .collect()
}

/// An access control list as ext4 stores it, in the form that Linux's system calls use
/// (`system.posix_acl_access`, `system.posix_acl_default`). Nothing if it is malformed.
pub fn posix_acl_xattr(stored: &[u8]) -> Option<Vec<u8>> {
    if stored.len() < 4 || le32(stored, 0) != 1 {
        return None;
    }
    let mut out = 2u32.to_le_bytes().to_vec();
    let mut rest = &stored[4..];
    while !rest.is_empty() {
        out.extend_from_slice(rest.get(..4)?);
        // Entries for a named user or group have an id.
        let named = matches!(le16(rest, 0), 2 | 8);
        out.extend_from_slice(if named { rest.get(4..8)? } else { &[0xff; 4] });
        rest = &rest[if named { 8 } else { 4 }..];
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An entry with a value: its name, the offset of the value, its inode and its size.
    fn entry(name: &[u8], start: u16, ino: u32, size: u32) -> Vec<u8> {
        let mut out = vec![name.len() as u8, 1];
        out.extend_from_slice(&start.to_le_bytes());
        out.extend_from_slice(&[ino.to_le_bytes(), size.to_le_bytes(), [0; 4]].concat());
        out.extend_from_slice(name);
        out.resize(out.len().next_multiple_of(4), 0);
        out
    }

    fn parse(entries: &[Vec<u8>], ea_inode: bool) -> Result<usize, Fault> {
        let mut bytes = entries.concat();
        bytes.resize(96, 0);
        parse_entries(&bytes, 0, ea_inode).map(|found| found.len())
    }

    #[test]
    fn values_stay_apart_from_the_entries_and_inside() {
        // Two entries of 20 bytes, and the zero word: values from 44 on.
        let pair = |start, size| parse(&[entry(b"a", 0, 0, 0), entry(b"b", start, 0, size)], false);
        for (start, size) in [(44, 4), (44, 52), (92, 1), (92, 4), (0, 0)] {
            assert_eq!(pair(start, size), Ok(2), "{start} {size}");
        }
        for (start, size) in [(0, 4), (20, 4), (40, 4), (43, 4), (92, 5), (94, 1), (96, 1), (0xffff, 1), (44, 65537)] {
            assert!(pair(start, size).is_err(), "{start} {size}");
        }
    }

    #[test]
    fn rules_of_entries() {
        assert!(parse(&[entry(b"a\0b", 0, 0, 0)], false).is_err(), "a zero byte in a name");
        assert!(parse(&[entry(b"a", 0, 12, 5)], false).is_err(), "an inode without the feature");
        assert_eq!(parse(&[entry(b"a", 0, 12, 5)], true), Ok(1));
        assert!(parse(&[entry(&[b'a'; 60], 0, 0, 0), entry(b"b", 0, 0, 0)], false).is_err(), "no end");
    }
}
