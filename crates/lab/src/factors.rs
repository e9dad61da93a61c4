//! One factor at a time around two anchors, and the whole cube of placement, rank and completion context.
//!
//! The work is as small and as even as it can be, so that the queues are what is measured: readers read blocks of memory,
//! each read is one bio and one item of a given cost. At the saturated anchor readers never pause; at the half idle one they
//! sleep between reads.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use postread::{BioMut, Inputs, Linear, OpenFile, Plan, Step, VerifiedInputs};
use postread_io::{CompletionCpu, PreadConfig, PreadOptions, PreadPool, ReadAt};
use postread_sys::priority::set_fifo;
use postread_sys::schedstat::{SchedStat, ThreadStat};
use postread_sys::{CpuSet, affinity};
use serde::Serialize;

use crate::arm::{Arm, Completers, Granted, Placement, Rank, Runner, add};
use crate::error::{LabError, Tried};
use crate::meanwhile::{Disturbances, Quiet};
use crate::measured::{AppThreads, Round, Series};
use crate::statistics::{Effect, Random, interaction, median};
use crate::verdict::{Question, Verdict, noise_floor, verdicts};

/// How long a run is at least, unless an option makes it shorter.
pub const RUN: Duration = Duration::from_millis(500);

/// How to run the experiment.
#[derive(Clone, Debug)]
pub struct Options {
    /// Rounds.
    pub rounds: usize,
    /// How long a run is at least.
    pub run: Duration,
    /// The order comes from it.
    pub seed: u64,
}

/// How busy the machine is without any factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Anchor {
    /// Two readers for each CPU, which never pause.
    Saturated,
    /// A reader for each CPU, which sleeps for 100 us after each read.
    HalfIdle,
}

/// Where reads complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Completion {
    /// On the submitting CPU.
    Submitter,
    /// On each CPU in turn.
    RoundRobin,
    /// All on the first CPU.
    FirstCpu,
}

/// One combination of all factors but the placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Level {
    /// The factor that differs from the anchor.
    pub factor: &'static str,
    /// How busy the machine is.
    pub anchor: Anchor,
    /// How workers are ranked.
    pub rank: Rank,
    /// How completing threads run.
    pub completers: Completers,
    /// Where reads complete.
    pub completion: Completion,
    /// Hogs, each pinned to a CPU of its own.
    pub hogs: usize,
    /// What an item costs, in nanoseconds of CPU time.
    pub cost_ns: u64,
    /// Items at once: 0 for as many as there are CPUs.
    pub max_active: usize,
}

/// What was measured at a level.
#[derive(Clone, Debug, Serialize)]
pub struct LevelReport {
    /// The level.
    #[serde(flatten)]
    pub level: Level,
    /// Its name.
    pub name: String,
    /// Reads a second: inline, bound, unbound; null where the system refuses the rank.
    pub reads_per_s: [Option<f64>; 3],
    /// Scheduler latency of all threads, in microseconds a read, in the same order.
    pub all_threads_latency_us: [Option<f64>; 3],
    /// Items' wait from queueing to start, in microseconds a read.
    pub queue_latency_us: [Option<f64>; 3],
    /// How much more, or less, bound gains over unbound here than at the anchor.
    pub interaction: Option<Effect>,
}

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The answers.
    pub verdicts: Vec<Verdict>,
    /// Rounds.
    pub rounds: usize,
    /// The seed of the order.
    pub seed: u64,
    /// How long a run is at least, in milliseconds.
    pub run_ms: u64,
    /// CPUs.
    pub cpus: usize,
    /// What the system grants.
    pub granted: Granted,
    /// What disturbed the experiment.
    pub disturbances: Disturbances,
    /// One entry for each level.
    pub levels: Vec<LevelReport>,
    /// Factors that are not varied here, and why.
    pub not_varied: Vec<&'static str>,
}

