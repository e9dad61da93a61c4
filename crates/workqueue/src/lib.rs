//! Kernel-style workqueues in user space: bound and unbound queues over worker pools that a process shares, high
//! priority, ordered queues, delayed work, limits per queue (`max_active`), affinity scopes, flush, drain, cancel,
//! disable, rescuers, a watchdog, and latency statistics that are always on. The terms are those of Linux's
//! `kernel/workqueue.c`, and so are the contracts: return values, order, memory order.
//!
//! - A [`Workqueue`] is what a flush covers, what limits count and what statistics sum. It owns no threads, and a process
//!   may have hundreds.
//! - A **work item** is a function to run: a reusable [`Work`], which is queued again and again without an allocation
//!   and never runs on two workers at once; a [`DelayedWork`], which has a timer; a closure for [`Workqueue::spawn`]; or a
//!   closure with a result, a [`Task`].
//! - **Worker pools** run the items: a normal and a high-priority one for each CPU, and unbound ones for each group of
//!   CPUs that belong together. All queues of a kind share them ([`Pools`]), so ten queues do not mean ten times the
//!   threads.
//!
//! ```
//! use std::sync::Arc;
//! use std::sync::atomic::{AtomicU64, Ordering};
//! use postread_workqueue::{Workqueue, WqFlags};
//!
//! let wq = Workqueue::alloc("sums", WqFlags::UNBOUND, 0)?;
//! let sum = Arc::new(AtomicU64::new(0));
//! for n in 1..=100 {
//!     let sum = Arc::clone(&sum);
//!     assert!(wq.spawn(move || {
//!         sum.fetch_add(n, Ordering::Relaxed);
//!     }));
//! }
//! // All that was queued before is done after this, and what it wrote is visible.
//! let flushed = wq.flush()?;
//! assert_eq!((sum.load(Ordering::Relaxed), flushed.panics), (5050, 0));
//!
//! let stats = wq.stats();
//! assert_eq!((stats.executed, stats.in_flight), (100, 0));
//! println!("queued to started: {}", stats.queue_to_start);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Bound or unbound
//!
//! **Bound** ([`WqFlags::PERCPU`]): an item runs on the CPU that queued it, by that CPU's one worker, in queueing
//! order. Its data is in that CPU's caches, no lock is shared between CPUs, and nothing waits for another CPU to wake
//! up or clock up. But it waits for whatever else runs on that CPU, and a burst from one CPU stays on it.
//!
//! **Unbound** ([`WqFlags::UNBOUND`]): an item goes on the list of the CPU that queued it, and runs wherever a worker
//! of its pod is free first. A burst spreads over all CPUs, and nothing waits while a CPU is free. But it may start on
//! a cold, slow or sleeping CPU. [`Workqueue::apply_attrs`] sets how far it may go: see [`AffnScope`].
//!
//! Use bound queues for short items (tens of microseconds) whose data has just been touched, especially completions.
//! Use unbound ones for long items, for bursts from one thread, and where the CPU that queues is busy with something
//! else. If in doubt measure: the statistics of both have the same shape. Items of about the cost of a wake-up (some
//! microseconds) are better not queued at all: [`Workqueue::execute_or_queue`] runs them in place.
//!
//! **High priority** ([`WqFlags::HIGHPRI`]) is independent of that: separate workers at nice -20 where that is allowed
//! (`CAP_SYS_NICE` or `RLIMIT_NICE`), else with a short time slice, else nothing. [`PoolStats::priority`] reports which
//! one applies, and [`WqStats::group`] the scheduling group in which it counts. It takes CPU time from everything at
//! normal priority, so it is for short items that somebody waits for. It does not overtake within a list: its pools
//! have their own lists.
//!
//! ```
//! use postread_workqueue::{Workqueue, WqFlags};
//!
//! let wq = Workqueue::alloc("verify", WqFlags::PERCPU | WqFlags::HIGHPRI, 0)?;
//! println!("high priority here: {:?}", wq.stats().pools[0].priority);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Limits, and items that wait
//!
//! `max_active` is how many items of a queue are *active* (on a pool's list or running): per CPU for a bound queue; in
//! all for an unbound one, split over the NUMA nodes. The others wait in the queue in their order, without delaying
//! other queues. It is not a number of threads: a bound pool runs **one** worker at a time, and an unbound pool as many
//! as its pod has CPUs (and as the cgroup's CPU quota allows). An item that has to wait does so inside [`blocking`],
//! and another worker runs meanwhile; waits of this crate (flush, drain, cancel_sync, join) do that themselves. The
//! monitor finds an item that waits outside of `blocking` after about 10 ms ([`Config::cpu_intensive_thresh`]). So `n`
//! items of a queue may wait for each other only if `max_active` (of an unbound queue on several NUMA nodes:
//! `min_active`) is at least `n` and they wait inside `blocking`.
//!
//! # Waiting in circles
//!
//! Within one queue nothing can deadlock by waiting for the queue: flush and drain from inside an item of the same
//! queue are errors, and so are flush and `cancel_sync` of an item from inside itself, and flush of another item of the
//! same queue. Across queues it is up to the caller, as in the kernel: an item of A that flushes B while an item of B
//! flushes A wait for each other forever, and so do two items that `cancel_sync` each other, or an item and a thread
//! that flushes it while holding a lock that the item needs. Order the queues, and wait only downwards. Items that
//! depend on each other belong in different queues.
//!
//! # What a program can rely on
//!
//! - [`queue`](Workqueue::queue) returns true: the item will start exactly once more, unless cancelled. False: it was
//!   pending (or disabled, or being cancelled, or the queue drains). In the first two of these cases the run to come, if
//!   any, sees all that the caller wrote before.
//! - An item is no longer pending when its function starts: queueing it from then on always gives another run.
//! - Items of one list start in queueing order: a bound pool has one list; an unbound pool has one for each of its
//!   CPUs, and the workers take from the nearest first, so items queued on different CPUs may overtake each other. The
//!   order in which items end is unspecified. Changing `max_active` does not change the order. An ordered queue
//!   ([`Workqueue::alloc_ordered`]) runs one item at a time in queueing order.
//! - A panic in an item, or in the destructor of what it captured, is caught and counted; the worker lives on; the next
//!   [`flush`](Workqueue::flush) reports it.
//! - Dropping the last handle of a queue drains it; on a worker, where waiting could wait for itself, its items run after
//!   the drop. Which thread drops the last handle of an item, a queue or a set of pools makes no difference to what runs.
//! - Queueing never creates a thread. A pool's first worker is created with its first queue and never exits. If a later
//!   thread cannot be created, items are delayed but not lost, and a queue with [`WqFlags::MEM_RECLAIM`] has its own
//!   thread for that case.
//! - An idle worker sleeps and never wakes up on its own. (After a long run of items it polls for a few microseconds
//!   first.)
//!
//! Threads are named like kworkers: `pr/0:1H` is CPU 0's worker 1 at high priority, `pr/u0:3` worker 3 of the first
//! unbound pool, `pr/R-journal` the rescuer of the queue `journal`.
//!
//! # Seeing what happens
//!
//! [`Workqueue::stats`] and [`Pools::stats`] are snapshots that can be subtracted and printed; [`prometheus`] turns
//! them into a page to scrape, and the feature `serde` makes them `Serialize`. The monitor, the watchdog and the
//! rescuers emit [`Report`]s, which [`Config::on_report`] receives and the feature `tracing` turns into events. `cargo
//! run --example wq_monitor` shows all of it live.
//!
//! # How it works
//!
//! An item's whole protocol is one atomic word (`state.rs`); which workers are awake is another (`idle.rs`), and
//! whether the monitor has counted a worker out a third (`occupancy.rs`); lists are intrusive, and pushing takes no
//! lock (`list.rs`, the crate's only unsafe code); flushes wait on counters per CPU (`flush.rs`), and so does what
//! `max_active` limits (`pwq.rs`); timers (`timer.rs`) and calls of the rescuer (`mayday.rs`) are under locks. These
//! eight files are model-checked with loom, as they are, in `models/`. A queue's own state is in `inner.rs`; the
//! workers' loop is in `worker.rs`.
#![doc = ""]
#![doc = include_str!("../docs/kernel-terms.md")]
#![doc = ""]
#![doc = include_str!("../docs/pains.md")]

