//! Builds hash trees: streaming, with memory for one batch of blocks per level.
//!
//! Almost all the time goes into the digests of data blocks. [`DataHasher`] computes those alone, so several threads can
//! each hash a range of the device; [`TreeBuilder::push_digests`] then takes the digests in order.

use postread_blockcrypt::hash::BlockHasher;

use crate::dm_verity::geometry::{Geometry, GeometryError};
use crate::dm_verity::params::Params;

/// How many bytes of data, or of hash blocks of one level, are collected before they are hashed together (at least one
/// block).
const BATCH: usize = 64 << 10;

/// The amount of data pushed is not the amount announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected {wanted} data blocks, found {found}{}", if *.partial { " and part of another" } else { "" })]
pub struct BuildSizeError {
    /// The number of data blocks announced.
    pub wanted: u64,
    /// The number of whole data blocks pushed, as far as they were counted.
    pub found: u64,
    /// Whether part of a block followed them.
    pub partial: bool,
}

/// Why a tree could not be built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError<E> {
    /// A hash block could not be written.
    #[error("writing the hash tree: {0}")]
    Write(E),
    /// More or less data than announced.
    #[error(transparent)]
    Size(#[from] BuildSizeError),
}

/// Computes digests of data blocks.
#[derive(Clone, Debug)]
pub struct DataHasher {
    hasher: BlockHasher,
    block_size: usize,
    digest_size: usize,
}

impl DataHasher {
    /// A hasher for these parameters.
    pub fn new(params: &Params) -> Self {
        Self { hasher: params.block_hasher(), block_size: params.data_block_size(), digest_size: params.digest_size() }
    }

    /// Appends the digests of the whole blocks in `data` to `out`, packed. What is left after the last whole block is
    /// ignored.
    pub fn hash(&self, data: &[u8], out: &mut Vec<u8>) {
        let blocks = data.len() / self.block_size;
        let old = out.len();
        out.resize(old + blocks * self.digest_size, 0);
        self.hasher.hash_blocks(&data[..blocks * self.block_size], self.block_size, &mut out[old..]);
    }
}

/// Hash blocks of one level in progress.
#[derive(Debug)]
struct Level {
    /// Digests at their places in hash blocks: whole blocks, then the beginning of another.
    pending: Vec<u8>,
    /// Where `pending` begins in the hash area, in bytes.
    offset: u64,
}

/// Builds the tree over a device whose size is known, from its data in order.
///
/// Each call takes `write(offset, bytes)`, which stores finished hash blocks at a byte offset of the hash area. Blocks of
/// one level come in order; levels are interleaved.
#[derive(Debug)]
pub struct TreeBuilder {
    data: DataHasher,
    hasher: BlockHasher,
    geometry: Geometry,
    digest_stride: usize,
    hash_block_size: usize,
    levels: Vec<Level>,
    /// Data not yet hashed: less than a batch.
    partial: Vec<u8>,
    /// The number of digests of data blocks taken.
    taken: u64,
    root: Vec<u8>,
    scratch: Vec<u8>,
}

impl TreeBuilder {
    /// Starts the tree over `data_blocks` blocks.
    ///
    /// # Errors
    /// If a device cannot have that many.
    pub fn new(params: &Params, data_blocks: u64) -> Result<Self, GeometryError> {
        let geometry = Geometry::new(params, data_blocks)?;
        let level = |level| Level { pending: Vec::new(), offset: geometry.level_offset(level) };
        let levels = (0..geometry.num_levels()).map(level).collect();
        Ok(Self {
            data: DataHasher::new(params),
            hasher: params.block_hasher(),
            digest_stride: params.digest_stride(),
            hash_block_size: params.hash_block_size(),
            levels,
            geometry,
            partial: Vec::new(),
            taken: 0,
            root: Vec::new(),
            scratch: Vec::new(),
        })
    }

