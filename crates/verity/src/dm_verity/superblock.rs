//! The superblock before a hash area: 512 bytes, little-endian, written by `veritysetup` and never read by the kernel.
//!
//! Layout (cryptsetup's wiki, DMVerity): magic 8, version 4, hash type 4, UUID 16, algorithm 32, data block size 4, hash
//! block size 4, data blocks 8, salt size 2, padding 6, salt 256, padding 168.

use std::str::FromStr;

use postread_blockcrypt::hash::HashAlg;

use crate::dm_verity::params::{HashType, MAX_SALT_SIZE, Params, ParamsError};

/// Its size on disk, in bytes.
pub const SUPERBLOCK_SIZE: usize = 512;

/// The magic number at its start.
pub const MAGIC: [u8; 8] = *b"verity\0\0";

/// Why bytes are not a usable superblock.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SuperblockError {
    /// Fewer bytes than a superblock has.
    #[error("{len} bytes: a dm-verity superblock has {SUPERBLOCK_SIZE}")]
    TooShort {
        /// Bytes given.
        len: usize,
    },
    /// Another magic number.
    #[error("no dm-verity superblock: its magic number is missing")]
    Magic,
    /// A version other than 1.
    #[error("dm-verity superblock version {version}: expected 1")]
    Version {
        /// The version found.
        version: u32,
    },
    /// An unsupported hash algorithm.
    #[error("dm-verity superblock: hash algorithm \"{}\" is not supported (sha1, sha256, sha512 and blake2b-256 are)", .name.escape_default())]
    Algorithm {
        /// The name found.
        name: String,
    },
    /// Parameters outside their limits.
    #[error("dm-verity superblock: {0}")]
    Params(#[from] ParamsError),
}

/// A superblock. **Nothing in it is authenticated.**
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Format, algorithm, block sizes, salt.
    pub params: Params,
    /// The number of data blocks. The root hash does not commit to it.
    pub data_blocks: u64,
    /// The UUID, as bytes in the order in which it is written.
    pub uuid: [u8; 16],
}

impl Superblock {
    /// Parses a superblock. Padding is ignored.
    ///
    /// # Errors
    /// If it is not a superblock, or not a usable one.
    pub fn parse(bytes: &[u8]) -> Result<Self, SuperblockError> {
        let Some(bytes) = bytes.first_chunk::<SUPERBLOCK_SIZE>() else {
            return Err(SuperblockError::TooShort { len: bytes.len() });
        };
        let le32 = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        if bytes[..8] != MAGIC {
            return Err(SuperblockError::Magic);
        }
        if le32(8) != 1 {
            return Err(SuperblockError::Version { version: le32(8) });
        }
        let hash_type = HashType::from_number(le32(12))?;
        let name = &bytes[32..64];
        let name = &name[..name.iter().position(|&b| b == 0).unwrap_or(name.len())];
        let alg = std::str::from_utf8(name).ok().and_then(|name| HashAlg::from_str(name).ok());
        let Some(alg) = alg else {
            return Err(SuperblockError::Algorithm { name: String::from_utf8_lossy(name).into_owned() });
        };
        let salt_size = usize::from(u16::from_le_bytes([bytes[80], bytes[81]]));
        if salt_size > MAX_SALT_SIZE {
            return Err(ParamsError::SaltTooLong { len: salt_size }.into());
        }
        let params = Params::new(hash_type, alg, le32(64), le32(68), &bytes[88..88 + salt_size])?;
        let data_blocks = u64::from(le32(72)) | u64::from(le32(76)) << 32;
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&bytes[16..32]);
        Ok(Self { params, data_blocks, uuid })
    }

    /// The 512 bytes.
    pub fn to_bytes(&self) -> [u8; SUPERBLOCK_SIZE] {
        let mut out = [0; SUPERBLOCK_SIZE];
        let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
        let p = &self.params;
        put(0, &MAGIC);
        put(8, &1u32.to_le_bytes());
        put(12, &p.hash_type().number().to_le_bytes());
        put(16, &self.uuid);
        put(32, p.alg().name().as_bytes());
        put(64, &(p.data_block_size() as u32).to_le_bytes());
        put(68, &(p.hash_block_size() as u32).to_le_bytes());
        put(72, &self.data_blocks.to_le_bytes());
        put(80, &(p.salt().len() as u16).to_le_bytes());
        put(88, p.salt());
        out
    }

    /// Where the hash area begins when the superblock is at `offset` of the hash device: the next hash block. `None` past
    /// the last possible byte.
    pub fn hash_area_offset(&self, offset: u64) -> Option<u64> {
        offset.checked_add(SUPERBLOCK_SIZE as u64)?.checked_next_multiple_of(self.params.hash_block_size() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Superblock {
        let params = Params::new(HashType::ChromeOs, HashAlg::Blake2b256, 512, 4096, &[9; 256]).unwrap();
        Superblock { params, data_blocks: 1 << 40, uuid: *b"0123456789abcdef" }
    }

    #[test]
    fn what_is_written_is_read() {
        assert_eq!(Superblock::parse(&sample().to_bytes()).unwrap(), sample());
        assert_eq!(sample().hash_area_offset(0), Some(4096));
        assert_eq!(sample().hash_area_offset(4096 - 512), Some(4096));
        assert_eq!(sample().hash_area_offset(4097), Some(8192));
        assert_eq!(sample().hash_area_offset(u64::MAX - 600), None);
    }

    #[test]
    fn each_field_is_checked() {
        let with = |at: usize, bytes: &[u8]| {
            let mut all = sample().to_bytes();
            all[at..at + bytes.len()].copy_from_slice(bytes);
            Superblock::parse(&all).unwrap_err()
        };
        assert_eq!(Superblock::parse(&sample().to_bytes()[..511]), Err(SuperblockError::TooShort { len: 511 }));
        assert_eq!(with(7, b"x"), SuperblockError::Magic);
        assert_eq!(with(8, &[2]), SuperblockError::Version { version: 2 });
        assert_eq!(with(12, &[2]), ParamsError::HashType { number: 2 }.into());
        assert_eq!(with(32, b"md5\0"), SuperblockError::Algorithm { name: "md5".into() });
        assert_eq!(with(64, &[0, 1]), ParamsError::BlockSize { what: "data", block_size: 256 }.into());
        assert_eq!(with(68, &[1]), ParamsError::BlockSize { what: "hash", block_size: 4097 }.into());
        assert_eq!(with(80, &[1, 1]), ParamsError::SaltTooLong { len: 257 }.into());
    }
}
