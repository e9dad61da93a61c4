//! The set of worker pools: a normal and a high-priority one for each CPU, and the unbound ones. Each is made when a queue
//! first needs it.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock, mpsc};

use postread_sys::CpuSet;
use postread_sys::topology::Topology;

use crate::attrs::{Layout, WqAttrs};
use crate::config::Config;
use crate::error::{AllocError, ConfigError};
use crate::flags::WqFlags;
use crate::manager::Manager;
use crate::pods::{pod_concurrency, pods};
use crate::pool::{Pool, PoolSpec, Rank, Shared};
use crate::queue::Workqueue;
use crate::report::Report;
use crate::stats::PoolStats;
use crate::sync::lock;

/// The unbound pools of one set of attributes, one per pod.
struct Unbound {
    rank: Rank,
    attrs: WqAttrs,
    pools: Vec<Arc<Pool>>,
}

#[derive(Default)]
struct Made {
    /// By high priority (0 or 1), then by CPU index.
    bound: [Vec<Arc<Pool>>; 2],
    unbound: Vec<Unbound>,
    /// Unbound pools made so far, for their names.
    unbound_count: usize,
    /// All pools made so far, for their numbers.
    count: u16,
}

pub(crate) struct PoolsHandle {
    shared: Arc<Shared>,
    unbound_concurrency: usize,
    made: Mutex<Made>,
}

impl PoolsHandle {
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The pools of a bound queue.
    pub(crate) fn bound(&self, high: bool) -> Result<Layout, AllocError> {
        let mut made = lock(&self.made);
        let rank = if high { Rank::High } else { Rank::Normal };
        // A failure in the middle keeps those already made; the next call continues after them.
        for (index, cpu) in self.shared.cpus.iter().enumerate().skip(made.bound[usize::from(high)].len()) {
            let pod = CpuSet::from_iter([cpu]);
            let spec = PoolSpec {
                id: made.next_id()?,
                prefix: format!("{cpu}"),
                cpu: Some((cpu, index)),
                rank,
                allowed: pod.clone(),
                pod,
                limit: 1,
            };
            let pool = self.make(spec)?;
            made.bound[usize::from(high)].push(pool);
        }
        let pools = made.bound[usize::from(high)].clone();
        let by_cpu = (0..pools.len()).map(|index| u16::try_from(index).unwrap_or(0)).collect();
        Ok(Layout { attrs: WqAttrs::new(), pools, by_cpu })
    }

    /// The pools of an unbound queue with these attributes. The queue's flag decides the priority if the attributes do
    /// not.
    pub(crate) fn unbound(&self, high: bool, attrs: &WqAttrs) -> Result<Layout, AllocError> {
        let rank = match attrs.nice {
            Some(nice) => Rank::Nice(nice),
            None if high => Rank::High,
            None => Rank::Normal,
        };
        let cpus = &self.shared.cpus;
        let allowed = attrs.cpumask.as_ref().unwrap_or(cpus).clone();
        let pods = match &self.shared.topology {
            Some(topology) => pods(topology, &allowed, attrs.affn_scope),
            None => vec![allowed.clone()],
        };
        let mut made = lock(&self.made);
        let known = made.unbound.iter().find(|u| {
            u.rank == rank
                && u.attrs.affn_scope == attrs.affn_scope
                && u.attrs.affn_strict == attrs.affn_strict
                && u.attrs.cpumask.as_ref().unwrap_or(cpus) == &allowed
        });
        let pools = match known {
            Some(unbound) => unbound.pools.clone(),
            None => {
                let mut pools = Vec::with_capacity(pods.len());
                for pod in &pods {
                    let spec = PoolSpec {
                        id: made.next_id()?,
                        prefix: format!("u{}", made.unbound_count),
                        cpu: None,
                        rank,
                        pod: pod.clone(),
                        allowed: if attrs.affn_strict { pod.clone() } else { allowed.clone() },
                        limit: pod_concurrency(self.unbound_concurrency, pod.len(), allowed.len()),
                    };
                    pools.push(self.make(spec)?);
                    made.unbound_count += 1;
                }
                if !attrs.affn_strict {
                    for (index, pool) in pools.iter().enumerate() {
                        // Nearest numbers first.
                        let (before, after) = (&pools[..index], &pools[index + 1..]);
                        let _ = pool.siblings.set(after.iter().chain(before).map(Arc::downgrade).collect());
                    }
                }
                made.unbound.push(Unbound { rank, attrs: attrs.clone(), pools: pools.clone() });
                pools
            }
        };
        let by_cpu = cpus.iter().enumerate().map(|(index, cpu)| {
            // CPUs outside the mask have no pod; they are spread over the pods.
            let pod = pods.iter().position(|pod| pod.contains(cpu)).unwrap_or(index % pods.len());
            u16::try_from(pod).unwrap_or(0)
        });
        Ok(Layout { attrs: attrs.clone(), by_cpu: by_cpu.collect(), pools })
    }

