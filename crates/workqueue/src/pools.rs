//! The set of worker pools: for each CPU a normal and a high-priority one, and two unbound ones. Made as queues need
//! them.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock, mpsc};

use postread_sys::CpuSet;

use crate::config::Config;
use crate::error::{AllocError, ConfigError};
use crate::flags::WqFlags;
use crate::manager::Manager;
use crate::pool::{Pool, Shared};
use crate::queue::Workqueue;
use crate::stats::PoolStats;
use crate::sync::lock;

#[derive(Default)]
struct Made {
    /// By high priority (0 or 1), then by CPU index.
    bound: [Vec<Arc<Pool>>; 2],
    unbound: [Option<Arc<Pool>>; 2],
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

    /// The pools of a queue: one a CPU, or one.
    pub(crate) fn pools_for(&self, bound: bool, high: bool) -> Result<Vec<Arc<Pool>>, AllocError> {
        let mut made = lock(&self.made);
        if bound {
            let pools = &mut made.bound[usize::from(high)];
            // A failure in the middle keeps those that were made; the next call goes on behind them.
            for (index, cpu) in self.shared.cpus.iter().enumerate().skip(pools.len()) {
                pools.push(self.make(Some((cpu, index)), high, 1)?);
            }
            return Ok(pools.clone());
        }
        let slot = &mut made.unbound[usize::from(high)];
        let pool = match slot {
            Some(pool) => pool,
            None => slot.insert(self.make(None, high, self.unbound_concurrency)?),
        };
        Ok(vec![Arc::clone(pool)])
    }

    /// Makes a pool with its first worker, and waits until that is set up.
    fn make(&self, cpu: Option<(u32, usize)>, high: bool, limit: usize) -> Result<Arc<Pool>, AllocError> {
        let pool = Arc::new(Pool::new(Arc::clone(&self.shared), cpu, high, limit));
        let error = |source: io::Error| AllocError::Worker { worker: format!("pr/{}:0", pool.prefix), source };
        let (ready, is_ready) = mpsc::channel();
        pool.idle.reserve_first();
        pool.spawn_worker(Some(ready)).map_err(error)?;
        is_ready.recv().map_err(io::Error::other).and_then(|result| result).map_err(error)?;
        self.shared.manager.add(&pool);
        Ok(pool)
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
/// Its threads end once the set and all queues on it are dropped; the global one's never do.
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
        let shared = Arc::new(Shared::new(cpus, &config));
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
    /// [`ConfigError::InUse`] if it exists already; else as [`Pools::new`].
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
        Workqueue::alloc_on(&self.handle, name, flags, max_active)
    }

    /// The CPUs that have bound pools.
    pub fn cpus(&self) -> &CpuSet {
        &self.handle.shared.cpus
    }

    /// How many workers of an unbound pool may run at once.
    pub fn unbound_concurrency(&self) -> usize {
        self.handle.unbound_concurrency
    }

    /// The state of every pool made so far.
    pub fn stats(&self) -> Vec<PoolStats> {
        let made = lock(&self.handle.made);
        made.bound.iter().flatten().chain(made.unbound.iter().flatten()).map(PoolStats::of).collect()
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
