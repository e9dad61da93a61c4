//! The engine: submission, completion, inputs, queue policy, steps.

mod clock;
mod dispatch;
pub(crate) mod flight;
mod open_count;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use postread_io::{Budget, current_cpu};
use postread_workqueue::Pools;

pub(crate) use dispatch::Dispatch;
pub(crate) use open_count::OpenCount;

use crate::error::EngineError;
use crate::file::OpenFile;
use crate::plan::Plan;
use crate::policy::QueuePolicy;
use crate::stats::{EngineStats, Stats};
use flight::{Flight, Launch};

/// How an engine works.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    pub(crate) policy: QueuePolicy,
    pub(crate) max_bio: usize,
    pub(crate) read_ahead: usize,
    pub(crate) tree_read_ahead: u64,
    pub(crate) measure: bool,
    pub(crate) budget: Budget,
    pools: Option<Pools>,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            policy: QueuePolicy::Inline,
            max_bio: 256 << 10,
            read_ahead: 4 << 20,
            tree_read_ahead: 3,
            measure: false,
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

    /// How many tree blocks to read behind a missing one that a sequential reader wants.
    #[must_use]
    pub fn tree_read_ahead(mut self, blocks: u32) -> Self {
        self.tree_read_ahead = u64::from(blocks);
        self
    }

    /// Whether queue latency, post-read delay and CPU time are measured: some 400 ns a bio.
    #[must_use]
    pub fn measure(mut self, measure: bool) -> Self {
        self.measure = measure;
        self
    }

    /// Another budget of bytes in flight than the process's.
    #[must_use]
    pub fn budget(mut self, budget: Budget) -> Self {
        self.budget = budget;
        self
    }

    /// Other worker pools than the process's, for tests and experiments.
    #[must_use]
    pub fn pools(mut self, pools: Pools) -> Self {
        self.pools = Some(pools);
        self
    }
}

/// A list of idle flights on a cache line of its own.
#[derive(Default)]
#[repr(align(128))]
struct Idle(Mutex<Vec<Arc<Flight>>>);

pub(crate) struct EngineInner {
    pub(crate) config: EngineConfig,
    pub(crate) dispatch: Dispatch,
    pub(crate) stats: Stats,
    pub(crate) budget: Budget,
    idle: Vec<Idle>,
}

impl EngineInner {
    fn idle(&self) -> &Idle {
        &self.idle[current_cpu() as usize % self.idle.len()]
    }

    pub(crate) fn launch(self: &Arc<Self>, launch: Launch) -> Arc<Flight> {
        let idle = self.idle().0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let flight = idle.unwrap_or_else(Flight::new);
        flight.start(self, launch);
        flight
    }

    /// Keeps an ended flight for its next use if nobody else holds it.
    pub(crate) fn recycle(&self, flight: Arc<Flight>) {
        const KEEP: usize = 64;
        if Arc::strong_count(&flight) != 1 || !flight.is_done() {
            return;
        }
        flight.reset();
        let mut idle = self.idle().0.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < KEEP {
            idle.push(flight);
        }
    }
}

/// Reads files through plans, and runs their steps where its queue policy says. Clones share it.
#[derive(Clone)]
pub struct Engine(Arc<EngineInner>);

impl Engine {
    /// Sets an engine up, with a workqueue of its own if the policy needs one.
    ///
    /// # Errors
    /// Where the workqueue is refused.
    pub fn new(config: EngineConfig) -> Result<Self, EngineError> {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Self(Arc::new(EngineInner {
            dispatch: Dispatch::new(config.policy, config.pools.as_ref())?,
            stats: Stats::new(),
            budget: config.budget.clone(),
            idle: (0..cpus).map(|_| Idle::default()).collect(),
            config,
        })))
    }

    /// Opens a file that is read as `plan` says.
    pub fn open(&self, plan: Plan) -> OpenFile {
        OpenFile::new(self.0.clone(), plan)
    }

    /// The queue policy.
    pub fn policy(&self) -> QueuePolicy {
        self.0.config.policy
    }

    /// What was counted so far.
    pub fn stats(&self) -> EngineStats {
        self.0.stats.snapshot()
    }

    /// The workqueue that items are queued to; none with the policy inline.
    pub fn workqueue(&self) -> Option<&postread_workqueue::Workqueue> {
        self.0.dispatch.workqueue()
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("config", &self.0.config).finish_non_exhaustive()
    }
}
