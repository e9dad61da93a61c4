//! Checks blocks against a hash tree and a root hash.

use postread_blockcrypt::hash::{BlockHasher, HashAlg};

use crate::digest::{Digest, constant_time_eq};
use crate::dm_verity::geometry::{Geometry, GeometryError};
use crate::dm_verity::params::Params;

/// Blocks that are hashed in one call.
const BATCH: usize = 64;

/// Why a verifier cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VerifierError {
    /// The root hash does not have the algorithm's size.
    #[error("expected a root hash of {wanted} bytes for {alg}, found {found}")]
    RootHash {
        /// The algorithm.
        alg: HashAlg,
        /// Its digest's size, in bytes.
        wanted: usize,
        /// The size given, in bytes.
        found: usize,
    },
    /// A device cannot have this many blocks.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
}

/// A block whose digest is not the one its parent (or the root hash) names.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BadBlock {
    /// The level of a hash block; `None` for a data block.
    pub level: Option<usize>,
    /// Its index: in its level, or on the data device.
    pub index: u64,
    /// The digest expected.
    pub wanted: Digest,
    /// The digest found.
    pub found: Digest,
}

/// Checks data blocks and hash blocks.
#[derive(Clone, Debug)]
pub struct Verifier {
    params: Params,
    geometry: Geometry,
    root_hash: Digest,
    hasher: BlockHasher,
    zero_block: Digest,
}

impl Verifier {
    /// A verifier of a device of `data_blocks` blocks.
    ///
    /// # Errors
    /// A root hash of the wrong size; a size that no device has.
    pub fn new(params: &Params, data_blocks: u64, root_hash: &[u8]) -> Result<Self, VerifierError> {
        let geometry = Geometry::new(params, data_blocks)?;
        let alg = params.alg();
        let root_hash = Digest::new(alg, root_hash).ok_or(VerifierError::RootHash {
            alg,
            wanted: alg.digest_size(),
            found: root_hash.len(),
        })?;
        let hasher = params.block_hasher();
        let mut zero = vec![0; params.digest_size()];
        hasher.hash_blocks(&vec![0; params.data_block_size()], params.data_block_size(), &mut zero);
        let zero_block = Digest::new(alg, &zero).expect("the digest has its algorithm's size");
        Ok(Self { params: params.clone(), geometry, root_hash, hasher, zero_block })
    }

    /// The parameters.
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// The shape of the tree.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The root hash.
    pub fn root_hash(&self) -> &Digest {
        &self.root_hash
    }

    /// The digest expected of a child: of data block `child` where `level` is 0, of block `child` of the level below
    /// where it is not. `parents` are blocks of `level`, the first of which is the parent of block `first`. Above the
    /// highest level it is the root hash.
    fn wanted(&self, level: usize, first: u64, child: u64, parents: &[u8]) -> Digest {
        if level == self.geometry.num_levels() {
            return self.root_hash;
        }
        let arity = self.geometry.hashes_per_block();
        let block = (child / arity - first / arity) as usize;
        let at = block * self.params.hash_block_size() + (child % arity) as usize * self.params.digest_stride();
        Digest::new(self.params.alg(), &parents[at..at + self.params.digest_size()]).expect("a digest's bytes")
    }

    /// The digest expected of data block `index`, from the checked level-0 block above it.
    ///
    /// # Panics
    /// If `leaf` is not a whole hash block (it is ignored where the tree has no levels).
    pub fn data_digest(&self, index: u64, leaf: &[u8]) -> Digest {
        self.wanted(0, index, index, leaf)
    }

    /// True if the expected digest is that of a block of zeros: with `ignore_zero_blocks` such a block is not read, and
    /// counts as zeros.
    pub fn is_zero_block(&self, wanted: &Digest) -> bool {
        *wanted == self.zero_block
    }

