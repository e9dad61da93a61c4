//! The interfaces between bios in flight, hash blocks and the engine, so that neither side needs the other's type.

use std::sync::Arc;

use postread_io::{BlockStatus, Buf, Statuses};

use crate::engine::OpenCount;
use crate::plan::Plan;
use crate::step::VerifiedBlock;

/// A hash block that was checked, or why there is none.
pub(crate) type InputValue = Result<Arc<VerifiedBlock>, BlockStatus>;

/// A hash block and the slot that waits for it.
pub(crate) type WantedBlock = (u64, u32);

/// The cost of waiting for a hash block; 0 if it was not measured.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct InputTimes {
    /// When it was checked.
    pub(crate) checked_ns: u64,
    /// The CPU time of checking it, and the blocks above it that it waited for.
    pub(crate) cpu_ns: u64,
}

/// The hash blocks of a tree, as a bio in flight sees them.
pub(crate) trait InputBlocks: Send + Sync {
    fn block_size(&self) -> u32;

    fn len(&self) -> u64;

    /// A checked block, if it is cached.
    fn cached(&self, index: u64) -> Option<Arc<VerifiedBlock>>;

    /// Has the blocks of `wanted` read and checked; each reaches the slot that it was wanted for, possibly before this
    /// returns. `ahead` more blocks may be read after the last one.
    fn request(
        self: Arc<Self>,
        launcher: &Arc<dyn LaunchesHashBios>,
        open: &Arc<OpenCount>,
        waiter: &Arc<dyn WaitsForInputs>,
        wanted: &[WantedBlock],
        ahead: u64,
    );

    /// A bio of hash blocks, `first` and those after it, has ended.
    fn ended(&self, first: u64, buf: Buf, statuses: &Statuses, times: InputTimes);
}

/// Waits for hash blocks: a bio in flight.
pub(crate) trait WaitsForInputs: Send + Sync {
    fn input_arrived(self: Arc<Self>, slot: u32, value: InputValue, times: InputTimes);
}

/// A bio of hash blocks before it is in flight.
pub(crate) struct HashBio {
    pub(crate) plan: Arc<Plan>,
    pub(crate) open: Arc<OpenCount>,
    pub(crate) blocks: Arc<dyn InputBlocks>,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// The engine, as hash blocks see it.
pub(crate) trait LaunchesHashBios: Send + Sync {
    fn launch_hash_bio(self: Arc<Self>, bio: HashBio);
}
