//! The fs-verity descriptor (`struct fsverity_descriptor`): what a file digest is the hash of.
//!
//! 256 bytes: version 1, hash algorithm, log2 of the block size, salt size, signature size (le32), file size (le64),
//! root hash (64), salt (32), zeros (144); a built-in signature may follow. Source: the kernel's
//! `Documentation/filesystems/fsverity.rst`.

use crate::digest::{Digest, FileDigest};
use crate::params::{MAX_SALT_SIZE, MerkleTreeParams, ParamsError, alg_from_number, alg_number};

/// Bytes in a descriptor without signature.
pub const DESCRIPTOR_SIZE: usize = 256;
/// The most bytes that descriptor and signature may have together (the kernel's `FS_VERITY_MAX_DESCRIPTOR_SIZE`).
pub const MAX_DESCRIPTOR_SIZE: usize = 16384;
/// The most bytes a built-in signature may have.
pub const MAX_SIGNATURE_SIZE: usize = MAX_DESCRIPTOR_SIZE - DESCRIPTOR_SIZE;

const SIG_SIZE: std::ops::Range<usize> = 4..8;
const DATA_SIZE: std::ops::Range<usize> = 8..16;
const ROOT_HASH: usize = 16;
const SALT: usize = 80;
const RESERVED: usize = 112;

/// Why bytes are not a descriptor, or not this file's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DescriptorError {
    /// Shorter than a descriptor.
    #[error("descriptor of {len} bytes: at least {DESCRIPTOR_SIZE} are needed")]
    TooShort {
        /// The number of bytes there are.
        len: usize,
    },
    /// More bytes than the format allows.
    #[error("descriptor of {len} bytes: at most {MAX_DESCRIPTOR_SIZE} are allowed")]
    TooLong {
        /// The number of bytes there are.
        len: usize,
    },
    /// A version other than 1.
    #[error("unknown descriptor version {version} (known: 1)")]
    Version {
        /// The version found.
        version: u8,
    },
    /// A hash algorithm that fs-verity does not have.
    #[error("unknown hash algorithm number {number} (known: 1 sha256, 2 sha512)")]
    HashAlgorithm {
        /// The number found.
        number: u8,
    },
    /// A block size outside 512 to 65536.
    #[error("block size 2^{log_blocksize} is not from 2^9 to 2^16")]
    BlockSize {
        /// The base-2 logarithm found.
        log_blocksize: u8,
    },
    /// A salt longer than its field.
    #[error("salt size {salt_size} is above {MAX_SALT_SIZE}")]
    SaltSize {
        /// The size found.
        salt_size: u8,
    },
    /// A reserved byte is not zero.
    #[error("reserved byte at offset {offset} is {found:#04x}, not zero")]
    Reserved {
        /// Its offset in the descriptor.
        offset: usize,
        /// Its value.
        found: u8,
    },
    /// The signature would end past the bytes given.
    #[error("the descriptor announces a signature of {sig_size} bytes, but only {available} bytes follow it")]
    SignatureSize {
        /// The size found, in bytes.
        sig_size: u32,
        /// How many bytes follow the descriptor.
        available: usize,
    },
    /// The signature is too long for a descriptor.
    #[error("a signature of {len} bytes is too long: the limit is {MAX_SIGNATURE_SIZE}")]
    SignatureTooLong {
        /// Its length, in bytes.
        len: usize,
    },
    /// The descriptor belongs to a file of another size.
    #[error("the descriptor is for a file of {wanted} bytes, but the file has {found}")]
    DataSize {
        /// The size in the descriptor.
        wanted: u64,
        /// The file's size.
        found: u64,
    },
}

/// A parsed descriptor, with the built-in signature if there is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Descriptor {
    params: MerkleTreeParams,
    data_size: u64,
    root_hash: Digest,
    /// As hashed: the signature size is zero. Kept whole, since the digest also covers the unchecked padding after a
    /// short root hash or salt.
    raw: [u8; DESCRIPTOR_SIZE],
    signature: Vec<u8>,
}

impl Descriptor {
    /// The descriptor of a file of `data_size` bytes with this root hash. Panics if the root hash uses another
    /// algorithm than the parameters.
    pub fn new(params: MerkleTreeParams, data_size: u64, root_hash: Digest) -> Self {
        assert_eq!(params.alg(), root_hash.alg(), "root hash of another algorithm");
        let mut raw = [0; DESCRIPTOR_SIZE];
        raw[0] = 1;
        raw[1] = alg_number(params.alg()).expect("the parameters were checked");
        raw[2] = params.log_blocksize();
        raw[3] = params.salt().len() as u8;
        raw[DATA_SIZE].copy_from_slice(&data_size.to_le_bytes());
        raw[ROOT_HASH..ROOT_HASH + root_hash.as_bytes().len()].copy_from_slice(root_hash.as_bytes());
        raw[SALT..SALT + params.salt().len()].copy_from_slice(params.salt());
        Self { params, data_size, root_hash, raw, signature: Vec::new() }
    }

