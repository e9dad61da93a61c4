//! Builds Merkle trees: streaming, with input in chunks of any size, and memory bounded by a few blocks per level.
//!
//! Data blocks and hash blocks are hashed many at a time. A hole costs time and memory proportional to the height of
//! the tree, not to the length of the hole: the digest of zeros at each level is computed once and then counted.
//!
//! A large file can be built by several threads: a [`PartBuilder`] makes the subtrees under one hash block each, and
//! [`TreeBuilder::push_part`] puts them together in order.

use std::io;
use std::ops::Range;

use postread_blockcrypt::hash::{BlockHasher, MAX_DIGEST_SIZE};

use crate::descriptor::Descriptor;
use crate::digest::Digest;
use crate::geometry::{GeometryError, TreeGeometry};
use crate::params::{MAX_LEVELS, MerkleTreeParams};
use crate::sink::{NoTree, TreeSink};

/// How many bytes of data, or of hash blocks of one level, are collected before they are hashed together (at least
/// one block). Sixteen blocks of 4096 bytes fill the widest hash kernel; more of smaller ones lose nothing.
const BATCH: usize = 64 << 10;

/// How many bytes are hashed in one call when they need no collecting: bounds the buffer for their digests.
const DIRECT: usize = 1 << 20;

/// Why a tree could not be built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError<E> {
    /// The sink refused a hash block.
    #[error("writing the Merkle tree: {0}")]
    Sink(E),
    /// The file is too large for a tree with these parameters.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// Parts do not fit together.
    #[error(transparent)]
    Part(#[from] PartError),
}

/// Why parts of a tree do not fit together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PartError {
    /// The part does not begin where the builder is.
    #[error("a part that begins at byte {part} was pushed at byte {builder}")]
    Position {
        /// Where the part begins, in bytes.
        part: u64,
        /// How many bytes the builder has.
        builder: u64,
    },
    /// A part, or the whole file, does not have the size it was laid out for.
    #[error("expected {wanted} bytes of data, found {found}")]
    Size {
        /// The size laid out, in bytes.
        wanted: u64,
        /// The size pushed, in bytes.
        found: u64,
    },
    /// The part's parameters are not the tree's.
    #[error("the part's parameters differ from the tree's")]
    Params,
    /// Data was pushed after a partial last block.
    #[error("data pushed after the partial last block, which ends at byte {at}")]
    AfterEnd {
        /// Where the data ended, in bytes.
        at: u64,
    },
}

/// A finished tree: all that a descriptor needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tree {
    /// Hash algorithm, block size and salt.
    pub params: MerkleTreeParams,
    /// The root hash.
    pub root_hash: Digest,
    /// The layout of the tree.
    pub geometry: TreeGeometry,
}

impl Tree {
    /// The file's descriptor, without signature.
    pub fn descriptor(&self) -> Descriptor {
        Descriptor::new(self.params, self.geometry.data_size(), self.root_hash)
    }
}

/// Digests on their way into the hash blocks of one level.
#[derive(Debug, Default)]
struct Level {
    /// Digests not yet hashed: whole blocks and the beginning of another.
    pending: Vec<u8>,
    /// The index in its level of the first block in `pending`.
    first: u64,
    /// How many digests this level has been given.
    digests: u64,
}

/// What whole trees and parts have in common.
#[derive(Debug)]
struct Core<S> {
    params: MerkleTreeParams,
    hasher: BlockHasher,
    sink: S,
    /// Data not yet hashed.
    data: Vec<u8>,
    data_size: u64,
    levels: Vec<Level>,
    /// In a part, the level whose digests are the result: they are collected, not stored in blocks.
    top: usize,
    /// The digest of a zero data block, of a block full of those, and so on, as far as they were needed.
    zero: Vec<Digest>,
    scratch: Vec<u8>,
}

type Built<S> = Result<(), BuildError<<S as TreeSink>::Error>>;