    /// The shape of the tree.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Appends data, in pieces of any size.
    ///
    /// # Errors
    /// If `write` fails, or more data comes than was announced.
    pub fn push<E>(
        &mut self,
        mut data: &[u8],
        write: &mut impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Result<(), BuildError<E>> {
        let batch = BATCH.max(self.data.block_size);
        while !data.is_empty() {
            if self.partial.is_empty() && data.len() >= self.data.block_size {
                let whole = (data.len() / self.data.block_size * self.data.block_size).min(1 << 20);
                let whole = whole.max(self.data.block_size);
                let (now, rest) = data.split_at(whole);
                self.hash_data(now, write)?;
                data = rest;
            } else {
                let (now, rest) = data.split_at(data.len().min(batch - self.partial.len()));
                self.partial.extend_from_slice(now);
                data = rest;
                if self.partial.len() == batch {
                    self.flush_partial(write)?;
                }
            }
        }
        Ok(())
    }

    fn flush_partial<E>(&mut self, write: &mut impl FnMut(u64, &[u8]) -> Result<(), E>) -> Result<(), BuildError<E>> {
        let mut partial = std::mem::take(&mut self.partial);
        let whole = partial.len() / self.data.block_size * self.data.block_size;
        self.hash_data(&partial[..whole], write)?;
        partial.drain(..whole);
        self.partial = partial;
        Ok(())
    }

    /// Hashes whole data blocks.
    fn hash_data<E>(
        &mut self,
        data: &[u8],
        write: &mut impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Result<(), BuildError<E>> {
        let mut digests = std::mem::take(&mut self.scratch);
        digests.clear();
        self.data.hash(data, &mut digests);
        let result = self.take_digests(&digests, write);
        self.scratch = digests;
        result
    }

    /// Appends the digests of the next data blocks, packed, as [`DataHasher::hash`] makes them.
    ///
    /// # Errors
    /// If `write` fails, more digests come than were announced, or part of a digest or of a data block is there.
    pub fn push_digests<E>(
        &mut self,
        digests: &[u8],
        write: &mut impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Result<(), BuildError<E>> {
        self.flush_partial(write)?;
        if !self.partial.is_empty() || !digests.len().is_multiple_of(self.data.digest_size) {
            return Err(self.size_error(true).into());
        }
        self.take_digests(digests, write)
    }

    fn size_error(&self, partial: bool) -> BuildSizeError {
        BuildSizeError { wanted: self.geometry.data_blocks(), found: self.taken, partial }
    }

    fn take_digests<E>(
        &mut self,
        digests: &[u8],
        write: &mut impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Result<(), BuildError<E>> {
        self.taken += (digests.len() / self.data.digest_size) as u64;
        if self.taken > self.geometry.data_blocks() {
            return Err(self.size_error(false).into());
        }
        self.add(0, digests, write).map_err(BuildError::Write)
    }

    /// Adds packed digests to `level`; the digest above the highest level is the root hash.
    fn add<E>(
        &mut self,
        level: usize,
        digests: &[u8],
        write: &mut impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        if level == self.levels.len() {
            self.root.extend_from_slice(digests);
            return Ok(());
        }
        let batch = BATCH.max(self.hash_block_size);
        let per_block = self.geometry.hashes_per_block() as usize;
        for digest in digests.chunks_exact(self.data.digest_size) {
            let pending = &mut self.levels[level].pending;
            pending.extend_from_slice(digest);
            // The padding after each digest, and after the last one of a block.
            let used = pending.len() % self.hash_block_size;
            let in_block = used.div_ceil(self.digest_stride);
            let end = if in_block >= per_block { self.hash_block_size } else { in_block * self.digest_stride };
            let padding = if used == 0 { 0 } else { end - used };
            pending.resize(pending.len() + padding, 0);
            if pending.len() >= batch {
                self.flush(level, write)?;
            }
        }
        Ok(())
    }

    /// Writes the whole hash blocks of `level` and hashes them into the next.
    fn flush<E>(&mut self, level: usize, write: &mut impl FnMut(u64, &[u8]) -> Result<(), E>) -> Result<(), E> {
        let mut blocks = std::mem::take(&mut self.levels[level].pending);
        let offset = self.levels[level].offset;
        self.levels[level].offset += blocks.len() as u64;
        write(offset, &blocks)?;
        let mut digests = vec![0; blocks.len() / self.hash_block_size * self.data.digest_size];
        self.hasher.hash_blocks(&blocks, self.hash_block_size, &mut digests);
        blocks.clear();
        self.levels[level].pending = blocks;
        self.add(level + 1, &digests, write)
    }

    /// Ends the device: writes what is left of the tree and returns the root hash.
    ///
    /// # Errors
    /// If `write` fails, or less data came than was announced.
    pub fn finish<E>(mut self, write: &mut impl FnMut(u64, &[u8]) -> Result<(), E>) -> Result<Vec<u8>, BuildError<E>> {
        self.flush_partial(write)?;
        if !self.partial.is_empty() || self.taken != self.geometry.data_blocks() {
            return Err(self.size_error(!self.partial.is_empty()).into());
        }
        for level in 0..self.levels.len() {
            let pending = &mut self.levels[level].pending;
            pending.resize(pending.len().next_multiple_of(self.hash_block_size), 0);
            if !pending.is_empty() {
                self.flush(level, write).map_err(BuildError::Write)?;
            }
        }
        Ok(self.root)
    }
}
