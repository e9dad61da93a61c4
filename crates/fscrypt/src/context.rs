//! The context that every encrypted inode carries, and the policy in it.
//!
//! Layout: `fscrypt_context_v1` and `_v2` of `fs/crypto/fscrypt_private.h`. On ext4 and f2fs it is the extended
//! attribute of index 9, name `c`.

use std::fmt;

use crate::{ContextError, Mode};

/// Padding, bits 0 and 1.
const FLAGS_PAD_MASK: u8 = 0x03;
/// One key for all files of a mode; the nonce goes into the IV.
const FLAG_DIRECT_KEY: u8 = 0x04;
/// IVs of 32-bit inode numbers and data unit indexes.
const FLAG_IV_INO_LBLK_64: u8 = 0x08;
/// The same squeezed into 32 bits, for eMMC inline encryption.
const FLAG_IV_INO_LBLK_32: u8 = 0x10;

/// Bytes of a nonce.
pub const NONCE_SIZE: usize = 16;

/// How a policy names its master key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum KeySpecifier {
    /// v1: 8 arbitrary bytes, which prove nothing about the key.
    Descriptor([u8; 8]),
    /// v2: 16 bytes derived from the key.
    Identifier([u8; 16]),
}

impl KeySpecifier {
    /// The bytes, for comparison and for printing.
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            KeySpecifier::Descriptor(bytes) => bytes,
            KeySpecifier::Identifier(bytes) => bytes,
        }
    }
}

impl fmt::Display for KeySpecifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if matches!(self, KeySpecifier::Descriptor(_)) { "descriptor" } else { "identifier" };
        write!(f, "{kind} {}", hex::encode(self.as_bytes()))
    }
}

impl fmt::Debug for KeySpecifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeySpecifier({self})")
    }
}

/// Where the IVs of a policy come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IvScheme {
    /// A key a file; the IV is the data unit index.
    PerFileKey,
    /// `DIRECT_KEY`: a key a mode; the IV is the index and the file's nonce.
    DirectKey,
    /// `IV_INO_LBLK_64`: a key a mode and file system; the IV is the index and the inode number.
    InoLblk64,
    /// `IV_INO_LBLK_32`: the same, with the inode number hashed and added to the index modulo 2^32.
    InoLblk32,
}

/// A policy: what a directory's new files inherit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Policy {
    /// 1 or 2.
    pub version: u8,
    /// Mode of regular files' contents.
    pub contents: Mode,
    /// Mode of file names and link targets.
    pub names: Mode,
    /// The flags byte as stored.
    pub flags: u8,
    /// Logarithm of the data unit size; `None` for the file system's block size.
    pub log2_data_unit_size: Option<u8>,
    /// The master key's name.
    pub key: KeySpecifier,
}

impl Policy {
    /// Names are padded to a multiple of this many bytes: 4, 8, 16 or 32.
    pub fn padding(&self) -> usize {
        4 << (self.flags & FLAGS_PAD_MASK)
    }

    /// Where the IVs come from.
    pub fn iv_scheme(&self) -> IvScheme {
        match self.flags & !FLAGS_PAD_MASK {
            FLAG_DIRECT_KEY => IvScheme::DirectKey,
            FLAG_IV_INO_LBLK_64 => IvScheme::InoLblk64,
            FLAG_IV_INO_LBLK_32 => IvScheme::InoLblk32,
            _ => IvScheme::PerFileKey,
        }
    }

    /// Bytes of a data unit on a file system with blocks of `block_size` bytes.
    pub fn data_unit_size(&self, block_size: usize) -> usize {
        self.log2_data_unit_size.map_or(block_size, |log2| 1 << log2)
    }

    /// The flags by name, as a person would list them (padding is always there).
    pub fn flag_names(&self) -> Vec<String> {
        let mut names = vec![format!("PAD_{}", self.padding())];
        match self.iv_scheme() {
            IvScheme::PerFileKey => {}
            IvScheme::DirectKey => names.push("DIRECT_KEY".into()),
            IvScheme::InoLblk64 => names.push("IV_INO_LBLK_64".into()),
            IvScheme::InoLblk32 => names.push("IV_INO_LBLK_32".into()),
        }
        names
    }

    /// Applies the rules by which Linux accepts a policy (`fscrypt_supported_policy`), as far as they do not depend on
    /// the file system.
    fn check(&self) -> Result<(), ContextError> {
        let &Policy { version, contents, names, flags, log2_data_unit_size, .. } = self;
        let refuse = |why| Err(ContextError::Flags { flags, why });
        if !Mode::valid_pair(version, contents, names) {
            return Err(ContextError::Pair { version, contents, names });
        }
        let known = if version == 1 {
            FLAGS_PAD_MASK | FLAG_DIRECT_KEY
        } else {
            FLAGS_PAD_MASK | FLAG_DIRECT_KEY | FLAG_IV_INO_LBLK_64 | FLAG_IV_INO_LBLK_32
        };
        if flags & !known != 0 {
            return refuse("unknown flags");
        }
        if (flags & !FLAGS_PAD_MASK).count_ones() > 1 {
            return refuse("DIRECT_KEY, IV_INO_LBLK_64 and IV_INO_LBLK_32 exclude each other");
        }
        match self.iv_scheme() {
            // Both modes must be the same, with room in the IV for the nonce after the index.
            IvScheme::DirectKey if contents != names || contents.iv_size() < 8 + NONCE_SIZE => {
                return refuse("DIRECT_KEY needs one mode with long IVs for contents and names");
            }
            IvScheme::InoLblk64 | IvScheme::InoLblk32 if contents != Mode::Aes256Xts => {
                return refuse("IV_INO_LBLK_* needs AES-256-XTS contents");
            }
            _ => {}
        }
        if let Some(log2) = log2_data_unit_size.filter(|log2| !(9..=16).contains(log2)) {
            return Err(ContextError::DataUnitSize { log2, why: "must be 512 bytes to 64 KiB" });
        }
        Ok(())
    }
}

