//! The fs-verity patch's experiment: apps start cold, and the same reads go through each queue policy.

use std::path::PathBuf;

use postread::EngineStats;
use postread_io::{PreadConfig, PreadPool};
use postread_sys::schedstat::{self, ThreadStat};
use serde::Serialize;

use crate::arm::{ArmReport, Arms};
use crate::error::{LabError, Tried};
use crate::meanwhile::{Disturbance, Meanwhile};
use crate::protect::{self, Cold, ProtectedApp};
use crate::replay;
use crate::statistics::{Change, Random, median, paired_change, per_round};
use crate::workload::App;

/// What the patch published (Linux commit f959325e6ac3): total scheduler latency of the workqueue before and after, in
/// microseconds, and what cold start gained, in milliseconds.
pub const PATCH_BEFORE_US: u64 = 553_800;
/// See [`PATCH_BEFORE_US`].
pub const PATCH_AFTER_US: u64 = 18_962;
/// See [`PATCH_BEFORE_US`].
pub const PATCH_GAIN_MS: u64 = 30;

/// How to run the experiment.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the protected files are made: a directory on a disk.
    pub dir: PathBuf,
    /// The apps.
    pub apps: Vec<App>,
    /// How often each app starts through each arm.
    pub rounds: usize,
    /// How files are read cold.
    pub cold: Cold,
    /// The order of arms in each round comes from it.
    pub seed: u64,
}

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The apps, in the order they were started.
    pub apps: Vec<AppSummary>,
    /// Rounds.
    pub rounds: usize,
    /// The seed of the order.
    pub seed: u64,
    /// How files were read cold.
    pub cold: Cold,
    /// Whether the kernel's counter of scheduler latency counts here; where not, those figures are null.
    pub run_delay_counts: bool,
    /// Time that the hypervisor took from this machine during the experiment, in milliseconds.
    pub steal_ms: f64,
    /// Share of the machine's CPUs that other programs, and the kernel for itself, used meanwhile, in percent.
    pub other_cpu_percent: f64,
    /// The patch's own figures.
    pub published: Published,
    /// The arm that changes are against: the first one that could be measured.
    pub reference: Option<String>,
    /// One entry an arm, those that could not be measured included.
    pub arms: Vec<ArmReport<Measured>>,
}

/// An app as it was measured.
#[derive(Clone, Debug, Serialize)]
pub struct AppSummary {
    /// Its name.
    pub name: String,
    /// Bytes of its files.
    pub file_bytes: u64,
    /// Reads.
    pub reads: usize,
    /// Bytes that its reads ask for.
    pub read_bytes: u64,
    /// Reading threads.
    pub threads: usize,
    /// Threads that compute beside them.
    pub foreground_threads: u32,
}

/// The published figures.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Published {
    /// Total scheduler latency, unbound at high priority, in microseconds.
    pub before_us: u64,
    /// Total scheduler latency, bound at high priority, in microseconds.
    pub after_us: u64,
    /// What cold start gained, in milliseconds.
    pub gain_ms: u64,
}

/// The figures of an arm. Totals are of one round (every app started once), as medians over rounds.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// Time that workers were runnable and not running, in microseconds; null where the kernel doesn't count.
    pub scheduler_latency_us: Option<f64>,
    /// The same of the threads that read and complete bios: with `inline` they do the work.
    pub completing_threads_latency_us: Option<f64>,
    /// Sum over items of the time from queueing to start, in microseconds. It contains scheduler latency: never add.
    pub queue_latency_us: f64,
    /// Its median over items, in microseconds; null without items.
    pub queue_latency_p50_us: Option<f64>,
    /// Its 99th percentile, in microseconds; null without items.
    pub queue_latency_p99_us: Option<f64>,
    /// Sum over bios of plaintext delivered minus bytes arrived minus the steps' own CPU time, in microseconds.
    pub post_read_delay_us: f64,
    /// Its median over bios, in microseconds.
    pub post_read_delay_p50_us: Option<f64>,
    /// Its 99th percentile, in microseconds.
    pub post_read_delay_p99_us: Option<f64>,
    /// Work items.
    pub items: f64,
    /// How many bios completed on each CPU: the mean over rounds.
    pub completions: Vec<u64>,
    /// Start-up time of an app, in milliseconds: the mean over apps.
    pub start_up_ms: f64,
    /// Its change against the reference, in milliseconds, with its interval; null for the reference itself.
    pub start_up_change_ms: Option<Change>,
    /// Bytes read and verified.
    pub bytes: f64,
    /// Data blocks verified.
    pub data_blocks: f64,
    /// Hash blocks verified.
    pub tree_blocks: f64,
    /// CPU time of the steps, in milliseconds.
    pub step_cpu_ms: f64,
    /// The start-up times that the medians are of, in milliseconds: a round each, the mean over apps.
    pub rounds_ms: Vec<f64>,
}

