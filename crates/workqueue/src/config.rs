//! Which CPUs the worker pools cover, and their limits.

use std::time::Duration;

use postread_sys::priority::SHORTEST_SLICE;
use postread_sys::{CpuSet, affinity, quota};

use crate::error::ConfigError;

/// How the workers of high-priority pools are raised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum HighPriorityPolicy {
    /// Nice -20; else as low as `RLIMIT_NICE` allows; else a short EEVDF slice.
    #[default]
    Best,
    /// Only the short slice, which needs no privilege: an arm of its own for experiments.
    Slice,
}

/// Settings of a set of worker pools. Every queue of a process shares one set, [`Pools::global`](crate::Pools::global);
/// a test or an experiment may have more.
///
/// ```
/// use postread_workqueue::{Config, Pools, WqFlags};
///
/// // Two workers may run at once, whatever the machine has.
/// let pools = Pools::new(Config::new().unbound_concurrency(2))?;
/// let wq = pools.alloc("test", WqFlags::UNBOUND, 0)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct Config {
    cpus: Option<CpuSet>,
    unbound_concurrency: Option<usize>,
    pub(crate) max_threads: usize,
    pub(crate) idle_timeout: Duration,
    pub(crate) high_priority: HighPriorityPolicy,
    pub(crate) slice: Duration,
}

impl Default for Config {
    fn default() -> Config {
        Config::new()
    }
}

impl Config {
    /// The defaults: the CPUs of the calling thread's affinity mask; unbound concurrency as that mask and the cgroup's
    /// CPU quota allow; idle workers beyond the first leave after five minutes.
    pub fn new() -> Config {
        Config {
            cpus: None,
            unbound_concurrency: None,
            max_threads: usize::MAX,
            idle_timeout: Duration::from_secs(300),
            high_priority: HighPriorityPolicy::Best,
            slice: SHORTEST_SLICE,
        }
    }

    /// The CPUs that have bound pools, and that unbound workers may run on.
    pub fn cpus(mut self, cpus: CpuSet) -> Config {
        self.cpus = Some(cpus);
        self
    }

    /// How many workers of an unbound pool may run at once, not counting those inside
    /// [`blocking`](crate::blocking); at least 1.
    pub fn unbound_concurrency(mut self, workers: usize) -> Config {
        self.unbound_concurrency = Some(workers.max(1));
        self
    }

    /// The most worker threads of all pools together. Beyond it, making a thread fails as it does when the system is
    /// out of them: items then wait for the workers there are.
    pub fn max_threads(mut self, threads: usize) -> Config {
        self.max_threads = threads;
        self
    }

    /// How long a worker beyond a pool's first is idle before it leaves; up to twice as long in effect.
    pub fn idle_timeout(mut self, timeout: Duration) -> Config {
        self.idle_timeout = timeout.max(Duration::from_millis(1));
        self
    }

    /// How high-priority workers are raised.
    pub fn high_priority(mut self, policy: HighPriorityPolicy) -> Config {
        self.high_priority = policy;
        self
    }

    /// The slice asked for where high priority means a slice; the kernel takes 100 us to 100 ms.
    pub fn high_priority_slice(mut self, slice: Duration) -> Config {
        self.slice = slice;
        self
    }

    /// The CPUs, and the unbound concurrency.
    pub(crate) fn resolve(&self) -> Result<(CpuSet, usize), ConfigError> {
        let allowed = affinity::current().map_err(ConfigError::Affinity)?;
        let cpus = self.cpus.clone().unwrap_or_else(|| allowed.clone());
        // The kernel's mask has only CPUs that are online. The last check keeps CPU indices within 16 bits.
        if cpus.is_empty() || !cpus.is_subset(&allowed) || cpus.len() > usize::from(u16::MAX) {
            return Err(ConfigError::Cpus { wanted: cpus, allowed });
        }
        let concurrency = self.unbound_concurrency.unwrap_or_else(|| {
            // A quota that cannot be read limits nothing: the CPUs still do.
            match quota::cpu_quota() {
                Ok(Some(quota)) => cpus.len().min(quota.ceil() as usize).max(1),
                _ => cpus.len(),
            }
        });
        Ok((cpus, concurrency))
    }
}
