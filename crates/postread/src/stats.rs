//! An engine's counters. They are per CPU; a snapshot adds them up.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use postread_io::Priority;

use crate::auto::AutoStats;
use crate::latency::{Latency, Recorder};
use crate::stamps::{BioFate, BioKind, BioRecord};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counter {
    Bios,
    HashBios,
    Bytes,
    DataBlocks,
    TreeBlocks,
    ReadAheadBios,
    Completions,
    Queued,
    Failed,
    Cancelled,
    StepCpuNs,
}

const COUNTERS: usize = Counter::StepCpuNs as usize + 1;

/// What is recorded of one class of bios.
#[derive(Debug, Default)]
struct Class {
    bios: AtomicU64,
    bytes: AtomicU64,
    unused: AtomicU64,
    cancelled: AtomicU64,
    step_cpu_ns: AtomicU64,
    source_queue: Recorder,
    source: Recorder,
    inputs: Recorder,
    queue: Recorder,
    steps: Recorder,
    wakeup: Recorder,
    post_read_delay: Recorder,
}

impl Class {
    fn record(&self, record: &BioRecord) {
        self.bios.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(record.len as u64, Ordering::Relaxed);
        match record.fate {
            BioFate::Delivered => {}
            BioFate::Unused => drop(self.unused.fetch_add(1, Ordering::Relaxed)),
            BioFate::Cancelled => drop(self.cancelled.fetch_add(1, Ordering::Relaxed)),
        }
        let times = &record.times;
        self.step_cpu_ns.fetch_add(times.step_cpu_ns, Ordering::Relaxed);
        let data = record.kind == BioKind::Data;
        for (recorder, ns) in [
            (&self.source_queue, times.source_queue_ns()),
            (&self.source, times.source_ns()),
            (&self.inputs, times.inputs_wait_ns()),
            (&self.queue, times.queue_ns().filter(|_| record.queued)),
            (&self.steps, times.steps_ns()),
            (&self.wakeup, times.wakeup_ns().filter(|_| data)),
            (&self.post_read_delay, times.post_read_delay_ns().filter(|_| data)),
        ] {
            if let Some(ns) = ns {
                recorder.record(ns);
            }
        }
    }

    fn add_to(&self, sum: &mut BioStats) {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        sum.bios += load(&self.bios);
        sum.bytes += load(&self.bytes);
        sum.unused += load(&self.unused);
        sum.cancelled += load(&self.cancelled);
        sum.step_cpu_ns += load(&self.step_cpu_ns);
        self.source_queue.add_to(&mut sum.source_queue);
        self.source.add_to(&mut sum.source);
        self.inputs.add_to(&mut sum.inputs);
        self.queue.add_to(&mut sum.queue);
        self.steps.add_to(&mut sum.steps);
        self.wakeup.add_to(&mut sum.wakeup);
        self.post_read_delay.add_to(&mut sum.post_read_delay);
    }
}

#[derive(Debug, Default)]
struct Classes {
    demand: Class,
    read_ahead: Class,
    tree: Class,
}

#[repr(align(128))]
struct Shard {
    counts: [AtomicU64; COUNTERS],
    /// Made by the first bio that is measured on this CPU.
    classes: OnceLock<Box<Classes>>,
}

pub(crate) struct Stats {
    shards: Vec<Shard>,
}

impl Stats {
    pub(crate) fn new() -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let last = postread_sys::online_cpus().ok().and_then(|set| set.iter().last()).unwrap_or(0) as usize;
        let shards = (0..cpus.max(last + 1))
            .map(|_| Shard { counts: [const { AtomicU64::new(0) }; COUNTERS], classes: OnceLock::new() })
            .collect();
        Self { shards }
    }

    fn shard(&self, cpu: u32) -> &Shard {
        &self.shards[cpu as usize % self.shards.len()]
    }

    pub(crate) fn add(&self, cpu: u32, counter: Counter, n: u64) {
        self.shard(cpu).counts[counter as usize].fetch_add(n, Ordering::Relaxed);
    }

    /// Counts a bio that is over.
    pub(crate) fn record(&self, cpu: u32, record: &BioRecord) {
        let classes = self.shard(cpu).classes.get_or_init(Box::default);
        let class = match (record.kind, record.submitted_as) {
            (BioKind::Tree, _) => &classes.tree,
            (BioKind::Data, Priority::Demand) => &classes.demand,
            (BioKind::Data, Priority::ReadAhead) => &classes.read_ahead,
        };
        class.record(record);
    }

    pub(crate) fn snapshot(&self) -> EngineStats {
        let sum = |counter: Counter| {
            self.shards.iter().map(|s| s.counts[counter as usize].load(Ordering::Relaxed)).sum::<u64>()
        };
        let mut stats = EngineStats {
            bios: sum(Counter::Bios),
            hash_bios: sum(Counter::HashBios),
            bytes: sum(Counter::Bytes),
            data_blocks_verified: sum(Counter::DataBlocks),
            tree_blocks_verified: sum(Counter::TreeBlocks),
            read_ahead_bios: sum(Counter::ReadAheadBios),
            items_queued: sum(Counter::Queued),
            failed_bios: sum(Counter::Failed),
            cancelled_bios: sum(Counter::Cancelled),
            step_cpu_ns: sum(Counter::StepCpuNs),
            completions: self
                .shards
                .iter()
                .map(|s| s.counts[Counter::Completions as usize].load(Ordering::Relaxed))
                .collect(),
            ..EngineStats::default()
        };
        for classes in self.shards.iter().filter_map(|s| s.classes.get()) {
            classes.demand.add_to(&mut stats.demand);
            classes.read_ahead.add_to(&mut stats.read_ahead);
            classes.tree.add_to(&mut stats.tree);
            for class in [&classes.demand, &classes.read_ahead, &classes.tree] {
                class.queue.add_to(&mut stats.queue_latency);
            }
            for class in [&classes.demand, &classes.read_ahead] {
                class.post_read_delay.add_to(&mut stats.post_read_delay);
            }
        }
        stats
    }
}

