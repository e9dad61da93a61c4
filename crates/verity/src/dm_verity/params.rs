//! The parameters of a hash tree: on-disk format, hash algorithm, block sizes, salt.

use std::fmt;

use postread_blockcrypt::hash::{BlockHasher, HashAlg};

/// The smallest block, in bytes.
pub const MIN_BLOCK_SIZE: u32 = 512;

/// The largest block, in bytes. The kernel takes data blocks up to a page.
pub const MAX_BLOCK_SIZE: u32 = 512 << 10;

/// The longest salt, in bytes.
pub const MAX_SALT_SIZE: usize = 256;

/// Why parameters are refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParamsError {
    /// A block size that is not a power of two within the limits.
    #[error("{what} blocks of {block_size} bytes: expected a power of two from {MIN_BLOCK_SIZE} to {MAX_BLOCK_SIZE}")]
    BlockSize {
        /// `"data"` or `"hash"`.
        what: &'static str,
        /// The size, in bytes.
        block_size: u64,
    },
    /// A salt above [`MAX_SALT_SIZE`].
    #[error("a salt of {len} bytes: at most {MAX_SALT_SIZE} fit")]
    SaltTooLong {
        /// The salt's length, in bytes.
        len: usize,
    },
    /// A hash type that does not exist.
    #[error("hash type {number}: expected 0 or 1")]
    HashType {
        /// The number found.
        number: u32,
    },
}

/// The on-disk format of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum HashType {
    /// 0, Chromium OS: a block is hashed as `data || salt`, and digests are packed without gaps.
    ChromeOs,
    /// 1, the default: a block is hashed as `salt || data`, and each digest is padded with zeros to a power of two.
    Normal,
}

impl HashType {
    /// The number used in superblocks and kernel tables.
    pub const fn number(self) -> u32 {
        match self {
            HashType::ChromeOs => 0,
            HashType::Normal => 1,
        }
    }

    /// The type with this number.
    ///
    /// # Errors
    /// For any number but 0 and 1.
    pub const fn from_number(number: u32) -> Result<Self, ParamsError> {
        match number {
            0 => Ok(HashType::ChromeOs),
            1 => Ok(HashType::Normal),
            _ => Err(ParamsError::HashType { number }),
        }
    }
}

/// What a tree is made with.
#[derive(Clone, PartialEq, Eq)]
pub struct Params {
    hash_type: HashType,
    alg: HashAlg,
    log_data_block: u8,
    log_hash_block: u8,
    salt: Vec<u8>,
}

impl Params {
    /// Checks block sizes (powers of two from 512 bytes to 512 KiB, which may differ) and the salt (0 to 256 bytes).
    ///
    /// # Errors
    /// What is outside the limits.
    pub fn new(
        hash_type: HashType,
        alg: HashAlg,
        data_block_size: u32,
        hash_block_size: u32,
        salt: &[u8],
    ) -> Result<Self, ParamsError> {
        for (what, size) in [("data", data_block_size), ("hash", hash_block_size)] {
            if !size.is_power_of_two() || !(MIN_BLOCK_SIZE..=MAX_BLOCK_SIZE).contains(&size) {
                return Err(ParamsError::BlockSize { what, block_size: size.into() });
            }
        }
        if salt.len() > MAX_SALT_SIZE {
            return Err(ParamsError::SaltTooLong { len: salt.len() });
        }
        Ok(Self {
            hash_type,
            alg,
            log_data_block: data_block_size.ilog2() as u8,
            log_hash_block: hash_block_size.ilog2() as u8,
            salt: salt.to_vec(),
        })
    }

    /// The same parameters with another salt.
    ///
    /// # Errors
    /// If the salt is longer than [`MAX_SALT_SIZE`].
    pub fn with_salt(self, salt: &[u8]) -> Result<Self, ParamsError> {
        if salt.len() > MAX_SALT_SIZE {
            return Err(ParamsError::SaltTooLong { len: salt.len() });
        }
        Ok(Self { salt: salt.to_vec(), ..self })
    }

    /// The on-disk format.
    pub fn hash_type(&self) -> HashType {
        self.hash_type
    }

    /// The hash algorithm.
    pub fn alg(&self) -> HashAlg {
        self.alg
    }

