//! The fscrypt patch's experiment: an archive is made of an encrypted tree, through each queue policy.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use postread::{Linear, Plan};
use postread_blockcrypt::hash::{HashAlg, Hasher};
use postread_io::{CompletionCpu, PreadPool};
use postread_sys::schedstat::{self, SchedStat, ThreadStat};
use serde::Serialize;

use crate::archive::Archive;
use crate::arm::{Arm, ArmReport, Arms, Granted, Placement, Rank, Runner, Snapshot, add};
use crate::cipher::{Cipher, FileKey, UNIT};
use crate::error::{LabError, Tried};
use crate::ledger_pass;
use crate::meanwhile::{Disturbances, Quiet};
use crate::measured::{AppThreads, Measured, Round, Series};
use crate::own_fscrypt::{self, OwnFscrypt};
use crate::protect::{self, Cold};
use crate::statistics::Random;
use crate::verdict::{Question, Verdict, noise_floor, verdicts};
use crate::workload::App;

/// How long a run is at least, unless an option makes it shorter: the tree is archived as often as that takes, cold.
pub const RUN: Duration = Duration::from_millis(500);

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
    /// The ciphers.
    pub ciphers: Vec<Cipher>,
    /// How long a run is at least.
    pub run: Duration,
    /// This program, which measures the kernel's own fscrypt in a process of its own.
    pub program: PathBuf,
    /// The order of arms in each round comes from it.
    pub seed: u64,
}

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The answers.
    pub verdicts: Vec<Verdict>,
    /// Files in the tree.
    pub files: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Rounds.
    pub rounds: usize,
    /// The seed of the order.
    pub seed: u64,
    /// What the system grants.
    pub granted: Granted,
    /// The CPU on which all reads complete, as with a device that has one interrupt.
    pub completion_cpu: u32,
    /// Whether the kernel's counter of scheduler latency counts here; where not, those figures are 0.
    pub run_delay_counts: bool,
    /// What disturbed the experiment.
    pub disturbances: Disturbances,
    /// One entry for each cipher and number of jobs.
    pub groups: Vec<Group>,
    /// This kernel's own fscrypt, with AES-256-XTS on ext4: its queue is as this kernel made it.
    pub own_fscrypt: OwnFscrypt,
}

/// One cipher with one number of jobs.
#[derive(Clone, Debug, Serialize)]
pub struct Group {
    /// The cipher.
    pub cipher: Cipher,
    /// Jobs.
    pub jobs: usize,
    /// How often the tree is archived in a run, each time cold.
    pub passes: usize,
    /// What the patch published for this cipher, unbound against bound.
    pub published: Option<&'static str>,
    /// The arms. Effects are relative to the bound arm.
    pub arms: Vec<ArmReport<Measured>>,
}

/// The tree under one cipher: one file without a name holds all of it, each file starts at a new block.
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
    /// Ledgers are being made: the number and how many there are.
    Accounting(usize, usize),
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

    fn plans(&self, tree: &App, pool: &PreadPool, cpu: u32) -> Result<Vec<Plan>, LabError> {
        let source = protect::source(&self.volume, pool, Cold::PageCacheDropped, CompletionCpu::Cpu(cpu))?;
        let plans = tree.files.iter().enumerate().map(|(i, file)| {
            let room = file.size.next_multiple_of(UNIT as u64);
            let plan = Plan::new(Arc::new(Linear::new(source.clone(), self.starts[i], room)), file.size);
            plan.step(self.keys[i].step())
        });
        Ok(plans.collect())
    }
}