impl<S: TreeSink> Core<S> {
    fn new(params: MerkleTreeParams, top: usize, first_data_block: u64, sink: S) -> Self {
        let mut core = Self {
            params,
            hasher: params.block_hasher(),
            sink,
            data: Vec::new(),
            data_size: 0,
            levels: Vec::new(),
            top,
            zero: Vec::new(),
            scratch: Vec::new(),
        };
        if first_data_block > 0 {
            let arity = params.log_arity();
            for level in 0..top {
                core.level(level).first = first_data_block >> (arity * (level as u32 + 1));
            }
        }
        core
    }

    fn level(&mut self, level: usize) -> &mut Level {
        while self.levels.len() <= level {
            self.levels.push(Level::default());
        }
        &mut self.levels[level]
    }

    fn count(&mut self, bytes: u64) -> Result<(), GeometryError> {
        let sum = self.data_size.checked_add(bytes).filter(|&sum| sum <= i64::MAX as u64);
        self.data_size = sum.ok_or(GeometryError::FileTooLarge { data_size: self.data_size.saturating_add(bytes) })?;
        Ok(())
    }

    /// Whole blocks that are hashed together.
    fn batch(&self) -> usize {
        BATCH.max(self.params.block_size())
    }

    fn push(&mut self, mut data: &[u8]) -> Built<S> {
        self.count(data.len() as u64)?;
        let block_size = self.params.block_size();
        while !data.is_empty() {
            if self.data.is_empty() && data.len() >= self.batch() {
                let whole = (data.len() / block_size * block_size).min(DIRECT.max(block_size));
                let (now, rest) = data.split_at(whole);
                self.hash_data(now)?;
                data = rest;
            } else {
                let take = data.len().min(self.batch() - self.data.len());
                self.data.extend_from_slice(&data[..take]);
                data = &data[take..];
                if self.data.len() == self.batch() {
                    self.hash_pending_data()?;
                }
            }
        }
        Ok(())
    }

    fn push_zeros(&mut self, mut bytes: u64) -> Built<S> {
        self.count(bytes)?;
        let block_size = self.params.block_size();
        let partial = self.data.len() % block_size;
        if partial > 0 {
            let take = bytes.min((block_size - partial) as u64) as usize;
            self.data.resize(self.data.len() + take, 0);
            bytes -= take as u64;
        }
        let blocks = bytes >> self.params.log_blocksize();
        if blocks > 0 || self.data.len() >= self.batch() {
            self.hash_pending_data()?;
        }
        if blocks > 0 {
            self.push_run(0, blocks)?;
        }
        let rest = bytes as usize & (block_size - 1);
        self.data.resize(self.data.len() + rest, 0);
        Ok(())
    }

    /// Hashes the collected data, which is whole blocks.
    fn hash_pending_data(&mut self) -> Built<S> {
        let mut data = std::mem::take(&mut self.data);
        let result = self.hash_data(&data);
        data.clear();
        self.data = data;
        result
    }

    /// Hashes whole data blocks.
    fn hash_data(&mut self, data: &[u8]) -> Built<S> {
        let digests = self.hash(data);
        let result = self.push_digests(0, &digests);
        self.scratch = digests;
        result
    }

    /// The digests of whole blocks. The vector is `scratch`: give it back.
    fn hash(&mut self, blocks: &[u8]) -> Vec<u8> {
        let block_size = self.params.block_size();
        let mut digests = std::mem::take(&mut self.scratch);
        digests.resize(blocks.len() / block_size * self.params.digest_size(), 0);
        self.hasher.hash_blocks(blocks, block_size, &mut digests);
        digests
    }

    /// Adds digests to `level`, in order.
    fn push_digests(&mut self, level: usize, mut digests: &[u8]) -> Built<S> {
        let digest_size = self.params.digest_size();
        self.level(level).digests += (digests.len() / digest_size) as u64;
        if level == self.top {
            self.check_top()?;
            self.level(level).pending.extend_from_slice(digests);
            return Ok(());
        }
        let batch = self.batch();
        while !digests.is_empty() {
            let pending = &mut self.level(level).pending;
            let take = digests.len().min(batch - pending.len());
            pending.extend_from_slice(&digests[..take]);
            digests = &digests[take..];
            if pending.len() == batch {
                self.hash_pending_blocks(level)?;
            }
        }
        Ok(())
    }

