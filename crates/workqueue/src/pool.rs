//! A worker pool: lists of active items, and the workers that run them.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak, mpsc};
use std::thread;
use std::time::Duration;

use postread_sys::CpuSet;
use postread_sys::priority::HighPriority;
use postread_sys::schedstat::{SchedStat, ThreadStat};
use postread_sys::topology::Topology;

use crate::config::HighPriorityPolicy;
use crate::delayed::Timed;
use crate::idle::{Idle, Wake};
use crate::list::Fifo;
use crate::manager::Manager;
use crate::node::{Node, Place};
use crate::occupancy::Occupancy;
use crate::padded::Padded;
use crate::queue::WqInner;
use crate::report::Reporter;
use crate::rescuer::Rescuer;
use crate::sync::lock;
use crate::timer::Timers;
use crate::worker;

/// State shared by all pools of a set.
pub(crate) struct Shared {
    pub(crate) cpus: CpuSet,
    /// Index by CPU number; [`NONE`] for a CPU outside the set.
    index: Vec<u16>,
    /// `None` if `/sys` does not show it: then all CPUs are one pod.
    pub(crate) topology: Option<Topology>,
    pub(crate) manager: Manager,
    pub(crate) timers: Timers<Timed>,
    pub(crate) rescuers: Mutex<Vec<Weak<Rescuer>>>,
    pub(crate) reporter: Reporter,
    /// The monitor looks at the pools periodically, because items wait somewhere.
    pub(crate) monitoring: AtomicBool,
    pub(crate) cpu_intensive_thresh: Duration,
    pub(crate) watchdog_thresh: Duration,
    pub(crate) threads: AtomicUsize,
    pub(crate) max_threads: usize,
    pub(crate) high_priority: HighPriorityPolicy,
    pub(crate) slice: Duration,
    /// Nice value of normal workers: that of the thread that made the set.
    pub(crate) nice: i32,
    pub(crate) shutdown: AtomicBool,
}

const NONE: u16 = u16::MAX;

impl Shared {
    fn index_table(cpus: &CpuSet) -> Vec<u16> {
        let mut table = vec![NONE; cpus.last().map_or(0, |last| last as usize + 1)];
        for (index, cpu) in cpus.iter().enumerate() {
            table[cpu as usize] = u16::try_from(index).unwrap_or(NONE);
        }
        table
    }

    pub(crate) fn new(cpus: CpuSet, topology: Option<Topology>, config: &crate::Config) -> Shared {
        Shared {
            index: Shared::index_table(&cpus),
            cpus,
            topology,
            manager: Manager::new(config.idle_timeout),
            timers: Timers::new(),
            rescuers: Mutex::default(),
            reporter: Reporter::new(config.on_report.clone()),
            monitoring: AtomicBool::new(false),
            cpu_intensive_thresh: config.cpu_intensive_thresh,
            watchdog_thresh: config.watchdog_thresh,
            threads: AtomicUsize::new(0),
            max_threads: config.max_threads,
            high_priority: config.high_priority,
            slice: config.slice,
            nice: postread_sys::priority::current_nice().unwrap_or(0),
            shutdown: AtomicBool::new(false),
        }
    }

    /// The index of a CPU of the set.
    pub(crate) fn index_of(&self, cpu: u32) -> Option<usize> {
        self.index.get(cpu as usize).filter(|&&i| i != NONE).map(|&i| usize::from(i))
    }

    /// The index of the CPU that the caller runs on. For a CPU outside the set, it is that of some CPU of the set,
    /// always the same one.
    pub(crate) fn current_index(&self) -> usize {
        let cpu = postread_sys::current_cpu();
        self.index_of(cpu).unwrap_or_else(|| cpu as usize % self.cpus.len())
    }

    /// Starts the monitor, which runs until nothing waits any more.
    pub(crate) fn monitor(&self) {
        if !self.monitoring.load(Ordering::Relaxed) && !self.monitoring.swap(true, Ordering::SeqCst) {
            self.manager.ask();
        }
    }
}