/// Archives the tree with `jobs` jobs that take one file after the other, each into a separate archive.
fn archive<W: Write + Send>(
    tree: &App,
    plans: &[Plan],
    runner: &Runner,
    jobs: usize,
    sink: impl Fn() -> std::io::Result<W> + Sync,
) -> Result<(Duration, Vec<W>, SchedStat), LabError> {
    let next = AtomicUsize::new(0);
    let begin = Instant::now();
    let own_stat = || ThreadStat::current().and_then(|stat| stat.read()).unwrap_or_default();
    let job = || -> Result<(W, SchedStat), LabError> {
        let before = own_stat();
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
        let sink = archive.finish().tried(|| "writing the archive".into())?;
        Ok((sink, own_stat().since(&before)))
    };
    let finished = std::thread::scope(|scope| {
        let start = |_| std::thread::Builder::new().spawn_scoped(scope, job);
        // Fewer jobs than requested would be another experiment.
        let started = (0..jobs).map(start).collect::<std::io::Result<Vec<_>>>();
        let threads = started.tried(|| "starting the archiving threads".into()).inspect_err(|_| {
            // Those that were started find nothing more to do.
            next.store(tree.files.len(), Ordering::Relaxed);
        })?;
        let joined = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err(LabError::Read("an archiving thread panicked".into()))));
        joined.collect::<Result<Vec<(W, SchedStat)>, LabError>>()
    })?;
    let took = begin.elapsed();
    let mut used = SchedStat::default();
    let sinks = finished.into_iter().map(|(sink, stat)| {
        add(&mut used, &stat);
        sink
    });
    Ok((took, sinks.collect(), used))
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
fn check(tree: &App, plans: &[Plan], runner: &Runner) -> Result<(), LabError> {
    let mut wanted = Archive::new(Digesting(Hasher::new(HashAlg::Sha256)));
    for (i, file) in tree.files.iter().enumerate() {
        wanted.file(&file.name, file.size).tried(|| "hashing".into())?;
        wanted.data(&plaintext(i, file.size)).tried(|| "hashing".into())?;
    }
    let wanted = wanted.finish().tried(|| "hashing".into())?.0.finalize();
    let sink = || Ok(Digesting(Hasher::new(HashAlg::Sha256)));
    let (_, sinks, _) = archive(tree, plans, runner, 1, sink)?;
    let good = sinks.into_iter().all(|sink| sink.0.finalize() == wanted);
    if good { Ok(()) } else { Err(LabError::Read("the archive differs from the plaintext's".into())) }
}

/// The arms: both placements at the best rank that is granted, an A/A twin, and inline.
fn arms(granted: &Granted) -> Vec<Arm> {
    let arm = |placement| Arm::new(placement, granted.best_rank, granted.completers);
    vec![
        arm(Placement::Bound),
        arm(Placement::Unbound),
        Arm { twin: true, ..arm(Placement::Bound) },
        Arm::new(Placement::Inline, Rank::Normal, granted.completers),
    ]
}