/// What happened, for progress displays.
#[derive(Clone, Copy, Debug)]
pub enum Progress {
    /// The files of an app are being made: its number and how many there are.
    Protecting(usize, usize),
    /// A start is being measured: its number and how many there are.
    Starting(usize, usize),
}

#[derive(Default)]
struct Totals {
    scheduler_ns: Vec<f64>,
    completing_ns: Vec<f64>,
    queue_ns: Vec<f64>,
    delay_ns: Vec<f64>,
    items: Vec<f64>,
    start_up_ms: Vec<f64>,
    bytes: Vec<f64>,
    data_blocks: Vec<f64>,
    tree_blocks: Vec<f64>,
    step_ns: Vec<f64>,
}

/// Runs the experiment.
pub fn run(options: &Options, mut progress: impl FnMut(Progress)) -> Result<Report, LabError> {
    protect::check_directory(&options.dir)?;
    let mut apps = Vec::new();
    for (i, app) in options.apps.iter().enumerate() {
        progress(Progress::Protecting(i, options.apps.len()));
        apps.push(ProtectedApp::make(&options.dir, i, app)?);
    }
    let counts = schedstat::counts().unwrap_or(false);
    let pool = PreadPool::new(PreadConfig::new()).tried(|| "starting the reading threads".into())?;
    let completing: Vec<ThreadStat> =
        pool.threads().iter().filter_map(|tid| ThreadStat::open(*tid as i32).ok()).collect();
    let completing_ns =
        || completing.iter().filter_map(|stat| stat.read().ok()).map(|stat| stat.run_delay_ns).sum::<u64>();

    let arms = Arms::set_up()?;
    let runners = &arms.runners;
    let meanwhile = Meanwhile::begin();
    // Each arm once without measuring, so that no thread is made and no memory first touched in a measured start.
    for runner in runners {
        let smallest = (0..apps.len()).min_by_key(|i| options.apps[*i].reads()).unwrap_or(0);
        apps[smallest].make_cold()?;
        replay::start_up(&options.apps[smallest], &runner.engine, apps[smallest].plans(&pool, options.cold)?)?;
    }
    let first: Vec<EngineStats> = runners.iter().map(|runner| runner.engine.stats()).collect();
    let mut totals: Vec<Totals> = runners.iter().map(|_| Totals::default()).collect();
    let mut random = Random::new(options.seed);
    let all = options.rounds * apps.len() * runners.len();
    let mut started = 0;
    for _ in 0..options.rounds {
        let mut sums: Vec<[f64; 10]> = vec![[0.0; 10]; runners.len()];
        for (app, protected) in options.apps.iter().zip(&apps) {
            let mut order: Vec<usize> = (0..runners.len()).collect();
            random.shuffle(&mut order);
            for which in order {
                progress(Progress::Starting(started, all));
                started += 1;
                if options.cold == Cold::PageCacheDropped {
                    protected.make_cold()?;
                }
                let runner = &runners[which];
                let plans = protected.plans(&pool, options.cold)?;
                let (before, waited, completed) = (runner.engine.stats(), runner.run_delay_ns(), completing_ns());
                let took = replay::start_up(app, &runner.engine, plans)?;
                let stats = runner.engine.stats().since(&before);
                if stats.failed_bios > 0 {
                    return Err(LabError::Read(format!("{} bios failed", stats.failed_bios)));
                }
                let figures = [
                    (runner.run_delay_ns() - waited) as f64,
                    (completing_ns() - completed) as f64,
                    stats.queue_latency.total_ns() as f64,
                    stats.post_read_delay.total_ns() as f64,
                    stats.items_queued as f64,
                    took.as_secs_f64() * 1000.0 / apps.len() as f64,
                    stats.bytes as f64,
                    stats.data_blocks_verified as f64,
                    stats.tree_blocks_verified as f64,
                    stats.step_cpu_ns as f64,
                ];
                for (sum, figure) in sums[which].iter_mut().zip(figures) {
                    *sum += figure;
                }
            }
        }
        for (total, sum) in totals.iter_mut().zip(sums) {
            total.add(sum);
        }
    }
    let Disturbance { steal_ms, other_cpu_percent } = meanwhile.end();
    let reference = runners.first().map(|runner| runner.arm.name());
    let arms = arms.report(|at, runner| {
        let stats = runner.engine.stats().since(&first[at]);
        let before = (at > 0).then(|| totals[0].start_up_ms.as_slice());
        totals[at].measured(&stats, counts, before)
    });
    let apps = options.apps.iter().map(AppSummary::of).collect();
    let published = Published { before_us: PATCH_BEFORE_US, after_us: PATCH_AFTER_US, gain_ms: PATCH_GAIN_MS };
    let (rounds, seed, cold) = (options.rounds, options.seed, options.cold);
    Ok(Report {
        apps,
        rounds,
        seed,
        cold,
        run_delay_counts: counts,
        steal_ms,
        other_cpu_percent,
        published,
        reference,
        arms,
    })
}

