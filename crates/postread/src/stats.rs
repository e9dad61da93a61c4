//! What an engine counts. Each CPU counts for itself; a snapshot adds the CPUs up.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::histogram::{Histogram, Recorder};

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

#[repr(align(128))]
struct Shard {
    counts: [AtomicU64; COUNTERS],
    queue_latency: Recorder,
    post_read_delay: Recorder,
}

pub(crate) struct Stats {
    shards: Vec<Shard>,
}

impl Stats {
    pub(crate) fn new() -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let last = postread_sys::online_cpus().ok().and_then(|set| set.iter().last()).unwrap_or(0) as usize;
        let shards = (0..cpus.max(last + 1))
            .map(|_| Shard {
                counts: [const { AtomicU64::new(0) }; COUNTERS],
                queue_latency: Recorder::new(),
                post_read_delay: Recorder::new(),
            })
            .collect();
        Self { shards }
    }

    fn shard(&self, cpu: u32) -> &Shard {
        &self.shards[cpu as usize % self.shards.len()]
    }

    pub(crate) fn add(&self, cpu: u32, counter: Counter, n: u64) {
        self.shard(cpu).counts[counter as usize].fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn queue_latency(&self, cpu: u32, ns: u64) {
        self.shard(cpu).queue_latency.record(ns);
    }

    pub(crate) fn post_read_delay(&self, cpu: u32, ns: u64) {
        self.shard(cpu).post_read_delay.record(ns);
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
            queue_latency: Histogram::default(),
            post_read_delay: Histogram::default(),
        };
        for s in &self.shards {
            s.queue_latency.add_to(&mut stats.queue_latency);
            s.post_read_delay.add_to(&mut stats.post_read_delay);
        }
        stats
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
    /// From queueing an item to its start.
    pub queue_latency: Histogram,
    /// Plaintext delivered minus bytes arrived minus the steps' own CPU time, a data bio each.
    pub post_read_delay: Histogram,
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
        }
    }
}
