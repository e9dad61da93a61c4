//! Verification: blocks compared with the digests that their parents hold, many at once, with a verdict for each.
//!
//! Nothing here reads or caches. The caller holds the hash blocks, verifies them from the root downwards, and passes
//! verified ones as parents. What was verified is the bytes that were passed in and nothing else: keep those.

use std::fmt;

use postread_blockcrypt::hash::BlockHasher;

use crate::digest::{Digest, constant_time_eq};
use crate::geometry::{GeometryError, TreeGeometry};
use crate::params::MerkleTreeParams;
use crate::trust::TrustedDescriptor;

/// How to treat the bytes past the end of the file in its last block. The kernel's file systems differ: those that hash
/// the block as it is on disk accept only zeros, those that clear the tail first ignore it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EofTail {
    /// The block is hashed as it is: bytes past the end of the file must be zeros.
    #[default]
    Strict,
    /// Bytes past the end of the file count as zeros, whatever they are.
    Lenient,
}

/// Which block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BlockId {
    /// A block of the file.
    Data {
        /// Its index in the file.
        index: u64,
    },
    /// A block of the tree.
    Hash {
        /// Its level; 0 holds the digests of data blocks.
        level: usize,
        /// Its index in its level.
        index: u64,
    },
}

/// What is wrong with a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mismatch {
    /// Its hash is not the one its parent holds.
    Digest {
        /// The digest in the parent (or the root hash).
        wanted: Digest,
        /// The digest of the bytes.
        found: Digest,
    },
    /// It is past the end of the file and not all zeros.
    NotZeroPastEof {
        /// The first byte that is not zero, counted in the block.
        at: usize,
    },
    /// It is shorter than the file's size requires: the file was truncated.
    Short {
        /// The bytes there should be.
        wanted: usize,
        /// The bytes there are.
        found: usize,
    },
}

/// A block that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub struct BadBlock {
    /// Which block.
    pub id: BlockId,
    /// Where it begins, in bytes: in the file for a data block, in the tree for a hash block.
    pub offset: u64,
    /// What is wrong with it.
    pub mismatch: Mismatch,
}

impl fmt::Display for BadBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.id {
            BlockId::Data { index } => write!(f, "data block {index} at offset {}: ", self.offset)?,
            BlockId::Hash { level, index } => {
                write!(f, "hash block {index} of level {level} at offset {} of the tree: ", self.offset)?;
            }
        }
        match &self.mismatch {
            Mismatch::Digest { wanted, found } => write!(f, "expected {wanted}, found {found}"),
            Mismatch::NotZeroPastEof { at } => {
                write!(f, "byte {at} of the block, past the end of the file, is not zero")
            }
            Mismatch::Short { wanted, found } => write!(f, "expected {wanted} bytes, found {found}"),
        }
    }
}

/// A block to verify, with its digest in the parent (see [`Verifier::wanted`]).
#[derive(Clone, Copy, Debug)]
pub struct Check<'a> {
    /// Which block.
    pub id: BlockId,
    /// All its bytes.
    pub bytes: &'a [u8],
    /// The expected digest.
    pub wanted: &'a [u8],
}

/// Buffers that verification reuses, so that it allocates nothing per block. Use one per thread.
#[derive(Debug, Default)]
pub struct Scratch {
    digests: Vec<u8>,
    tail: Vec<u8>,
}

/// Verifies the blocks of one file. Immutable: share it between threads.
#[derive(Clone, Debug)]
pub struct Verifier {
    params: MerkleTreeParams,
    geometry: TreeGeometry,
    root_hash: Digest,
    hasher: BlockHasher,
    zero_block: Digest,
}

impl Verifier {
    /// A verifier of a file of `data_size` bytes whose tree has this root hash. Its verdict is only as good as the root
    /// hash: take that from a descriptor whose file digest you trust.
    ///
    /// Panics if the root hash uses another algorithm than the parameters.
    pub fn new(params: MerkleTreeParams, data_size: u64, root_hash: Digest) -> Result<Self, GeometryError> {
        Self::with_hasher(params, data_size, root_hash, params.block_hasher())
    }

    /// The same with a hasher of your own, which must be [`MerkleTreeParams::block_hasher`] at some CPU level.
    pub fn with_hasher(
        params: MerkleTreeParams,
        data_size: u64,
        root_hash: Digest,
        hasher: BlockHasher,
    ) -> Result<Self, GeometryError> {
        assert_eq!(params.alg(), root_hash.alg(), "root hash of another algorithm");
        let geometry = TreeGeometry::new(&params, data_size)?;
        let mut zero_block = [0; 64];
        let digest = &mut zero_block[..params.digest_size()];
        hasher.hash_blocks(&vec![0; params.block_size()], params.block_size(), digest);
        let zero_block = Digest::new(params.alg(), digest).expect("the digest has its algorithm's size");
        Ok(Self { params, geometry, root_hash, hasher, zero_block })
    }

