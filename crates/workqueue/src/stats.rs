//! Statistics of a queue and its pools: snapshots that can be subtracted.

use std::ops::Sub;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use postread_sys::CpuSet;
use postread_sys::group::{SchedGroup, sched_group};
use postread_sys::hist::{AtomicHist, Hist};
use postread_sys::priority::HighPriority;
use postread_sys::schedstat::{SchedStat, ThreadStat};

use crate::attrs::WqAttrs;
use crate::flags::WqFlags;
use crate::pool::{Pool, Rank};
use crate::queue::WqInner;
use crate::sync::lock;

/// Rare events of a queue.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) cpu_hogs: AtomicU64,
    pub(crate) managed_wakeups: AtomicU64,
    pub(crate) repatriated: AtomicU64,
    pub(crate) maydays: AtomicU64,
    pub(crate) rescued: AtomicU64,
}

/// The histograms of a queue on one CPU. An item that was active at once, as nearly all are, is counted in two.
pub(crate) struct Hists {
    /// Queue to start, of items that were active at once: for these it is also activate to start.
    at_once: AtomicHist,
    /// Of the others.
    queue_to_activate: AtomicHist,
    activate_to_start: AtomicHist,
    queue_to_start: AtomicHist,
    run: AtomicHist,
}

impl Default for Hists {
    fn default() -> Hists {
        Hists {
            at_once: AtomicHist::new(),
            queue_to_activate: AtomicHist::new(),
            activate_to_start: AtomicHist::new(),
            queue_to_start: AtomicHist::new(),
            run: AtomicHist::new(),
        }
    }
}

impl Hists {
    pub(crate) fn record(&self, queued: u64, activated: u64, start: u64, end: u64) {
        if activated == queued {
            self.at_once.record(start.saturating_sub(queued));
        } else {
            self.queue_to_activate.record(activated.saturating_sub(queued));
            self.activate_to_start.record(start.saturating_sub(activated));
            self.queue_to_start.record(start.saturating_sub(queued));
        }
        self.run.record(end.saturating_sub(start));
    }
}

/// A CPU's share in a queue's items.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct CpuCounts {
    /// The CPU.
    pub cpu: u32,
    /// Items queued by a thread on this CPU. (A caller outside the pools' CPUs counts on one of them.)
    pub queued: u64,
    /// Items that started on this CPU.
    pub started: u64,
}

/// A queue's totals and latencies since it was made, or between two snapshots.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct WqStats {
    /// The queue's name.
    pub name: String,
    /// Its flags.
    pub flags: WqFlags,
    /// Its attributes.
    pub attrs: WqAttrs,
    /// The limit in force.
    pub max_active: usize,
    /// The minimum part of a NUMA node in it.
    pub min_active: usize,
    /// Items queued.
    pub queued: u64,
    /// Items whose run has ended.
    pub executed: u64,
    /// Items cancelled while pending.
    pub cancelled: u64,
    /// Items queued and not yet done, now (in a difference: at the later snapshot).
    pub in_flight: u64,
    /// Runs that panicked.
    pub panics: u64,
    /// Items that started on another CPU than the one they were queued on.
    pub migrated: u64,
    /// CPU time that workers spent on its items, including the cost of finding and counting them. Updated when a worker
    /// turns to another queue or goes to sleep. (Excludes items that ran in place.)
    pub cpu_time: Duration,
    /// Items that held up others of a bound pool for longer than
    /// [`Config::cpu_intensive_thresh`](crate::Config::cpu_intensive_thresh).
    pub cpu_hogs: u64,
    /// How often the monitor woke another worker because an item hogged the CPU, or slept outside of `blocking`.
    pub managed_wakeups: u64,
    /// How often a worker was brought back into its pod.
    pub repatriated: u64,
    /// How often the queue's rescuer was called.
    pub maydays: u64,
    /// Items that the rescuer ran.
    pub rescued: u64,
    /// By CPU.
    pub cpus: Vec<CpuCounts>,
    /// From queueing to activation: the time that `max_active` held an item back.
    pub queue_to_activate: Hist,
    /// From activation to start: the dispatch.
    pub activate_to_start: Hist,
    /// From queueing to start: the queue latency, which is the headline figure.
    pub queue_to_start: Hist,
    /// From start to end of the run. (For consecutive items of a worker, the end of one is the start of the next.)
    pub run: Hist,
    /// The pools that run the items, shared with all other queues of the same kind.
    pub pools: Vec<PoolStats>,
    /// The scheduling group of the process: a nice value ranks a thread only within it. `None` when it cannot be read.
    pub group: Option<SchedGroup>,
}