    /// Checks neighbouring data blocks, of which `first` is the first. `parents` are the checked level-0 blocks above
    /// them, one after the other; they are ignored where the tree has no levels.
    ///
    /// # Panics
    /// If `data` is not whole blocks of the device, or parents are missing.
    pub fn verify_data(&self, first: u64, data: &[u8], parents: &[u8], bad: &mut dyn FnMut(BadBlock)) {
        let count = (data.len() / self.params.data_block_size()) as u64;
        assert!(first.checked_add(count).is_some_and(|end| end <= self.geometry.data_blocks()), "past the device");
        self.verify(None, first, data, self.params.data_block_size(), parents, bad);
    }

    /// Checks neighbouring hash blocks of one level, of which `first` is the first in that level. `parents` are the
    /// checked blocks of the next higher level; they are ignored for the highest.
    ///
    /// # Panics
    /// If `blocks` is not whole blocks of the level, or parents are missing.
    pub fn verify_hash_blocks(
        &self,
        level: usize,
        first: u64,
        blocks: &[u8],
        parents: &[u8],
        bad: &mut dyn FnMut(BadBlock),
    ) {
        let count = (blocks.len() / self.params.hash_block_size()) as u64;
        let end = first.checked_add(count);
        assert!(end.is_some_and(|end| end <= self.geometry.level_blocks(level)), "past the level");
        self.verify(Some(level), first, blocks, self.params.hash_block_size(), parents, bad);
    }

    /// Whether these digests, of neighbouring children from `child` on, are those that their parent holds: compared at once,
    /// which costs much less than one by one. False also if the parent's digests are not next to each other, or there are
    /// several parents.
    fn all_wanted(&self, level: usize, first: u64, child: u64, parents: &[u8], digests: &[u8]) -> bool {
        let size = self.params.digest_size();
        if level == self.geometry.num_levels() || self.params.digest_stride() != size {
            return false;
        }
        let arity = self.geometry.hashes_per_block();
        let in_block = child % arity;
        if in_block + (digests.len() / size) as u64 > arity {
            return false;
        }
        let block = (child / arity - first / arity) as usize;
        let at = block * self.params.hash_block_size() + in_block as usize * size;
        parents.get(at..at + digests.len()).is_some_and(|wanted| constant_time_eq(wanted, digests))
    }

    fn verify(
        &self,
        level: Option<usize>,
        first: u64,
        blocks: &[u8],
        block_size: usize,
        parents: &[u8],
        bad: &mut dyn FnMut(BadBlock),
    ) {
        assert!(blocks.len().is_multiple_of(block_size), "{} bytes in blocks of {block_size}", blocks.len());
        let above = level.map_or(0, |level| level + 1);
        let alg = self.params.alg();
        let digest_size = self.params.digest_size();
        let mut digests = [0; BATCH * 64];
        let mut index = first;
        for batch in blocks.chunks(BATCH * block_size) {
            let digests = &mut digests[..batch.len() / block_size * digest_size];
            self.hasher.hash_blocks(batch, block_size, digests);
            if self.all_wanted(above, first, index, parents, digests) {
                index += (batch.len() / block_size) as u64;
                continue;
            }
            for digest in digests.chunks_exact(digest_size) {
                let wanted = self.wanted(above, first, index, parents);
                let found = Digest::new(alg, digest).expect("a digest's bytes");
                if wanted != found {
                    bad(BadBlock { level, index, wanted, found });
                }
                index += 1;
            }
        }
    }

    /// The first byte of a hash block of `level` that no digest covers and that is not zero. `veritysetup verify`
    /// refuses such a tree; the kernel ignores it.
    ///
    /// # Panics
    /// If `block` is not a whole hash block.
    pub fn nonzero_spare(&self, level: usize, index: u64, block: &[u8]) -> Option<usize> {
        assert_eq!(block.len(), self.params.hash_block_size(), "a whole hash block");
        let arity = self.geometry.hashes_per_block();
        let used = self.geometry.children(level).saturating_sub(index * arity).min(arity) as usize;
        let (stride, digest) = (self.params.digest_stride(), self.params.digest_size());
        let in_gap = |at: usize| at >= used * stride || at % stride >= digest;
        block.iter().enumerate().find(|&(at, &byte)| byte != 0 && in_gap(at)).map(|(at, _)| at)
    }
}
