//! What can go wrong.

use std::io;

use crate::WqFlags;

/// The most that a `max_active` may be, as in the kernel (`WQ_MAX_ACTIVE`).
pub const WQ_MAX_ACTIVE: usize = 2048;

/// The `max_active` that 0 stands for, as in the kernel (`WQ_DFL_ACTIVE`).
pub const WQ_DFL_ACTIVE: usize = 1024;

/// The default minimum of a NUMA node's part of `max_active`, as in the kernel (`WQ_DFL_MIN_ACTIVE`).
pub const WQ_DFL_MIN_ACTIVE: usize = 8;

/// The longest name of a queue, in bytes, as in the kernel (`WQ_NAME_LEN` less the zero byte).
pub const WQ_NAME_MAX: usize = 31;

/// A queue could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AllocError {
    /// Neither or both of `PERCPU` and `UNBOUND`, or unknown bits.
    #[error("contradictory flags {flags:?}: expected exactly one of PERCPU and UNBOUND")]
    Flags {
        /// The flags given.
        flags: WqFlags,
    },
    /// The name is empty, too long, or has a zero byte.
    #[error("a queue's name has 1 to {WQ_NAME_MAX} bytes and no zero byte, found {name:?}")]
    Name {
        /// The name given.
        name: String,
    },
    /// `max_active` is above [`WQ_MAX_ACTIVE`].
    #[error(transparent)]
    MaxActive(#[from] MaxActiveError),
    /// More than 65536 pools in one set.
    #[error("too many worker pools: a set has at most 65536")]
    TooManyPools,
    /// The first worker of a pool could not be made or set up.
    #[error("worker {worker}: {source}")]
    Worker {
        /// The thread's name.
        worker: String,
        /// The system's error.
        source: io::Error,
    },
    /// The CPUs to run on could not be determined.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

/// A limit that a queue cannot have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MaxActiveError {
    /// `max_active` is above [`WQ_MAX_ACTIVE`].
    #[error("max_active {max_active} is above {WQ_MAX_ACTIVE}")]
    TooMany {
        /// The value given.
        max_active: usize,
    },
    /// The `max_active` of an ordered queue is 1.
    #[error("max_active {max_active} for an ordered queue, which runs one item at a time")]
    Ordered {
        /// The value given.
        max_active: usize,
    },
    /// `min_active` is 0 or above `max_active`.
    #[error("min_active {min_active} is not between 1 and max_active, {max_active}")]
    Min {
        /// The value given.
        min_active: usize,
        /// The queue's `max_active`.
        max_active: usize,
    },
}

/// Attributes that a queue cannot have.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttrsError {
    /// The queue is bound: attributes are for unbound queues.
    #[error("a bound queue has no attributes")]
    Bound,
    /// The nice value is not between -20 and 19.
    #[error("nice value {nice} is not between -20 and 19")]
    Nice {
        /// The value given.
        nice: i32,
    },
    /// CPUs outside those of the pools, or none.
    #[error("CPUs {wanted}: expected at least one CPU, all of them among the pools' CPUs {allowed}")]
    Cpus {
        /// The CPUs given.
        wanted: postread_sys::CpuSet,
        /// The CPUs of the pools.
        allowed: postread_sys::CpuSet,
    },
    /// A worker pool for them could not be made.
    #[error(transparent)]
    Pool(Box<AllocError>),
}

/// The item cannot be queued on that NUMA node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QueueNodeError {
    /// The queue is bound, and so takes CPUs.
    #[error("a bound queue takes a CPU, not a NUMA node")]
    Bound,
    /// None of the pools' CPUs is on this node.
    #[error("no CPU of the worker pools is on NUMA node {node}")]
    NoSuchNode {
        /// The node given.
        node: u32,
    },
}

/// The item is not disabled, so it cannot be enabled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("enable called on an item that is not disabled")]
#[non_exhaustive]
pub struct EnableError;

/// The worker pools could not be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The affinity mask could not be read.
    #[error("affinity mask: {0}")]
    Affinity(#[source] io::Error),
    /// A CPU that is offline, or outside the affinity mask; or no CPU at all.
    #[error("CPUs {wanted}: expected at least one CPU, all of them in the affinity mask {allowed}")]
    Cpus {
        /// The CPUs asked for.
        wanted: postread_sys::CpuSet,
        /// The CPUs of the affinity mask.
        allowed: postread_sys::CpuSet,
    },
    /// The process-wide pools already exist.
    #[error("the worker pools of this process are already in use")]
    InUse,
    /// The manager thread, which makes the other threads, could not be made.
    #[error("manager thread: {0}")]
    Manager(#[source] io::Error),
}

/// The CPU is not one of the worker pools' CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("CPU {cpu} is offline, or outside the CPUs of the worker pools")]
#[non_exhaustive]
pub struct QueueOnError {
    /// The CPU given.
    pub cpu: u32,
}

/// Waiting here would never end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FlushError {
    /// Called from inside an item of the same queue: it would wait for its own caller.
    #[error("flush or drain from inside an item of the same queue")]
    SameQueue,
    /// Called from inside the item itself.
    #[error("flush of an item from inside itself")]
    OwnItem,
}

/// `cancel_sync` from inside the item itself would wait for its own caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("cancel_sync of an item from inside itself")]
#[non_exhaustive]
pub struct CancelError;