/// An inode's context: its policy and its nonce.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Context {
    /// The policy.
    pub policy: Policy,
    /// 16 random bytes of the inode's own.
    pub nonce: [u8; NONCE_SIZE],
}

impl Context {
    /// Parses the bytes of the extended attribute; refuses what Linux refuses.
    pub fn parse(bytes: &[u8]) -> Result<Context, ContextError> {
        let version = bytes.first().copied().unwrap_or(0);
        let wanted = match version {
            1 => 28,
            2 => 40,
            _ if bytes.is_empty() => return Err(ContextError::Length { version: 0, wanted: 28, found: 0 }),
            other => return Err(ContextError::Version(other)),
        };
        if bytes.len() != wanted {
            return Err(ContextError::Length { version, wanted, found: bytes.len() });
        }
        let mode = |at: usize| Mode::from_number(bytes[at]).ok_or(ContextError::UnknownMode(bytes[at]));
        let (contents, names, flags) = (mode(1)?, mode(2)?, bytes[3]);
        let (policy, nonce) = if version == 1 {
            let key = KeySpecifier::Descriptor(array(&bytes[4..12]));
            (Policy { version, contents, names, flags, log2_data_unit_size: None, key }, &bytes[12..28])
        } else {
            if bytes[5..8] != [0; 3] {
                return Err(ContextError::Reserved);
            }
            let log2_data_unit_size = (bytes[4] != 0).then_some(bytes[4]);
            let key = KeySpecifier::Identifier(array(&bytes[8..24]));
            (Policy { version, contents, names, flags, log2_data_unit_size, key }, &bytes[24..40])
        };
        policy.check()?;
        Ok(Context { policy, nonce: array(nonce) })
    }

    /// The bytes of the extended attribute.
    pub fn to_bytes(&self) -> Vec<u8> {
        let policy = &self.policy;
        let mut bytes = vec![policy.version, policy.contents.number(), policy.names.number(), policy.flags];
        if policy.version == 2 {
            bytes.extend([policy.log2_data_unit_size.unwrap_or(0), 0, 0, 0]);
        }
        bytes.extend(policy.key.as_bytes());
        bytes.extend(self.nonce);
        bytes
    }
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(bytes);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v2(contents: u8, names: u8, flags: u8, log2: u8) -> Vec<u8> {
        let mut bytes = vec![2, contents, names, flags, log2, 0, 0, 0];
        bytes.extend([0xaa; 16]);
        bytes.extend([0xbb; 16]);
        bytes
    }

    fn v1(contents: u8, names: u8, flags: u8) -> Vec<u8> {
        let mut bytes = vec![1, contents, names, flags];
        bytes.extend([0xaa; 8]);
        bytes.extend([0xbb; 16]);
        bytes
    }

    #[test]
    fn contexts_round_trip() {
        for bytes in [
            v1(1, 4, 3),
            v1(5, 6, 0),
            v1(9, 9, 6),
            v2(1, 4, 3, 0),
            v2(1, 10, 0x0a, 0),
            v2(1, 4, 0x13, 0),
            v2(7, 8, 1, 9),
            v2(9, 9, 4, 0),
        ] {
            let context = Context::parse(&bytes).unwrap();
            assert_eq!(context.to_bytes(), bytes);
            assert_eq!(context.nonce, [0xbb; 16]);
        }
    }

    #[test]
    fn every_other_length_is_refused() {
        for (bytes, right) in [(v1(1, 4, 3), 28), (v2(1, 4, 3, 0), 40)] {
            for length in (0..64).filter(|&length| length != right) {
                let mut given = bytes.clone();
                given.resize(length, 0);
                assert!(matches!(Context::parse(&given), Err(ContextError::Length { .. })), "{length}");
            }
        }
    }

    #[test]
    fn what_linux_refuses_is_refused() {
        use ContextError as E;
        let parse = |bytes: Vec<u8>| Context::parse(&bytes).unwrap_err();
        assert_eq!(parse(v2(3, 4, 0, 0)), E::UnknownMode(3));
        assert_eq!(parse(v2(1, 6, 0, 0)), E::Pair { version: 2, contents: Mode::Aes256Xts, names: Mode::Aes128Cts });
        assert!(matches!(parse(v1(1, 10, 0)), E::Pair { .. }));
        assert!(matches!(parse(v1(7, 8, 0)), E::Pair { .. }));
        assert!(matches!(parse(v1(1, 4, 0x08)), E::Flags { .. }));
        assert!(matches!(parse(v2(1, 4, 0x20, 0)), E::Flags { .. }));
        assert!(matches!(parse(v2(1, 4, 0x18, 0)), E::Flags { .. }));
        assert!(matches!(parse(v2(9, 9, 0x0c, 0)), E::Flags { .. }));
        assert!(matches!(parse(v2(1, 4, 0x04, 0)), E::Flags { .. }));
        assert!(matches!(parse(v2(9, 9, 0x08, 0)), E::Flags { .. }));
        assert!(matches!(parse(v2(1, 4, 0, 8)), E::DataUnitSize { .. }));
        assert!(matches!(parse(v2(1, 4, 0, 17)), E::DataUnitSize { .. }));
        let mut reserved = v2(1, 4, 0, 0);
        reserved[6] = 1;
        assert_eq!(parse(reserved), E::Reserved);
        let mut version = v2(1, 4, 0, 0);
        version[0] = 3;
        assert_eq!(parse(version), E::Version(3));
    }
}
