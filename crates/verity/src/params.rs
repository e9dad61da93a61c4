//! The parameters of a Merkle tree: hash algorithm, block size, salt.
//!
//! Source of the rules: the kernel's `Documentation/filesystems/fsverity.rst` and `fsverity-utils`' limits.

use std::fmt;

use postread_blockcrypt::hash::{BlockHasher, HashAlg};

/// The longest salt, in bytes.
pub const MAX_SALT_SIZE: usize = 32;
/// The smallest block size accepted, in bytes.
pub const MIN_BLOCK_SIZE: u32 = 512;
/// The largest block size accepted, in bytes.
pub const MAX_BLOCK_SIZE: u32 = 65536;
/// The most levels of hash blocks a tree may have (the kernel's `FS_VERITY_MAX_LEVELS`).
pub const MAX_LEVELS: usize = 8;

/// The number that stands for a hash algorithm in descriptors, ioctls and formatted digests; `None` if fs-verity does
/// not have the algorithm.
pub fn alg_number(alg: HashAlg) -> Option<u8> {
    match alg {
        HashAlg::Sha256 => Some(1),
        HashAlg::Sha512 => Some(2),
        _ => None,
    }
}

/// The hash algorithm of a number in a descriptor.
pub fn alg_from_number(number: u64) -> Option<HashAlg> {
    match number {
        1 => Some(HashAlg::Sha256),
        2 => Some(HashAlg::Sha512),
        _ => None,
    }
}

/// The hash algorithm of a name, as `fsverity` reads it: lower case, no hyphen; `None` if fs-verity does not have it.
pub fn alg_from_name(name: &str) -> Option<HashAlg> {
    match name {
        "sha256" => Some(HashAlg::Sha256),
        "sha512" => Some(HashAlg::Sha512),
        _ => None,
    }
}

/// Why parameters were refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParamsError {
    /// A hash algorithm that fs-verity does not have.
    #[error("fs-verity has no hash algorithm {alg} (it has sha256 and sha512)")]
    HashAlgorithm {
        /// The algorithm asked for.
        alg: HashAlg,
    },
    /// The block size is not a power of two within the limits.
    #[error("block size {block_size} is not a power of two from {MIN_BLOCK_SIZE} to {MAX_BLOCK_SIZE}")]
    BlockSize {
        /// The size asked for, in bytes.
        block_size: u64,
    },
    /// The salt is longer than a descriptor can hold.
    #[error("a salt of {len} bytes is longer than {MAX_SALT_SIZE}")]
    SaltTooLong {
        /// The salt's length, in bytes.
        len: usize,
    },
}

/// Why the kernel would not enable fs-verity with parameters that postread accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KernelRefusal {
    /// The kernel requires at least 1024 bytes.
    BlockTooSmall {
        /// The tree's block size, in bytes.
        block_size: u32,
    },
    /// The block may not exceed the page.
    BlockAbovePage {
        /// The tree's block size, in bytes.
        block_size: u32,
        /// The page size, in bytes.
        page_size: u32,
    },
    /// The block may not exceed the file system's block.
    BlockAboveFsBlock {
        /// The tree's block size, in bytes.
        block_size: u32,
        /// The file system's block size, in bytes.
        fs_block_size: u32,
    },
}

impl fmt::Display for KernelRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BlockTooSmall { block_size } => {
                write!(f, "the kernel requires a block size of at least 1024 bytes (this is {block_size})")
            }
            Self::BlockAbovePage { block_size, page_size } => {
                write!(f, "a block of {block_size} bytes is larger than a page of {page_size} bytes")
            }
            Self::BlockAboveFsBlock { block_size, fs_block_size } => {
                write!(
                    f,
                    "a block of {block_size} bytes is larger than the file system's block of {fs_block_size} bytes"
                )
            }
        }
    }
}

/// Hash algorithm, block size and salt of a Merkle tree (the kernel's `merkle_tree_params`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MerkleTreeParams {
    alg: HashAlg,
    log_blocksize: u8,
    salt: [u8; MAX_SALT_SIZE],
    salt_size: u8,
}

impl MerkleTreeParams {
    /// Takes a hash algorithm, a block size in bytes (a power of two, 512 to 65536) and a salt (0 to 32 bytes).
    ///
    /// An empty salt is the same as no salt. A salt of zero bytes is not: it is prepended, padded, to every block.
    pub fn new(alg: HashAlg, block_size: u32, salt: &[u8]) -> Result<Self, ParamsError> {
        if alg_number(alg).is_none() {
            return Err(ParamsError::HashAlgorithm { alg });
        }
        if !block_size.is_power_of_two() || !(MIN_BLOCK_SIZE..=MAX_BLOCK_SIZE).contains(&block_size) {
            return Err(ParamsError::BlockSize { block_size: u64::from(block_size) });
        }
        if salt.len() > MAX_SALT_SIZE {
            return Err(ParamsError::SaltTooLong { len: salt.len() });
        }
        let mut padded = [0; MAX_SALT_SIZE];
        padded[..salt.len()].copy_from_slice(salt);
        Ok(Self { alg, log_blocksize: block_size.ilog2() as u8, salt: padded, salt_size: salt.len() as u8 })
    }

