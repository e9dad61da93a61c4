//! Steps: the transformations of a bio after it is read.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use postread_io::{BlockStatus, Buf, Statuses};

/// One post-read transformation of a bio: decrypt, decompress, verify, in this order.
///
/// A step runs in a work item and never waits: it names everything else that it needs in [`Step::inputs`], and the
/// engine reads, decrypts and checks that before the bio is queued.
pub trait Step: Send + Sync {
    /// The size of the blocks that this step works on, in bytes: a power of two. A bio begins and ends at multiples.
    fn block_size(&self) -> u32;

    /// Names the inputs that `blocks` (in units of [`Step::block_size`] from logical byte 0) need. May be called
    /// several times for one bio, and must name the same each time.
    fn inputs(&self, blocks: Range<u64>, wanted: &mut Inputs);

    /// Transforms or checks the bio in place. Blocks that fail are marked with [`BioMut::fail`]; blocks that failed
    /// before stay failed, and their contents need not be touched.
    fn run(&self, bio: &mut BioMut<'_>, inputs: &VerifiedInputs<'_>);
}

/// The inputs that a step wants: ranges of hash blocks, counted from the start of the tree as it is stored.
#[derive(Debug, Default)]
pub struct Inputs {
    pub(crate) ranges: Vec<Range<u64>>,
}

impl Inputs {
    /// Requests the hash blocks of `range`.
    pub fn want(&mut self, range: Range<u64>) {
        if !range.is_empty() {
            self.ranges.push(range);
        }
    }
}

/// A hash block that was checked against its parent (or the root hash). The verified state lives exactly as long as
/// these bytes: only the check creates such a value, and it never changes.
pub struct VerifiedBlock {
    pub(crate) index: u64,
    pub(crate) bytes: Buf,
}

impl VerifiedBlock {
    /// Its number, counted from the start of the tree.
    pub fn index(&self) -> u64 {
        self.index
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl fmt::Debug for VerifiedBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VerifiedBlock({})", self.index)
    }
}

/// One input of a bio in flight.
#[derive(Debug)]
pub(crate) struct InputSlot {
    /// Which step of the plan wants it.
    pub(crate) step: u32,
    pub(crate) index: u64,
    /// `None` until it has arrived.
    pub(crate) value: Option<Result<Arc<VerifiedBlock>, BlockStatus>>,
}

/// The inputs of one step, all of which have arrived: verified, or failed with a status.
#[derive(Debug)]
pub struct VerifiedInputs<'a> {
    /// Of one step, in the order wanted.
    slots: &'a [InputSlot],
}

impl<'a> VerifiedInputs<'a> {
    pub(crate) fn of_step(slots: &'a [InputSlot], step: u32) -> Self {
        let from = slots.partition_point(|s| s.step < step);
        let to = slots.partition_point(|s| s.step <= step);
        Self { slots: &slots[from..to] }
    }

    /// Hash block `index`.
    ///
    /// # Errors
    /// Its status, where it could not be read or is corrupt.
    pub fn get(&self, index: u64) -> Result<&'a [u8], BlockStatus> {
        // Wanted ranges ascend, so the slots almost always form one run.
        let guess = self.slots.first().and_then(|first| index.checked_sub(first.index)).map(|at| at as usize);
        let slot = guess
            .and_then(|at| self.slots.get(at))
            .filter(|s| s.index == index)
            .or_else(|| self.slots.iter().find(|s| s.index == index));
        match slot.and_then(|s| s.value.as_ref()) {
            Some(Ok(block)) => Ok(block.bytes()),
            Some(Err(status)) => Err(status.clone()),
            None => Err(BlockStatus::Step { message: "an input was used that was not asked for".into() }),
        }
    }
}

/// A bio while a step works on it.
#[derive(Debug)]
pub struct BioMut<'a> {
    pub(crate) offset: u64,
    pub(crate) data: &'a mut [u8],
    pub(crate) statuses: &'a mut Statuses,
    pub(crate) holes: &'a [Range<usize>],
    pub(crate) checked_blocks: u64,
}

impl BioMut<'_> {
    /// Logical byte offset of the first byte.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The bytes.
    pub fn data(&self) -> &[u8] {
        self.data
    }

    /// The bytes, to transform.
    pub fn data_mut(&mut self) -> &mut [u8] {
        self.data
    }

    /// Its statuses so far.
    pub fn statuses(&self) -> &Statuses {
        self.statuses
    }

    /// True if no byte of `range` (from the bio's start) has failed.
    pub fn is_good(&self, range: Range<usize>) -> bool {
        self.statuses.first_bad(range).is_none()
    }

    /// True if all of `range` lies in holes: it reads as zeros, and is not ciphertext of anything.
    pub fn is_hole(&self, range: Range<usize>) -> bool {
        let mut at = range.start;
        for hole in self.holes.iter().filter(|h| h.end > range.start && h.start < range.end) {
            if hole.start > at {
                return false;
            }
            at = at.max(hole.end);
        }
        at >= range.end
    }

    /// Marks `range` (from the bio's start) as failed. Ranges that failed before keep their first status.
    pub fn fail(&mut self, range: Range<usize>, status: &BlockStatus) {
        self.statuses.fail(range, status);
    }

    /// Counts blocks that were checked and found good, for the statistics.
    pub fn count_checked(&mut self, blocks: u64) {
        self.checked_blocks += blocks;
    }
}