/// Where the time of one class of bios went, for bios that have ended. The names of the spans are those of
/// [`BioTimes`](crate::BioTimes).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BioStats {
    /// Bios that are over.
    pub bios: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Of these bios, those that ended and that no reader took.
    pub unused: u64,
    /// Of these bios, those whose reader left before their steps ran.
    pub cancelled: u64,
    /// CPU time of the steps, in nanoseconds.
    pub step_cpu_ns: u64,
    /// From submission until a source began to read: the source's own queue. With the policy inline the steps of earlier
    /// bios run on the threads that read, so their queue shows here.
    pub source_queue: Latency,
    /// From then until the bytes arrived.
    pub source: Latency,
    /// The wait for hash blocks after that.
    pub inputs: Latency,
    /// From queueing the item to its start; only bios that were queued.
    pub queue: Latency,
    /// From start to end of the steps, preemption included.
    pub steps: Latency,
    /// From when it was both done and wanted until its reader ran.
    pub wakeup: Latency,
    /// From when its bytes had arrived and were wanted until its reader ran, minus the CPU time of the steps.
    pub post_read_delay: Latency,
}

impl BioStats {
    fn since(&self, earlier: &Self) -> Self {
        Self {
            bios: self.bios.saturating_sub(earlier.bios),
            bytes: self.bytes.saturating_sub(earlier.bytes),
            unused: self.unused.saturating_sub(earlier.unused),
            cancelled: self.cancelled.saturating_sub(earlier.cancelled),
            step_cpu_ns: self.step_cpu_ns.saturating_sub(earlier.step_cpu_ns),
            source_queue: self.source_queue.since(&earlier.source_queue),
            source: self.source.since(&earlier.source),
            inputs: self.inputs.since(&earlier.inputs),
            queue: self.queue.since(&earlier.queue),
            steps: self.steps.since(&earlier.steps),
            wakeup: self.wakeup.since(&earlier.wakeup),
            post_read_delay: self.post_read_delay.since(&earlier.post_read_delay),
        }
    }
}

/// A snapshot of an engine's counters. Times are recorded only where the engine measures (see
/// [`EngineConfig::measure`]).
///
/// [`EngineConfig::measure`]: crate::EngineConfig::measure
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EngineStats {
    /// Data bios that ended.
    pub bios: u64,
    /// Bios of hash blocks that ended.
    pub hash_bios: u64,
    /// Bytes of data bios that ended, failed ranges included.
    pub bytes: u64,
    /// Data blocks that were checked and good.
    pub data_blocks_verified: u64,
    /// Hash blocks that were checked and good.
    pub tree_blocks_verified: u64,
    /// Data bios that were read ahead.
    pub read_ahead_bios: u64,
    /// Work items queued (none with the policy inline).
    pub items_queued: u64,
    /// Bios with a range that failed.
    pub failed_bios: u64,
    /// Bios that ended cancelled.
    pub cancelled_bios: u64,
    /// CPU time of the steps, in nanoseconds, where measured.
    pub step_cpu_ns: u64,
    /// How many bios of sources completed on each CPU.
    pub completions: Vec<u64>,
    /// From queueing an item to its start, over all three classes below.
    pub queue_latency: Latency,
    /// The post-read delay of data bios, over both classes of them.
    pub post_read_delay: Latency,
    /// Data bios that a reader waited for from the start.
    pub demand: BioStats,
    /// Data bios that were read ahead.
    pub read_ahead: BioStats,
    /// Bios of hash blocks.
    pub tree: BioStats,
    /// Statistics of the policy `auto`, if that is the policy.
    pub auto: Option<AutoStats>,
}

impl EngineStats {
    /// What happened since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut completions = self.completions.clone();
        for (now, then) in completions.iter_mut().zip(&earlier.completions) {
            *now = now.saturating_sub(*then);
        }
        Self {
            bios: self.bios.saturating_sub(earlier.bios),
            hash_bios: self.hash_bios.saturating_sub(earlier.hash_bios),
            bytes: self.bytes.saturating_sub(earlier.bytes),
            data_blocks_verified: self.data_blocks_verified.saturating_sub(earlier.data_blocks_verified),
            tree_blocks_verified: self.tree_blocks_verified.saturating_sub(earlier.tree_blocks_verified),
            read_ahead_bios: self.read_ahead_bios.saturating_sub(earlier.read_ahead_bios),
            items_queued: self.items_queued.saturating_sub(earlier.items_queued),
            failed_bios: self.failed_bios.saturating_sub(earlier.failed_bios),
            cancelled_bios: self.cancelled_bios.saturating_sub(earlier.cancelled_bios),
            step_cpu_ns: self.step_cpu_ns.saturating_sub(earlier.step_cpu_ns),
            completions,
            queue_latency: self.queue_latency.since(&earlier.queue_latency),
            post_read_delay: self.post_read_delay.since(&earlier.post_read_delay),
            demand: self.demand.since(&earlier.demand),
            read_ahead: self.read_ahead.since(&earlier.read_ahead),
            tree: self.tree.since(&earlier.tree),
            auto: self.auto.as_ref().map(|auto| match &earlier.auto {
                Some(earlier) => auto.since(earlier),
                None => auto.clone(),
            }),
        }
    }
}