    /// A verifier for a descriptor's file.
    ///
    /// # Errors
    /// If no tree can cover a file of that size.
    pub fn from_descriptor(descriptor: &TrustedDescriptor) -> Result<Self, GeometryError> {
        Self::new(*descriptor.params(), descriptor.data_size(), descriptor.root_hash())
    }

    /// Hash algorithm, block size and salt.
    pub fn params(&self) -> &MerkleTreeParams {
        &self.params
    }

    /// The layout of the tree.
    pub fn geometry(&self) -> &TreeGeometry {
        &self.geometry
    }

    /// The root hash.
    pub fn root_hash(&self) -> &Digest {
        &self.root_hash
    }

    /// The digest of a data block of zeros, so that holes need no hashing.
    pub fn zero_block(&self) -> &Digest {
        &self.zero_block
    }

    /// The expected digest of a block, taken from its parent: the verified hash block at
    /// [`hash_at_level`](TreeGeometry::hash_at_level). The topmost block has no parent; its digest is the root hash.
    /// `None` if the tree has no such block, or if the parent is missing or not a whole block.
    pub fn wanted<'a>(&'a self, id: BlockId, parent: Option<&'a [u8]>) -> Option<&'a [u8]> {
        let (exists, parent_level, child) = match id {
            BlockId::Data { index } => (index < self.geometry.data_blocks(), 0, index),
            BlockId::Hash { level, index } => (
                level < self.geometry.num_levels() && index < self.geometry.level_blocks(level),
                level.saturating_add(1),
                index,
            ),
        };
        if !exists {
            return None;
        }
        match self.geometry.hash_at_level(parent_level, child) {
            None => Some(self.root_hash.as_bytes()),
            Some(at) => parent?.get(at.offset..at.offset + self.params.digest_size()),
        }
    }

    /// Where a block begins, in bytes.
    fn offset(&self, id: BlockId) -> u64 {
        let block = match id {
            BlockId::Data { index } => index,
            BlockId::Hash { level, index } if level < self.geometry.num_levels() => {
                self.geometry.level_start(level).saturating_add(index)
            }
            BlockId::Hash { index, .. } => index,
        };
        block.saturating_mul(self.params.block_size() as u64)
    }

    fn digest(&self, bytes: &[u8]) -> Digest {
        Digest::new(self.params.alg(), bytes).unwrap_or(Digest::zero(self.params.alg()))
    }

    fn compare(&self, id: BlockId, wanted: &[u8], found: &[u8], bad: &mut impl FnMut(BadBlock)) {
        if !constant_time_eq(wanted, found) {
            let mismatch = Mismatch::Digest { wanted: self.digest(wanted), found: self.digest(found) };
            bad(BadBlock { id, offset: self.offset(id), mismatch });
        }
    }

