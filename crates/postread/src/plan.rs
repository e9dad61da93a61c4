//! Plans: where a file's bytes are, and the steps that they go through after they are read.
//!
//! Layers are composed here, ahead of the read: a logical range of a file maps to pieces of sources, and the steps of
//! all layers form one ordered list, so that a read is one buffer and one work item, however many layers there are.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use postread_io::{BlockStatus, Source};
use postread_verity::TrustedDescriptor;

use crate::auto::StepCost;
use crate::inputs::InputBlocks;
use crate::nowhere::Nowhere;
use crate::step::Step;

/// Where a piece of a file is.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub enum PieceAt<'a> {
    /// At `offset` of `source`.
    Source {
        /// The source.
        source: &'a Arc<dyn Source>,
        /// Byte offset in it.
        offset: u64,
    },
    /// Nowhere: it reads as zeros, and is never decrypted.
    Hole,
}

impl fmt::Debug for PieceAt<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Source { offset, .. } => write!(f, "Source({offset})"),
            Self::Hole => f.write_str("Hole"),
        }
    }
}

/// The first piece of a logical range.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    /// Its length in bytes: at least 1, at most the length requested.
    pub len: u64,
    /// Where it is.
    pub at: PieceAt<'a>,
}

/// Maps the logical bytes of a file to pieces of sources.
pub trait Mapping: Send + Sync {
    /// The piece that begins at logical `offset`, of at most `len` bytes (`len` is at least 1). Called also for bytes
    /// past the end of the file, up to the end of its last unit: what is stored there (the rest of an encrypted block) or
    /// a hole.
    fn piece(&self, offset: u64, len: u64) -> Piece<'_>;
}

/// A run of bytes of one source, with a hole after it.
#[derive(Clone)]
pub struct Linear {
    source: Arc<dyn Source>,
    start: u64,
    len: u64,
}

impl Linear {
    /// Logical byte 0 is byte `start` of `source`; after `len` bytes there is nothing but zeros.
    pub fn new(source: Arc<dyn Source>, start: u64, len: u64) -> Self {
        Self { source, start, len: len.min(u64::MAX - start) }
    }
}

impl fmt::Debug for Linear {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Linear").field("start", &self.start).field("len", &self.len).finish_non_exhaustive()
    }
}

impl Mapping for Linear {
    fn piece(&self, offset: u64, len: u64) -> Piece<'_> {
        match self.len.checked_sub(offset) {
            Some(rest @ 1..) => {
                Piece { len: len.min(rest), at: PieceAt::Source { source: &self.source, offset: self.start + offset } }
            }
            _ => Piece { len, at: PieceAt::Hole },
        }
    }
}

/// One extent of an [`ExtentMap`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappedExtent {
    /// Where it begins in the file, in bytes.
    pub logical: u64,
    /// Its length in bytes.
    pub len: u64,
    /// Where it begins in the source, in bytes.
    pub physical: u64,
}

/// A list of extents of one source, as in file systems. Ranges without an extent are holes.
#[derive(Clone)]
pub struct ExtentMap {
    source: Arc<dyn Source>,
    extents: Vec<MappedExtent>,
    /// Bytes of the file that are neither in an extent nor a hole, in order, and a source that reports why.
    broken: Vec<(Range<u64>, Arc<dyn Source>)>,
}

/// Extents that overlap or run past the end of the address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the extent at logical byte {logical} overlaps another or has an impossible length")]
#[non_exhaustive]
pub struct BadExtent {
    /// Where the extent begins in the file.
    pub logical: u64,
}

impl ExtentMap {
    /// Takes extents in any order.
    ///
    /// # Errors
    /// If two overlap, or one does not fit the address space.
    pub fn new(source: Arc<dyn Source>, mut extents: Vec<MappedExtent>) -> Result<Self, BadExtent> {
        extents.retain(|e| e.len > 0);
        extents.sort_by_key(|e| e.logical);
        let mut free_from = 0;
        for e in &extents {
            let end = e.logical.checked_add(e.len).filter(|_| e.physical.checked_add(e.len).is_some());
            match end {
                Some(end) if e.logical >= free_from => free_from = end,
                _ => return Err(BadExtent { logical: e.logical }),
            }
        }
        Ok(Self { source, extents, broken: Vec::new() })
    }

    /// Where the extents lie.
    pub(crate) fn source(&self) -> &Arc<dyn Source> {
        &self.source
    }

    /// Adds bytes of the file whose place is not known, which come after those added before: reading there fails with
    /// `status`.
    pub fn add_broken(&mut self, range: Range<u64>, status: BlockStatus) {
        self.broken.push((range, Arc::new(Nowhere(status))));
    }
}

impl fmt::Debug for ExtentMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExtentMap").field("extents", &self.extents.len()).finish_non_exhaustive()
    }
}

