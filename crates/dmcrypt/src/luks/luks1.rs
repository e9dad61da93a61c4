//! LUKS1: a binary header with eight keyslots.
//!
//! The specification is "LUKS On-Disk Format", version 1.2.3. Big-endian; offsets are in sectors of 512 bytes.

use super::{MAGIC, be16, be32, text};
use crate::hash::{HashAlg, UnknownHash};
use crate::spec::{CipherSpec, SpecError};

/// The header's size, in bytes.
pub const HEADER_SIZE: usize = 592;

/// How many keyslots there are.
pub const SLOTS: usize = 8;

/// The most bytes that a key may have.
pub(super) const MAX_KEY: u32 = 512;

/// Why bytes are not a LUKS1 header that can be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Luks1Error {
    /// Another magic number or version, or fewer bytes than a header has.
    #[error("not a LUKS1 header")]
    NotLuks1,
    /// A field with an impossible value.
    #[error("corrupt LUKS1 header: {field} is {value}")]
    Field {
        /// Which one.
        field: &'static str,
        /// Its value.
        value: u64,
    },
    /// A field that is not text.
    #[error("corrupt LUKS1 header: {field} is not text")]
    Text {
        /// Which one.
        field: &'static str,
    },
    /// A cipher that is not supported.
    #[error("LUKS1 header: {0}")]
    Cipher(#[from] SpecError),
    /// A hash function that is not supported.
    #[error("LUKS1 header: {0}")]
    Hash(#[from] UnknownHash),
}

/// A keyslot in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Keyslot {
    /// Its number, 0 to 7.
    pub number: usize,
    /// Iterations of PBKDF2.
    pub iterations: u32,
    /// The salt.
    pub salt: [u8; 32],
    /// Where its key material is on the device, in bytes.
    pub material_offset: u64,
    /// Anti-forensic stripes.
    pub stripes: u32,
}

/// A LUKS1 header.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Header {
    /// The cipher of data and keyslots.
    pub cipher: CipherSpec,
    /// The hash function of PBKDF2 and anti-forensic splitting.
    pub hash: HashAlg,
    /// Where the data begins, in bytes; 0 in a detached header.
    pub payload_offset: u64,
    /// Bytes of the volume key.
    pub key_bytes: u32,
    /// PBKDF2 of the volume key.
    pub digest: [u8; 20],
    /// The salt of that.
    pub digest_salt: [u8; 32],
    /// The iterations of that.
    pub digest_iterations: u32,
    /// The UUID, as text.
    pub uuid: String,
    /// The keyslots in use.
    pub keyslots: Vec<Keyslot>,
}

impl Header {
    /// Parses a header.
    ///
    /// # Errors
    /// If it is not a header, or not a usable one.
    pub fn parse(bytes: &[u8]) -> Result<Self, Luks1Error> {
        let Some(bytes) = bytes.first_chunk::<HEADER_SIZE>().filter(|b| b.starts_with(&MAGIC)) else {
            return Err(Luks1Error::NotLuks1);
        };
        if be16(bytes, 6) != 1 {
            return Err(Luks1Error::NotLuks1);
        }
        let string = |field, at: usize, len: usize| text(&bytes[at..at + len]).ok_or(Luks1Error::Text { field });
        let range = |field, value: u32, min: u32, max: u32| {
            if (min..=max).contains(&value) { Ok(value) } else { Err(Luks1Error::Field { field, value: value.into() }) }
        };
        let cipher = format!("{}-{}", string("the cipher's name", 8, 32)?, string("the cipher's mode", 40, 32)?);
        let cipher = cipher.parse()?;
        let hash = string("the hash's name", 72, 32)?.parse()?;
        let key_bytes = range("the key's length", be32(bytes, 108), 1, MAX_KEY)?;
        let mut keyslots = Vec::new();
        for number in 0..SLOTS {
            let at = 208 + 48 * number;
            match be32(bytes, at) {
                0x00ac_71f3 => {}
                0x0000_dead => continue,
                value => return Err(Luks1Error::Field { field: "a keyslot's state", value: value.into() }),
            }
            let mut salt = [0; 32];
            salt.copy_from_slice(&bytes[at + 8..at + 40]);
            keyslots.push(Keyslot {
                number,
                iterations: range("a keyslot's number of iterations", be32(bytes, at + 4), 1, u32::MAX)?,
                salt,
                material_offset: u64::from(be32(bytes, at + 40)) * 512,
                stripes: range("a keyslot's number of stripes", be32(bytes, at + 44), 1, u32::MAX)?,
            });
        }
        let mut digest = [0; 20];
        digest.copy_from_slice(&bytes[112..132]);
        let mut digest_salt = [0; 32];
        digest_salt.copy_from_slice(&bytes[132..164]);
        Ok(Self {
            cipher,
            hash,
            payload_offset: u64::from(be32(bytes, 104)) * 512,
            key_bytes,
            digest,
            digest_salt,
            digest_iterations: range("the digest's number of iterations", be32(bytes, 164), 1, u32::MAX)?,
            uuid: string("the UUID", 168, 40)?.to_owned(),
            keyslots,
        })
    }
}
