//! The fs-verity patch's experiment: apps start cold, and the same reads go through each queue policy.

use std::path::PathBuf;

use postread_sys::schedstat;
use serde::Serialize;

use crate::arm::{Arm, ArmReport, Arms, Completers, Granted, Placement, Rank, Snapshot};
use crate::error::LabError;
use crate::ledger_pass;
use crate::meanwhile::{Disturbances, Quiet};
use crate::measured::{Measured, Round, Series};
use crate::protect::{self, Cold, ProtectedApp};
use crate::replay;
use crate::statistics::{Effect, Random, interaction};
use crate::verdict::{Question, Verdict, noise_floor, verdicts};
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
    /// The answers.
    pub verdicts: Vec<Verdict>,
    /// How much more the placement changes start-up at one rank than at another: effects of bound relative to unbound.
    pub interactions: Vec<Interaction>,
    /// The apps, in the order they were started.
    pub apps: Vec<AppSummary>,
    /// Rounds.
    pub rounds: usize,
    /// The seed of the order.
    pub seed: u64,
    /// How files were read cold.
    pub cold: Cold,
    /// What the system grants.
    pub granted: Granted,
    /// Whether the kernel's counter of scheduler latency counts here; where not, those figures are 0.
    pub run_delay_counts: bool,
    /// What disturbed the experiment.
    pub disturbances: Disturbances,
    /// The patch's own figures.
    pub published: Published,
    /// The arm that effects are relative to: the first one that could be measured.
    pub reference: Option<String>,
    /// One entry for each arm, those that could not be measured included.
    pub arms: Vec<ArmReport<Measured>>,
}

/// How the effect of the placement depends on the rank.
#[derive(Clone, Debug, Serialize)]
pub struct Interaction {
    /// The rank that it is relative to.
    pub from: Rank,
    /// The other rank.
    pub to: Rank,
    /// The ratio of the two effects; null where it could not be measured.
    pub effect: Option<Effect>,
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
    /// Threads that compute at the same time.
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

/// What happened, for progress displays.
#[derive(Clone, Copy, Debug)]
pub enum Progress {
    /// The files of an app are being made: its number and how many there are.
    Protecting(usize, usize),
    /// A start is being measured: its number and how many there are.
    Starting(usize, usize),
    /// An arm's ledger is being made: its number and how many there are.
    Accounting(usize, usize),
}

/// The arms: placement and rank in full, inline, an A/A twin, and completers as threads beside completers as interrupts.
fn arms(granted: &Granted) -> Vec<Arm> {
    let completers = granted.completers;
    let mut arms = Vec::new();
    for rank in [Rank::Nice, Rank::ShortSlice, Rank::Normal] {
        for placement in [Placement::Unbound, Placement::Bound] {
            arms.push(Arm::new(placement, rank, completers));
        }
    }
    arms.push(Arm::new(Placement::Inline, Rank::Normal, completers));
    arms.push(Arm { twin: true, ..Arm::new(Placement::Bound, granted.best_rank, completers) });
    if completers == Completers::Interrupt {
        for placement in [Placement::Unbound, Placement::Bound] {
            arms.push(Arm::new(placement, granted.best_rank, Completers::Thread));
        }
    }
    arms
}

/// Runs the experiment.
pub fn run(options: &Options, mut progress: impl FnMut(Progress)) -> Result<Report, LabError> {
    protect::check_directory(&options.dir)?;
    let mut apps = Vec::new();
    for (i, app) in options.apps.iter().enumerate() {
        progress(Progress::Protecting(i, options.apps.len()));
        apps.push(ProtectedApp::make(&options.dir, i, app)?);
    }
    let run_delay_counts = schedstat::counts().unwrap_or(false);
    let granted = Granted::probe();
    let arms = Arms::set_up(arms(&granted))?;
    let runners = &arms.runners;
    let start = |which: usize, at: usize| {
        let (runner, protected) = (&runners[which], &apps[at]);
        if options.cold == Cold::PageCacheDropped {
            protected.make_cold()?;
        }
        let plans = protected.plans(arms.pool(runner.arm.completers), options.cold)?;
        let before = runner.snapshot();
        let (took, used) = replay::start_up(&options.apps[at], &runner.engine, plans)?;
        let counted = runner.snapshot().since(&before);
        match counted.stats.failed_bios {
            0 => Ok((took, used, counted)),
            failed => Err(LabError::Read(format!("{failed} bios failed"))),
        }
    };
    // Each arm once without measuring, so that no thread is made and no memory first touched in a measured start.
    let smallest = (0..apps.len()).min_by_key(|i| options.apps[*i].reads()).unwrap_or(0);
    for which in 0..runners.len() {
        start(which, smallest)?;
    }
    let first: Vec<Snapshot> = runners.iter().map(super::arm::Runner::snapshot).collect();
    let mut series: Vec<Series> = runners.iter().map(|_| Series::default()).collect();
    let mut random = Random::new(options.seed);
    let all = options.rounds * apps.len() * runners.len();
    let mut quiet = Quiet::new(all);
    let mut started = 0;
    for _ in 0..options.rounds {
        let mut rounds: Vec<Round> = runners.iter().map(|_| Round::default()).collect();
        for at in 0..apps.len() {
            let mut order: Vec<usize> = (0..runners.len()).collect();
            random.shuffle(&mut order);
            for which in order {
                progress(Progress::Starting(started, all));
                started += 1;
                let (took, used, counted) = quiet.run(|| start(which, at))?;
                rounds[which].count(&counted, &used);
                rounds[which].add("start_up_ms", took.as_secs_f64() * 1000.0 / apps.len() as f64);
            }
        }
        series.iter_mut().zip(rounds).for_each(|(series, round)| series.push(round));
    }
    for ((series, runner), first) in series.iter_mut().zip(runners).zip(&first) {
        series.counted(&runner.snapshot().since(first));
    }
    let mut ledgers = Vec::new();
    for (which, runner) in runners.iter().enumerate() {
        progress(Progress::Accounting(which, runners.len()));
        let all_apps = || (0..apps.len()).try_for_each(|at| start(which, at).map(|_| ()));
        ledgers.push((!runner.arm.twin).then(|| ledger_pass::run(runner, all_apps)).transpose()?);
    }
    let reference = runners.first().map(|runner| runner.arm.name());
    let of = |arm: Arm, figure: &str| arms.place(arm).map_or(&[][..], |at| series[at].of(figure));
    let interactions = interactions(&granted, &of);
    let verdicts = questions(&granted, &of);
    let reports =
        arms.report(|at, _| series[at].measured("start_up_ms", (at > 0).then(|| &series[0]), ledgers[at].clone()));
    let published = Published { before_us: PATCH_BEFORE_US, after_us: PATCH_AFTER_US, gain_ms: PATCH_GAIN_MS };
    Ok(Report {
        verdicts,
        interactions,
        apps: options.apps.iter().map(AppSummary::of).collect(),
        rounds: options.rounds,
        seed: options.seed,
        cold: options.cold,
        granted,
        run_delay_counts,
        disturbances: quiet.report(),
        published,
        reference,
        arms: reports,
    })
}

const RANKS: [Rank; 3] = [Rank::Nice, Rank::ShortSlice, Rank::Normal];

fn interactions<'a>(granted: &Granted, of: &impl Fn(Arm, &str) -> &'a [f64]) -> Vec<Interaction> {
    let pair = |rank| {
        let arm = |placement| of(Arm::new(placement, rank, granted.completers), "start_up_ms");
        (arm(Placement::Unbound), arm(Placement::Bound))
    };
    let from = granted.best_rank;
    let others = RANKS.into_iter().filter(|rank| *rank != from);
    others.map(|to| Interaction { from, to, effect: interaction(pair(from), pair(to)) }).collect()
}

