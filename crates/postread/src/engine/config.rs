//! The settings of an engine.

use std::sync::Arc;

use postread_io::Budget;
use postread_workqueue::Pools;

use crate::policy::QueuePolicy;
use crate::stamps::BioObserver;

/// The settings of an engine.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    pub(crate) policy: QueuePolicy,
    pub(crate) max_bio: usize,
    pub(crate) read_ahead: usize,
    pub(crate) tree_read_ahead: u64,
    pub(crate) measure: bool,
    pub(crate) observer: Option<Arc<dyn BioObserver>>,
    pub(crate) budget: Budget,
    pub(crate) pools: Option<Pools>,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            policy: QueuePolicy::Inline,
            max_bio: 256 << 10,
            read_ahead: 4 << 20,
            tree_read_ahead: 3,
            measure: false,
            observer: None,
            budget: Budget::global().clone(),
            pools: None,
        }
    }
}

impl EngineConfig {
    /// The defaults: inline, bios of at most 256 KiB, 4 MiB read ahead of a stream, 3 tree blocks ahead, the process's
    /// budget, no times measured.
    pub fn new() -> Self {
        Self::default()
    }

    /// Where steps run.
    #[must_use]
    pub fn policy(mut self, policy: QueuePolicy) -> Self {
        self.policy = policy;
        self
    }

    /// The most bytes in one bio, rounded up to a power of two of at least 4096. A block of a step is never split.
    #[must_use]
    pub fn max_bio(mut self, bytes: usize) -> Self {
        self.max_bio = bytes.clamp(4096, 64 << 20).next_power_of_two();
        self
    }

    /// How far to read ahead of a sequential reader, in bytes; 0 for not at all.
    #[must_use]
    pub fn read_ahead(mut self, bytes: usize) -> Self {
        self.read_ahead = bytes;
        self
    }

    /// How many tree blocks to read ahead after one that a sequential reader misses.
    #[must_use]
    pub fn tree_read_ahead(mut self, blocks: u32) -> Self {
        self.tree_read_ahead = u64::from(blocks);
        self
    }

    /// Whether to stamp each bio and to measure the CPU time of its steps, for [`EngineStats`]: some 500 ns per bio.
    ///
    /// [`EngineStats`]: crate::EngineStats
    #[must_use]
    pub fn measure(mut self, measure: bool) -> Self {
        self.measure = measure;
        self
    }

    /// Passes the record of each bio to `observer` when the bio has ended. Turns measuring on.
    #[must_use]
    pub fn observer(mut self, observer: Arc<dyn BioObserver>) -> Self {
        self.measure = true;
        self.observer = Some(observer);
        self
    }

    /// A budget of bytes in flight other than the process's.
    #[must_use]
    pub fn budget(mut self, budget: Budget) -> Self {
        self.budget = budget;
        self
    }

    /// Worker pools other than the process's, for tests and experiments.
    #[must_use]
    pub fn pools(mut self, pools: Pools) -> Self {
        self.pools = Some(pools);
        self
    }
}
