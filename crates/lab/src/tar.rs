//! The fscrypt patch's experiment: an archive is made of an encrypted tree, through each queue policy.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use postread::{EngineStats, Linear, Plan};
use postread_blockcrypt::hash::{HashAlg, Hasher};
use postread_io::{PreadConfig, PreadPool};
use postread_sys::schedstat;
use serde::Serialize;

use crate::archive::Archive;
use crate::arm::{Arm, ArmReport, Arms, Placement, Runner};
use crate::cipher::{Cipher, FileKey, UNIT};
use crate::error::{LabError, Tried};
use crate::meanwhile::{Disturbance, Meanwhile};
use crate::protect::{self, Cold};
use crate::statistics::{Change, Random, median, paired_change, per_round};
use crate::workload::App;

/// How to run the experiment.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the encrypted files are made: a directory on a disk.
    pub dir: PathBuf,
    /// The tree: its files, in the order of the archive.
    pub tree: App,
    /// How often each archive is made through each arm.
    pub rounds: usize,
    /// Numbers of jobs that share the tree.
    pub jobs: Vec<usize>,
    /// The order of arms in each round comes from it.
    pub seed: u64,
}

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Files in the tree.
    pub files: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Rounds.
    pub rounds: usize,
    /// The seed of the order.
    pub seed: u64,
    /// Whether the kernel's counter of scheduler latency counts here; where not, those figures are null.
    pub run_delay_counts: bool,
    /// Time that the hypervisor took from this machine during the experiment, in milliseconds.
    pub steal_ms: f64,
    /// Share of the machine's CPUs that other programs, and the kernel for itself, used meanwhile, in percent.
    pub other_cpu_percent: f64,
    /// One entry a cipher and number of jobs.
    pub groups: Vec<Group>,
}

/// One cipher with one number of jobs.
#[derive(Clone, Debug, Serialize)]
pub struct Group {
    /// The cipher.
    pub cipher: Cipher,
    /// Jobs.
    pub jobs: usize,
    /// What the patch published for this cipher, unbound against bound.
    pub published: Option<&'static str>,
    /// The arms.
    pub arms: Vec<ArmReport<Measured>>,
}

/// The figures of an arm: medians over rounds, an archive each.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// Plaintext archived a second, in MB.
    pub mb_per_s: f64,
    /// Of an unbound arm: its gain in percent over the bound arm of the same rank, the median of rounds, with its interval.
    pub gain_over_bound_percent: Option<Change>,
    /// Time that workers were runnable and not running, in microseconds; null where the kernel doesn't count.
    pub scheduler_latency_us: Option<f64>,
    /// Sum over items of the time from queueing to start, in microseconds. It contains scheduler latency: never add.
    pub queue_latency_us: f64,
    /// Its median over items of all rounds, in microseconds.
    pub queue_latency_p50_us: Option<f64>,
    /// Its 99th percentile.
    pub queue_latency_p99_us: Option<f64>,
    /// Sum over bios of the post-read delay, in microseconds.
    pub post_read_delay_us: f64,
    /// Work items.
    pub items: f64,
    /// How many bios completed on each CPU: the mean over rounds.
    pub completions: Vec<u64>,
    /// MB a second of each round.
    pub rounds_mb_per_s: Vec<f64>,
}

/// The tree under one cipher: one file without a name holds all of it, each file from a block of its own on.
struct Encrypted {
    volume: File,
    /// First byte of each file.
    starts: Vec<u64>,
    keys: Vec<FileKey>,
}

/// What happened, for progress displays.
#[derive(Clone, Copy, Debug)]
pub enum Progress {
    /// The tree is being encrypted.
    Encrypting(Cipher),
    /// An archive is being made: its number and how many there are.
    Archiving(usize, usize),
}

fn plaintext(number: usize, size: u64) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64 ^ (number as u64 + 1);
    let mut data = vec![0; size as usize];
    for word in data.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes()[..word.len()]);
    }
    data
}

impl Encrypted {
    fn make(options: &Options, cipher: Cipher) -> Result<Encrypted, LabError> {
        let volume = protect::nameless(&options.dir, cipher.name())?;
        let mut out = BufWriter::with_capacity(1 << 20, volume);
        let (mut starts, mut keys, mut at) = (Vec::new(), Vec::new(), 0);
        for (number, file) in options.tree.files.iter().enumerate() {
            let key = FileKey::new(cipher, number as u32)?;
            let mut data = plaintext(number, file.size);
            data.resize(data.len().next_multiple_of(UNIT), 0);
            key.encrypt(&mut data, 0)?;
            out.write_all(&data).tried(|| format!("writing to {}", options.dir.display()))?;
            starts.push(at);
            keys.push(key);
            at += data.len() as u64;
        }
        let volume =
            out.into_inner().map_err(std::io::IntoInnerError::into_error).tried(|| "writing the tree".into())?;
        Ok(Encrypted { volume, starts, keys })
    }