mod attrs;
mod config;
mod current;
mod delayed;
mod error;
mod flags;
mod flush;
mod idle;
mod inline;
mod inner;
mod list;
mod manager;
mod mayday;
mod monitor;
mod node;
mod occupancy;
mod padded;
mod pods;
mod pool;
mod pools;
mod prometheus;
mod pwq;
mod queue;
mod report;
mod rescuer;
#[cfg(feature = "serde")]
mod serialize;
mod state;
mod stats;
mod sync;
mod system;
mod task;
mod timer;
mod work;
mod worker;

pub use attrs::WqAttrs;
pub use config::{Config, HighPriorityPolicy};
pub use current::{blocking, current_work};
pub use delayed::DelayedWork;
pub use error::{
    AllocError, AttrsError, CancelError, ConfigError, EnableError, FlushError, MaxActiveError, QueueNodeError,
    QueueOnError, WQ_DFL_ACTIVE, WQ_DFL_MIN_ACTIVE, WQ_MAX_ACTIVE, WQ_NAME_MAX,
};
pub use flags::WqFlags;
pub use inline::Executed;
pub use pods::{AffnScope, pods};
pub use pools::Pools;
pub use postread_sys::hist::Hist;
pub use prometheus::prometheus;
pub use queue::{Flushed, Workqueue};
pub use report::{Report, Running};
pub use stats::{CpuCounts, PoolStats, WorkerStats, WqStats};
pub use system::{system_dfl_long_wq, system_dfl_wq, system_highpri_wq, system_long_wq, system_percpu_wq};
pub use task::{JoinError, Task};
pub use work::Work;