impl WqStats {
    pub(crate) fn of(wq: &WqInner) -> WqStats {
        // In this order, so that what is done never exceeds what was queued.
        let cancelled = wq.cancelled.load(Ordering::Relaxed);
        let done = wq.counts.done();
        let queued = wq.counts.queued();
        let mut stats = WqStats {
            name: wq.name.clone(),
            flags: wq.flags,
            attrs: wq.layouts.current().attrs.clone(),
            max_active: wq.max_active(),
            min_active: wq.min_active(),
            queued,
            executed: done.saturating_sub(cancelled),
            cancelled,
            in_flight: queued.saturating_sub(done),
            panics: wq.panics.load(Ordering::Acquire),
            migrated: wq.percpu.iter().map(|p| p.0.migrated.load(Ordering::Relaxed)).sum(),
            cpu_time: wq.cpu_time(),
            cpu_hogs: wq.counters.cpu_hogs.load(Ordering::Relaxed),
            managed_wakeups: wq.counters.managed_wakeups.load(Ordering::Relaxed),
            repatriated: wq.counters.repatriated.load(Ordering::Relaxed),
            maydays: wq.counters.maydays.load(Ordering::Relaxed),
            rescued: wq.counters.rescued.load(Ordering::Relaxed),
            cpus: Vec::with_capacity(wq.percpu.len()),
            queue_to_activate: Hist::new(),
            activate_to_start: Hist::new(),
            queue_to_start: Hist::new(),
            run: Hist::new(),
            pools: wq.layouts.current().pools.iter().map(PoolStats::of).collect(),
            group: sched_group().ok(),
        };
        for ((index, percpu), cpu) in wq.percpu.iter().enumerate().zip(wq.shared().cpus.iter()) {
            let mut started = 0;
            if let Some(hists) = percpu.0.hists.get() {
                let mut at_once = Hist::new();
                hists.at_once.add_to(&mut at_once);
                stats.queue_to_activate.add_zeros(at_once.count());
                hists.at_once.add_to(&mut stats.activate_to_start);
                hists.at_once.add_to(&mut stats.queue_to_start);
                hists.queue_to_activate.add_to(&mut stats.queue_to_activate);
                hists.activate_to_start.add_to(&mut stats.activate_to_start);
                hists.queue_to_start.add_to(&mut stats.queue_to_start);
                let mut run = Hist::new();
                hists.run.add_to(&mut run);
                started = run.count();
                hists.run.add_to(&mut stats.run);
            }
            stats.cpus.push(CpuCounts { cpu, queued: wq.counts.queued_on(index), started });
        }
        stats
    }
}

impl Sub<&WqStats> for &WqStats {
    type Output = WqStats;

    fn sub(self, earlier: &WqStats) -> WqStats {
        let cpus = self.cpus.iter().map(|c| {
            let before = earlier.cpus.iter().find(|e| e.cpu == c.cpu);
            CpuCounts {
                cpu: c.cpu,
                queued: c.queued.saturating_sub(before.map_or(0, |b| b.queued)),
                started: c.started.saturating_sub(before.map_or(0, |b| b.started)),
            }
        });
        let pools = self.pools.iter().map(|p| match earlier.pools.iter().find(|e| e.name == p.name) {
            Some(before) => p - before,
            None => p.clone(),
        });
        WqStats {
            name: self.name.clone(),
            flags: self.flags,
            attrs: self.attrs.clone(),
            max_active: self.max_active,
            min_active: self.min_active,
            queued: self.queued.saturating_sub(earlier.queued),
            executed: self.executed.saturating_sub(earlier.executed),
            cancelled: self.cancelled.saturating_sub(earlier.cancelled),
            in_flight: self.in_flight,
            panics: self.panics.saturating_sub(earlier.panics),
            migrated: self.migrated.saturating_sub(earlier.migrated),
            cpu_time: self.cpu_time.saturating_sub(earlier.cpu_time),
            cpu_hogs: self.cpu_hogs.saturating_sub(earlier.cpu_hogs),
            managed_wakeups: self.managed_wakeups.saturating_sub(earlier.managed_wakeups),
            repatriated: self.repatriated.saturating_sub(earlier.repatriated),
            maydays: self.maydays.saturating_sub(earlier.maydays),
            rescued: self.rescued.saturating_sub(earlier.rescued),
            cpus: cpus.collect(),
            queue_to_activate: &self.queue_to_activate - &earlier.queue_to_activate,
            activate_to_start: &self.activate_to_start - &earlier.activate_to_start,
            queue_to_start: &self.queue_to_start - &earlier.queue_to_start,
            run: &self.run - &earlier.run,
            pools: pools.collect(),
            group: self.group.clone(),
        }
    }
}