    fn plans(&self, tree: &App, pool: &PreadPool) -> Result<Vec<Plan>, LabError> {
        let source = protect::source(&self.volume, pool, Cold::PageCacheDropped)?;
        let plans = tree.files.iter().enumerate().map(|(i, file)| {
            let room = file.size.next_multiple_of(UNIT as u64);
            let plan = Plan::new(Arc::new(Linear::new(source.clone(), self.starts[i], room)), file.size);
            self.keys[i].step().map_or(plan.clone(), |step| plan.step(step))
        });
        Ok(plans.collect())
    }
}

/// Archives the tree with `jobs` jobs that take one file after the other, each into an archive of its own.
fn archive<W: Write + Send>(
    tree: &App,
    plans: &[Plan],
    runner: &Runner,
    jobs: usize,
    sink: impl Fn() -> std::io::Result<W> + Sync,
) -> Result<(Duration, Vec<W>), LabError> {
    let next = AtomicUsize::new(0);
    let begin = Instant::now();
    let job = || -> Result<W, LabError> {
        let mut archive = Archive::new(sink().tried(|| "opening the archive".into())?);
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            let Some(file) = tree.files.get(i) else { break };
            archive.file(&file.name, file.size).tried(|| "writing the archive".into())?;
            let opened = runner.engine.open(plans[i].clone());
            let reader = opened.reader();
            let mut at = 0;
            while at < file.size {
                let lent = reader.lend(at, 1 << 20).map_err(|e| LabError::Read(e.to_string()))?;
                let lent = lent.ok_or_else(|| LabError::Read(format!("{} ends at {at}", file.name)))?;
                archive.data(&lent).tried(|| "writing the archive".into())?;
                at += lent.len() as u64;
            }
            if file.size == 0 {
                archive.data(&[]).tried(|| "writing the archive".into())?;
            }
        }
        archive.finish().tried(|| "writing the archive".into())
    };
    let sinks = std::thread::scope(|scope| {
        let start = |_| std::thread::Builder::new().spawn_scoped(scope, job);
        // Fewer jobs than asked for would be another experiment.
        let started = (0..jobs).map(start).collect::<std::io::Result<Vec<_>>>();
        let threads = started.tried(|| "starting the archiving threads".into()).inspect_err(|_| {
            // Those that were started find nothing more to do.
            next.store(tree.files.len(), Ordering::Relaxed);
        })?;
        let joined = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err(LabError::Read("an archiving thread panicked".into()))));
        joined.collect::<Result<Vec<W>, LabError>>()
    })?;
    Ok((begin.elapsed(), sinks))
}

/// A sink that keeps the archive's SHA-256 only.
struct Digesting(Hasher);

