//! The verification steps: fs-verity's data blocks against leaf hash blocks, hash blocks against their parents.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

use postread_io::{BlockStatus, Corruption};
use postread_verity::{BadBlock, BlockId, EofTail, GeometryError, Mismatch, Scratch, TrustedDescriptor, Verifier};

use crate::hash_blocks::HashBlocks;
use crate::plan::{Mapping, Plan};
use crate::step::{BioMut, Inputs, Step, VerifiedInputs};

/// Hash blocks passed to the verifier at once.
const PARENTS: usize = 16;
/// Checked hash blocks kept for one file unless [`VerityLayer::cache_bytes`] says otherwise: enough for the leaf blocks
/// of 256 MiB with the default parameters.
const DEFAULT_CACHE: usize = 2 << 20;

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Why a plan can't be put under a Merkle tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayerError {
    /// The file is too large for a tree.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// The plan's file and the descriptor's have different sizes.
    #[error("the descriptor is for a file of {wanted} bytes, but the file has {found}")]
    Size {
        /// What the descriptor says, in bytes.
        wanted: u64,
        /// What the plan says, in bytes.
        found: u64,
    },
}

/// An fs-verity layer over a plan: what to verify against and how.
///
/// It takes only a trusted descriptor. Leaving out a line does not compile, instead of reading unverified bytes:
///
/// ```compile_fail,E0308
/// use postread::VerityLayer;
/// use postread_verity::{Descriptor, FileDigest};
///
/// fn layer(stored: &[u8], digest: &FileDigest) -> Result<VerityLayer, Box<dyn std::error::Error>> {
///     let descriptor = Descriptor::parse(stored)?;
///     // The line left out: let descriptor = descriptor.trust(digest)?;
///     Ok(VerityLayer::new(descriptor)?)
/// }
/// ```
#[derive(Clone, Debug)]
pub struct VerityLayer {
    verifier: Arc<Verifier>,
    trusted: Arc<TrustedDescriptor>,
    tail: EofTail,
    cache_bytes: usize,
}

impl VerityLayer {
    /// Verifies against a descriptor. The trust in it goes with the plan to the [open file](crate::OpenFile::trusted).
    ///
    /// # Errors
    /// If no tree can cover a file of the descriptor's size.
    pub fn new(descriptor: TrustedDescriptor) -> Result<Self, GeometryError> {
        let verifier = Arc::new(Verifier::from_descriptor(&descriptor)?);
        let trusted = Arc::new(descriptor);
        Ok(Self { verifier, trusted, tail: EofTail::default(), cache_bytes: DEFAULT_CACHE })
    }

    /// The descriptor that it verifies against, and why it is trusted.
    pub fn trusted(&self) -> &TrustedDescriptor {
        &self.trusted
    }

    /// How to treat bytes past the end of the file in its last block.
    #[must_use]
    pub fn tail(mut self, tail: EofTail) -> Self {
        self.tail = tail;
        self
    }

    /// How many bytes of checked hash blocks to keep; 0 for none.
    #[must_use]
    pub fn cache_bytes(mut self, bytes: usize) -> Self {
        self.cache_bytes = bytes;
        self
    }

    /// The verifier.
    pub fn verifier(&self) -> &Arc<Verifier> {
        &self.verifier
    }

    /// The hash blocks of a tree whose place `map` describes. `before` are the steps that its blocks go through before
    /// they can be checked: the tree of an encrypted file is encrypted.
    pub fn hash_blocks(&self, map: Arc<dyn Mapping>, before: Vec<Arc<dyn Step>>) -> Arc<HashBlocks> {
        let g = self.verifier.geometry();
        let levels = (0..g.num_levels()).map(|l| g.level_start(l)..g.level_start(l) + g.level_blocks(l)).collect();
        let check = Arc::new(TreeStep(self.verifier.clone()));
        HashBlocks::new(map, before, check, levels, self.cache_bytes)
    }