    /// A whole tree has no level above the highest but the root hash itself.
    fn check_top(&mut self) -> Result<(), GeometryError> {
        if self.top == MAX_LEVELS && self.levels[self.top].digests > 1 {
            let block_size = self.params.block_size();
            return Err(GeometryError::TooManyLevels { data_size: self.data_size, block_size });
        }
        Ok(())
    }

    /// Hashes the whole hash blocks collected at `level`.
    fn hash_pending_blocks(&mut self, level: usize) -> Built<S> {
        let block_size = self.params.block_size();
        let mut pending = std::mem::take(&mut self.level(level).pending);
        let whole = pending.len() / block_size * block_size;
        let result = if whole == 0 { Ok(()) } else { self.finish_blocks(level, &pending[..whole]) };
        pending.drain(..whole);
        self.level(level).pending = pending;
        result
    }

    /// Hands whole hash blocks of `level` to the sink and their digests to the next level.
    fn finish_blocks(&mut self, level: usize, blocks: &[u8]) -> Built<S> {
        let first = self.level(level).first;
        self.level(level).first += (blocks.len() / self.params.block_size()) as u64;
        self.sink.blocks(level, first, blocks).map_err(BuildError::Sink)?;
        let digests = self.hash(blocks);
        let result = self.push_digests(level + 1, &digests);
        self.scratch = digests;
        result
    }

    /// The digest in `level` of a child that covers only zeros.
    fn zero_digest(&mut self, level: usize) -> Digest {
        let block_size = self.params.block_size();
        while self.zero.len() <= level {
            let block = match self.zero.last() {
                None => vec![0; block_size],
                Some(below) => below.as_bytes().repeat(self.params.hashes_per_block()),
            };
            let mut bytes = [0; MAX_DIGEST_SIZE];
            let digest = &mut bytes[..self.params.digest_size()];
            self.hasher.hash_blocks(&block, block_size, digest);
            self.zero.push(Digest::new(self.params.alg(), digest).expect("the digest has its algorithm's size"));
        }
        self.zero[level]
    }

    /// Adds to `level` `count` digests of children that cover only zeros.
    fn push_run(&mut self, level: usize, count: u64) -> Built<S> {
        let digest = self.zero_digest(level);
        let digest = digest.as_bytes();
        let arity = self.params.hashes_per_block() as u64;
        if level == self.top {
            self.level(level).digests += count;
            self.check_top()?;
            let copies = digest.repeat(count as usize);
            self.level(level).pending.extend_from_slice(&copies);
            return Ok(());
        }
        let partial = self.level(level).digests % arity;
        let before = if partial == 0 { 0 } else { count.min(arity - partial) };
        self.push_digests(level, &digest.repeat(before as usize))?;
        let blocks = (count - before) / arity;
        if blocks > 0 {
            self.hash_pending_blocks(level)?;
            let first = self.level(level).first;
            self.level(level).first += blocks;
            self.level(level).digests += blocks * arity;
            let block = digest.repeat(arity as usize);
            self.sink.repeat(level, first, blocks, &block).map_err(BuildError::Sink)?;
            self.push_run(level + 1, blocks)?;
        }
        let after = (count - before) % arity;
        self.push_digests(level, &digest.repeat(after as usize))
    }

    /// Pads and hashes the last data block.
    fn finish_data(&mut self) -> Built<S> {
        let whole = self.data.len().next_multiple_of(self.params.block_size());
        self.data.resize(whole, 0);
        self.hash_pending_data()
    }

    /// Pads and hashes what is left at `level`.
    fn finish_level(&mut self, level: usize) -> Built<S> {
        let block_size = self.params.block_size();
        let pending = &mut self.level(level).pending;
        pending.resize(pending.len().next_multiple_of(block_size), 0);
        self.hash_pending_blocks(level)
    }
}

