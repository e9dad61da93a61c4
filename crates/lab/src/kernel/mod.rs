//! The patches themselves, on a real kernel: Linux under User-Mode Linux, with its own fs-verity and fscrypt.
//!
//! Kernel parameters of that kernel choose the queues (see `tests/uml/build`): each boot is one arm, and the boots of a
//! round come in random order. Apps start and the tree is archived on ext4 and f2fs, by processes, each time once without
//! tracing, for the times, and once with it, for the ledger.

pub(crate) mod guest;
mod text;
mod uml;

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;

use postread_ledger::{Ledger, Totals, account, text as trace_text};
use serde::Serialize;

pub use guest::{ClassStat, Experiment, main as guest_main};

use crate::arm::Placement;
use crate::error::{LabError, Tried};
use crate::meanwhile::{Disturbance, Meanwhile};
use crate::scratch::Scratch;
use crate::statistics::{Random, median};
use crate::verdict::{Question, Verdict, noise_floor, verdicts};
use crate::workload::{self, App};
use guest::{Orders, RunRecord};

/// How to run the experiment.
#[derive(Clone, Debug)]
pub struct Options {
    /// A directory for the disks and what the guest writes, about 1 GiB.
    pub dir: PathBuf,
    /// The kernel; `None` to look for one.
    pub kernel: Option<PathBuf>,
    /// This program, which runs in the guest too.
    pub program: PathBuf,
    /// The apps.
    pub apps: Vec<App>,
    /// The tree.
    pub tree: App,
    /// Boots of each arm.
    pub rounds: usize,
    /// The order comes from it.
    pub seed: u64,
}

/// An arm: the queue of fs-verity, and that of fscrypt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct KernelArm {
    /// Bound or unbound.
    pub placement: Placement,
    /// `WQ_HIGHPRI` or not.
    pub high_priority: bool,
    /// The second of two identical arms: what they differ by is noise.
    pub twin: bool,
}

impl KernelArm {
    /// All of them.
    pub const ALL: [KernelArm; 5] = [
        KernelArm { placement: Placement::Unbound, high_priority: true, twin: false },
        KernelArm { placement: Placement::Bound, high_priority: true, twin: false },
        KernelArm { placement: Placement::Unbound, high_priority: false, twin: false },
        KernelArm { placement: Placement::Bound, high_priority: false, twin: false },
        KernelArm { placement: Placement::Bound, high_priority: true, twin: true },
    ];

    /// Its name in tables.
    pub fn name(&self) -> String {
        let placement = if self.placement == Placement::Bound { "bound" } else { "unbound" };
        let rank = if self.high_priority { "high priority" } else { "normal" };
        format!("{placement}, {rank}{}", if self.twin { " (A/A twin)" } else { "" })
    }

    /// As kernel parameters.
    fn parameters(&self) -> Vec<String> {
        let unbound = self.placement == Placement::Unbound;
        let (verity, crypt) = (u8::from(unbound), u8::from(!unbound));
        let normal = u8::from(!self.high_priority);
        vec![
            format!("verity_unbound={verity}"),
            format!("crypt_bound={crypt}"),
            format!("verity_normal={normal}"),
            format!("crypt_normal={normal}"),
        ]
    }
}

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The guest kernel's version.
    pub guest_kernel: String,
    /// CPUs of the guest.
    pub cpus: usize,
    /// Boots of each arm.
    pub rounds: usize,
    /// The seed of the order.
    pub seed: u64,
    /// File systems that could not be made, and why.
    pub missing: Vec<(String, String)>,
    /// Boots that were repeated because the machine was busy meanwhile.
    pub repeated: usize,
    /// Time that the hypervisor took from this machine during the boots that count, in milliseconds.
    pub steal_ms: f64,
    /// Share of this machine's CPUs that others used during those, in percent: the median over boots.
    pub other_cpu_percent: f64,
    /// One entry for each experiment and file system.
    pub groups: Vec<Group>,
    /// The answers.
    pub verdicts: Vec<Verdict>,
}

/// An experiment on a file system.
#[derive(Clone, Debug, Serialize)]
pub struct Group {
    /// The experiment.
    pub experiment: Experiment,
    /// The file system.
    pub file_system: String,
    /// Whether its queue is the one that the kernel parameters move.
    pub moved: bool,
    /// One entry for each arm.
    pub arms: Vec<Measured>,
}

