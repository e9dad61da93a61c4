//! State shared by all bios of an engine: settings, queue, counters, budget.

use postread_io::Budget;
use postread_sys::contain;

use super::config::EngineConfig;
use super::dispatch::Dispatch;
use crate::auto::Auto;
use crate::error::EngineError;
use crate::stamps::BioRecord;
use crate::stats::Stats;

pub(crate) struct Core {
    pub(crate) config: EngineConfig,
    pub(crate) dispatch: Dispatch,
    pub(crate) stats: Stats,
    pub(crate) budget: Budget,
}

impl Core {
    pub(crate) fn new(config: EngineConfig) -> Result<Self, EngineError> {
        Ok(Self {
            dispatch: Dispatch::new(config.policy, config.pools.as_ref())?,
            stats: Stats::new(),
            budget: config.budget.clone(),
            config,
        })
    }

    /// The time if it is needed, else 0.
    pub(crate) fn stamp(&self) -> u64 {
        if self.config.measure || self.auto().is_some() { postread_sys::stamp_ns() } else { 0 }
    }

    /// The state of the policy `auto`.
    pub(crate) fn auto(&self) -> Option<&Auto> {
        self.dispatch.auto()
    }

    /// The kernel's id of this thread if it is needed, else 0.
    pub(crate) fn thread_id(&self) -> i32 {
        if self.config.observer.is_some() { postread_sys::gettid() } else { 0 }
    }

    /// Records a bio that has ended.
    pub(crate) fn record(&self, record: &BioRecord) {
        if !self.config.measure {
            return;
        }
        self.stats.record(record.completion_cpu, record);
        if let Some(observer) = &self.config.observer {
            let _ = contain(|| observer.bio(record));
        }
    }
}