impl Mapping for ExtentMap {
    fn piece(&self, offset: u64, len: u64) -> Piece<'_> {
        let mut len = len;
        if let Some((range, source)) = self.broken.get(self.broken.partition_point(|(range, _)| range.end <= offset)) {
            match range.start.checked_sub(offset) {
                Some(before @ 1..) => len = len.min(before),
                _ => return Piece { len: len.min(range.end - offset), at: PieceAt::Source { source, offset } },
            }
        }
        let next = self.extents.partition_point(|e| e.logical <= offset);
        if let Some(e) = next.checked_sub(1).and_then(|at| self.extents.get(at))
            && offset - e.logical < e.len
        {
            let into = offset - e.logical;
            let at = PieceAt::Source { source: &self.source, offset: e.physical + into };
            return Piece { len: len.min(e.len - into), at };
        }
        let hole = self.extents.get(next).map_or(len, |e| len.min(e.logical - offset));
        Piece { len: hole, at: PieceAt::Hole }
    }
}

/// Where a step's inputs come from.
#[derive(Clone)]
pub(crate) enum StepInputs {
    /// It has none.
    None,
    /// The hash blocks of a tree.
    Blocks(Arc<dyn InputBlocks>),
    /// The hash blocks that this plan itself reads: a tree's own plan, whose blocks are checked by their parents.
    Own,
}

#[derive(Clone)]
pub(crate) struct PlannedStep {
    pub(crate) step: Arc<dyn Step>,
    pub(crate) inputs: StepInputs,
}

/// Where a file's bytes are and the steps that they go through, in order.
#[derive(Clone)]
pub struct Plan {
    /// What the steps have cost so far, for the policy `auto`.
    pub(crate) cost: Arc<StepCost>,
    pub(crate) map: Arc<dyn Mapping>,
    pub(crate) steps: Vec<PlannedStep>,
    len: u64,
    unit: u32,
    trusted: Option<Arc<TrustedDescriptor>>,
}

impl Plan {
    /// A file of `len` bytes whose place `map` describes, without any step.
    pub fn new(map: Arc<dyn Mapping>, len: u64) -> Self {
        Self { cost: Arc::default(), map, steps: Vec::new(), len, unit: 1, trusted: None }
    }

    /// Adds a step that needs only the bytes themselves, such as decryption.
    #[must_use]
    pub fn step(mut self, step: Arc<dyn Step>) -> Self {
        self.unit = self.unit.max(step.block_size().max(1).next_power_of_two());
        self.steps.push(PlannedStep { step, inputs: StepInputs::None });
        self
    }

    pub(crate) fn step_with(mut self, step: Arc<dyn Step>, inputs: StepInputs) -> Self {
        self = self.step(step);
        if let Some(last) = self.steps.last_mut() {
            last.inputs = inputs;
        }
        self
    }

    /// Records what the file is verified against.
    pub(crate) fn with_trust(mut self, trusted: Arc<TrustedDescriptor>) -> Self {
        self.trusted = Some(trusted);
        self
    }

    /// What the file is verified against, and why that is trusted; `None` for a file that is not verified.
    pub fn trusted(&self) -> Option<&TrustedDescriptor> {
        self.trusted.as_deref()
    }

    /// Length of the file in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// True for a file of no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The smallest piece that can be read: the largest block of any step, in bytes (1 where there is no step).
    pub fn unit(&self) -> u32 {
        self.unit
    }
}

impl fmt::Debug for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plan")
            .field("len", &self.len)
            .field("unit", &self.unit)
            .field("steps", &self.steps.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use postread_io::MemorySource;

    fn pieces(map: &dyn Mapping, mut offset: u64, len: u64) -> Vec<(u64, Option<u64>)> {
        let end = offset + len;
        let mut all = Vec::new();
        while offset < end {
            let piece = map.piece(offset, end - offset);
            assert!(piece.len >= 1 && piece.len <= end - offset);
            let at = match piece.at {
                PieceAt::Source { offset, .. } => Some(offset),
                PieceAt::Hole => None,
            };
            all.push((piece.len, at));
            offset += piece.len;
        }
        all
    }

    #[test]
    fn extents_and_holes() {
        let source: Arc<dyn Source> = Arc::new(MemorySource::new(vec![0; 10]));
        let e = |logical, len, physical| MappedExtent { logical, len, physical };
        let map = ExtentMap::new(source.clone(), vec![e(20, 10, 100), e(0, 10, 50), e(30, 5, 0)]).expect("disjoint");
        assert_eq!(pieces(&map, 5, 35), [(5, Some(55)), (10, None), (10, Some(100)), (5, Some(0)), (5, None)]);
        assert_eq!(ExtentMap::new(source.clone(), vec![e(0, 10, 0), e(9, 1, 0)]).unwrap_err().logical, 9);
        assert!(ExtentMap::new(source.clone(), vec![e(0, u64::MAX, 1)]).is_err());
        let line = Linear::new(source, 7, 10);
        assert_eq!(pieces(&line, 3, 12), [(7, Some(10)), (5, None)]);
    }
}