    /// Puts `data` (decrypted as far as its steps go) under the tree of `blocks`.
    ///
    /// # Errors
    /// If the plan's length is not the descriptor's.
    pub fn protect(&self, data: Plan, blocks: Arc<HashBlocks>) -> Result<Plan, LayerError> {
        let wanted = self.verifier.geometry().data_size();
        if data.len() != wanted {
            return Err(LayerError::Size { wanted, found: data.len() });
        }
        let step = Arc::new(VerityStep { verifier: self.verifier.clone(), tail: self.tail });
        Ok(data.verified_step(step, blocks).with_trust(self.trusted.clone()))
    }
}

/// Checks data blocks.
struct VerityStep {
    verifier: Arc<Verifier>,
    tail: EofTail,
}

/// Checks hash blocks.
struct TreeStep(Arc<Verifier>);

fn block_size(verifier: &Verifier) -> u32 {
    u32::try_from(verifier.params().block_size()).unwrap_or(u32::MAX)
}

impl Step for VerityStep {
    fn block_size(&self) -> u32 {
        block_size(&self.verifier)
    }

    fn inputs(&self, blocks: Range<u64>, wanted: &mut Inputs) {
        let g = self.verifier.geometry();
        let Some(last) = blocks.end.min(g.data_blocks()).checked_sub(1).filter(|last| *last >= blocks.start) else {
            return;
        };
        if let (Some(first), Some(last)) = (g.hash_at_leaf(blocks.start), g.hash_at_leaf(last)) {
            wanted.want(first.block..last.block + 1);
        }
    }

    fn run(&self, bio: &mut BioMut<'_>, inputs: &VerifiedInputs<'_>) {
        let v = &*self.verifier;
        let g = v.geometry();
        let size = v.params().block_size();
        let first = bio.offset() / size as u64;
        let end = first + (bio.data().len() / size) as u64;
        let in_file = end.min(g.data_blocks());
        let parent = |block: u64| g.hash_at_leaf(block).map(|at| at.block);
        let verify = |bio: &BioMut<'_>, run: Range<u64>, leaves: &[&[u8]], bad: &mut dyn FnMut(BadBlock)| {
            let bytes = byte_range(first, &run, size);
            if bio.is_hole(bytes.clone()) {
                return v.verify_hole(run.start, run.end - run.start, leaves, bad);
            }
            SCRATCH.with_borrow_mut(|scratch| {
                v.verify_data(run.start, &bio.data()[bytes], leaves, self.tail, scratch, bad);
            });
        };
        check(bio, inputs, size, first, first..in_file, g.hashes_per_block() as u64, &parent, &verify);
        if in_file < end {
            // Whole blocks past the end of the file are in no tree, and readers never get them.
            let past = byte_range(first, &(in_file.max(first)..end), size);
            bio.data_mut()[past].fill(0);
        }
    }
}

impl Step for TreeStep {
    fn block_size(&self) -> u32 {
        block_size(&self.0)
    }

    fn inputs(&self, blocks: Range<u64>, wanted: &mut Inputs) {
        let g = self.0.geometry();
        // The engine keeps a bio of hash blocks within one level.
        let Some((level, first)) = g.level_of(blocks.start) else { return };
        let last = first + (blocks.end - blocks.start).saturating_sub(1);
        if let (Some(first), Some(last)) = (g.hash_at_level(level + 1, first), g.hash_at_level(level + 1, last)) {
            wanted.want(first.block..last.block + 1);
        }
    }

    fn run(&self, bio: &mut BioMut<'_>, inputs: &VerifiedInputs<'_>) {
        let v = &*self.0;
        let g = v.geometry();
        let size = v.params().block_size();
        let start = bio.offset() / size as u64;
        let Some((level, first)) = g.level_of(start) else { return };
        let end = first + (bio.data().len() / size) as u64;
        let parent = |index: u64| g.hash_at_level(level + 1, index).map(|at| at.block);
        let verify = |bio: &BioMut<'_>, run: Range<u64>, parents: &[&[u8]], bad: &mut dyn FnMut(BadBlock)| {
            let bytes = &bio.data()[byte_range(first, &run, size)];
            SCRATCH.with_borrow_mut(|scratch| v.verify_hash_run(level, run.start, bytes, parents, scratch, bad));
        };
        check(bio, inputs, size, first, first..end, g.hashes_per_block() as u64, &parent, &verify);
    }
}