/// The figures of an arm: medians over boots.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// The arm's name.
    pub name: String,
    /// What it is.
    #[serde(flatten)]
    pub arm: KernelArm,
    /// Time of a run, in milliseconds: all apps started once, or the tree archived.
    pub wall_ms: f64,
    /// `run_delay` of workers: the patches' figure. In milliseconds, without tracing.
    pub workers_latency_ms: f64,
    /// `run_delay` of the processes of the workload.
    pub apps_latency_ms: f64,
    /// `run_delay` of other kernel threads.
    pub kernel_threads_latency_ms: f64,
    /// All three together.
    pub all_threads_latency_ms: f64,
    /// CPU time of workers, in milliseconds.
    pub workers_cpu_ms: f64,
    /// From queueing items to their start, summed over items, in milliseconds, while traced.
    pub items_wait_ms: f64,
    /// Items.
    pub items: f64,
    /// Share of the wait that no state explains, in percent: the largest of all boots.
    pub unexplained_percent: f64,
    /// The ledger of the boot whose wait is the median.
    pub ledger: Totals,
    /// Time of each boot, in milliseconds.
    pub rounds_ms: Vec<f64>,
    /// The patches' figure of each boot.
    pub rounds_workers_latency_ms: Vec<f64>,
    /// Items' wait of each boot.
    pub rounds_items_wait_ms: Vec<f64>,
}

/// What happened, for progress displays.
#[derive(Clone, Debug)]
pub enum Progress {
    /// The guest makes its file systems.
    Making,
    /// A boot is being measured: its number and how many there are.
    Boot(usize, usize),
}

/// The runs of an experiment on a file system in an arm, a value for each boot.
#[derive(Clone, Debug, Default)]
struct Series {
    wall_ms: Vec<f64>,
    workers: Vec<f64>,
    apps: Vec<f64>,
    kernel: Vec<f64>,
    workers_cpu: Vec<f64>,
    totals: Vec<Totals>,
}

/// A boot during which others used more of this machine than this, in percent, is repeated.
const BUSY_PERCENT: f64 = 15.0;

