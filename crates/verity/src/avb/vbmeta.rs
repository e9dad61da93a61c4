//! The vbmeta image: a header, a block with digest and signature, a block with descriptors and key.

use postread_blockcrypt::hash::{HashAlg, Hasher};

use super::bytes::{be32, be64, range};
use super::hashtree::{HashtreeDescriptor, HashtreeError};

/// The size of the header, in bytes.
pub const HEADER_SIZE: usize = 256;

/// The largest vbmeta image that is read, in bytes: what AVB reserves for one.
pub const MAX_VBMETA_SIZE: usize = 64 << 10;

/// Why bytes are not a usable vbmeta image.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VbmetaError {
    /// Another magic number, or less than a header.
    #[error("no vbmeta image: its magic number is missing")]
    Magic,
    /// A major version other than 1.
    #[error("vbmeta image requires libavb {major}.{minor}: expected 1.x")]
    Version {
        /// The major version found.
        major: u32,
        /// The minor version found.
        minor: u32,
    },
    /// An algorithm that does not exist.
    #[error("vbmeta image: algorithm {number} is unknown")]
    Algorithm {
        /// The number found.
        number: u32,
    },
    /// A block or a field that extends past its container.
    #[error("vbmeta image: {what} of {size} bytes at byte {offset} is out of bounds")]
    Range {
        /// Which one.
        what: &'static str,
        /// Where it begins, in bytes from the start of its block.
        offset: u64,
        /// Its size, in bytes.
        size: u64,
    },
    /// The digest stored is not that of the image.
    #[error("vbmeta image: its digest does not match its contents")]
    Digest,
    /// A descriptor whose length is impossible.
    #[error("vbmeta image: the descriptor at byte {offset} of the descriptors has an impossible length")]
    Descriptor {
        /// Where it begins, in bytes from the start of the descriptors.
        offset: usize,
    },
    /// A hashtree descriptor that cannot be used.
    #[error(transparent)]
    Hashtree(#[from] HashtreeError),
}

/// How a vbmeta image is signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// Not signed.
    None,
    /// With RSA.
    Rsa {
        /// The digest.
        hash: HashAlg,
        /// The key's size.
        bits: u32,
    },
}

impl Algorithm {
    fn from_number(number: u32) -> Option<Self> {
        let rsa = |hash, bits| Some(Algorithm::Rsa { hash, bits });
        match number {
            0 => Some(Algorithm::None),
            1 => rsa(HashAlg::Sha256, 2048),
            2 => rsa(HashAlg::Sha256, 4096),
            3 => rsa(HashAlg::Sha256, 8192),
            4 => rsa(HashAlg::Sha512, 2048),
            5 => rsa(HashAlg::Sha512, 4096),
            6 => rsa(HashAlg::Sha512, 8192),
            _ => None,
        }
    }
}

/// One descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Descriptor {
    /// A hash tree.
    Hashtree(HashtreeDescriptor),
    /// Something else: a property (0), a digest of a whole partition (2), a kernel command line (3), a chained partition
    /// (4).
    Other {
        /// What it is.
        tag: u64,
    },
}

/// A vbmeta image.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Vbmeta {
    /// How it is signed. **The signature has not been checked.**
    pub algorithm: Algorithm,
    /// The public key stored in it, in AVB's own format; empty where it is not signed.
    pub public_key: Vec<u8>,
    /// The rollback index.
    pub rollback_index: u64,
    /// Flags: bit 0 hash trees are disabled, bit 1 verification is disabled.
    pub flags: u32,
    /// The descriptors, in order.
    pub descriptors: Vec<Descriptor>,
}

impl Vbmeta {
    /// Parses a vbmeta image and checks the digest stored in it. Bytes past its blocks are ignored.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(bytes: &[u8]) -> Result<Self, VbmetaError> {
        if bytes.len() < HEADER_SIZE || !bytes.starts_with(b"AVB0") {
            return Err(VbmetaError::Magic);
        }
        let (major, minor) = (be32(bytes, 4), be32(bytes, 8));
        if major != 1 {
            return Err(VbmetaError::Version { major, minor });
        }
        let number = be32(bytes, 28);
        let algorithm = Algorithm::from_number(number).ok_or(VbmetaError::Algorithm { number })?;
        let block = |what, offset, size| range(bytes, offset, size).ok_or(VbmetaError::Range { what, offset, size });
        let (auth_size, aux_size) = (be64(bytes, 12), be64(bytes, 20));
        let auth = block("the authentication block", HEADER_SIZE as u64, auth_size)?;
        let aux = block("the auxiliary block", HEADER_SIZE as u64 + auth_size, aux_size)?;
        let field = |within, what, at: usize| {
            let (offset, size) = (be64(bytes, at), be64(bytes, at + 8));
            range(within, offset, size).ok_or(VbmetaError::Range { what, offset, size })
        };
        let stored = field(auth, "the digest", 32)?;
        field(auth, "the signature", 48)?;
        let public_key = field(aux, "the public key", 64)?.to_vec();
        field(aux, "the key's metadata", 80)?;
        let descriptors = field(aux, "the descriptors", 96)?;
        if let Algorithm::Rsa { hash, .. } = algorithm {
            let mut hasher = Hasher::new(hash);
            hasher.update(&bytes[..HEADER_SIZE]);
            hasher.update(aux);
            if hasher.finalize().as_bytes() != stored {
                return Err(VbmetaError::Digest);
            }
        }
        Ok(Self {
            algorithm,
            public_key,
            rollback_index: be64(bytes, 112),
            flags: be32(bytes, 120),
            descriptors: parse_descriptors(descriptors)?,
        })
    }

    /// The hashtree descriptors.
    pub fn hashtrees(&self) -> impl Iterator<Item = &HashtreeDescriptor> {
        self.descriptors.iter().filter_map(|descriptor| match descriptor {
            Descriptor::Hashtree(hashtree) => Some(hashtree),
            Descriptor::Other { .. } => None,
        })
    }
}

fn parse_descriptors(bytes: &[u8]) -> Result<Vec<Descriptor>, VbmetaError> {
    let mut descriptors = Vec::new();
    let mut offset = 0;
    while offset < bytes.len() {
        let rest = &bytes[offset..];
        let length = (rest.len() >= 16).then(|| be64(rest, 8)).filter(|length| length.is_multiple_of(8));
        let whole = length.and_then(|length| range(rest, 0, length.checked_add(16)?));
        let whole = whole.ok_or(VbmetaError::Descriptor { offset })?;
        descriptors.push(match be64(whole, 0) {
            1 => Descriptor::Hashtree(HashtreeDescriptor::parse(whole)?),
            tag => Descriptor::Other { tag },
        });
        offset += whole.len();
    }
    Ok(descriptors)
}