fn questions<'a>(granted: &Granted, of: &impl Fn(Arm, &str) -> &'a [f64]) -> Vec<Verdict> {
    let completers = granted.completers;
    let best = granted.best_rank;
    let bound = Arm::new(Placement::Bound, best, completers);
    let unbound = Arm::new(Placement::Unbound, best, completers);
    let inline = Arm::new(Placement::Inline, Rank::Normal, completers);
    let mut asked = Vec::new();
    let mut ask = |question: String, figure: &str, first: (&'static str, Arm), second: (&'static str, Arm), better| {
        let floor = noise_floor(of(Arm { twin: true, ..bound }, figure), of(bound, figure));
        asked.push(Question {
            question,
            first: (first.0, of(first.1, figure)),
            second: (second.0, of(second.1, figure)),
            higher_is_better: false,
            better,
            noise_floor_percent: floor,
        });
    };
    for rank in RANKS {
        let arm = |placement| Arm::new(placement, rank, completers);
        let (first, second) = (("unbound", arm(Placement::Unbound)), ("bound", arm(Placement::Bound)));
        ask(format!("start-up, {}", rank.name()), "start_up_ms", first, second, "faster");
    }
    let (first, second) = (("unbound", unbound), ("bound", bound));
    let best = best.name();
    ask(format!("workers' scheduler latency, {best}, the patch's figure"), "workers_latency_us", first, second, "less");
    ask(format!("scheduler latency of all threads, {best}"), "all_threads_latency_us", first, second, "less");
    ask(format!("items' wait from queueing to start, {best}"), "queue_latency_us", first, second, "less");
    ask(format!("post-read delay of demand reads, {best}"), "demand_delay_us", first, second, "less");
    ask(format!("start-up, inline against bound, {best}"), "start_up_ms", second, ("inline", inline), "faster");
    ask(format!("start-up, inline against unbound, {best}"), "start_up_ms", first, ("inline", inline), "faster");
    for (name, arm) in [("bound", bound), ("unbound", unbound)] {
        let normal = ("normal", Arm { rank: Rank::Normal, ..arm });
        ask(format!("start-up, {name}: rank"), "start_up_ms", normal, (best, arm), "faster");
    }
    if completers == Completers::Interrupt {
        for (name, arm) in [("bound", bound), ("unbound", unbound)] {
            let threads = ("completers as threads", Arm { completers: Completers::Thread, ..arm });
            ask(
                format!("start-up, {name}, {best}: completers"),
                "start_up_ms",
                threads,
                ("completers as interrupts", arm),
                "faster",
            );
        }
    }
    verdicts(&asked)
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