const NOT_VARIED: [&str; 3] = [
    "wake rule: the workqueues have one, to wake the worker that went idle last",
    "cgroup: a group with a quota is another machine; run the experiment inside one",
    "a reader that does the work itself: no fixed policy of the engine has it",
];

const PLACEMENTS: [Placement; 3] = [Placement::Inline, Placement::Bound, Placement::Unbound];
/// The twin of bound at the anchor.
const TWIN: usize = 3;
const BLOCK: usize = 4096;

impl Level {
    fn name(&self) -> String {
        let anchor = if self.anchor == Anchor::Saturated { "saturated" } else { "half idle" };
        let completers = if self.completers == Completers::Interrupt { "interrupts" } else { "threads" };
        let value = match self.factor {
            "rank" => self.rank.name().to_owned(),
            "completers" => format!("as {completers}"),
            "completion CPU" => match self.completion {
                Completion::Submitter => "submitter".to_owned(),
                Completion::RoundRobin => "in turn".to_owned(),
                Completion::FirstCpu => "always the first".to_owned(),
            },
            "hogs" => self.hogs.to_string(),
            "cost" => format!("{} us", self.cost_ns as f64 / 1000.0),
            "max_active" => self.max_active.to_string(),
            "cube" => format!("{}, completers as {completers}", self.rank.name()),
            _ => return format!("{anchor}: the anchor"),
        };
        format!("{anchor}: {} {value}", self.factor)
    }

    fn arm(&self, placement: Placement) -> Arm {
        Arm::new(placement, self.rank, self.completers)
    }
}

/// The levels: each factor by itself around each anchor, then the rest of the cube at the saturated one.
fn levels(granted: &Granted, cpus: usize) -> Vec<Level> {
    let mut levels = Vec::new();
    for anchor in [Anchor::Saturated, Anchor::HalfIdle] {
        let base = Level {
            factor: "anchor",
            anchor,
            rank: granted.best_rank,
            completers: granted.completers,
            completion: Completion::Submitter,
            hogs: 0,
            cost_ns: 5000,
            max_active: 0,
        };
        levels.push(base);
        let ranks = [Rank::Nice, Rank::ShortSlice, Rank::Normal];
        levels.extend(ranks.into_iter().filter(|rank| *rank != base.rank).map(|rank| Level {
            factor: "rank",
            rank,
            ..base
        }));
        if base.completers == Completers::Interrupt {
            levels.push(Level { factor: "completers", completers: Completers::Thread, ..base });
        }
        for completion in [Completion::FirstCpu, Completion::RoundRobin] {
            levels.push(Level { factor: "completion CPU", completion, ..base });
        }
        let mut hogs = vec![1, cpus.div_ceil(2), cpus];
        hogs.dedup();
        levels.extend(hogs.into_iter().map(|hogs| Level { factor: "hogs", hogs, ..base }));
        levels.extend([500, 50_000].map(|cost_ns| Level { factor: "cost", cost_ns, ..base }));
        levels.push(Level { factor: "max_active", max_active: 1, ..base });
        if anchor == Anchor::Saturated && base.completers == Completers::Interrupt {
            for rank in ranks.into_iter().filter(|rank| *rank != base.rank) {
                levels.push(Level { factor: "cube", rank, completers: Completers::Thread, ..base });
            }
        }
    }
    levels
}

/// Memory that is read like a device.
struct Memory;

impl ReadAt for Memory {
    fn len(&self) -> io::Result<u64> {
        Ok(1 << 30)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let n = buf.len().min((1 << 30) - offset.min(1 << 30) as usize);
        buf[..n].fill(offset as u8);
        Ok(n)
    }
}

/// Costs a given CPU time, whatever the block.
struct Spin {
    turns: u64,
}

fn spin(turns: u64) {
    let mut value = turns | 1;
    for _ in 0..turns {
        value = std::hint::black_box(value.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1));
    }
}

impl Step for Spin {
    fn block_size(&self) -> u32 {
        BLOCK as u32
    }

