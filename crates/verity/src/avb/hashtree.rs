//! The hashtree descriptor: a dm-verity tree, and perhaps FEC, after an image in the same partition.

use std::str::FromStr;

use postread_blockcrypt::hash::HashAlg;

use super::bytes::{be32, be64};
use crate::dm_verity::{Geometry, GeometryError, HashType, Params, ParamsError};
use crate::fec;

/// Bytes of its fixed part, with tag and length.
const FIXED: usize = 180;

/// Why a hashtree descriptor cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HashtreeError {
    /// It is shorter than its fields.
    #[error("the hashtree descriptor has {len} bytes, but its fields need {wanted}")]
    TooShort {
        /// Its length, in bytes.
        len: usize,
        /// What its fields need, in bytes.
        wanted: u64,
    },
    /// A dm-verity version other than 0 and 1, or parameters outside their limits.
    #[error("hashtree descriptor: {0}")]
    Params(#[from] ParamsError),
    /// An unsupported hash algorithm.
    #[error("hashtree descriptor: hash algorithm \"{}\" is not supported", .name.escape_default())]
    Algorithm {
        /// The name found.
        name: String,
    },
    /// A partition name that is not UTF-8.
    #[error("hashtree descriptor: the partition's name is not UTF-8")]
    Name,
    /// A root digest whose size is not the algorithm's.
    #[error("hashtree descriptor: expected a root digest of {wanted} bytes for {alg}, found {found}")]
    RootDigest {
        /// The algorithm.
        alg: HashAlg,
        /// Its digest's size, in bytes.
        wanted: usize,
        /// The size found, in bytes.
        found: usize,
    },
    /// An image size that is not whole blocks.
    #[error("hashtree descriptor: an image of {image_size} bytes is not whole blocks of {block_size}")]
    ImageSize {
        /// The image's size, in bytes.
        image_size: u64,
        /// The data block size, in bytes.
        block_size: usize,
    },
    /// A size that no tree has.
    #[error("hashtree descriptor: {0}")]
    Geometry(#[from] GeometryError),
    /// The tree or the FEC data overlaps what it covers, is misaligned, or has the wrong size.
    #[error("hashtree descriptor: {what} of {size} bytes at byte {offset} does not fit the image")]
    Area {
        /// `"a tree"` or `"FEC data"`.
        what: &'static str,
        /// Where it begins, in bytes.
        offset: u64,
        /// Its size, in bytes.
        size: u64,
    },
}

/// Where FEC data is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FecArea {
    /// Where it begins in the partition, in bytes.
    pub offset: u64,
    /// The layout of the message: the partition's blocks up to the end of the tree.
    pub layout: fec::Layout,
}

/// A hashtree descriptor, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HashtreeDescriptor {
    /// The partition's name.
    pub partition_name: String,
    /// The parameters of the tree.
    pub params: Params,
    /// The number of data blocks, which begin at byte 0 of the partition.
    pub data_blocks: u64,
    /// Where the tree begins in the partition, in bytes.
    pub tree_offset: u64,
    /// The root hash; empty for a partition whose digest is kept elsewhere (`avbtool`'s persistent digests).
    pub root_digest: Vec<u8>,
    /// FEC data, where there is some.
    pub fec: Option<FecArea>,
    /// Flags; bit 0: the digest does not depend on the slot.
    pub flags: u32,
}

impl HashtreeDescriptor {
    /// Parses a descriptor, tag and length included.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, HashtreeError> {
        let len = bytes.len();
        if len < FIXED {
            return Err(HashtreeError::TooShort { len, wanted: FIXED as u64 });
        }
        let (name_len, salt_len, digest_len) = (be32(bytes, 104), be32(bytes, 108), be32(bytes, 112));
        let wanted = FIXED as u64 + u64::from(name_len) + u64::from(salt_len) + u64::from(digest_len);
        if wanted > len as u64 {
            return Err(HashtreeError::TooShort { len, wanted });
        }
        let (name, rest) = bytes[FIXED..].split_at(name_len as usize);
        let (salt, rest) = rest.split_at(salt_len as usize);
        let root_digest = rest[..digest_len as usize].to_vec();
        let partition_name = std::str::from_utf8(name).map_err(|_| HashtreeError::Name)?.to_owned();

        let alg = &bytes[72..104];
        let alg = &alg[..alg.iter().position(|&b| b == 0).unwrap_or(alg.len())];
        let alg = String::from_utf8_lossy(alg).into_owned();
        let alg = HashAlg::from_str(&alg).map_err(|_| HashtreeError::Algorithm { name: alg })?;
        let hash_type = HashType::from_number(be32(bytes, 16))?;
        let params = Params::new(hash_type, alg, be32(bytes, 44), be32(bytes, 48), salt)?;
        if digest_len != 0 && root_digest.len() != alg.digest_size() {
            let (wanted, found) = (alg.digest_size(), root_digest.len());
            return Err(HashtreeError::RootDigest { alg, wanted, found });
        }
        let image_size = be64(bytes, 20);
        let block_size = params.data_block_size();
        if !image_size.is_multiple_of(block_size as u64) {
            return Err(HashtreeError::ImageSize { image_size, block_size });
        }
        let data_blocks = image_size / block_size as u64;
        let geometry = Geometry::new(&params, data_blocks)?;
        let (offset, size) = (be64(bytes, 28), be64(bytes, 36));
        let end = offset.checked_add(size).filter(|_| {
            let aligned = offset.is_multiple_of(params.hash_block_size() as u64);
            // A tree without levels may still have a block of its own.
            aligned && offset >= image_size && size >= geometry.hash_area_size()
        });
        let Some(tree_end) = end else { return Err(HashtreeError::Area { what: "a tree", offset, size }) };
        let fec = Self::fec(bytes, &params, tree_end)?;
        let flags = be32(bytes, 116);
        Ok(Self { partition_name, params, data_blocks, tree_offset: offset, root_digest, fec, flags })
    }

    fn fec(bytes: &[u8], params: &Params, tree_end: u64) -> Result<Option<FecArea>, HashtreeError> {
        let (roots, offset, size) = (be32(bytes, 52), be64(bytes, 56), be64(bytes, 64));
        if roots == 0 || size == 0 {
            return Ok(None);
        }
        let wrong = || HashtreeError::Area { what: "FEC data", offset, size };
        let block = params.data_block_size();
        let layout = fec::Layout::new(roots, block, tree_end / block as u64).map_err(|_| wrong())?;
        let fits = offset.checked_add(size).is_some() && offset >= tree_end && size >= layout.parity_size();
        if fits && block == params.hash_block_size() { Ok(Some(FecArea { offset, layout })) } else { Err(wrong()) }
    }
}