    /// The hash algorithm.
    pub fn alg(&self) -> HashAlg {
        self.alg
    }

    /// The size of data blocks and hash blocks, in bytes.
    pub fn block_size(&self) -> usize {
        1 << self.log_blocksize
    }

    /// The base-2 logarithm of the block size.
    pub fn log_blocksize(&self) -> u8 {
        self.log_blocksize
    }

    /// The salt, without padding.
    pub fn salt(&self) -> &[u8] {
        &self.salt[..usize::from(self.salt_size)]
    }

    /// Bytes in a digest.
    pub fn digest_size(&self) -> usize {
        self.alg.digest_size()
    }

    /// How many digests fill one hash block.
    pub fn hashes_per_block(&self) -> usize {
        self.block_size() / self.digest_size()
    }

    /// The base-2 logarithm of [`hashes_per_block`](Self::hashes_per_block).
    pub fn log_arity(&self) -> u32 {
        self.hashes_per_block().ilog2()
    }

    /// A hasher of data and hash blocks: the salt, zero-padded to the compression block, goes before each of them.
    pub fn block_hasher(&self) -> BlockHasher {
        let hasher = BlockHasher::new(self.alg);
        if self.salt_size == 0 {
            return hasher;
        }
        let mut padded = [0; 128];
        padded[..MAX_SALT_SIZE].copy_from_slice(&self.salt);
        hasher.with_prefix(&padded[..self.alg.compression_block_size()])
    }

    /// Why a kernel with pages of `page_size` bytes would refuse to enable fs-verity with these parameters on a file
    /// system whose blocks have `fs_block_size` bytes; `None` if it would take them. (Kernels before 6.3 take only a
    /// block size equal to both.)
    pub fn kernel_refusal(&self, page_size: u32, fs_block_size: u32) -> Option<KernelRefusal> {
        let block_size = 1u32 << self.log_blocksize;
        if block_size < 1024 {
            Some(KernelRefusal::BlockTooSmall { block_size })
        } else if block_size > page_size {
            Some(KernelRefusal::BlockAbovePage { block_size, page_size })
        } else if block_size > fs_block_size {
            Some(KernelRefusal::BlockAboveFsBlock { block_size, fs_block_size })
        } else {
            None
        }
    }
}

impl Default for MerkleTreeParams {
    /// SHA-256, 4096 bytes, no salt: the defaults of `fsverity`.
    fn default() -> Self {
        Self { alg: HashAlg::Sha256, log_blocksize: 12, salt: [0; MAX_SALT_SIZE], salt_size: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_sizes_outside_the_limits_are_refused() {
        for block_size in [0, 1, 64, 256, 511, 513, 4095, 4097, 65535, 131_072, u32::MAX] {
            assert_eq!(
                MerkleTreeParams::new(HashAlg::Sha256, block_size, b""),
                Err(ParamsError::BlockSize { block_size: u64::from(block_size) })
            );
        }
        for log in 9..=16 {
            let params = MerkleTreeParams::new(HashAlg::Sha512, 1 << log, b"").unwrap();
            assert_eq!(params.block_size(), 1 << log);
            assert!(params.hashes_per_block() >= 2);
        }
    }

    #[test]
    fn algorithms_of_dm_verity_only_are_refused() {
        let refused = MerkleTreeParams::new(HashAlg::Sha1, 4096, b"");
        assert_eq!(refused, Err(ParamsError::HashAlgorithm { alg: HashAlg::Sha1 }));
    }

    #[test]
    fn salts_above_32_bytes_are_refused() {
        assert!(MerkleTreeParams::new(HashAlg::Sha256, 4096, &[1; 32]).is_ok());
        assert_eq!(MerkleTreeParams::new(HashAlg::Sha256, 4096, &[1; 33]), Err(ParamsError::SaltTooLong { len: 33 }));
    }

    #[test]
    fn what_the_kernel_refuses() {
        let of = |size| MerkleTreeParams::new(HashAlg::Sha256, size, b"").unwrap().kernel_refusal(4096, 4096);
        assert_eq!(of(512), Some(KernelRefusal::BlockTooSmall { block_size: 512 }));
        assert_eq!(of(1024), None);
        assert_eq!(of(4096), None);
        assert_eq!(of(8192), Some(KernelRefusal::BlockAbovePage { block_size: 8192, page_size: 4096 }));
        let small_fs = MerkleTreeParams::default().kernel_refusal(4096, 1024);
        assert_eq!(small_fs, Some(KernelRefusal::BlockAboveFsBlock { block_size: 4096, fs_block_size: 1024 }));
    }
}