    fn inputs(&self, _blocks: Range<u64>, _wanted: &mut Inputs) {}

    fn run(&self, _bio: &mut BioMut<'_>, _inputs: &VerifiedInputs<'_>) {
        spin(self.turns);
    }
}

/// Turns of the loop in a microsecond: the fastest of several tries.
fn turns_per_us() -> f64 {
    const TURNS: u64 = 200_000;
    let time = |_| {
        let begin = Instant::now();
        spin(TURNS);
        begin.elapsed().as_secs_f64() * 1e6
    };
    TURNS as f64 / (0..5).map(time).fold(f64::MAX, f64::min).max(1.0)
}

/// Everything that is set up once.
struct Bench {
    cpus: Vec<u32>,
    turns_per_us: f64,
    as_threads: PreadPool,
    as_interrupts: Option<PreadPool>,
    runners: HashMap<(Arm2, usize), Option<Runner>>,
}

type Arm2 = (u8, u8, bool, bool);

fn key(arm: Arm) -> Arm2 {
    (arm.placement as u8, arm.rank as u8, arm.completers == Completers::Interrupt, arm.twin)
}

impl Bench {
    fn new(granted: &Granted) -> Result<Bench, LabError> {
        let cpus: Vec<u32> = affinity::current().tried(|| "reading the affinity mask".into())?.iter().collect();
        let pool = || PreadPool::new(PreadConfig::new().threads(2)).tried(|| "starting the reading threads".into());
        let as_interrupts = if granted.completers == Completers::Interrupt {
            let pool = pool()?;
            for tid in pool.threads() {
                set_fifo(tid as i32).tried(|| "SCHED_FIFO for completing threads".into())?;
            }
            Some(pool)
        } else {
            None
        };
        Ok(Bench { cpus, turns_per_us: turns_per_us(), as_threads: pool()?, as_interrupts, runners: HashMap::new() })
    }

    fn pool(&self, completers: Completers) -> &PreadPool {
        match (completers, &self.as_interrupts) {
            (Completers::Interrupt, Some(pool)) => pool,
            _ => &self.as_threads,
        }
    }

    fn runner(&mut self, arm: Arm, max_active: usize) -> Result<bool, LabError> {
        let key = (key(arm), max_active);
        if !self.runners.contains_key(&key) {
            let completers = self.pool(arm.completers).threads();
            let runner = Runner::new(arm, &completers, max_active)?.ok();
            self.runners.insert(key, runner);
        }
        Ok(self.runners.get(&key).is_some_and(Option::is_some))
    }