    /// Bytes in a data block.
    pub fn data_block_size(&self) -> usize {
        1 << self.log_data_block
    }

    /// The base-2 logarithm of [`data_block_size`](Self::data_block_size).
    pub fn log_data_block_size(&self) -> u32 {
        self.log_data_block.into()
    }

    /// Bytes in a hash block.
    pub fn hash_block_size(&self) -> usize {
        1 << self.log_hash_block
    }

    /// The base-2 logarithm of [`hash_block_size`](Self::hash_block_size).
    pub fn log_hash_block_size(&self) -> u32 {
        self.log_hash_block.into()
    }

    /// The salt.
    pub fn salt(&self) -> &[u8] {
        &self.salt
    }

    /// Bytes in a digest.
    pub fn digest_size(&self) -> usize {
        self.alg.digest_size()
    }

    /// The distance between two digests in a hash block, in bytes.
    pub fn digest_stride(&self) -> usize {
        match self.hash_type {
            HashType::ChromeOs => self.digest_size(),
            HashType::Normal => self.digest_size().next_power_of_two(),
        }
    }

    /// The base-2 logarithm of the number of digests in a hash block: a power of two in both formats.
    pub fn log_arity(&self) -> u32 {
        (self.hash_block_size() / self.digest_size()).ilog2()
    }

    /// How many digests a hash block holds.
    pub fn hashes_per_block(&self) -> usize {
        1 << self.log_arity()
    }

    /// A hasher that adds the salt before or after the block, as the format requires.
    pub fn block_hasher(&self) -> BlockHasher {
        let hasher = BlockHasher::new(self.alg);
        match self.hash_type {
            _ if self.salt.is_empty() => hasher,
            HashType::ChromeOs => hasher.with_suffix(&self.salt),
            HashType::Normal => hasher.with_prefix(&self.salt),
        }
    }
}

impl Default for Params {
    /// Type 1, SHA-256, blocks of 4096 bytes, no salt: the defaults of `veritysetup`, except that it makes a random
    /// salt.
    fn default() -> Self {
        Self {
            hash_type: HashType::Normal,
            alg: HashAlg::Sha256,
            log_data_block: 12,
            log_hash_block: 12,
            salt: Vec::new(),
        }
    }
}

impl fmt::Debug for Params {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Params")
            .field("hash_type", &self.hash_type)
            .field("alg", &self.alg)
            .field("data_block_size", &self.data_block_size())
            .field("hash_block_size", &self.hash_block_size())
            .field("salt", &hex::encode(&self.salt))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits() {
        let new = |data, hash, salt: usize| Params::new(HashType::Normal, HashAlg::Sha1, data, hash, &vec![0; salt]);
        assert!(new(512, 512 << 10, 256).is_ok());
        assert_eq!(new(256, 512, 0), Err(ParamsError::BlockSize { what: "data", block_size: 256 }));
        assert_eq!(new(512, 1 << 20, 0), Err(ParamsError::BlockSize { what: "hash", block_size: 1 << 20 }));
        assert_eq!(new(4096, 4097, 0), Err(ParamsError::BlockSize { what: "hash", block_size: 4097 }));
        assert_eq!(new(4096, 4096, 257), Err(ParamsError::SaltTooLong { len: 257 }));
        assert_eq!(HashType::from_number(2), Err(ParamsError::HashType { number: 2 }));
    }

    #[test]
    fn digests_are_packed_in_type_0_and_padded_in_type_1() {
        let of = |hash_type, alg| Params::new(hash_type, alg, 4096, 4096, b"").unwrap();
        assert_eq!(of(HashType::ChromeOs, HashAlg::Sha1).digest_stride(), 20);
        assert_eq!(of(HashType::Normal, HashAlg::Sha1).digest_stride(), 32);
        for hash_type in [HashType::ChromeOs, HashType::Normal] {
            assert_eq!(of(hash_type, HashAlg::Sha1).hashes_per_block(), 128);
            assert_eq!(of(hash_type, HashAlg::Sha512).hashes_per_block(), 64);
            let small = Params::new(hash_type, HashAlg::Sha512, 4096, 512, b"").unwrap();
            assert_eq!(small.hashes_per_block(), 8);
        }
    }
}
