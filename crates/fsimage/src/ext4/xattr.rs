//! Extended attributes: in the inode, in a block, and large values in inodes of their own.
//!
//! Layout from the kernel's documentation, `Documentation/filesystems/ext4/attributes.rst`.

use super::bytes::{le16, le32};
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
    /// The name behind its prefix.
    pub name: Box<[u8]>,
    /// The value.
    pub value: Vec<u8>,
}

impl Xattr {
    /// The whole name as Linux shows it, or nothing for what Linux hides: fscrypt's context, inline data, and
    /// prefixes it does not know.
    pub fn full_name(&self) -> Option<Vec<u8>> {
        let prefix: &[u8] = match self.index {
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

/// Where an attribute's value lies.
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

/// The attributes behind an inode's fixed fields; `bytes` starts with the magic number.
pub(crate) fn parse_body(bytes: &[u8]) -> Result<Vec<RawXattr>, Fault> {
    if bytes.len() < 4 {
        return Ok(Vec::new());
    }
    parse_entries(&bytes[4..], 0)
}

/// The attributes in a block of their own. With `seed` (the file system's) the block's checksum is verified.
pub(crate) fn parse_block(bytes: &[u8], block: u64, seed: Option<u32>) -> Result<Vec<RawXattr>, Fault> {
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
    parse_entries(bytes, HEADER)
}

/// Entries from `at` on; values are counted from the start of `bytes`.
fn parse_entries(bytes: &[u8], mut at: usize) -> Result<Vec<RawXattr>, Fault> {
    let mut out = Vec::new();
    // Values of one block together can't be longer than the block, unless they overlap.
    let mut room = bytes.len();
    loop {
        let rest = bytes.get(at..).unwrap_or(&[]);
        if rest.len() < 4 {
            return Err(Fault::Rule("the entries do not end"));
        }
        if le32(rest, 0) == 0 {
            return Ok(out);
        }
        if rest.len() < 16 {
            return Err(Fault::Truncated { len: rest.len(), needed: 16 });
        }
        let name_len = usize::from(rest[0]);
        let next = (16 + name_len).next_multiple_of(4);
        if next > rest.len() {
            return Err(Fault::Limit { field: "the name's length", value: name_len as u64, limit: rest.len() as u64 });
        }
        let (ino, size) = (le32(rest, 4), le32(rest, 8));
        if size > XATTR_SIZE_MAX {
            return Err(Fault::Limit { field: "the value's size", value: size.into(), limit: XATTR_SIZE_MAX.into() });
        }
        let value = if ino != 0 {
            ValuePlace::Inode { ino, size }
        } else {
            let (start, len) = (usize::from(le16(rest, 2)), size as usize);
            // An empty value has no place.
            let value = if len == 0 { Some(&[][..]) } else { bytes.get(start..start + len) };
            let (Some(value), Some(left)) = (value, room.checked_sub(len)) else {
                return Err(Fault::Limit {
                    field: "the end of the value",
                    value: (start + len) as u64,
                    limit: bytes.len() as u64,
                });
            };
            room = left;
            ValuePlace::Here(value.to_vec())
        };
        out.push(RawXattr { index: rest[1], name: rest[16..16 + name_len].into(), value });
        at += next;
    }
}

/// Parses a block of attributes as read from disk, without values in other inodes: what a fuzzer drives.
pub fn parse_xattr_block(bytes: &[u8]) -> Option<Vec<Xattr>> {
    Some(here(parse_block(bytes, 0, None).ok()?))
}

/// Parses in-inode attributes from their magic number on: what a fuzzer drives.
pub fn parse_xattr_body(bytes: &[u8]) -> Option<Vec<Xattr>> {
    Some(here(parse_body(bytes).ok()?))
}

fn here(raw: Vec<RawXattr>) -> Vec<Xattr> {
    raw.into_iter()
        .filter_map(|raw| match raw.value {
            ValuePlace::Here(value) => Some(Xattr { index: raw.index, name: raw.name, value }),
            ValuePlace::Inode { .. } => None,
        })
        .collect()
}

/// An access control list as ext4 stores it, in the form that Linux's system calls give and take
/// (`system.posix_acl_access`, `system.posix_acl_default`). Nothing where it is malformed.
pub fn posix_acl_xattr(stored: &[u8]) -> Option<Vec<u8>> {
    if stored.len() < 4 || le32(stored, 0) != 1 {
        return None;
    }
    let mut out = 2u32.to_le_bytes().to_vec();
    let mut at = 4;
    while at < stored.len() {
        if stored.len() - at < 4 {
            return None;
        }
        out.extend_from_slice(&stored[at..at + 4]);
        // Entries for a named user or group have an id.
        if matches!(le16(stored, at), 2 | 8) {
            out.extend_from_slice(stored.get(at + 4..at + 8)?);
            at += 8;
        } else {
            out.extend_from_slice(&[0xff; 4]);
            at += 4;
        }
    }
    Some(out)
}