    /// Runs `reads` reads and returns how long they took and what they used.
    fn run(&self, level: &Level, arm: Arm, reads: usize) -> Result<(Duration, Round), LabError> {
        let missing = || LabError::Engine("an arm that was not set up".into());
        let runner = self.runners.get(&(key(arm), level.max_active)).and_then(Option::as_ref).ok_or_else(missing)?;
        let mut options = PreadOptions::default();
        options.completion_cpu = match level.completion {
            Completion::Submitter => CompletionCpu::Submitter,
            Completion::RoundRobin => CompletionCpu::RoundRobin,
            Completion::FirstCpu => CompletionCpu::Cpu(self.cpus[0]),
        };
        let source = Arc::new(self.pool(level.completers).read_at(Arc::new(Memory), options));
        let turns = (level.cost_ns as f64 / 1000.0 * self.turns_per_us) as u64;
        let plan = Plan::new(Arc::new(Linear::new(source, 0, 1 << 30)), 1 << 30).step(Arc::new(Spin { turns }));
        let file = runner.engine.open(plan);
        let readers = match level.anchor {
            Anchor::Saturated => 2 * self.cpus.len(),
            Anchor::HalfIdle => self.cpus.len(),
        };
        let before = runner.snapshot();
        let done = AtomicBool::new(false);
        let (took, used) = std::thread::scope(|scope| {
            for cpu in self.cpus.iter().take(level.hogs) {
                let (done, cpu) = (&done, *cpu);
                let hog = move || {
                    // A hog that cannot be pinned is a hog anyway.
                    let _ = affinity::set_current(&[cpu].into_iter().collect::<CpuSet>());
                    while !done.load(Ordering::Relaxed) {
                        spin(1000);
                    }
                };
                let hog = std::thread::Builder::new().spawn_scoped(scope, hog).tried(|| "starting a hog".into());
                hog.inspect_err(|_| done.store(true, Ordering::Relaxed))?;
            }
            let begin = Instant::now();
            let threads: Vec<_> =
                (0..readers).map(|at| scope.spawn(move_reader(&file, level.anchor, at, reads / readers))).collect();
            let mut used = AppThreads::default();
            let mut result = Ok(());
            for thread in threads {
                match thread.join().unwrap_or_else(|_| Err(LabError::Read("a reading thread panicked".into()))) {
                    Ok(stat) => add(&mut used.readers, &stat),
                    Err(error) => result = result.and(Err(error)),
                }
            }
            let took = begin.elapsed();
            done.store(true, Ordering::Relaxed);
            result.map(|()| (took, used))
        })?;
        file.close();
        let counted = runner.snapshot().since(&before);
        let mut round = Round::default();
        round.count(&counted, &used);
        let reads = (reads / readers * readers).max(1) as f64;
        round.add("reads_per_s", reads / took.as_secs_f64());
        round.add("reads", reads);
        Ok((took, round))
    }
}

fn move_reader(
    file: &OpenFile,
    anchor: Anchor,
    number: usize,
    reads: usize,
) -> impl FnOnce() -> Result<SchedStat, LabError> + Send + '_ {
    move || {
        let stat = || ThreadStat::current().and_then(|stat| stat.read()).unwrap_or_default();
        let before = stat();
        let reader = file.reader();
        let mut random = Random::new(number as u64 + 1);
        let mut buf = vec![0; BLOCK];
        for _ in 0..reads {
            let offset = (random.below((1 << 30) / BLOCK) * BLOCK) as u64;
            reader.read_at(&mut buf, offset).map_err(|e| LabError::Read(e.to_string()))?;
            if anchor == Anchor::HalfIdle {
                std::thread::sleep(Duration::from_micros(100));
            }
        }
        Ok(stat().since(&before))
    }
}

/// What happened, for progress displays: runs that are done, and all.
pub type Progress<'a> = &'a mut dyn FnMut(usize, usize);

/// Runs the experiment.
pub fn run(options: &Options, progress: Progress<'_>) -> Result<Report, LabError> {
    let granted = Granted::probe();
    let mut bench = Bench::new(&granted)?;
    let levels = levels(&granted, bench.cpus.len());
    // The arms of each level, and how many reads make a run: the same for all of them.
    let mut plans: Vec<(Vec<(usize, Arm)>, usize)> = Vec::new();
    for level in &levels {
        let mut arms = Vec::new();
        for (at, placement) in PLACEMENTS.into_iter().enumerate() {
            let arm = level.arm(placement);
            if bench.runner(arm, level.max_active)? {
                arms.push((at, arm));
            }
        }
        if level.factor == "anchor" {
            let twin = Arm { twin: true, ..level.arm(Placement::Bound) };
            if bench.runner(twin, level.max_active)? {
                arms.push((TWIN, twin));
            }
        }
        let mut reads = 64 * bench.cpus.len();
        if let Some((_, arm)) = arms.first().copied() {
            loop {
                let (took, _) = bench.run(level, arm, reads)?;
                if took * 4 >= options.run || reads > 1 << 24 {
                    reads = (reads as f64 * options.run.as_secs_f64() / took.as_secs_f64()).ceil() as usize;
                    break;
                }
                reads *= 4;
            }
        }
        plans.push((arms, reads.max(4 * bench.cpus.len())));
    }
    let all = options.rounds * plans.iter().map(|(arms, _)| arms.len()).sum::<usize>();
    let mut quiet = Quiet::new(all);
    let mut random = Random::new(options.seed);
    let mut series: Vec<[Series; 4]> = levels.iter().map(|_| Default::default()).collect();
    let mut done = 0;
    for _ in 0..options.rounds {
        let mut order: Vec<usize> = (0..levels.len()).collect();
        random.shuffle(&mut order);
        for at in order {
            let (arms, reads) = &plans[at];
            let mut arms = arms.clone();
            random.shuffle(&mut arms);
            for (place, arm) in arms {
                progress(done, all);
                done += 1;
                let (_, round) = quiet.run(|| bench.run(&levels[at], arm, *reads))?;
                series[at][place].push(round);
            }
        }
    }
    let reports =
        levels.iter().enumerate().map(|(at, level)| report(level, &series[at], anchor_of(&levels, &series, level)));
    Ok(Report {
        levels: reports.collect(),
        verdicts: questions(&levels, &series),
        rounds: options.rounds,
        seed: options.seed,
        run_ms: options.run.as_millis() as u64,
        cpus: bench.cpus.len(),
        granted,
        disturbances: quiet.report(),
        not_varied: NOT_VARIED.to_vec(),
    })
}

