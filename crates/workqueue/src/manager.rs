//! The manager: one thread a set of pools that makes the workers and sends away those that have long been idle.
//!
//! Queueing an item never makes a thread: that would take tens of microseconds, and fail in the wrong place. Each pool
//! gets its first worker when its first queue is made, and that one never leaves, so an item always has somebody to run
//! it. When a further thread cannot be made, the manager tries again every 10 ms for as long as work waits.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};
use std::{io, thread};

use crate::pool::{Pool, Shared};
use crate::sync::lock;

const RETRY: Duration = Duration::from_millis(10);

#[derive(Default)]
struct State {
    asked: bool,
    pools: Vec<Weak<Pool>>,
}

pub(crate) struct Manager {
    state: Mutex<State>,
    changed: Condvar,
    idle_timeout: Duration,
}

impl Manager {
    pub(crate) fn new(idle_timeout: Duration) -> Manager {
        Manager { state: Mutex::default(), changed: Condvar::new(), idle_timeout }
    }

    /// Starts the thread.
    pub(crate) fn start(shared: &Arc<Shared>) -> io::Result<()> {
        let shared = Arc::clone(shared);
        thread::Builder::new().name("pr/manager".into()).spawn(move || shared.manager.run(&shared))?;
        Ok(())
    }

    pub(crate) fn add(&self, pool: &Arc<Pool>) {
        lock(&self.state).pools.push(Arc::downgrade(pool));
    }

    /// A pool needs a thread: its `asked` flag says which. Also after a change that the manager is to look at.
    pub(crate) fn ask(&self) {
        lock(&self.state).asked = true;
        self.changed.notify_one();
    }

    fn run(&self, shared: &Shared) {
        let mut next_cull: Option<Instant> = None;
        let mut retry = false;
        loop {
            let mut state = lock(&self.state);
            // One wait is enough: a spurious wake-up costs one look at the pools.
            if !state.asked && !shared.shutdown.load(Ordering::Acquire) {
                let timeout = match (retry, next_cull) {
                    (true, _) => Some(RETRY),
                    (false, Some(at)) => Some(at.saturating_duration_since(Instant::now())),
                    (false, None) => None,
                };
                state = match timeout {
                    Some(timeout) => {
                        self.changed.wait_timeout(state, timeout).unwrap_or_else(PoisonError::into_inner).0
                    }
                    None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                };
            }
            state.asked = false;
            let pools: Vec<Arc<Pool>> = state.pools.iter().filter_map(Weak::upgrade).collect();
            drop(state);
            if shared.shutdown.load(Ordering::Acquire) {
                pools.iter().for_each(|pool| pool.idle.dismiss());
                return;
            }
            retry = false;
            for pool in &pools {
                if !pool.asked.swap(false, Ordering::AcqRel) || !pool.has_work() {
                    continue;
                }
                if !pool.idle.reserve_thread() {
                    // Enough run by now, or one has gone idle.
                    pool.notify();
                } else if pool.spawn_worker(None).is_err() {
                    pool.asked.store(true, Ordering::Release);
                    retry = true;
                }
            }
            if next_cull.is_some_and(|at| Instant::now() >= at) {
                next_cull = None;
                pools.iter().for_each(|pool| cull(pool));
            }
            if pools.iter().any(|pool| pool.thread_count() > 1) {
                next_cull.get_or_insert_with(|| Instant::now() + self.idle_timeout);
            } else {
                next_cull = None;
            }
        }
    }
}

/// About one idle worker for four busy ones may stay, and one in any case.
fn cull(pool: &Pool) {
    let (running, _) = pool.idle.counts();
    pool.idle.cull(1 + running / 4);
}