/// Runs the experiment.
pub fn run(options: &Options, mut progress: impl FnMut(Progress)) -> Result<Report, LabError> {
    let kernel = uml::find(options.kernel.as_deref())?;
    let scratch = Scratch::new(&options.dir)?;
    let uml = uml::Uml::new(&kernel, &scratch)?;
    fs::create_dir(scratch.path("out")).tried(|| "making a directory for the guest".into())?;
    fs::copy(&options.program, scratch.path("out/postread")).tried(|| "copying this program for the guest".into())?;
    scratch.write("out/workload", workload::format(&options.apps).as_bytes())?;
    scratch.write("out/tree", workload::format(std::slice::from_ref(&options.tree)).as_bytes())?;
    scratch.write("out/key", &[b'k'; 64])?;
    let bytes: u64 = options.apps.iter().map(App::bytes).sum::<u64>() + options.tree.bytes();
    for disk in ["ext4", "f2fs"] {
        let file = fs::File::create(scratch.path(disk)).tried(|| "making the guest's disks".into())?;
        file.set_len(bytes * 5 / 4 + (256 << 20)).tried(|| "making the guest's disks".into())?;
    }
    let cpus = postread_sys::affinity::current().map_or(1, |cpus| cpus.len()).clamp(1, 8);
    let ncpus = format!("ncpus={cpus}");
    progress(Progress::Making);
    uml.run(include_str!("scripts/make.sh"), std::slice::from_ref(&ncpus), &scratch)?;
    let made = fs::read_to_string(scratch.path("out/made")).tried(|| "reading what the guest made".into())?;
    let made: Vec<(String, String)> =
        made.lines().filter_map(|line| line.split_once(' ')).map(|(fs, how)| (fs.into(), how.into())).collect();
    let file_systems: Vec<String> = made.iter().filter(|(_, how)| how == "ok").map(|(fs, _)| fs.clone()).collect();
    let missing: Vec<(String, String)> = made.into_iter().filter(|(_, how)| how != "ok").collect();
    if file_systems.is_empty() {
        let why: Vec<String> = missing.iter().map(|(fs, why)| format!("{fs}: {why}")).collect();
        return Err(LabError::Kernel(format!("the guest could make no file system: {}", why.join("; "))));
    }

    let mut random = Random::new(options.seed);
    let mut series: HashMap<(Experiment, String, usize), Series> = HashMap::new();
    let (mut booted, mut repeated, mut steal_ms, mut others) = (0, 0, 0.0, Vec::new());
    let all = options.rounds * KernelArm::ALL.len();
    for round in 0..options.rounds {
        let mut order: Vec<usize> = (0..KernelArm::ALL.len()).collect();
        random.shuffle(&mut order);
        for which in order {
            // The same seed for all arms of a round: they run the same things in the same order.
            let seed = options.seed ^ (round as u64 + 1) << 32;
            let orders = Orders { seed, jobs: cpus, file_systems: file_systems.clone() };
            let orders = serde_json::to_vec(&orders).map_err(|e| LabError::Kernel(e.to_string()))?;
            scratch.write("out/orders", &orders)?;
            let mut parameters = KernelArm::ALL[which].parameters();
            parameters.push(ncpus.clone());
            loop {
                progress(Progress::Boot(booted, all));
                let meanwhile = Meanwhile::begin_with_children();
                uml.run(include_str!("scripts/measure.sh"), &parameters, &scratch)?;
                let Disturbance { steal_ms: steal, other_cpu_percent } = meanwhile.end();
                if other_cpu_percent > BUSY_PERCENT && repeated < options.rounds {
                    repeated += 1;
                    continue;
                }
                steal_ms += steal;
                others.push(other_cpu_percent);
                break;
            }
            booted += 1;
            let results = fs::read(scratch.path("out/results")).tried(|| "reading the guest's results".into())?;
            let records: Vec<RunRecord> =
                serde_json::from_slice(&results).map_err(|e| LabError::Kernel(e.to_string()))?;
            for record in records {
                let key = (record.experiment, record.file_system.clone(), which);
                series.entry(key).or_default().add(&record, &scratch)?;
            }
        }
    }
    let groups = groups(&file_systems, &series);
    let verdicts = questions(&file_systems, &series);
    let console = fs::read_to_string(scratch.path("out/version")).unwrap_or_default();
    Ok(Report {
        guest_kernel: console.trim().to_owned(),
        cpus,
        rounds: options.rounds,
        seed: options.seed,
        missing,
        repeated,
        steal_ms,
        other_cpu_percent: median(&others),
        groups,
        verdicts,
    })
}

/// Whether the kernel parameters move the queue of an experiment: f2fs decrypts on a queue of its own.
fn moved(experiment: Experiment, file_system: &str) -> bool {
    experiment == Experiment::AppStart || file_system != "f2fs"
}

/// The functions of the items of an experiment.
fn functions(experiment: Experiment) -> &'static [&'static str] {
    match experiment {
        Experiment::AppStart => &["verity_work", "f2fs_verify_bio", "ext4_verity_work", "btrfs_verity_work"],
        // ext4 before and after Linux 5.x names; f2fs's work decrypts, decompresses and verifies.
        Experiment::Tar => &["decrypt_work", "f2fs_post_read_work"],
    }
}

impl Series {
    fn add(&mut self, record: &RunRecord, scratch: &Scratch) -> Result<(), LabError> {
        let ms = |ns: u64| ns as f64 / 1e6;
        if !record.traced {
            self.wall_ms.push(ms(record.wall_ns));
            self.workers.push(ms(record.workers.run_delay_ns));
            self.apps.push(ms(record.apps.run_delay_ns));
            self.kernel.push(ms(record.kernel_threads.run_delay_ns));
            self.workers_cpu.push(ms(record.workers.run_time_ns));
            return Ok(());
        }
        let mut all = Ledger::default();
        for trace in &record.traces {
            let path = scratch.path("out").join(trace);
            let text = fs::read(&path).tried(|| "reading a trace of the guest".into())?;
            let _ = fs::remove_file(&path);
            let wanted = functions(record.experiment);
            let ledger = account(&trace_text::parse(&String::from_utf8_lossy(&text)), |name| wanted.contains(&name));
            all.lost_events += ledger.lost_events;
            all.items.extend(ledger.items);
        }
        if all.lost_events > 0 {
            return Err(LabError::Kernel(format!("the guest's trace lost {} events", all.lost_events)));
        }
        self.totals.push(all.totals());
        Ok(())
    }

    fn wait_ms(&self) -> Vec<f64> {
        self.totals.iter().map(|totals| totals.wait_ns as f64 / 1e6).collect()
    }