fn anchor_of<'a>(levels: &[Level], series: &'a [[Series; 4]], level: &Level) -> Option<&'a [Series; 4]> {
    let at = levels.iter().position(|other| other.factor == "anchor" && other.anchor == level.anchor)?;
    series.get(at)
}

fn report(level: &Level, series: &[Series; 4], anchor: Option<&[Series; 4]>) -> LevelReport {
    let figure = |name: &str, per_read: bool| {
        [0, 1, 2].map(|at| {
            let values = series[at].of(name);
            let reads = median(series[at].of("reads")).max(1.0);
            (!values.is_empty()).then(|| median(values) / if per_read { reads } else { 1.0 })
        })
    };
    let pair = |series: &'_ [Series; 4]| (series[2].of("reads_per_s").to_vec(), series[1].of("reads_per_s").to_vec());
    let effect = anchor.filter(|_| level.factor != "anchor").and_then(|anchor| {
        let (a, b) = (pair(anchor), pair(series));
        interaction((&a.0, &a.1), (&b.0, &b.1))
    });
    LevelReport {
        level: *level,
        name: level.name(),
        reads_per_s: figure("reads_per_s", false),
        all_threads_latency_us: figure("all_threads_latency_us", true),
        queue_latency_us: figure("queue_latency_us", true),
        interaction: effect,
    }
}

fn questions(levels: &[Level], series: &[[Series; 4]]) -> Vec<Verdict> {
    let names: Vec<String> = levels.iter().map(Level::name).collect();
    let mut asked = Vec::new();
    for (at, level) in levels.iter().enumerate() {
        let of = |place: usize| series[at][place].of("reads_per_s");
        let floor = anchor_of(levels, series, level)
            .and_then(|anchor| noise_floor(anchor[TWIN].of("reads_per_s"), anchor[1].of("reads_per_s")));
        let ask = |first: (&'static str, usize), second: (&'static str, usize)| Question {
            question: format!("{}, {} against {}", names[at], second.0, first.0),
            first: (first.0, of(first.1)),
            second: (second.0, of(second.1)),
            higher_is_better: true,
            better: "faster",
            noise_floor_percent: floor,
        };
        asked.push(ask(("unbound", 2), ("bound", 1)));
        if level.factor == "anchor" || level.factor == "cost" {
            asked.push(ask(("bound", 1), ("inline", 0)));
        }
    }
    verdicts(&asked)
}