/// Builds the tree of a file from its data, given in order in pieces of any size.
///
/// ```
/// use postread_verity::{MerkleTreeParams, NoTree, TreeBuilder};
///
/// let mut builder = TreeBuilder::new(MerkleTreeParams::default(), NoTree);
/// builder.push(b"hello ")?;
/// builder.push(b"world")?;
/// let (tree, _) = builder.finish()?;
/// let digest = tree.descriptor().file_digest();
/// assert!(digest.to_string().starts_with("sha256:1e2eaa42"));
/// # Ok::<(), postread_verity::BuildError<std::convert::Infallible>>(())
/// ```
#[derive(Debug)]
pub struct TreeBuilder<S> {
    core: Core<S>,
    /// The size that parts were laid out for, if any were pushed.
    laid_out: Option<u64>,
}

impl<S: TreeSink> TreeBuilder<S> {
    /// Starts a tree. Hash blocks go to `sink` as they are finished.
    pub fn new(params: MerkleTreeParams, sink: S) -> Self {
        Self { core: Core::new(params, MAX_LEVELS, 0, sink), laid_out: None }
    }

    /// The number of bytes pushed so far.
    pub fn data_size(&self) -> u64 {
        self.core.data_size
    }

    /// Appends data.
    pub fn push(&mut self, data: &[u8]) -> Result<(), BuildError<S::Error>> {
        self.check_open()?;
        self.core.push(data)
    }

    /// Appends `bytes` zero bytes (a hole): time and memory proportional to the height of the tree only.
    pub fn push_zeros(&mut self, bytes: u64) -> Result<(), BuildError<S::Error>> {
        self.check_open()?;
        self.core.push_zeros(bytes)
    }

    /// Appends a part that was built elsewhere. It must begin where this builder is.
    pub fn push_part(&mut self, part: &Part) -> Result<(), BuildError<S::Error>> {
        self.check_open()?;
        if part.params != self.core.params {
            return Err(PartError::Params.into());
        }
        if part.start != self.core.data_size {
            return Err(PartError::Position { part: part.start, builder: self.core.data_size }.into());
        }
        if self.laid_out.is_some_and(|size| size != part.file_size) {
            return Err(PartError::Size { wanted: part.file_size, found: self.laid_out.unwrap_or(0) }.into());
        }
        self.laid_out = Some(part.file_size);
        // The part begins at a hash block of its level, so everything pending below it is whole blocks.
        self.core.hash_pending_data()?;
        for level in 0..part.level {
            self.core.hash_pending_blocks(level)?;
            let own = self.core.level(level);
            own.digests += part.counts[level];
            own.first += part.counts[level].div_ceil(part.params.hashes_per_block() as u64);
        }
        self.core.count(part.len)?;
        self.core.push_digests(part.level, &part.digests)
    }

    /// Nothing may follow the last, partial block of a part.
    fn check_open(&self) -> Result<(), PartError> {
        match self.laid_out {
            Some(size) if size == self.core.data_size => Err(PartError::AfterEnd { at: size }),
            _ => Ok(()),
        }
    }

    /// Ends the file. Returns the tree's facts, and the sink, which has received every hash block.
    pub fn finish(mut self) -> Result<(Tree, S), BuildError<S::Error>> {
        if let Some(wanted) = self.laid_out.filter(|&size| size != self.core.data_size) {
            return Err(PartError::Size { wanted, found: self.core.data_size }.into());
        }
        let core = &mut self.core;
        let geometry = TreeGeometry::new(&core.params, core.data_size)?;
        let mut root_hash = Digest::zero(core.params.alg());
        if geometry.data_blocks() > 0 {
            core.finish_data()?;
            for level in 0..geometry.num_levels() {
                core.finish_level(level)?;
            }
            let alg = core.params.alg();
            let root = &core.level(geometry.num_levels()).pending;
            root_hash = Digest::new(alg, root).expect("the root level has one block, so one digest");
        }
        Ok((Tree { params: self.core.params, root_hash, geometry }, self.core.sink))
    }
}