impl AppSummary {
    fn of(app: &App) -> AppSummary {
        AppSummary {
            name: app.name.clone(),
            file_bytes: app.bytes(),
            reads: app.reads(),
            read_bytes: app.bytes_read(),
            threads: app.threads.len(),
            foreground_threads: app.foreground_threads,
        }
    }
}

impl Totals {
    fn add(&mut self, sum: [f64; 10]) {
        let lists = [
            &mut self.scheduler_ns,
            &mut self.completing_ns,
            &mut self.queue_ns,
            &mut self.delay_ns,
            &mut self.items,
            &mut self.start_up_ms,
            &mut self.bytes,
            &mut self.data_blocks,
            &mut self.tree_blocks,
            &mut self.step_ns,
        ];
        for (list, figure) in lists.into_iter().zip(sum) {
            list.push(figure);
        }
    }

    fn measured(&self, stats: &EngineStats, counts: bool, reference: Option<&[f64]>) -> Measured {
        let us = |ns: &[f64]| median(ns) / 1000.0;
        let quantile = |histogram: &postread::Latency, q| histogram.quantile_ns(q).map(|ns| ns as f64 / 1000.0);
        Measured {
            scheduler_latency_us: counts.then(|| us(&self.scheduler_ns)),
            completing_threads_latency_us: counts.then(|| us(&self.completing_ns)),
            queue_latency_us: us(&self.queue_ns),
            queue_latency_p50_us: quantile(&stats.queue_latency, 0.5),
            queue_latency_p99_us: quantile(&stats.queue_latency, 0.99),
            post_read_delay_us: us(&self.delay_ns),
            post_read_delay_p50_us: quantile(&stats.post_read_delay, 0.5),
            post_read_delay_p99_us: quantile(&stats.post_read_delay, 0.99),
            items: median(&self.items),
            completions: per_round(&stats.completions, self.start_up_ms.len()),
            start_up_ms: median(&self.start_up_ms),
            start_up_change_ms: reference.and_then(|before| paired_change(before, &self.start_up_ms)),
            bytes: median(&self.bytes),
            data_blocks: median(&self.data_blocks),
            tree_blocks: median(&self.tree_blocks),
            step_cpu_ms: median(&self.step_ns) / 1e6,
            rounds_ms: self.start_up_ms.clone(),
        }
    }
}