/// Runs the experiment.
pub fn run(options: &Options, mut progress: impl FnMut(Progress)) -> Result<Report, LabError> {
    protect::check_directory(&options.dir)?;
    let tree = &options.tree;
    let bytes = tree.bytes();
    let run_delay_counts = schedstat::counts().unwrap_or(false);
    let completion_cpu = postread_sys::affinity::current().ok().and_then(|cpus| cpus.first()).unwrap_or(0);
    let mut encrypted = Vec::new();
    for cipher in &options.ciphers {
        progress(Progress::Encrypting(*cipher));
        encrypted.push((*cipher, Encrypted::make(options, *cipher)?));
    }
    let granted = Granted::probe();
    let arms = Arms::set_up(arms(&granted))?;
    let runners = &arms.runners;
    let plans = |which: usize, cipher: usize| {
        encrypted[cipher].1.plans(tree, arms.pool(runners[which].arm.completers), completion_cpu)
    };
    // Every arm and every cipher is checked, in pairs as they come.
    let pairs = (0..encrypted.len()).cycle().zip((0..runners.len()).cycle());
    for (cipher, which) in pairs.take(encrypted.len().max(runners.len())) {
        check(tree, &plans(which, cipher)?, &runners[which])?;
    }
    let once = |which: usize, cipher: usize, jobs: usize| {
        protect::make_cold(&encrypted[cipher].1.volume)?;
        let sink = || Ok(BufWriter::with_capacity(1 << 16, File::options().write(true).open("/dev/null")?));
        let (took, _, used) = archive(tree, &plans(which, cipher)?, &runners[which], jobs, sink)?;
        Ok::<_, LabError>((took, used))
    };
    let combinations: Vec<(usize, usize)> =
        (0..encrypted.len()).flat_map(|cipher| options.jobs.iter().map(move |jobs| (cipher, *jobs))).collect();
    // As often as a run of the shortest length takes, the same number for all arms.
    let mut passes = Vec::new();
    for (cipher, jobs) in &combinations {
        let (took, _) = once(0, *cipher, *jobs)?;
        passes.push((options.run.as_secs_f64() / took.as_secs_f64().max(1e-6)).ceil().clamp(1.0, 1000.0) as usize);
    }
    let run = |which: usize, group: usize, passes: usize| {
        let (cipher, jobs) = combinations[group];
        let before = runners[which].snapshot();
        let (mut took, mut readers) = (Duration::ZERO, SchedStat::default());
        for _ in 0..passes {
            let (one, used) = once(which, cipher, jobs)?;
            took += one;
            add(&mut readers, &used);
        }
        let counted = runners[which].snapshot().since(&before);
        match counted.stats.failed_bios {
            0 => Ok((took, AppThreads { readers, ..AppThreads::default() }, counted)),
            failed => Err(LabError::Read(format!("{failed} bios failed"))),
        }
    };
    let mut random = Random::new(options.seed);
    let all = options.rounds * combinations.len() * runners.len();
    let mut quiet = Quiet::new(all);
    let mut made = 0;
    let mut series: Vec<Vec<Series>> =
        combinations.iter().map(|_| runners.iter().map(|_| Series::default()).collect()).collect();
    for _ in 0..options.rounds {
        for group in 0..combinations.len() {
            let mut order: Vec<usize> = (0..runners.len()).collect();
            random.shuffle(&mut order);
            for which in order {
                progress(Progress::Archiving(made, all));
                made += 1;
                let (took, used, counted) = quiet.run(|| run(which, group, passes[group]))?;
                let mut round = Round::default();
                round.count(&counted, &used);
                round.add("mb_per_s", (bytes * passes[group] as u64) as f64 / 1e6 / took.as_secs_f64());
                series[group][which].push(round);
            }
        }
    }
    let mut ledgers = Vec::new();
    for (group, series) in series.iter_mut().enumerate() {
        let mut of_group = Vec::new();
        for (which, runner) in runners.iter().enumerate() {
            progress(Progress::Accounting(group * runners.len() + which, combinations.len() * runners.len()));
            let first: Snapshot = runner.snapshot();
            let pass = || ledger_pass::run(runner, || run(which, group, 1).map(|_| ()));
            of_group.push((!runner.arm.twin).then(pass).transpose()?);
            // Quantiles are of this run: the engine's histograms are over all groups.
            series[which].counted(&runner.snapshot().since(&first));
        }
        ledgers.push(of_group);
    }
    let most = options.jobs.iter().copied().max().unwrap_or(1);
    let own_fscrypt = own_fscrypt::run(&options.dir, &options.program, tree, options.rounds, most);
    let verdicts = questions(&combinations, &encrypted, &granted, &arms, &series);
    let groups = combinations
        .iter()
        .enumerate()
        .map(|(group, (cipher, jobs))| {
            let cipher = encrypted[*cipher].0;
            let arms = arms.report(|at, runner| {
                let bound = (runner.arm != runners[0].arm).then(|| &series[group][0]);
                series[group][at].measured("mb_per_s", bound, ledgers[group][at].clone())
            });
            Group { cipher, jobs: *jobs, passes: passes[group], published: cipher.published(), arms }
        })
        .collect();
    Ok(Report {
        verdicts,
        files: tree.files.len(),
        bytes,
        rounds: options.rounds,
        seed: options.seed,
        granted,
        completion_cpu,
        run_delay_counts,
        disturbances: quiet.report(),
        groups,
        own_fscrypt,
    })
}

fn questions(
    combinations: &[(usize, usize)],
    encrypted: &[(Cipher, Encrypted)],
    granted: &Granted,
    arms: &Arms,
    series: &[Vec<Series>],
) -> Vec<Verdict> {
    let arm = |placement| Arm::new(placement, granted.best_rank, granted.completers);
    let (bound, unbound) = (arm(Placement::Bound), arm(Placement::Unbound));
    let inline = Arm::new(Placement::Inline, Rank::Normal, granted.completers);
    let mut asked = Vec::new();
    for (group, (cipher, jobs)) in combinations.iter().enumerate() {
        let of = |arm: Arm| arms.place(arm).map_or(&[][..], |at| series[group][at].of("mb_per_s"));
        let floor = noise_floor(of(Arm { twin: true, ..bound }), of(bound));
        let title = format!("{}, {jobs} job{}", encrypted[*cipher].0.name(), if *jobs == 1 { "" } else { "s" });
        for (what, (first, before), (second, after)) in [
            ("throughput", ("bound", bound), ("unbound", unbound)),
            ("throughput, inline against bound", ("bound", bound), ("inline", inline)),
        ] {
            asked.push(Question {
                question: format!("{title}: {what}"),
                first: (first, of(before)),
                second: (second, of(after)),
                higher_is_better: true,
                better: "faster",
                noise_floor_percent: floor,
            });
        }
    }
    verdicts(&asked)
}
