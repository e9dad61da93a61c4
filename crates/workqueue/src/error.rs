//! What can go wrong.

use std::io;

use crate::WqFlags;

/// The most that a `max_active` may be, as in the kernel (`WQ_MAX_ACTIVE`).
pub const WQ_MAX_ACTIVE: usize = 2048;

/// The `max_active` that 0 stands for, as in the kernel (`WQ_DFL_ACTIVE`).
pub const WQ_DFL_ACTIVE: usize = 1024;

/// The longest name of a queue, in bytes, as in the kernel (`WQ_NAME_LEN` less the zero byte).
pub const WQ_NAME_MAX: usize = 31;

/// A queue could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AllocError {
    /// Neither or both of `PERCPU` and `UNBOUND`, or bits that mean nothing.
    #[error("contradictory flags {flags:?}: exactly one of PERCPU and UNBOUND is to be given")]
    Flags {
        /// The flags given.
        flags: WqFlags,
    },
    /// The name is empty, too long, or has a zero byte.
    #[error("a queue's name has 1 to {WQ_NAME_MAX} bytes and no zero byte: {name:?}")]
    Name {
        /// The name given.
        name: String,
    },
    /// `max_active` is above [`WQ_MAX_ACTIVE`].
    #[error(transparent)]
    MaxActive(#[from] MaxActiveError),
    /// The first worker of a pool could not be made or set up.
    #[error("worker {worker}: {source}")]
    Worker {
        /// The thread's name.
        worker: String,
        /// What the system said.
        source: io::Error,
    },
    /// The CPUs to run on could not be found out.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

/// `max_active` is above [`WQ_MAX_ACTIVE`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("max_active {max_active} is above {WQ_MAX_ACTIVE}")]
#[non_exhaustive]
pub struct MaxActiveError {
    /// The value given.
    pub max_active: usize,
}

/// The worker pools could not be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The affinity mask could not be read.
    #[error("affinity mask: {0}")]
    Affinity(#[source] io::Error),
    /// A CPU that is offline, or outside the affinity mask; or no CPU at all.
    #[error("CPUs {wanted} are not all in the affinity mask {allowed}, or are none")]
    Cpus {
        /// The CPUs asked for.
        wanted: postread_sys::CpuSet,
        /// The CPUs of the affinity mask.
        allowed: postread_sys::CpuSet,
    },
    /// The process-wide pools exist already.
    #[error("the worker pools of this process are in use already")]
    InUse,
    /// The manager thread, which makes the other threads, could not be made.
    #[error("manager thread: {0}")]
    Manager(#[source] io::Error),
}

/// The CPU is offline, or outside the CPUs of the worker pools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("CPU {cpu} is offline, or outside the affinity mask")]
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