fn byte_range(first: u64, run: &Range<u64>, size: usize) -> Range<usize> {
    (run.start - first) as usize * size..(run.end - first) as usize * size
}

/// Verifies a run of blocks under the parents given, and reports the bad ones.
type VerifyRun<'a> = dyn Fn(&BioMut<'_>, Range<u64>, &[&[u8]], &mut dyn FnMut(BadBlock)) + 'a;

/// Verifies `blocks` (the bio's first block is `first`), as many at once as their parents allow: neighbours whose bytes
/// were read and whose parents are there. The others fail with the status of what they lack.
#[allow(clippy::too_many_arguments)] // The differences between data blocks and hash blocks.
fn check(
    bio: &mut BioMut<'_>,
    inputs: &VerifiedInputs<'_>,
    size: usize,
    first: u64,
    blocks: Range<u64>,
    arity: u64,
    parent: &dyn Fn(u64) -> Option<u64>,
    verify: &VerifyRun<'_>,
) {
    let mut at = blocks.start;
    while at < blocks.end {
        let mut parents: [&[u8]; PARENTS] = [&[]; PARENTS];
        let mut count = 0;
        let mut until = at;
        let mut failed = None;
        // Parents one by one, as long as they are present and everything below them was read.
        while until < blocks.end && count < PARENTS {
            let under = ((until / arity + 1) * arity).min(blocks.end);
            match parent(until).map(|index| inputs.get(index)) {
                None => {}
                Some(Ok(bytes)) => parents[count] = bytes,
                Some(Err(status)) => {
                    failed = (count == 0).then_some((until..under, status));
                    break;
                }
            }
            count += 1;
            let bytes = byte_range(first, &(until..under), size);
            if let Some(bad) = bio.statuses().first_bad(bytes) {
                let bad_block = first + (bad.range.start / size) as u64;
                if bad_block > at {
                    until = bad_block.max(until);
                } else {
                    failed = Some((at..at + 1, bad.status.clone()));
                }
                break;
            }
            until = under;
        }
        if let Some((run, status)) = failed {
            bio.fail(byte_range(first, &run, size), &status);
            at = run.end;
            continue;
        }
        let has_parents = parent(at).is_some();
        let mut bad_blocks: Vec<BadBlock> = Vec::new();
        let given = if has_parents { &parents[..count] } else { &[] };
        verify(bio, at..until, given, &mut |bad| bad_blocks.push(bad));
        bio.count_checked((until - at).saturating_sub(bad_blocks.len() as u64));
        for bad in bad_blocks {
            fail_block(bio, size, first, &bad);
        }
        at = until;
    }
}

fn fail_block(bio: &mut BioMut<'_>, size: usize, first: u64, bad: &BadBlock) {
    let (level, index) = match bad.id {
        BlockId::Data { index } => (None, index),
        BlockId::Hash { level, index } => (Some(level), index),
    };
    let Mismatch::Digest { wanted, found } = &bad.mismatch else {
        // Bios hold whole blocks of this file, so there should be no other error; if there is, fail the blocks.
        let status = BlockStatus::Step { message: bad.to_string().into() };
        return bio.fail(byte_range(first, &(index..index + 1), size), &status);
    };
    let (wanted, found, size_u32) = (wanted.as_bytes(), found.as_bytes(), size as u32);
    let corruption = match level {
        None => Corruption::data(bad.offset, size_u32, wanted, found),
        Some(level) => Corruption::tree(bad.offset, size_u32, level as u32, wanted, found),
    };
    bio.fail(byte_range(first, &(index..index + 1), size), &BlockStatus::Corrupt(Box::new(corruption)));
}