/// A worker thread.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerStats {
    /// As `ps` shows it: `pr/0:1H` is worker 1 of CPU 0's high-priority pool, `pr/u0:3` worker 3 of an unbound
    /// pool.
    pub name: String,
    /// The kernel's thread number.
    pub tid: i32,
    /// Its time on a CPU, and its time runnable but not running (scheduler latency).
    pub sched: SchedStat,
}

/// A worker pool, which all queues of its kind share.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PoolStats {
    /// `0` and `0H` for CPU 0; `u0`, `u1H` and so on for the unbound pools, in the order in which they were made.
    pub name: String,
    /// The CPUs whose items it gets: one CPU, or a pod.
    pub pod: CpuSet,
    /// The CPU of a bound pool.
    pub cpu: Option<u32>,
    /// `None` for a normal pool; for a high-priority one what the system granted.
    pub priority: Option<HighPriority>,
    /// The current workers.
    pub workers: Vec<WorkerStats>,
    /// The sum over all workers, including those that have exited.
    pub sched: SchedStat,
    /// Workers awake and not inside [`blocking`](crate::blocking), now.
    pub running: usize,
    /// Idle workers, now.
    pub idle: usize,
    /// How often a thread could not be made.
    pub thread_failures: u64,
}

impl PoolStats {
    pub(crate) fn of(pool: &Arc<Pool>) -> PoolStats {
        let threads = lock(&pool.threads);
        let mut sched = threads.retired;
        let mut workers = Vec::new();
        for info in threads.slots.iter().flatten() {
            // A thread that was created but has not run yet has no number.
            let Some(&tid) = info.tid.get() else { continue };
            let stat = ThreadStat::open(tid).and_then(|stat| stat.read()).unwrap_or_default();
            sched.run_time_ns += stat.run_time_ns;
            sched.run_delay_ns += stat.run_delay_ns;
            sched.slices += stat.slices;
            workers.push(WorkerStats { name: info.name.clone(), tid, sched: stat });
        }
        let (running, idle) = pool.idle.counts();
        PoolStats {
            name: pool.name(),
            pod: pool.pod.clone(),
            cpu: pool.cpu.map(|(cpu, _)| cpu),
            priority: (pool.rank == Rank::High).then(|| pool.priority.get().copied().unwrap_or(HighPriority::None)),
            workers,
            sched,
            running,
            idle,
            thread_failures: pool.thread_failures.load(Ordering::Relaxed),
        }
    }
}

impl Sub<&PoolStats> for &PoolStats {
    type Output = PoolStats;

    fn sub(self, earlier: &PoolStats) -> PoolStats {
        let workers = self.workers.iter().map(|w| {
            let before = earlier.workers.iter().find(|e| e.tid == w.tid && e.name == w.name);
            WorkerStats { sched: w.sched.since(&before.map(|b| b.sched).unwrap_or_default()), ..w.clone() }
        });
        PoolStats {
            name: self.name.clone(),
            pod: self.pod.clone(),
            cpu: self.cpu,
            priority: self.priority,
            workers: workers.collect(),
            sched: self.sched.since(&earlier.sched),
            running: self.running,
            idle: self.idle,
            thread_failures: self.thread_failures.saturating_sub(earlier.thread_failures),
        }
    }
}

/// One line, like a row of the kernel's `wq_monitor.py` with latencies; `{:#}` adds one line per pool.
impl std::fmt::Display for WqStats {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{}: {} done, {} in flight, {} cancelled, {} panics, CPU {:.1?}, {} hogs, {} managed, {} repatriated, {} \
             maydays, {} rescued; queue to start {}; run {}",
            self.name,
            self.executed,
            self.in_flight,
            self.cancelled,
            self.panics,
            self.cpu_time,
            self.cpu_hogs,
            self.managed_wakeups,
            self.repatriated,
            self.maydays,
            self.rescued,
            self.queue_to_start,
            self.run,
        )?;
        if f.alternate() {
            self.pools.iter().try_for_each(|pool| write!(f, "\n  {pool}"))?;
        }
        Ok(())
    }
}

impl std::fmt::Display for PoolStats {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "pool {} on CPUs {}: {} workers, {} running, {} idle, CPU {:.1?}, scheduler latency {:.1?}",
            self.name,
            self.pod,
            self.workers.len(),
            self.running,
            self.idle,
            Duration::from_nanos(self.sched.run_time_ns),
            Duration::from_nanos(self.sched.run_delay_ns),
        )?;
        match self.priority {
            Some(priority) => write!(f, ", high priority: {priority}"),
            None => Ok(()),
        }
    }
}
