//! Which CPUs the worker pools cover, and their limits.

use std::sync::Arc;
use std::time::Duration;

use postread_sys::priority::SHORTEST_SLICE;
use postread_sys::topology::Topology;
use postread_sys::{CpuSet, affinity, quota};

use crate::error::ConfigError;
use crate::node::MAX_CPUS;
use crate::report::{OnReport, Report};

/// How workers of high-priority pools get their priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum HighPriorityPolicy {
    /// Nice -20; else as low as `RLIMIT_NICE` allows; else a short EEVDF slice.
    #[default]
    Best,
    /// Only the short slice, which needs no privilege: a separate arm for experiments.
    Slice,
}

/// Settings of a set of worker pools. Every queue of a process shares one set, [`Pools::global`](crate::Pools::global);
/// a test or an experiment may have more.
///
/// ```
/// use postread_workqueue::{Config, Pools, WqFlags};
///
/// // Two workers may run at once, on any machine.
/// let pools = Pools::new(Config::new().unbound_concurrency(2))?;
/// let wq = pools.alloc("test", WqFlags::UNBOUND, 0)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
#[must_use]
pub struct Config {
    cpus: Option<CpuSet>,
    unbound_concurrency: Option<usize>,
    pub(crate) topology: Option<Topology>,
    pub(crate) cpu_intensive_thresh: Duration,
    pub(crate) watchdog_thresh: Duration,
    pub(crate) on_report: Option<OnReport>,
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
            topology: None,
            cpu_intensive_thresh: Duration::from_millis(10),
            watchdog_thresh: Duration::from_secs(30),
            on_report: None,
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

    /// The machine's topology, which determines pods and NUMA nodes, instead of the one in `/sys`.
    pub fn topology(mut self, topology: Topology) -> Config {
        self.topology = Some(topology);
        self
    }

    /// How long an item may hold up others before the monitor acts: by sleeping outside of
    /// [`blocking`](crate::blocking), or by hogging a bound pool's CPU. It then counts as `blocking`. The default is 10
    /// ms, as the kernel's `workqueue.cpu_intensive_thresh_us`; zero turns this off.
    pub fn cpu_intensive_thresh(mut self, thresh: Duration) -> Config {
        self.cpu_intensive_thresh = thresh;
        self
    }

    /// How long a pool with waiting items may make no progress before it is reported as stalled. The default is 30 s,
    /// as the kernel's `workqueue.watchdog_thresh`; zero turns this off.
    pub fn watchdog_thresh(mut self, thresh: Duration) -> Config {
        self.watchdog_thresh = thresh;
        self
    }

    /// Called with each [`Report`], mostly on the manager's thread, so it should return quickly. Without it (and
    /// without the feature `tracing`), reports are only kept for [`Pools::reports`](crate::Pools::reports).
    pub fn on_report(mut self, f: impl Fn(&Report) + Send + Sync + 'static) -> Config {
        self.on_report = Some(Arc::new(f));
        self
    }

    /// The most worker threads of all pools together; rescuers do not count. Beyond it, thread creation fails as if the
    /// system were out of threads: items then wait for the existing workers.
    pub fn max_threads(mut self, threads: usize) -> Config {
        self.max_threads = threads;
        self
    }

    /// How long a worker beyond a pool's first is idle before it exits (in practice up to twice as long).
    pub fn idle_timeout(mut self, timeout: Duration) -> Config {
        self.idle_timeout = timeout.max(Duration::from_millis(1));
        self
    }

    /// How high-priority workers get their priority.
    pub fn high_priority(mut self, policy: HighPriorityPolicy) -> Config {
        self.high_priority = policy;
        self
    }

    /// The slice requested where high priority means a slice; the kernel accepts 100 us to 100 ms.
    pub fn high_priority_slice(mut self, slice: Duration) -> Config {
        self.slice = slice;
        self
    }

    /// The CPUs, and the unbound concurrency.
    pub(crate) fn resolve(&self) -> Result<(CpuSet, usize), ConfigError> {
        let allowed = affinity::current().map_err(ConfigError::Affinity)?;
        let cpus = self.cpus.clone().unwrap_or_else(|| allowed.clone());
        // The kernel's mask contains only online CPUs. The last check is for the bits that an item has for CPU numbers.
        if cpus.is_empty() || !cpus.is_subset(&allowed) || cpus.len() >= MAX_CPUS {
            return Err(ConfigError::Cpus { wanted: cpus, allowed });
        }
        // An unreadable quota does not limit anything: the CPUs still do.
        let concurrency =
            self.unbound_concurrency.unwrap_or_else(|| concurrency(cpus.len(), quota::cpu_quota().unwrap_or(None)));
        Ok((cpus, concurrency))
    }
}

/// How many workers may run at once: the number of CPUs, or what the quota allows, rounded up.
pub(crate) fn concurrency(cpus: usize, quota: Option<f64>) -> usize {
    quota.map_or(cpus, |quota| cpus.min(quota.ceil() as usize)).max(1)
}

impl std::fmt::Debug for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Config")
            .field("cpus", &self.cpus)
            .field("unbound_concurrency", &self.unbound_concurrency)
            .field("cpu_intensive_thresh", &self.cpu_intensive_thresh)
            .field("watchdog_thresh", &self.watchdog_thresh)
            .field("max_threads", &self.max_threads)
            .field("idle_timeout", &self.idle_timeout)
            .field("high_priority", &self.high_priority)
            .field("slice", &self.slice)
            .finish_non_exhaustive()
    }
}
