//! Kernel-style workqueues in user space: bound and unbound, high-priority, max_active, flush, drain, cancel, latency statistics.

mod config;
mod domain;
mod error;
mod flags;
mod hist;
mod idle;
mod list;
mod manager;
mod node;
mod pool;
mod pools;
mod queue;
mod state;
mod stats;
mod sync;
mod time;
mod work;
mod worker;

pub use config::{Config, HighPriorityPolicy};
pub use error::{
    AllocError, CancelError, ConfigError, FlushError, MaxActiveError, QueueOnError, WQ_DFL_ACTIVE, WQ_MAX_ACTIVE,
    WQ_NAME_MAX,
};
pub use flags::WqFlags;
pub use hist::Hist;
pub use pools::Pools;
pub use queue::{Flushed, Workqueue};
pub use stats::{CpuCounts, PoolStats, WorkerStats, WqStats};
pub use work::Work;
pub use worker::blocking;