    fn all_ms(&self) -> Vec<f64> {
        self.workers.iter().zip(&self.apps).zip(&self.kernel).map(|((a, b), c)| a + b + c).collect()
    }

    fn measured(&self, arm: KernelArm) -> Measured {
        let wait = self.wait_ms();
        let middle = median(&wait);
        let nearest = self.totals.iter().min_by(|a, b| {
            let distance = |totals: &Totals| (totals.wait_ns as f64 / 1e6 - middle).abs();
            distance(a).total_cmp(&distance(b))
        });
        let share = |totals: &Totals| {
            let unexplained = totals.parts.get(postread_ledger::Part::Unexplained);
            100.0 * unexplained as f64 / totals.wait_ns.max(1) as f64
        };
        let items: Vec<f64> = self.totals.iter().map(|totals| totals.items as f64).collect();
        Measured {
            name: arm.name(),
            arm,
            wall_ms: median(&self.wall_ms),
            workers_latency_ms: median(&self.workers),
            apps_latency_ms: median(&self.apps),
            kernel_threads_latency_ms: median(&self.kernel),
            all_threads_latency_ms: median(&self.all_ms()),
            workers_cpu_ms: median(&self.workers_cpu),
            items_wait_ms: middle,
            items: median(&items),
            unexplained_percent: self.totals.iter().map(share).fold(0.0, f64::max),
            ledger: nearest.copied().unwrap_or_default(),
            rounds_ms: self.wall_ms.clone(),
            rounds_workers_latency_ms: self.workers.clone(),
            rounds_items_wait_ms: wait,
        }
    }
}

const EXPERIMENTS: [Experiment; 2] = [Experiment::AppStart, Experiment::Tar];

fn groups(file_systems: &[String], series: &HashMap<(Experiment, String, usize), Series>) -> Vec<Group> {
    let mut groups = Vec::new();
    for experiment in EXPERIMENTS {
        for file_system in file_systems {
            let arm = |(at, arm): (usize, &KernelArm)| {
                series.get(&(experiment, file_system.clone(), at)).map(|series| series.measured(*arm))
            };
            let arms = KernelArm::ALL.iter().enumerate().filter_map(arm).collect();
            let moved = moved(experiment, file_system);
            groups.push(Group { experiment, file_system: file_system.clone(), moved, arms });
        }
    }
    groups
}

type Figure = (&'static str, &'static str, fn(&Series) -> Vec<f64>);

const FIGURES: [Figure; 3] = [
    ("time", "faster", |series| series.wall_ms.clone()),
    ("workers' scheduler latency, the patches' figure", "less", |series| series.workers.clone()),
    ("items' wait from queueing to start", "less", Series::wait_ms),
];

fn questions(file_systems: &[String], series: &HashMap<(Experiment, String, usize), Series>) -> Vec<Verdict> {
    let place = |arm: KernelArm| KernelArm::ALL.iter().position(|other| *other == arm).unwrap_or(0);
    let mut values = Vec::new();
    for (figure, better, of) in FIGURES {
        for experiment in EXPERIMENTS {
            for file_system in file_systems {
                let of = |placement, high_priority, twin| {
                    let at = place(KernelArm { placement, high_priority, twin });
                    series.get(&(experiment, file_system.clone(), at)).map(of).unwrap_or_default()
                };
                let floor = noise_floor(&of(Placement::Bound, true, true), &of(Placement::Bound, true, false));
                for (high, rank) in [(true, "high priority"), (false, "normal")] {
                    let question = format!("{}, {file_system}, {rank}: {figure}", title(experiment));
                    let pair = (of(Placement::Unbound, high, false), of(Placement::Bound, high, false));
                    values.push((question, better, pair, floor));
                }
            }
        }
    }
    let asked: Vec<Question<'_>> = values
        .iter()
        .map(|(question, better, (unbound, bound), floor)| Question {
            question: question.clone(),
            first: ("unbound", unbound),
            second: ("bound", bound),
            higher_is_better: false,
            better,
            noise_floor_percent: *floor,
        })
        .collect();
    verdicts(&asked)
}

fn title(experiment: Experiment) -> &'static str {
    match experiment {
        Experiment::AppStart => "app-start (fs-verity)",
        Experiment::Tar => "tar (fscrypt)",
    }
}
