//! The engine: submission, completion, inputs, queue policy, steps.

mod config;
mod core;
mod dispatch;
pub(crate) mod flight;
mod open_count;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use postread_io::{Priority, current_cpu};

pub use config::EngineConfig;
pub(crate) use core::Core;
pub(crate) use open_count::OpenCount;

use crate::auto::Submitting;
use crate::error::EngineError;
use crate::inputs::{HashBio, LaunchesHashBios};
use crate::policy::QueuePolicy;
use crate::stats::EngineStats;
use flight::{Flight, Launch, Sink};

/// A list of idle flights on a cache line of its own.
#[derive(Default)]
#[repr(align(128))]
struct Idle(Mutex<Vec<Arc<Flight>>>);

pub(crate) struct EngineInner {
    pub(crate) core: Arc<Core>,
    idle: Vec<Idle>,
}

impl EngineInner {
    fn idle(&self) -> &Idle {
        &self.idle[current_cpu() as usize % self.idle.len()]
    }

    pub(crate) fn launch(self: &Arc<Self>, launch: Launch) -> Arc<Flight> {
        let idle = self.idle().0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let flight = idle.unwrap_or_else(Flight::new);
        let _submitting = self.core.auto().map(|_| Submitting::begin());
        flight.start(&self.core, self, launch);
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

impl LaunchesHashBios for EngineInner {
    fn launch_hash_bio(self: Arc<Self>, bio: HashBio) {
        let HashBio { plan, open, blocks, offset, len } = bio;
        // A demand bio's inputs are always admitted.
        let permit = self.core.budget.always(len);
        let (len, priority) = (len as usize, Priority::Demand);
        self.launch(Launch { plan, open, sink: Sink::Tree(blocks), offset, len, priority, permit, tree_ahead: 0 });
    }
}

/// Reads files through plans, and runs their steps where its queue policy decides. Clones share it.
#[derive(Clone)]
pub struct Engine(pub(crate) Arc<EngineInner>);

impl Engine {
    /// Sets up an engine, with its own workqueue if the policy needs one.
    ///
    /// # Errors
    /// If the workqueue is refused.
    pub fn new(config: EngineConfig) -> Result<Self, EngineError> {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let idle = (0..cpus).map(|_| Idle::default()).collect();
        Ok(Self(Arc::new(EngineInner { core: Arc::new(Core::new(config)?), idle })))
    }

    /// The queue policy.
    pub fn policy(&self) -> QueuePolicy {
        self.0.core.config.policy
    }

    /// The counters so far.
    pub fn stats(&self) -> EngineStats {
        EngineStats { auto: self.0.core.auto().map(|auto| auto.stats()), ..self.0.core.stats.snapshot() }
    }

    /// The workqueue that items are queued to, with `auto` the unbound one; none with the policy inline.
    pub fn workqueue(&self) -> Option<&postread_workqueue::Workqueue> {
        self.0.core.dispatch.workqueue()
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("config", &self.0.core.config).finish_non_exhaustive()
    }
}
