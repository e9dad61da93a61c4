//! A worker pool: lists of active items, and the workers that run them.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::thread;

use postread_sys::CpuSet;
use postread_sys::priority::HighPriority;
use postread_sys::schedstat::{SchedStat, ThreadStat};

use crate::config::HighPriorityPolicy;
use crate::idle::{Idle, Wake};
use crate::list::Fifo;
use crate::manager::Manager;
use crate::node::{Node, Place};
use crate::padded::Padded;
use crate::sync::lock;
use crate::worker;

/// What all pools of a set share.
pub(crate) struct Shared {
    pub(crate) cpus: CpuSet,
    /// Index by CPU number; `u16::MAX` where there is no pool.
    index: Vec<u16>,
    pub(crate) manager: Manager,
    pub(crate) threads: AtomicUsize,
    pub(crate) max_threads: usize,
    pub(crate) high_priority: HighPriorityPolicy,
    pub(crate) slice: std::time::Duration,
    /// Nice value of normal workers: that of the thread which made the set.
    pub(crate) nice: i32,
    pub(crate) shutdown: AtomicBool,
}

const NONE: u16 = u16::MAX;

impl Shared {
    pub(crate) fn index_table(cpus: &CpuSet) -> Vec<u16> {
        let mut table = vec![NONE; cpus.last().map_or(0, |last| last as usize + 1)];
        for (index, cpu) in cpus.iter().enumerate() {
            table[cpu as usize] = u16::try_from(index).unwrap_or(NONE);
        }
        table
    }

    pub(crate) fn new(cpus: CpuSet, config: &crate::Config) -> Shared {
        Shared {
            index: Shared::index_table(&cpus),
            cpus,
            manager: Manager::new(config.idle_timeout),
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

    /// The index of the CPU that the caller runs on; of some CPU of the set, always the same, where that is outside.
    pub(crate) fn current_index(&self) -> usize {
        let cpu = postread_sys::current_cpu();
        self.index_of(cpu).unwrap_or_else(|| cpu as usize % self.cpus.len())
    }
}

/// A worker, for names and statistics.
#[derive(Debug)]
pub(crate) struct WorkerInfo {
    pub(crate) name: String,
    pub(crate) tid: OnceLock<i32>,
}

/// What a pool has of threads.
#[derive(Debug, Default)]
pub(crate) struct Threads {
    /// By worker number.
    pub(crate) slots: Vec<Option<Arc<WorkerInfo>>>,
    /// Counters of the workers that have left.
    pub(crate) retired: SchedStat,
}

pub(crate) struct Pool {
    pub(crate) shared: Arc<Shared>,
    /// As in thread names before the colon: `0` for CPU 0, `u0` and `u1` for the unbound pools.
    pub(crate) prefix: String,
    /// The CPU and its index, of a bound pool.
    pub(crate) cpu: Option<(u32, usize)>,
    pub(crate) high: bool,
    /// One list, or a list a CPU for an unbound pool.
    shards: Box<[Padded<Fifo<Node>>]>,
    pub(crate) idle: Idle,
    /// The manager was asked for a thread and has not looked yet.
    pub(crate) asked: AtomicBool,
    pub(crate) threads: Mutex<Threads>,
    pub(crate) priority: OnceLock<HighPriority>,
    /// Threads that could not be made.
    pub(crate) thread_failures: AtomicU64,
}

/// An item taken from a pool.
pub(crate) struct Taken {
    pub(crate) node: Arc<Node>,
    /// The next item on that list counts in the same pwq.
    pub(crate) same_next: bool,
    /// There is a next item on that list.
    pub(crate) more: bool,
}

impl Pool {
    pub(crate) fn new(shared: Arc<Shared>, cpu: Option<(u32, usize)>, high: bool, limit: usize) -> Pool {
        let shards = if cpu.is_some() { 1 } else { shared.cpus.len() };
        Pool {
            prefix: match cpu {
                Some((cpu, _)) => format!("{cpu}"),
                None => format!("u{}", u8::from(high)),
            },
            shared,
            cpu,
            high,
            shards: (0..shards).map(|_| Padded(Fifo::new())).collect(),
            idle: Idle::new(limit),
            asked: AtomicBool::new(false),
            threads: Mutex::default(),
            priority: OnceLock::new(),
            thread_failures: AtomicU64::new(0),
        }
    }

    /// The list for items of the CPU with this index.
    fn shard_of(&self, cpu: usize) -> usize {
        if self.shards.len() == 1 { 0 } else { cpu % self.shards.len() }
    }

    /// Puts an active item on the list of a CPU, and sees to it that a worker comes.
    pub(crate) fn push(&self, cpu: usize, node: Arc<Node>) {
        let shard = self.shard_of(cpu);
        node.set_place(Place::Shard(shard));
        self.shards[shard].0.push(node);
        self.notify();
    }

    /// The same for up to `most` that waited. Returns how many.
    pub(crate) fn append_from(&self, cpu: usize, from: &Fifo<Node>, most: usize, each: impl Fn(&Node)) -> usize {
        let shard = self.shard_of(cpu);
        let moved = from.move_to(&self.shards[shard].0, most, |node| {
            node.set_place(Place::Shard(shard));
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
        let first = self.shard_of(cpu);
        let (before, from) = self.shards.split_at(first);
        from.iter().chain(before).filter(|shard| !shard.0.is_empty()).find_map(|shard| {
            let (node, (same_next, more)) =
                shard.0.pop(|node, next| (next.is_some_and(|n| n.same_pwq(node)), next.is_some()))?;
            Some(Taken { node, same_next, more })
        })
    }

    pub(crate) fn has_work(&self) -> bool {
        self.shards.iter().any(|shard| !shard.0.is_empty())
    }

    /// Wakes a worker, or has one made, if one is needed.
    pub(crate) fn notify(&self) {
        if self.idle.notify() == Wake::NoneIdle {
            self.ask_for_thread();
        }
    }

    #[cold]
    fn ask_for_thread(&self) {
        if !self.asked.swap(true, Ordering::AcqRel) {
            self.shared.manager.ask();
        }
    }

    /// Makes a worker, which the caller has counted as woken. With `ready`, the worker reports how its set-up went.
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
            let name = format!("pr/{}:{slot}{}", self.prefix, if self.high { "H" } else { "" });
            let info = Arc::new(WorkerInfo { name, tid: OnceLock::new() });
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
        if let Some(info) = threads.slots.get_mut(slot).and_then(Option::take)
            && let Some(stat) = info.tid.get().and_then(|&tid| ThreadStat::open(tid).and_then(|s| s.read()).ok())
        {
            threads.retired.run_time_ns += stat.run_time_ns;
            threads.retired.run_delay_ns += stat.run_delay_ns;
            threads.retired.slices += stat.slices;
        }
        self.shared.threads.fetch_sub(1, Ordering::AcqRel);
    }

    /// How many threads it has.
    pub(crate) fn thread_count(&self) -> usize {
        lock(&self.threads).slots.iter().flatten().count()
    }
}