impl Report {
    /// The report: answers first.
    pub fn to_text(&self) -> String {
        use std::fmt::Write as _;
        let mut text = format!(
            "factors: reads of 4 KiB of memory, an item each, on {} CPUs. {} rounds, runs of {} ms, order from seed {}.\n\n",
            self.cpus, self.rounds, self.run_ms, self.seed
        );
        text.push_str(&crate::table::verdict_lines(&self.verdicts));
        text.push('\n');
        text.push_str(&crate::table::whiskers(&self.verdicts));
        let cell =
            |value: Option<f64>, digits: usize| value.map_or_else(|| "n/a".into(), |value| format!("{value:.digits$}"));
        let mut rows = vec![
            ["", "reads/s", "", "", "all threads'", "", "", "queue", "", "bound over unbound,"]
                .map(String::from)
                .to_vec(),
            [
                "",
                "inline",
                "bound",
                "unbound",
                "latency, inline",
                "bound",
                "unbound",
                "bound",
                "unbound",
                "beyond the anchor",
            ]
            .map(String::from)
            .to_vec(),
        ];
        for level in &self.levels {
            let mut row = vec![level.name.clone()];
            row.extend(level.reads_per_s.map(|value| cell(value, 0)));
            row.extend(level.all_threads_latency_us.map(|value| cell(value, 1)));
            row.extend(level.queue_latency_us[1..].iter().map(|value| cell(*value, 1)));
            row.push(level.interaction.map_or_else(String::new, |effect| effect.to_string()));
            rows.push(row);
        }
        text.push_str("\nMedians over rounds; latency and queue in us a read.\n");
        text.push_str(&crate::table::align(&rows));
        for factor in &self.not_varied {
            let _ = writeln!(text, "Not varied: {factor}.");
        }
        text.push_str(&crate::table::disturbance(&self.disturbances));
        if let Some(why) = &self.granted.why {
            let _ = writeln!(text, "Not granted here: {why}.");
        }
        let _ = writeln!(text, "{}", crate::table::limits());
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_level_differs_from_its_anchor_in_its_factor_alone() {
        let granted = Granted { completers: Completers::Interrupt, best_rank: Rank::Nice, why: None };
        let levels = levels(&granted, 4);
        for anchor in [Anchor::Saturated, Anchor::HalfIdle] {
            let base = levels.iter().find(|l| l.factor == "anchor" && l.anchor == anchor).unwrap();
            for level in levels.iter().filter(|l| l.anchor == anchor && l.factor != "anchor") {
                let differs = [
                    ("rank", level.rank != base.rank),
                    ("completers", level.completers != base.completers),
                    ("completion CPU", level.completion != base.completion),
                    ("hogs", level.hogs != base.hogs),
                    ("cost", level.cost_ns != base.cost_ns),
                    ("max_active", level.max_active != base.max_active),
                ];
                let found: Vec<&str> = differs.iter().filter(|(_, differs)| *differs).map(|(name, _)| *name).collect();
                match level.factor {
                    "cube" => assert_eq!(found, ["rank", "completers"]),
                    factor => assert_eq!(found, [factor]),
                }
            }
        }
        // The cube is whole: every rank with every context.
        let cube = levels
            .iter()
            .filter(|l| l.anchor == Anchor::Saturated && matches!(l.factor, "anchor" | "rank" | "completers" | "cube"));
        assert_eq!(cube.count(), 3 * 2);
        let names: std::collections::HashSet<String> = levels.iter().map(Level::name).collect();
        assert_eq!(names.len(), levels.len());
    }

    #[test]
    fn a_small_run_measures_every_level() {
        let options = Options { rounds: 2, run: Duration::from_millis(5), seed: 3 };
        let report = run(&options, &mut |_, _| ()).unwrap();
        assert!(report.levels.len() >= 16, "{}", report.levels.len());
        for level in &report.levels {
            assert!(level.reads_per_s[0].is_some_and(|value| value > 0.0), "{level:?}");
        }
        assert!(report.verdicts.iter().all(|verdict| !verdict.answer.is_empty()));
        assert!(report.to_text().contains("half idle: max_active 1"));
    }
}