impl Write for Digesting {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// One archive without measuring, whose digest must be that of the plaintext's archive.
fn check(tree: &App, encrypted: &Encrypted, runner: &Runner, pool: &PreadPool) -> Result<(), LabError> {
    let mut wanted = Archive::new(Digesting(Hasher::new(HashAlg::Sha256)));
    for (i, file) in tree.files.iter().enumerate() {
        wanted.file(&file.name, file.size).tried(|| "hashing".into())?;
        wanted.data(&plaintext(i, file.size)).tried(|| "hashing".into())?;
    }
    let wanted = wanted.finish().tried(|| "hashing".into())?.0.finalize();
    let sink = || Ok(Digesting(Hasher::new(HashAlg::Sha256)));
    let (_, sinks) = archive(tree, &encrypted.plans(tree, pool)?, runner, 1, sink)?;
    let good = sinks.into_iter().all(|sink| sink.0.finalize() == wanted);
    if good { Ok(()) } else { Err(LabError::Read("the archive differs from the plaintext's".into())) }
}

#[derive(Default)]
struct Series {
    mb_per_s: Vec<f64>,
    scheduler_ns: Vec<f64>,
    queue_ns: Vec<f64>,
    delay_ns: Vec<f64>,
    items: Vec<f64>,
}

/// Runs the experiment.
pub fn run(options: &Options, mut progress: impl FnMut(Progress)) -> Result<Report, LabError> {
    protect::check_directory(&options.dir)?;
    let tree = &options.tree;
    let bytes = tree.bytes();
    let counts = schedstat::counts().unwrap_or(false);
    let pool = PreadPool::new(PreadConfig::new()).tried(|| "starting the reading threads".into())?;
    let mut encrypted = Vec::new();
    for cipher in Cipher::ALL {
        progress(Progress::Encrypting(cipher));
        encrypted.push((cipher, Encrypted::make(options, cipher)?));
    }
    let arms = Arms::set_up()?;
    let runners = &arms.runners;
    // Every arm and every cipher is checked, in pairs as they come.
    let pairs = encrypted.iter().cycle().zip(runners.iter().cycle());
    for ((_, encrypted), runner) in pairs.take(encrypted.len().max(runners.len())) {
        check(tree, encrypted, runner, &pool)?;
    }
    let meanwhile = Meanwhile::begin();
    let mut random = Random::new(options.seed);
    let combinations: Vec<(usize, usize)> =
        (0..encrypted.len()).flat_map(|cipher| options.jobs.iter().map(move |jobs| (cipher, *jobs))).collect();
    let all = options.rounds * combinations.len() * runners.len();
    let mut made = 0;
    let mut series: Vec<Vec<Series>> =
        combinations.iter().map(|_| runners.iter().map(|_| Series::default()).collect()).collect();
    let mut latencies: Vec<Vec<Latencies>> =
        combinations.iter().map(|_| runners.iter().map(|_| Latencies::default()).collect()).collect();
    for _ in 0..options.rounds {
        for (group, (cipher, jobs)) in combinations.iter().enumerate() {
            let encrypted = &encrypted[*cipher].1;
            let mut order: Vec<usize> = (0..runners.len()).collect();
            random.shuffle(&mut order);
            for which in order {
                progress(Progress::Archiving(made, all));
                made += 1;
                protect::make_cold(&encrypted.volume)?;
                let runner = &runners[which];
                let plans = encrypted.plans(tree, &pool)?;
                let (before, waited) = (runner.engine.stats(), runner.run_delay_ns());
                let sink = || Ok(BufWriter::with_capacity(1 << 16, File::options().write(true).open("/dev/null")?));
                let (took, _) = archive(tree, &plans, runner, *jobs, sink)?;
                let stats = runner.engine.stats().since(&before);
                let one = &mut series[group][which];
                one.mb_per_s.push(bytes as f64 / 1e6 / took.as_secs_f64());
                one.scheduler_ns.push((runner.run_delay_ns() - waited) as f64);
                one.queue_ns.push(stats.queue_latency.total_ns() as f64);
                one.delay_ns.push(stats.post_read_delay.total_ns() as f64);
                one.items.push(stats.items_queued as f64);
                latencies[group][which].add(&stats);
            }
        }
    }
    let Disturbance { steal_ms, other_cpu_percent } = meanwhile.end();
    let groups = combinations
        .iter()
        .enumerate()
        .map(|(group, (cipher, jobs))| {
            let cipher = encrypted[*cipher].0;
            let bound_of = |arm: Arm| {
                let bound =
                    runners.iter().position(|r| r.arm.placement == Placement::Bound && r.arm.rank == arm.rank)?;
                (arm.placement == Placement::Unbound).then(|| series[group][bound].mb_per_s.as_slice())
            };
            let arms = arms
                .report(|at, runner| measured(&series[group][at], &latencies[group][at], counts, bound_of(runner.arm)));
            Group { cipher, jobs: *jobs, published: cipher.published(), arms }
        })
        .collect();
    let (files, rounds, seed) = (tree.files.len(), options.rounds, options.seed);
    Ok(Report { files, bytes, rounds, seed, run_delay_counts: counts, steal_ms, other_cpu_percent, groups })
}

/// Latencies of all rounds of one combination and arm: the engine's histograms count over all of its runs.
#[derive(Default)]
struct Latencies {
    p50_us: Vec<f64>,
    p99_us: Vec<f64>,
    completions: Vec<u64>,
}

impl Latencies {
    fn add(&mut self, stats: &EngineStats) {
        let quantile = |q| stats.queue_latency.quantile_ns(q).map(|ns| ns as f64 / 1000.0);
        self.p50_us.extend(quantile(0.5));
        self.p99_us.extend(quantile(0.99));
        self.completions.resize(stats.completions.len(), 0);
        for (sum, n) in self.completions.iter_mut().zip(&stats.completions) {
            *sum += n;
        }
    }
}

fn measured(series: &Series, latencies: &Latencies, counts: bool, bound: Option<&[f64]>) -> Measured {
    let some = |values: &[f64]| (!values.is_empty()).then(|| median(values));
    // Percent of the bound arm in the same round.
    let gain = bound.and_then(|bound| {
        let zero = vec![0.0; bound.len()];
        let gains: Vec<f64> = bound.iter().zip(&series.mb_per_s).map(|(b, u)| (u / b - 1.0) * 100.0).collect();
        paired_change(&zero, &gains)
    });
    Measured {
        mb_per_s: median(&series.mb_per_s),
        gain_over_bound_percent: gain,
        scheduler_latency_us: counts.then(|| median(&series.scheduler_ns) / 1000.0),
        queue_latency_us: median(&series.queue_ns) / 1000.0,
        queue_latency_p50_us: some(&latencies.p50_us),
        queue_latency_p99_us: some(&latencies.p99_us),
        post_read_delay_us: median(&series.delay_ns) / 1000.0,
        items: median(&series.items),
        completions: per_round(&latencies.completions, series.mb_per_s.len()),
        rounds_mb_per_s: series.mb_per_s.clone(),
    }
}