/// A builder takes data as any writer does, so that `std::io::copy` fills it. `flush` does nothing.
///
/// ```
/// use postread_verity::{MerkleTreeParams, NoTree, TreeBuilder};
///
/// let mut builder = TreeBuilder::new(MerkleTreeParams::default(), NoTree);
/// std::io::copy(&mut "hello world".as_bytes(), &mut builder)?;
/// let digest = builder.finish()?.0.descriptor().file_digest();
/// assert!(digest.to_string().starts_with("sha256:1e2eaa42"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
impl<S: TreeSink<Error: std::error::Error + Send + Sync + 'static>> io::Write for TreeBuilder<S> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.push(data).map_err(io::Error::other)?;
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A finished part of a tree: the digests of neighbouring hash blocks, or of data blocks.
#[derive(Clone, Debug)]
pub struct Part {
    params: MerkleTreeParams,
    file_size: u64,
    start: u64,
    len: u64,
    level: usize,
    digests: Vec<u8>,
    /// How many digests each level below `level` was given.
    counts: [u64; MAX_LEVELS],
}

/// Builds a part of a file's tree, independently of all others: the subtree under one hash block, or just the digests
/// of some data blocks.
#[derive(Debug)]
pub struct PartBuilder<S> {
    core: Core<S>,
    file_size: u64,
    start: u64,
    len: u64,
}

impl PartBuilder<NoTree> {
    /// Starts a part that is just the digests of a run of data blocks; they stay in memory until the part is pushed.
    /// `None` if the file has no such blocks.
    pub fn of_blocks(params: MerkleTreeParams, geometry: &TreeGeometry, blocks: Range<u64>) -> Option<Self> {
        if blocks.is_empty() || blocks.end > geometry.data_blocks() {
            return None;
        }
        let start = blocks.start << params.log_blocksize();
        let end = geometry.data_size().min(blocks.end << params.log_blocksize());
        let core = Core::new(params, 0, blocks.start, NoTree);
        Some(Self { core, file_size: geometry.data_size(), start, len: end - start })
    }
}

impl<S: TreeSink> PartBuilder<S> {
    /// Starts the part under hash block `index` of `level`, in the tree that `geometry` lays out; see
    /// [`range`](Self::range) for the bytes it covers. `None` if the tree has no such block, or if it is the root,
    /// because then there is nothing to assemble.
    pub fn new(params: MerkleTreeParams, geometry: &TreeGeometry, level: usize, index: u64, sink: S) -> Option<Self> {
        if level + 1 >= geometry.num_levels() || index >= geometry.level_blocks(level) {
            return None;
        }
        let blocks = geometry.data_blocks_under(level, index);
        let start = blocks.start << params.log_blocksize();
        let end = geometry.data_size().min(blocks.end << params.log_blocksize());
        let core = Core::new(params, level + 1, blocks.start, sink);
        Some(Self { core, file_size: geometry.data_size(), start, len: end - start })
    }

    /// The bytes of the file that the part covers.
    pub fn range(&self) -> Range<u64> {
        self.start..self.start + self.len
    }

    /// Appends data.
    pub fn push(&mut self, data: &[u8]) -> Result<(), BuildError<S::Error>> {
        self.core.push(data)
    }

    /// Appends `bytes` zero bytes (a hole).
    pub fn push_zeros(&mut self, bytes: u64) -> Result<(), BuildError<S::Error>> {
        self.core.push_zeros(bytes)
    }

    /// Ends the part. All the bytes it covers must have been pushed.
    pub fn finish(mut self) -> Result<(Part, S), BuildError<S::Error>> {
        let found = self.core.data_size;
        if found != self.len {
            return Err(PartError::Size { wanted: self.len, found }.into());
        }
        let core = &mut self.core;
        core.finish_data()?;
        let mut counts = [0; MAX_LEVELS];
        for (level, count) in counts.iter_mut().enumerate().take(core.top) {
            core.finish_level(level)?;
            *count = core.level(level).digests;
        }
        let (params, level) = (core.params, core.top);
        let digests = std::mem::take(&mut core.level(level).pending);
        let part = Part { params, file_size: self.file_size, start: self.start, len: self.len, level, digests, counts };
        Ok((part, self.core.sink))
    }
}