    /// Reads a descriptor and the signature after it. Like the kernel, ignores bytes after the signature.
    pub fn parse(bytes: &[u8]) -> Result<Self, DescriptorError> {
        if bytes.len() > MAX_DESCRIPTOR_SIZE {
            return Err(DescriptorError::TooLong { len: bytes.len() });
        }
        let (raw, rest) =
            bytes.split_first_chunk::<DESCRIPTOR_SIZE>().ok_or(DescriptorError::TooShort { len: bytes.len() })?;
        let mut raw = *raw;
        let [version, alg, log_blocksize, salt_size, ..] = raw;
        if version != 1 {
            return Err(DescriptorError::Version { version });
        }
        let alg = alg_from_number(u64::from(alg)).ok_or(DescriptorError::HashAlgorithm { number: alg })?;
        if !(9..=16).contains(&log_blocksize) {
            return Err(DescriptorError::BlockSize { log_blocksize });
        }
        let salt = raw[SALT..SALT + MAX_SALT_SIZE]
            .get(..usize::from(salt_size))
            .ok_or(DescriptorError::SaltSize { salt_size })?;
        if let Some(at) = raw[RESERVED..].iter().position(|&b| b != 0) {
            return Err(DescriptorError::Reserved { offset: RESERVED + at, found: raw[RESERVED + at] });
        }
        let sig_size = u32::from_le_bytes([raw[4], raw[5], raw[6], raw[7]]);
        let signature = usize::try_from(sig_size)
            .ok()
            .and_then(|len| rest.get(..len))
            .ok_or(DescriptorError::SignatureSize { sig_size, available: rest.len() })?
            .to_vec();
        let params = MerkleTreeParams::new(alg, 1 << log_blocksize, salt).map_err(|error| match error {
            ParamsError::HashAlgorithm { .. } => DescriptorError::HashAlgorithm { number: raw[1] },
            ParamsError::BlockSize { .. } => DescriptorError::BlockSize { log_blocksize },
            ParamsError::SaltTooLong { .. } => DescriptorError::SaltSize { salt_size },
        })?;
        let mut data_size = [0; 8];
        data_size.copy_from_slice(&raw[DATA_SIZE]);
        let mut root_hash = Digest::zero(alg);
        if let Some(found) = Digest::new(alg, &raw[ROOT_HASH..ROOT_HASH + alg.digest_size()]) {
            root_hash = found;
        }
        raw[SIG_SIZE].fill(0);
        Ok(Self { params, data_size: u64::from_le_bytes(data_size), root_hash, raw, signature })
    }

    /// Hash algorithm, block size and salt.
    pub fn params(&self) -> &MerkleTreeParams {
        &self.params
    }

    /// The file's size, in bytes.
    pub fn data_size(&self) -> u64 {
        self.data_size
    }

    /// The root hash of the file's Merkle tree.
    pub fn root_hash(&self) -> Digest {
        self.root_hash
    }

    /// The built-in signature (PKCS#7, DER); `None` if the file has none.
    pub fn signature(&self) -> Option<&[u8]> {
        if self.signature.is_empty() { None } else { Some(&self.signature) }
    }

    /// Attaches a built-in signature, which may have at most [`MAX_SIGNATURE_SIZE`] bytes.
    pub fn with_signature(mut self, signature: Vec<u8>) -> Result<Self, DescriptorError> {
        if signature.len() > MAX_SIGNATURE_SIZE {
            return Err(DescriptorError::SignatureTooLong { len: signature.len() });
        }
        self.signature = signature;
        Ok(self)
    }

    /// The 256 bytes that are hashed: without signature and with a signature size of zero. This is what
    /// `fsverity digest --out-descriptor` writes.
    pub fn to_bytes(&self) -> [u8; DESCRIPTOR_SIZE] {
        self.raw
    }

    /// The bytes as a file system stores them: with the signature size set and followed by the signature.
    pub fn to_bytes_with_signature(&self) -> Vec<u8> {
        let mut out = self.raw.to_vec();
        out[SIG_SIZE].copy_from_slice(&(self.signature.len() as u32).to_le_bytes());
        out.extend_from_slice(&self.signature);
        out
    }

