//! The figures of an arm, of whichever experiment.

use std::collections::BTreeMap;

use postread::Latency;
use postread_sys::schedstat::SchedStat;
use serde::Serialize;

use crate::arm::Snapshot;
use crate::ledger_pass::ArmLedger;
use crate::statistics::{Change, Effect, effect, median, paired_change, per_round};

/// The figures of an arm: medians over rounds.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// Totals of a round, by name: `*_us` in microseconds, `*_ms` in milliseconds. Scheduler latency (`*_latency_us`) and CPU
    /// time of each class of threads stand beside each other, with their sum in `all_threads_*`.
    pub figures: BTreeMap<&'static str, f64>,
    /// Quantiles over all items or bios of all rounds, in microseconds; null without any.
    pub quantiles_us: BTreeMap<&'static str, Option<f64>>,
    /// Bios that completed on each CPU: the mean over rounds.
    pub completions: Vec<u64>,
    /// The experiment's own figure relative to the reference arm; null for the reference.
    pub effect: Option<Effect>,
    /// The same as a difference, in the figure's unit.
    pub change: Option<Change>,
    /// The experiment's own figure of each round.
    pub rounds: Vec<f64>,
    /// What items waited for, in a run of its own.
    pub ledger: Option<ArmLedger>,
}

/// What the threads of a workload used.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AppThreads {
    pub(crate) readers: SchedStat,
    pub(crate) foreground: SchedStat,
}

/// A series of rounds of an arm.
#[derive(Debug, Default)]
pub(crate) struct Series {
    values: BTreeMap<&'static str, Vec<f64>>,
    latencies: BTreeMap<&'static str, Latency>,
    completions: Vec<u64>,
}

/// The totals of a round that is not over.
#[derive(Debug, Default)]
pub(crate) struct Round(BTreeMap<&'static str, f64>);

impl Round {
    pub(crate) fn add(&mut self, name: &'static str, value: f64) {
        *self.0.entry(name).or_default() += value;
    }

    /// Adds what a run counted.
    pub(crate) fn count(&mut self, counted: &Snapshot, apps: &AppThreads) {
        let us = |ns: u64| ns as f64 / 1e3;
        let ms = |ns: u64| ns as f64 / 1e6;
        let stats = &counted.stats;
        let classes = [
            ("workers_latency_us", "workers_cpu_ms", counted.workers),
            ("completers_latency_us", "completers_cpu_ms", counted.completers),
            ("readers_latency_us", "readers_cpu_ms", apps.readers),
            ("foreground_latency_us", "foreground_cpu_ms", apps.foreground),
        ];
        for (latency, cpu, stat) in classes {
            self.add(latency, us(stat.run_delay_ns));
            self.add(cpu, ms(stat.run_time_ns));
            self.add("all_threads_latency_us", us(stat.run_delay_ns));
            self.add("all_threads_cpu_ms", ms(stat.run_time_ns));
        }
        let data = [&stats.demand, &stats.read_ahead];
        for (name, value) in [
            ("items", stats.items_queued as f64),
            ("queue_latency_us", us(stats.queue_latency.total_ns())),
            ("source_queue_us", data.iter().map(|class| us(class.source_queue.total_ns())).sum()),
            ("demand_delay_us", us(stats.demand.post_read_delay.total_ns())),
            ("read_ahead_delay_us", us(stats.read_ahead.post_read_delay.total_ns())),
            ("demand_bios", stats.demand.bios as f64),
            ("read_ahead_bios", stats.read_ahead.bios as f64),
            ("unused_bios", data.iter().map(|class| class.unused).sum::<u64>() as f64),
            ("cancelled_bios", stats.cancelled_bios as f64),
            ("step_cpu_ms", ms(stats.step_cpu_ns)),
            (
                "steps_ms",
                ms(stats.demand.steps.total_ns() + stats.read_ahead.steps.total_ns() + stats.tree.steps.total_ns()),
            ),
            ("bytes", stats.bytes as f64),
            ("data_blocks", stats.data_blocks_verified as f64),
            ("tree_blocks", stats.tree_blocks_verified as f64),
        ] {
            self.add(name, value);
        }
    }
}

impl Series {
    /// Ends a round.
    pub(crate) fn push(&mut self, round: Round) {
        for (name, value) in round.0 {
            self.values.entry(name).or_default().push(value);
        }
    }

    /// Sums up what all rounds counted.
    pub(crate) fn counted(&mut self, counted: &Snapshot) {
        let stats = &counted.stats;
        self.latencies.insert("queue_latency", stats.queue_latency.clone());
        self.latencies.insert("demand_delay", stats.demand.post_read_delay.clone());
        self.latencies.insert("read_ahead_delay", stats.read_ahead.post_read_delay.clone());
        self.latencies.insert("source_queue", stats.demand.source_queue.clone());
        self.completions = stats.completions.clone();
    }

    /// A figure of each round.
    pub(crate) fn of(&self, name: &str) -> &[f64] {
        self.values.get(name).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn measured(&self, primary: &str, reference: Option<&Series>, ledger: Option<ArmLedger>) -> Measured {
        let rounds = self.of(primary).to_vec();
        let us = |latency: &Latency, q| latency.quantile_ns(q).map(|ns| ns as f64 / 1000.0);
        let mut quantiles_us = BTreeMap::new();
        for (name, [p50, p99]) in [
            ("queue_latency", ["queue_latency_p50", "queue_latency_p99"]),
            ("demand_delay", ["demand_delay_p50", "demand_delay_p99"]),
            ("read_ahead_delay", ["read_ahead_delay_p50", "read_ahead_delay_p99"]),
            ("source_queue", ["source_queue_p50", "source_queue_p99"]),
        ] {
            let latency = self.latencies.get(name);
            quantiles_us.insert(p50, latency.and_then(|latency| us(latency, 0.5)));
            quantiles_us.insert(p99, latency.and_then(|latency| us(latency, 0.99)));
        }
        Measured {
            figures: self.values.iter().map(|(name, values)| (*name, median(values))).collect(),
            quantiles_us,
            completions: per_round(&self.completions, rounds.len()),
            effect: reference.and_then(|reference| effect(reference.of(primary), &rounds)),
            change: reference.and_then(|reference| paired_change(reference.of(primary), &rounds)),
            rounds,
            ledger,
        }
    }
}

impl Measured {
    /// A figure; 0 where there is none of that name.
    pub fn figure(&self, name: &str) -> f64 {
        self.figures.get(name).copied().unwrap_or(0.0)
    }

    /// A quantile.
    pub fn quantile_us(&self, name: &str) -> Option<f64> {
        self.quantiles_us.get(name).copied().flatten()
    }
}