    /// Makes a pool with its first worker, and waits until that is set up.
    fn make(&self, spec: PoolSpec) -> Result<Arc<Pool>, AllocError> {
        let pool = Arc::new(Pool::new(Arc::clone(&self.shared), spec));
        let error = |source: io::Error| AllocError::Worker { worker: format!("pr/{}:0", pool.prefix), source };
        let (ready, is_ready) = mpsc::channel();
        pool.idle.reserve_first();
        pool.spawn_worker(Some(ready)).map_err(error)?;
        is_ready.recv().map_err(io::Error::other).and_then(|result| result).map_err(error)?;
        self.shared.manager.add(&pool);
        Ok(pool)
    }
}

impl Made {
    fn next_id(&mut self) -> Result<u16, AllocError> {
        let id = self.count;
        self.count = id.checked_add(1).ok_or(AllocError::TooManyPools)?;
        Ok(id)
    }
}

impl Drop for PoolsHandle {
    fn drop(&mut self) {
        self.shared.shutdown.store(true, Ordering::SeqCst);
        self.shared.manager.ask();
    }
}

/// A set of worker pools. All queues of a process normally share [`Pools::global`].
///
/// Its threads end once the set and all queues on it are dropped and their items are done; the global one's never do. A
/// pool stays for as long as its set: each combination of attributes that a queue has had costs a thread per pod.
#[derive(Clone)]
pub struct Pools {
    handle: Arc<PoolsHandle>,
}

static GLOBAL: OnceLock<Pools> = OnceLock::new();
static MAKING: Mutex<()> = Mutex::new(());

impl Pools {
    /// A set of its own, for tests and experiments.
    ///
    /// # Errors
    /// A CPU outside the calling thread's affinity mask; no manager thread could be made.
    pub fn new(config: Config) -> Result<Pools, ConfigError> {
        let (cpus, unbound_concurrency) = config.resolve()?;
        let topology = config.topology.clone().or_else(|| Topology::current().ok());
        let shared = Arc::new(Shared::new(cpus, topology, &config));
        Manager::start(&shared).map_err(ConfigError::Manager)?;
        Ok(Pools { handle: Arc::new(PoolsHandle { shared, unbound_concurrency, made: Mutex::default() }) })
    }

    /// The set of this process, made on first use with [`Config::new`].
    ///
    /// # Errors
    /// As [`Pools::new`].
    pub fn global() -> Result<&'static Pools, ConfigError> {
        if let Some(pools) = GLOBAL.get() {
            return Ok(pools);
        }
        let _one_at_a_time = lock(&MAKING);
        if let Some(pools) = GLOBAL.get() {
            return Ok(pools);
        }
        let pools = Pools::new(Config::new())?;
        Ok(GLOBAL.get_or_init(|| pools))
    }

    /// Makes the set of this process with these settings, before anything uses it.
    ///
    /// # Errors
    /// [`ConfigError::InUse`] if it already exists; otherwise as [`Pools::new`].
    pub fn set_global(config: Config) -> Result<(), ConfigError> {
        let _one_at_a_time = lock(&MAKING);
        if GLOBAL.get().is_some() {
            return Err(ConfigError::InUse);
        }
        GLOBAL.set(Pools::new(config)?).map_err(|_| ConfigError::InUse)
    }

    /// As [`Workqueue::alloc`], on this set.
    ///
    /// # Errors
    /// As [`Workqueue::alloc`].
    pub fn alloc(&self, name: &str, flags: WqFlags, max_active: usize) -> Result<Workqueue, AllocError> {
        Workqueue::alloc_on(&self.handle, name, flags, max_active, false)
    }

    /// As [`Workqueue::alloc_ordered`], on this set.
    ///
    /// # Errors
    /// As [`Workqueue::alloc_ordered`].
    pub fn alloc_ordered(&self, name: &str, flags: WqFlags) -> Result<Workqueue, AllocError> {
        Workqueue::alloc_on(&self.handle, name, flags | WqFlags::UNBOUND, 1, true)
    }

    /// The CPUs that have bound pools.
    pub fn cpus(&self) -> &CpuSet {
        &self.handle.shared.cpus
    }

    /// How many workers of the unbound pools of one priority may run at once. (Pods round their parts up.)
    pub fn unbound_concurrency(&self) -> usize {
        self.handle.unbound_concurrency
    }

    /// The state of every pool made so far.
    pub fn stats(&self) -> Vec<PoolStats> {
        let pools: Vec<Arc<Pool>> = {
            let made = lock(&self.handle.made);
            made.bound.iter().flatten().chain(made.unbound.iter().flat_map(|u| &u.pools)).cloned().collect()
        };
        pools.iter().map(PoolStats::of).collect()
    }

    /// The latest reports of the monitor and the watchdog, the oldest first; at most 64 are kept.
    pub fn reports(&self) -> Vec<Report> {
        self.handle.shared.reporter.latest()
    }
}

impl std::fmt::Debug for Pools {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pools")
            .field("cpus", self.cpus())
            .field("unbound_concurrency", &self.unbound_concurrency())
            .finish_non_exhaustive()
    }
}