    /// The file digest: the hash of the descriptor (without salt).
    pub fn file_digest(&self) -> FileDigest {
        FileDigest::new(Digest::of(self.params.alg(), &self.raw)).expect("the parameters were checked")
    }

    /// Checks that the descriptor is for a file of `data_size` bytes, as the kernel does when it opens one.
    pub fn check_data_size(&self, data_size: u64) -> Result<(), DescriptorError> {
        if self.data_size == data_size {
            Ok(())
        } else {
            Err(DescriptorError::DataSize { wanted: self.data_size, found: data_size })
        }
    }
}

#[cfg(test)]
mod tests {
    use postread_blockcrypt::hash::HashAlg;

    use super::*;

    fn sample() -> Descriptor {
        let params = MerkleTreeParams::new(HashAlg::Sha256, 4096, b"salty").unwrap();
        Descriptor::new(params, 12345, Digest::of(HashAlg::Sha256, b"root"))
    }

    #[test]
    fn empty_file() {
        let descriptor = Descriptor::new(MerkleTreeParams::default(), 0, Digest::zero(HashAlg::Sha256));
        let wanted = "sha256:3d248ca542a24fc62d1c43b916eae5016878e2533c88238480b26128a1f1af95";
        assert_eq!(descriptor.file_digest().to_string(), wanted);
        assert_eq!(Descriptor::parse(&descriptor.to_bytes()), Ok(descriptor));
    }

    #[test]
    fn signature_is_kept_and_not_hashed() {
        let plain = sample();
        let signed = plain.clone().with_signature(vec![7; 1000]).unwrap();
        assert_eq!(signed.file_digest(), plain.file_digest());
        let parsed = Descriptor::parse(&signed.to_bytes_with_signature()).unwrap();
        assert_eq!(parsed, signed);
        assert_eq!(parsed.signature(), Some(&[7; 1000][..]));
        assert!(plain.clone().with_signature(vec![0; MAX_SIGNATURE_SIZE]).is_ok());
        let too_long = DescriptorError::SignatureTooLong { len: MAX_SIGNATURE_SIZE + 1 };
        assert_eq!(plain.with_signature(vec![0; MAX_SIGNATURE_SIZE + 1]), Err(too_long));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let good = sample().to_bytes();
        let with = |at: usize, value: u8| {
            let mut bytes = good;
            bytes[at] = value;
            Descriptor::parse(&bytes)
        };
        assert_eq!(with(0, 2), Err(DescriptorError::Version { version: 2 }));
        assert_eq!(with(1, 0), Err(DescriptorError::HashAlgorithm { number: 0 }));
        assert_eq!(with(1, 3), Err(DescriptorError::HashAlgorithm { number: 3 }));
        assert_eq!(with(2, 8), Err(DescriptorError::BlockSize { log_blocksize: 8 }));
        assert_eq!(with(2, 255), Err(DescriptorError::BlockSize { log_blocksize: 255 }));
        assert_eq!(with(3, 33), Err(DescriptorError::SaltSize { salt_size: 33 }));
        assert_eq!(with(4, 1), Err(DescriptorError::SignatureSize { sig_size: 1, available: 0 }));
        let end = DescriptorError::SignatureSize { sig_size: 255 << 24, available: 0 };
        assert_eq!(with(7, 255), Err(end));
        for offset in RESERVED..DESCRIPTOR_SIZE {
            assert_eq!(with(offset, 9), Err(DescriptorError::Reserved { offset, found: 9 }));
        }
        for len in 0..DESCRIPTOR_SIZE {
            assert_eq!(Descriptor::parse(&good[..len]), Err(DescriptorError::TooShort { len }));
        }
        let len = MAX_DESCRIPTOR_SIZE + 1;
        assert_eq!(Descriptor::parse(&vec![0; len]), Err(DescriptorError::TooLong { len }));
        let other = DescriptorError::DataSize { wanted: 12345, found: 12346 };
        assert_eq!(sample().check_data_size(12346), Err(other));
    }

    #[test]
    fn every_flipped_bit_is_refused_or_changes_the_digest() {
        let good = sample();
        for bit in 0..DESCRIPTOR_SIZE * 8 {
            let mut bytes = good.to_bytes();
            bytes[bit / 8] ^= 1 << (bit % 8);
            if let Ok(parsed) = Descriptor::parse(&bytes) {
                assert_ne!(parsed.file_digest(), good.file_digest(), "bit {bit}");
            }
        }
    }
}