/// How a pool's workers rank among the threads of the system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rank {
    Normal,
    High,
    Nice(i32),
}

/// What a worker is doing, for reports.
#[derive(Default)]
pub(crate) struct Doing {
    pub(crate) wq: Option<Arc<WqInner>>,
    pub(crate) function: &'static str,
}

/// The public view of a worker.
pub(crate) struct WorkerInfo {
    pub(crate) name: String,
    pub(crate) tid: OnceLock<i32>,
    /// When the item that it runs started; 0 between items.
    pub(crate) started: AtomicU64,
    /// Items that it has started.
    pub(crate) items: AtomicU64,
    pub(crate) occupancy: Occupancy,
    /// Changed only when the worker turns to another queue or function. Valid while `started` is not 0.
    pub(crate) doing: Mutex<Doing>,
}

impl WorkerInfo {
    pub(crate) fn new(name: String, counted: bool) -> Arc<WorkerInfo> {
        Arc::new(WorkerInfo {
            name,
            tid: OnceLock::new(),
            started: AtomicU64::new(0),
            items: AtomicU64::new(0),
            occupancy: Occupancy::new(counted),
            doing: Mutex::default(),
        })
    }
}

/// A pool's threads.
#[derive(Default)]
pub(crate) struct Threads {
    /// By worker number.
    pub(crate) slots: Vec<Option<Arc<WorkerInfo>>>,
    /// Counters of the workers that have left.
    pub(crate) retired: SchedStat,
    pub(crate) retired_items: u64,
}

pub(crate) struct Pool {
    pub(crate) shared: Arc<Shared>,
    /// Its number in the set.
    pub(crate) id: u16,
    /// As in thread names before the colon: `0` for CPU 0, `u0` for the first unbound pool.
    pub(crate) prefix: String,
    /// The CPU and its index, of a bound pool.
    pub(crate) cpu: Option<(u32, usize)>,
    pub(crate) rank: Rank,
    /// The CPUs whose items it gets.
    pub(crate) pod: CpuSet,
    /// The CPUs that its workers may run on: those of the pod, and more if it is non-strict.
    pub(crate) allowed: CpuSet,
    /// One list for each CPU of the pod.
    shards: Box<[Padded<Fifo<Node>>]>,
    /// By CPU index: which list.
    shard_by_cpu: Box<[u16]>,
    pub(crate) idle: Idle,
    /// The manager was asked for a thread and has not looked yet.
    pub(crate) asked: AtomicBool,
    pub(crate) threads: Mutex<Threads>,
    pub(crate) priority: OnceLock<HighPriority>,
    /// Threads that could not be made.
    pub(crate) thread_failures: AtomicU64,
    /// The pools of the other pods of the same attributes, if workers may leave theirs.
    pub(crate) siblings: OnceLock<Vec<Weak<Pool>>>,
}

/// What a pool is made for.
pub(crate) struct PoolSpec {
    pub(crate) id: u16,
    pub(crate) prefix: String,
    pub(crate) cpu: Option<(u32, usize)>,
    pub(crate) rank: Rank,
    pub(crate) pod: CpuSet,
    pub(crate) allowed: CpuSet,
    pub(crate) limit: usize,
}

/// An item taken from a pool.
pub(crate) struct Taken {
    pub(crate) node: Arc<Node>,
    /// The next item on that list counts in the same pool_workqueue.
    pub(crate) same_next: bool,
    /// There is a next item on that list.
    pub(crate) more: bool,
}

