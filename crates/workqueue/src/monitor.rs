//! The monitor: finds items that sleep outside of `blocking`, items that hog a bound pool's CPU, and stalled pools. The
//! kernel sees the first two in its scheduler; here the states of threads are sampled, while items wait.

use std::collections::HashMap;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use postread_sys::stamp_ns;

use crate::pool::{Pool, Shared, WorkerInfo};
use crate::report::{Report, Running};
use crate::sync::lock;

/// A function is reported after this many violations, and then each time that the number has doubled: the kernel's
/// `workqueue.cpu_intensive_warning_thresh`.
const WARNING_THRESH: u64 = 4;

/// The monitor stops after this many rounds in which nothing waits, since starting it again costs a wake-up.
const QUIET_ROUNDS: u32 = 20;

/// An item that has run for a while.
#[derive(Debug, Clone, Copy)]
struct Seen {
    started: u64,
    asleep: u32,
    /// When it was last seen asleep, or when it started.
    awake_since: u64,
    hog: bool,
}

#[derive(Debug)]
struct Progress {
    items: u64,
    since: Instant,
    reported: bool,
}

impl Progress {
    /// Records how many items the pool's workers have started. Returns how long there was no progress, if that is too
    /// long and not yet reported.
    fn note(&mut self, items: u64, now: Instant, thresh: Duration) -> Option<Duration> {
        if self.items != items {
            *self = Progress { items, since: now, reported: false };
        }
        let stalled = now - self.since;
        if stalled < thresh || self.reported {
            return None;
        }
        self.reported = true;
        Some(stalled)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Monitor {
    /// By pool and worker number.
    seen: HashMap<(u16, usize), Seen>,
    hogs: HashMap<&'static str, u64>,
    progress: HashMap<u16, Progress>,
    quiet: u32,
}

impl Monitor {
    /// How often the monitor looks; `None` if it is turned off.
    pub(crate) fn interval(shared: &Shared) -> Option<Duration> {
        let of = |thresh: Duration, part: u32| (!thresh.is_zero()).then(|| thresh / part);
        let interval = match (of(shared.cpu_intensive_thresh, 2), of(shared.watchdog_thresh, 4)) {
            (Some(a), Some(b)) => a.min(b),
            (a, b) => a.or(b)?,
        };
        Some(interval.max(Duration::from_millis(1)))
    }

    /// One look at all pools. False once nothing has waited for some time.
    pub(crate) fn look(&mut self, shared: &Shared, pools: &[Arc<Pool>]) -> bool {
        let mut waits = false;
        for pool in pools {
            if pool.has_work() {
                waits = true;
                self.look_at_workers(shared, pool);
                self.look_at_progress(shared, pool);
            } else {
                self.progress.remove(&pool.id);
                self.seen.retain(|(id, _), _| *id != pool.id);
            }
        }
        self.quiet = if waits { 0 } else { self.quiet + 1 };
        self.quiet < QUIET_ROUNDS
    }

    fn look_at_workers(&mut self, shared: &Shared, pool: &Arc<Pool>) {
        if shared.cpu_intensive_thresh.is_zero() {
            return;
        }
        let thresh = u64::try_from(shared.cpu_intensive_thresh.as_nanos()).unwrap_or(u64::MAX);
        let workers: Vec<(usize, Arc<WorkerInfo>)> = {
            let threads = lock(&pool.threads);
            threads
                .slots
                .iter()
                .enumerate()
                .filter_map(|(slot, info)| Some((slot, Arc::clone(info.as_ref()?))))
                .collect()
        };
        for (slot, info) in workers {
            let started = info.started.load(Ordering::Acquire);
            let now = stamp_ns();
            if started == 0 || now.saturating_sub(started) < thresh / 2 {
                self.seen.remove(&(pool.id, slot));
                continue;
            }
            let Some(asleep) = info.tid.get().and_then(|&tid| is_asleep(tid)) else { continue };
            let seen = self.seen.entry((pool.id, slot)).or_insert(Seen {
                started,
                asleep: 0,
                awake_since: started,
                hog: false,
            });
            if seen.started != started {
                *seen = Seen { started, asleep: 0, awake_since: started, hog: false };
            }
            if asleep {
                seen.asleep += 1;
                seen.awake_since = now;
                // Twice in a row: not just between two short sleeps.
                if seen.asleep >= 2 {
                    manage(pool, &info, started, || {
                        if let Some(wq) = lock(&info.doing).wq.clone() {
                            wq.count_managed_wakeup();
                        }
                    });
                }
                continue;
            }
            seen.asleep = 0;
            if seen.hog {
                continue;
            }
            if pool.cpu.is_some() && now.saturating_sub(seen.awake_since) >= thresh {
                let hogs = &mut self.hogs;
                seen.hog = manage(pool, &info, started, || count_hog(hogs, shared, &info, now - started));
            } else if info.occupancy.unmanage() {
                // It slept, and runs again.
                pool.idle.unblock();
            }
        }
    }

    fn look_at_progress(&mut self, shared: &Shared, pool: &Pool) {
        if shared.watchdog_thresh.is_zero() {
            return;
        }
        let threads = lock(&pool.threads);
        let workers: Vec<Arc<WorkerInfo>> = threads.slots.iter().flatten().cloned().collect();
        let items = threads.retired_items + workers.iter().map(|w| w.items.load(Ordering::Relaxed)).sum::<u64>();
        drop(threads);
        let now = Instant::now();
        let progress = self.progress.entry(pool.id).or_insert(Progress { items, since: now, reported: false });
        let Some(stalled) = progress.note(items, now, shared.watchdog_thresh) else { return };
        let now = stamp_ns();
        let running = workers.iter().filter_map(|info| {
            let started = info.started.load(Ordering::Acquire);
            if started == 0 { None } else { running(info, now.saturating_sub(started)) }
        });
        shared.reporter.report(Report::Stall { pool: pool.name(), stalled, running: running.collect() });
    }
}

fn count_hog(hogs: &mut HashMap<&'static str, u64>, shared: &Shared, info: &WorkerInfo, elapsed: u64) {
    let Some(running) = running(info, elapsed) else { return };
    if let Some(wq) = lock(&info.doing).wq.clone() {
        wq.count_hog();
    }
    let times = hogs.entry(running.function).or_insert(0);
    *times += 1;
    if *times >= WARNING_THRESH && (*times + 1 - WARNING_THRESH).is_power_of_two() {
        shared.reporter.report(Report::CpuHog { running, times: *times });
    }
}

fn running(info: &WorkerInfo, elapsed: u64) -> Option<Running> {
    let doing = lock(&info.doing);
    let wq = doing.wq.as_ref()?;
    Some(Running {
        worker: info.name.clone(),
        function: doing.function,
        queue: wq.name.clone(),
        elapsed: Duration::from_nanos(elapsed),
    })
}

/// Counts a worker out of its pool, as if its item were inside `blocking`, calls `count`, and wakes another worker.
/// What that worker runs then finds the event counted. False if the worker was counted out before, or the item has
/// ended.
fn manage(pool: &Arc<Pool>, info: &WorkerInfo, started: u64, count: impl FnOnce()) -> bool {
    if !info.occupancy.manage() {
        return false;
    }
    pool.idle.block();
    let current = info.started.load(Ordering::Acquire) == started;
    if !current && info.occupancy.unmanage() {
        pool.idle.unblock();
    }
    if current {
        count();
    }
    if pool.has_work() {
        pool.notify();
    }
    current
}

/// Does this thread sleep? `None` when it is gone.
fn is_asleep(tid: i32) -> Option<bool> {
    let stat = fs::read_to_string(format!("/proc/self/task/{tid}/stat")).ok()?;
    // The name, in brackets, may hold anything.
    let state = stat.rsplit_once(')')?.1.trim_start().chars().next()?;
    Some(matches!(state, 'S' | 'D'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_is_stalled_only_while_no_item_starts_and_is_reported_once() {
        let (begin, second) = (Instant::now(), Duration::from_secs(1));
        let at = |seconds: u32| begin + seconds * second;
        let mut progress = Progress { items: 7, since: begin, reported: false };
        let note = |progress: &mut Progress, items, seconds| progress.note(items, at(seconds), 30 * second);
        assert_eq!(note(&mut progress, 7, 29), None);
        assert_eq!(note(&mut progress, 8, 31), None, "it moved");
        assert_eq!(note(&mut progress, 8, 60), None);
        assert_eq!(note(&mut progress, 8, 61), Some(30 * second));
        assert_eq!(note(&mut progress, 8, 100), None, "reported already");
        assert_eq!(note(&mut progress, 9, 101), None);
        assert_eq!(note(&mut progress, 9, 140), Some(39 * second), "and once more");
    }
}