    /// Verifies whole blocks (hash blocks above all), all hashed together. `bad` is called for each that fails.
    pub fn verify(&self, checks: &[Check<'_>], scratch: &mut Scratch, mut bad: impl FnMut(BadBlock)) {
        // A fixed-size batch: no allocation per call, and as many blocks as the widest hash kernel takes.
        for some in checks.chunks(64) {
            let mut blocks: [&[u8]; 64] = [&[]; 64];
            for (block, check) in blocks.iter_mut().zip(some) {
                *block = check.bytes;
            }
            scratch.digests.resize(some.len() * self.params.digest_size(), 0);
            self.hasher.hash_many(&blocks[..some.len()], &mut scratch.digests);
            for (check, found) in some.iter().zip(scratch.digests.chunks_exact(self.params.digest_size())) {
                if check.bytes.len() == self.params.block_size() {
                    self.compare(check.id, check.wanted, found, &mut bad);
                } else {
                    let (wanted, found) = (self.params.block_size(), check.bytes.len());
                    let mismatch = Mismatch::Short { wanted, found };
                    bad(BadBlock { id: check.id, offset: self.offset(check.id), mismatch });
                }
            }
        }
    }

    /// Verifies neighbouring hash blocks of `level`, stored one after the other in `bytes`, the first with index
    /// `first`. `parents` are the verified hash blocks above them: the one that holds the first block's digest and
    /// those that follow (none for the root level).
    ///
    /// Panics if `parents` are not exactly the whole blocks needed, or the level has no such blocks.
    pub fn verify_hash_run(
        &self,
        level: usize,
        first: u64,
        bytes: &[u8],
        parents: &[&[u8]],
        scratch: &mut Scratch,
        bad: impl FnMut(BadBlock),
    ) {
        let id = |index| BlockId::Hash { level, index };
        self.verify_run(level + 1, first, bytes, parents, scratch, id, bad);
    }

    /// Verifies neighbouring data blocks, stored one after the other in `data`, the first with index `first`.
    /// `leaves` are the verified hash blocks of level 0 above them: the one that holds the first block's digest and
    /// those that follow (none if the tree has no levels).
    ///
    /// `data` may end at the end of the file, or past it: `tail` decides about bytes past it in the last block; whole
    /// blocks past it are not in the tree and must be zeros, as in the kernel.
    ///
    /// Panics if `leaves` are not exactly the whole blocks needed.
    pub fn verify_data(
        &self,
        first: u64,
        data: &[u8],
        leaves: &[&[u8]],
        tail: EofTail,
        scratch: &mut Scratch,
        mut bad: impl FnMut(BadBlock),
    ) {
        let block_size = self.params.block_size();
        let id = |index| BlockId::Data { index };
        let in_file = self.geometry.data_blocks().saturating_sub(first);
        let in_file = usize::try_from(in_file).unwrap_or(usize::MAX).saturating_mul(block_size);
        let (data, past) = data.split_at(data.len().min(in_file));
        // The last block is handled separately if it is partial in the file or in `data`.
        let whole = data.len() / block_size;
        let file_tail = (self.geometry.data_size() % block_size as u64) as usize;
        let has_last = first + data.len().div_ceil(block_size) as u64 == self.geometry.data_blocks();
        let apart = !data.is_empty()
            && (!data.len().is_multiple_of(block_size) || (has_last && file_tail > 0 && tail == EofTail::Lenient));
        let run = if data.len().is_multiple_of(block_size) && apart { whole - 1 } else { whole };
        let (run, last) = data.split_at(run * block_size);
        let last_index = first + (run.len() / block_size) as u64;
        self.verify_run(0, first, run, leaves, scratch, id, &mut bad);
        if apart {
            let is_file_end = last_index + 1 == self.geometry.data_blocks();
            let wanted_len = if is_file_end && file_tail > 0 { file_tail } else { block_size };
            if last.len() < wanted_len {
                let mismatch = Mismatch::Short { wanted: wanted_len, found: last.len() };
                bad(BadBlock { id: id(last_index), offset: self.offset(id(last_index)), mismatch });
            } else {
                let keep = if tail == EofTail::Lenient { wanted_len } else { last.len() };
                let mut padded = std::mem::take(&mut scratch.tail);
                padded.clear();
                padded.extend_from_slice(&last[..keep]);
                padded.resize(block_size, 0);
                let arity = self.geometry.hashes_per_block() as u64;
                let skip = (last_index / arity - first / arity) as usize;
                let leaves = if leaves.is_empty() { leaves } else { &leaves[skip..] };
                self.verify_run(0, last_index, &padded, leaves, scratch, id, &mut bad);
                scratch.tail = padded;
            }
        }
        let past_first = first.max(self.geometry.data_blocks());
        for (i, block) in past.chunks(block_size).enumerate() {
            if let Some(at) = block.iter().position(|&b| b != 0) {
                let id = id(past_first + i as u64);
                bad(BadBlock { id, offset: self.offset(id), mismatch: Mismatch::NotZeroPastEof { at } });
            }
        }
    }

    /// Verifies `count` neighbouring data blocks that are a hole, the first with index `first`; `leaves` as in
    /// [`verify_data`](Self::verify_data). Nothing is hashed. Blocks past the end of the file are good.
    pub fn verify_hole(&self, first: u64, count: u64, leaves: &[&[u8]], mut bad: impl FnMut(BadBlock)) {
        let end = first.saturating_add(count).min(self.geometry.data_blocks());
        for index in first..end {
            let wanted = self.wanted_in(0, first, index, leaves);
            self.compare(BlockId::Data { index }, wanted, self.zero_block.as_bytes(), &mut bad);
        }
    }

    /// The digest of child `index`, held by level `parent_level`, of which `parents` are the blocks from the one over
    /// child `first` on.
    fn wanted_in<'a>(&'a self, parent_level: usize, first: u64, index: u64, parents: &[&'a [u8]]) -> &'a [u8] {
        if parent_level == self.geometry.num_levels() {
            assert_eq!(index, 0, "only one block is above all levels");
            return self.root_hash.as_bytes();
        }
        let at = self.geometry.hash_at_level(parent_level, index).expect("the level has this block");
        let above_first = self.geometry.hash_at_level(parent_level, first).expect("the level has this block").index;
        let parent = parents[(at.index - above_first) as usize];
        assert_eq!(parent.len(), self.params.block_size(), "parents are whole blocks");
        &parent[at.offset..at.offset + self.params.digest_size()]
    }

    #[allow(clippy::too_many_arguments)] // Shared by hash blocks and data blocks.
    fn verify_run(
        &self,
        parent_level: usize,
        first: u64,
        bytes: &[u8],
        parents: &[&[u8]],
        scratch: &mut Scratch,
        id: impl Fn(u64) -> BlockId,
        mut bad: impl FnMut(BadBlock),
    ) {
        if bytes.is_empty() {
            return;
        }
        let digest_size = self.params.digest_size();
        scratch.digests.resize(bytes.len() / self.params.block_size() * digest_size, 0);
        self.hasher.hash_blocks(bytes, self.params.block_size(), &mut scratch.digests);
        for (i, found) in scratch.digests.chunks_exact(digest_size).enumerate() {
            let index = first + i as u64;
            let wanted = self.wanted_in(parent_level, first, index, parents);
            self.compare(id(index), wanted, found, &mut bad);
        }
    }
}
