//! The manager: one thread for each set of pools, which creates workers, dismisses those that have been idle for long,
//! queues delayed items when they are due, and runs the monitor on pools whose items wait.
//!
//! Queueing an item never creates a thread: that would take tens of microseconds, and fail in the wrong place. Each
//! pool gets its first worker when its first queue is made, and that one never exits, so an item always has a worker to
//! run it. When another thread cannot be created, the manager retries every 10 ms for as long as items wait, and calls
//! the rescuers.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};
use std::{io, thread};

use postread_sys::monotonic_ns;

use crate::current::serve;
use crate::delayed::Timed;
use crate::monitor::Monitor;
use crate::pool::{Pool, Shared};
use crate::report::Report;
use crate::rescuer::Rescuer;
use crate::sync::lock;

/// The time from a failure to create a thread to the next attempt, and to the first call of the rescuers: the kernel's
/// `MAYDAY_INITIAL_TIMEOUT`.
const RETRY: Duration = Duration::from_millis(10);

/// How often it calls them: the kernel's `MAYDAY_INTERVAL`.
const MAYDAY_INTERVAL: Duration = Duration::from_millis(100);

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

/// State that the thread keeps between rounds.
#[derive(Default)]
struct Rounds {
    next_cull: Option<Instant>,
    /// Pools for which no thread could be created, by number: when to call the rescuers.
    starved: HashMap<u16, Instant>,
    monitor: Monitor,
    next_look: Option<Instant>,
}

impl Manager {
    pub(crate) fn new(idle_timeout: Duration) -> Manager {
        Manager { state: Mutex::default(), changed: Condvar::new(), idle_timeout }
    }

    /// Starts the thread.
    pub(crate) fn start(shared: &Arc<Shared>) -> io::Result<()> {
        let shared = Arc::clone(shared);
        thread::Builder::new().name("pr/manager".into()).spawn(move || {
            serve();
            shared.manager.run(&shared);
        })?;
        Ok(())
    }

    pub(crate) fn add(&self, pool: &Arc<Pool>) {
        lock(&self.state).pools.push(Arc::downgrade(pool));
    }

    /// Wakes the manager: a pool's `asked` flag is set, a new timer is the first one due, or monitoring or shutdown was
    /// requested.
    pub(crate) fn ask(&self) {
        lock(&self.state).asked = true;
        self.changed.notify_one();
    }

    fn run(&self, shared: &Arc<Shared>) {
        let mut rounds = Rounds::default();
        loop {
            let pools = self.wait(shared, &rounds);
            while let Some(timed) = shared.timers.pop_due(monotonic_ns()) {
                Timed::fire(timed);
            }
            if shared.shutdown.load(Ordering::Acquire) {
                pools.iter().for_each(|pool| pool.idle.dismiss());
                return;
            }
            pools.iter().for_each(|pool| rounds.make_workers(shared, pool));
            rounds.look(shared, &pools);
            rounds.cull(&pools, self.idle_timeout);
        }
    }

    /// Waits until there is something to do.
    fn wait(&self, shared: &Shared, rounds: &Rounds) -> Vec<Arc<Pool>> {
        // A timer that is armed after this look is followed by `ask`.
        let next_timer = shared.timers.next_due();
        let mut state = lock(&self.state);
        // One wait is enough: a spurious wake-up costs one look at the pools.
        if !state.asked && !shared.shutdown.load(Ordering::Acquire) {
            let now = Instant::now();
            let waits = [
                (!rounds.starved.is_empty()).then_some(RETRY),
                rounds.next_cull.map(|at| at.saturating_duration_since(now)),
                rounds.next_look.map(|at| at.saturating_duration_since(now)),
                next_timer.map(|at| Duration::from_nanos(at.saturating_sub(monotonic_ns()))),
            ];
            state = match waits.into_iter().flatten().min() {
                Some(timeout) => self.changed.wait_timeout(state, timeout).unwrap_or_else(PoisonError::into_inner).0,
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
        state.asked = false;
        state.pools.iter().filter_map(Weak::upgrade).collect()
    }
}

impl Rounds {
    fn make_workers(&mut self, shared: &Shared, pool: &Arc<Pool>) {
        if !pool.asked.swap(false, Ordering::AcqRel) || !pool.has_work_anywhere() {
            self.starved.remove(&pool.id);
        } else if !pool.idle.reserve_thread() {
            // Enough run by now, or one has gone idle.
            self.starved.remove(&pool.id);
            pool.notify();
        } else if pool.spawn_worker(None).is_err() {
            pool.asked.store(true, Ordering::Release);
            let now = Instant::now();
            let call_at = self.starved.entry(pool.id).or_insert(now + RETRY);
            if now >= *call_at {
                *call_at = now + MAYDAY_INTERVAL;
                call_rescuers(shared, pool);
            }
        } else {
            self.starved.remove(&pool.id);
        }
    }

    fn look(&mut self, shared: &Shared, pools: &[Arc<Pool>]) {
        let interval = Monitor::interval(shared);
        if !shared.monitoring.load(Ordering::Acquire) || interval.is_none() {
            self.next_look = None;
            return;
        }
        let now = Instant::now();
        if self.next_look.is_none_or(|at| now >= at) {
            if !self.monitor.look(shared, pools) {
                shared.monitoring.store(false, Ordering::SeqCst);
                // An item queued just before this saw that the monitor is running.
                if pools.iter().any(|pool| pool.has_work()) {
                    shared.monitoring.store(true, Ordering::SeqCst);
                } else {
                    self.next_look = None;
                    return;
                }
            }
            self.next_look = interval.map(|interval| now + interval);
        }
    }

    /// Dismisses workers that have been idle for a whole period, but keeps about one for every four busy ones, and at
    /// least one.
    fn cull(&mut self, pools: &[Arc<Pool>], period: Duration) {
        if self.next_cull.is_some_and(|at| Instant::now() >= at) {
            self.next_cull = None;
            for pool in pools {
                let (running, _) = pool.idle.counts();
                pool.idle.cull(1 + running / 4);
            }
        }
        if pools.iter().any(|pool| pool.thread_count() > 1) {
            self.next_cull.get_or_insert_with(|| Instant::now() + period);
        } else {
            self.next_cull = None;
        }
    }
}

/// Calls the rescuers of all queues that have items on this pool's lists.
fn call_rescuers(shared: &Shared, pool: &Arc<Pool>) {
    let rescuers: Vec<Arc<Rescuer>> = {
        let mut rescuers = lock(&shared.rescuers);
        rescuers.retain(|rescuer| rescuer.strong_count() > 0);
        rescuers.iter().filter_map(Weak::upgrade).collect()
    };
    for rescuer in rescuers {
        if let Some(queue) = rescuer.wanted_by(pool) {
            shared.reporter.report(Report::Mayday { pool: pool.name(), queue: queue.into() });
            rescuer.call(pool);
        }
    }
}