impl Pool {
    pub(crate) fn new(shared: Arc<Shared>, spec: PoolSpec) -> Pool {
        let shards = spec.pod.len();
        let mut next = 0;
        let shard_by_cpu = shared.cpus.iter().enumerate().map(|(index, cpu)| {
            if spec.pod.contains(cpu) {
                next += 1;
                next - 1
            } else {
                (index % shards) as u16
            }
        });
        Pool {
            shard_by_cpu: shard_by_cpu.collect(),
            shards: (0..shards).map(|_| Padded(Fifo::new())).collect(),
            shared,
            id: spec.id,
            prefix: spec.prefix,
            cpu: spec.cpu,
            rank: spec.rank,
            pod: spec.pod,
            allowed: spec.allowed,
            idle: Idle::new(spec.limit),
            asked: AtomicBool::new(false),
            threads: Mutex::default(),
            priority: OnceLock::new(),
            thread_failures: AtomicU64::new(0),
            siblings: OnceLock::new(),
        }
    }

    /// As in statistics: the prefix, with an `H` at high priority.
    pub(crate) fn name(&self) -> String {
        format!("{}{}", self.prefix, self.suffix())
    }

    fn suffix(&self) -> &'static str {
        if self.rank == Rank::High { "H" } else { "" }
    }

    pub(crate) fn siblings(&self) -> &[Weak<Pool>] {
        self.siblings.get().map_or(&[], Vec::as_slice)
    }

    /// The list for items of the CPU with this index.
    fn shard_of(&self, cpu: usize) -> usize {
        usize::from(self.shard_by_cpu[cpu])
    }

    /// Puts an active item on the list of a CPU, and wakes a worker if needed.
    pub(crate) fn push(&self, cpu: usize, node: Arc<Node>) {
        self.push_on(self.shard_of(cpu), node);
    }

    /// The same by the number of the list.
    pub(crate) fn push_on(&self, shard: usize, node: Arc<Node>) {
        node.set_place(Place::Shard { pool: self.id, shard });
        self.shards[shard].0.push(node);
        self.notify();
    }

    /// The same for up to `most` items that waited. Returns how many.
    pub(crate) fn append_from(&self, cpu: usize, from: &Fifo<Node>, most: usize, each: impl Fn(&Node)) -> usize {
        let shard = self.shard_of(cpu);
        let moved = from.move_to(&self.shards[shard].0, most, |node| {
            node.set_place(Place::Shard { pool: self.id, shard });
            each(node);
        });
        self.notify();
        moved
    }

    pub(crate) fn remove(&self, shard: usize, node: &Node) -> Option<Arc<Node>> {
        self.shards.get(shard)?.0.remove(node)
    }

    /// Takes the first item of the list of a CPU, else of the next list that has one.
    pub(crate) fn take(&self, cpu: usize) -> Option<Taken> {
        let (before, from) = self.shards.split_at(self.shard_of(cpu));
        from.iter().chain(before).filter(|shard| !shard.0.is_empty()).find_map(|shard| {
            let (node, (same_next, more)) =
                shard.0.pop(|node, next| (next.is_some_and(|n| n.same_pwq(node)), next.is_some()))?;
            Some(Taken { node, same_next, more })
        })
    }

    /// Takes the first item of this queue, from whichever list.
    pub(crate) fn take_of(&self, wq: &Arc<WqInner>) -> Option<Arc<Node>> {
        self.shards.iter().find_map(|shard| shard.0.remove_first(|node| node.is_on(wq)))
    }

    /// Is an item of this queue on any list?
    pub(crate) fn has_item_of(&self, wq: &Arc<WqInner>) -> bool {
        self.shards.iter().any(|shard| shard.0.any(|node| node.is_on(wq)))
    }

    pub(crate) fn has_work(&self) -> bool {
        self.shards.iter().any(|shard| !shard.0.is_empty())
    }

    /// As [`Pool::take`], from another pod whose own workers are all busy.
    pub(crate) fn take_from_siblings(&self, cpu: usize) -> Option<Taken> {
        self.siblings().iter().find_map(|sibling| {
            let sibling = sibling.upgrade().filter(|s| s.idle.is_full() && s.has_work())?;
            sibling.take(cpu)
        })
    }

    /// Is there an item for a worker of this pool, of its own pod or of one whose workers are all busy?
    pub(crate) fn has_work_anywhere(&self) -> bool {
        self.has_work() || self.siblings().iter().any(|s| s.upgrade().is_some_and(|s| s.idle.is_full() && s.has_work()))
    }

    /// Wakes a worker, or has one made, if one is needed.
    pub(crate) fn notify(&self) {
        match self.idle.notify() {
            Wake::Woken => {}
            Wake::NoneIdle => self.ask_for_thread(),
            Wake::Enough => {
                if self.idle.is_full() {
                    self.shared.monitor();
                    if !self.siblings().is_empty() {
                        self.spread();
                    }
                }
            }
        }
    }

    /// All workers of this pod are busy: one of another pod is woken.
    #[cold]
    fn spread(&self) {
        for sibling in self.siblings().iter().filter_map(Weak::upgrade) {
            if sibling.idle.may_want() && !sibling.has_work() {
                if sibling.idle.notify() == Wake::NoneIdle {
                    sibling.ask_for_thread();
                }
                return;
            }
        }
    }

    #[cold]
    fn ask_for_thread(&self) {
        if !self.asked.swap(true, Ordering::AcqRel) {
            self.shared.manager.ask();
        }
    }

    /// Creates a worker, which the caller has counted as woken. With `ready`, the worker reports the result of its
    /// set-up.
    pub(crate) fn spawn_worker(self: &Arc<Pool>, ready: Option<mpsc::Sender<io::Result<()>>>) -> io::Result<String> {
        let result = self.try_spawn_worker(ready);
        if result.is_err() {
            self.idle.unreserve_thread();
            self.thread_failures.fetch_add(1, Ordering::Relaxed);
        }
        result
    }

    fn try_spawn_worker(self: &Arc<Pool>, ready: Option<mpsc::Sender<io::Result<()>>>) -> io::Result<String> {
        let count = &self.shared.threads;
        if count.fetch_add(1, Ordering::AcqRel) >= self.shared.max_threads {
            count.fetch_sub(1, Ordering::AcqRel);
            return Err(io::Error::new(io::ErrorKind::WouldBlock, "the limit of worker threads is reached"));
        }
        let (slot, info) = {
            let mut threads = lock(&self.threads);
            let slot = threads.slots.iter().position(Option::is_none).unwrap_or(threads.slots.len());
            let info = WorkerInfo::new(format!("pr/{}:{slot}{}", self.prefix, self.suffix()), true);
            if slot == threads.slots.len() {
                threads.slots.push(None);
            }
            threads.slots[slot] = Some(Arc::clone(&info));
            (slot, info)
        };
        let name = info.name.clone();
        let pool = Arc::clone(self);
        let made = thread::Builder::new().name(name.clone()).spawn(move || worker::main(&pool, slot, &info, ready));
        match made {
            Ok(_) => Ok(name),
            Err(error) => {
                self.forget_worker(slot);
                Err(error)
            }
        }
    }

    /// A worker has left, or could not be made.
    pub(crate) fn forget_worker(&self, slot: usize) {
        let mut threads = lock(&self.threads);
        if let Some(info) = threads.slots.get_mut(slot).and_then(Option::take) {
            threads.retired_items += info.items.load(Ordering::Relaxed);
            if let Some(stat) = info.tid.get().and_then(|&tid| ThreadStat::open(tid).and_then(|s| s.read()).ok()) {
                threads.retired.run_time_ns += stat.run_time_ns;
                threads.retired.run_delay_ns += stat.run_delay_ns;
                threads.retired.slices += stat.slices;
            }
        }
        self.shared.threads.fetch_sub(1, Ordering::AcqRel);
    }

    /// How many threads it has.
    pub(crate) fn thread_count(&self) -> usize {
        lock(&self.threads).slots.iter().flatten().count()
    }
}
