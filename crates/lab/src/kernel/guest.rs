//! What runs inside the guest kernel: makes the files, replays workloads as processes, reads the kernel's counters.
//!
//! Threads of one guest process share a CPU, so that each reader is a process. They wait at a gate: each writes a line
//! when it is ready and continues when it reads one.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::archive::Archive;
use crate::error::{LabError, Tried};
use crate::replay::think;
use crate::statistics::Random;
use crate::workload::{self, App};

/// Where the guest sees the directory that it shares with the host.
const OUT: &str = "/mnt/out";
const TRACING: &str = "/sys/kernel/tracing";
/// How often the tree is archived in a run, each time cold.
const PASSES: usize = 4;

/// The host's request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Orders {
    /// The order of runs comes from it.
    pub(super) seed: u64,
    /// Processes that share the tree.
    pub(super) jobs: usize,
    /// File systems to measure on.
    pub(super) file_systems: Vec<String>,
}

/// An experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Experiment {
    /// The fs-verity patch's.
    AppStart,
    /// The fscrypt patch's.
    Tar,
}

/// Counters of a class of threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassStat {
    /// Runnable and not running.
    pub run_delay_ns: u64,
    /// Running.
    pub run_time_ns: u64,
}

/// One run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct RunRecord {
    pub(super) experiment: Experiment,
    pub(super) file_system: String,
    pub(super) traced: bool,
    pub(super) wall_ns: u64,
    pub(super) workers: ClassStat,
    pub(super) kernel_threads: ClassStat,
    pub(super) apps: ClassStat,
    /// The file system's queue of this experiment, as traces name its function.
    pub(super) traces: Vec<String>,
}

/// The entry point of the guest's processes.
pub fn main(arguments: &[String]) -> Result<(), LabError> {
    let argument = |at: usize| arguments.get(at).map(String::as_str).unwrap_or_default();
    let number = |at: usize| argument(at).parse::<usize>().map_err(|_| usage());
    match argument(0) {
        "make-apps" => make_apps(Path::new(argument(1))),
        "make-tree" => make_tree(Path::new(argument(1))),
        "measure" => measure(),
        "measure-own" => measure_own(number(1)?, number(2)?),
        "reader" => reader(Path::new(argument(1)), number(2)?, number(3)?),
        "burner" => burner(number(1)?),
        "archiver" => archiver(Path::new(argument(1)), number(2)?, number(3)?),
        _ => Err(usage()),
    }
}

fn usage() -> LabError {
    LabError::Kernel("`lab guest` is for the guest kernel that `lab kernel` boots".into())
}

fn out(name: &str) -> PathBuf {
    Path::new(OUT).join(name)
}

fn workload(name: &str) -> Result<Vec<App>, LabError> {
    Ok(workload::parse(&fs::read_to_string(out(name)).tried(|| format!("reading {name}"))?)?)
}

fn fill(path: &Path, size: u64, seed: u64) -> Result<(), LabError> {
    let what = || format!("writing {}", path.display());
    let mut file = BufWriter::with_capacity(1 << 20, File::create(path).tried(what)?);
    let (mut left, mut state) = (size, 0x9e37_79b9_7f4a_7c15u64 ^ (seed + 1));
    while left > 0 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let n = left.min(8);
        file.write_all(&state.to_le_bytes()[..n as usize]).tried(what)?;
        left -= n;
    }
    file.flush().tried(what)
}

fn make_apps(dir: &Path) -> Result<(), LabError> {
    for (number, app) in workload("workload")?.iter().enumerate() {
        for (file, made) in app.files.iter().enumerate() {
            fill(&dir.join(format!("{number}-{file}")), made.size, (number << 8 | file) as u64)?;
        }
    }
    Ok(())
}

fn make_tree(dir: &Path) -> Result<(), LabError> {
    for (number, file) in tree()?.files.iter().enumerate() {
        fill(&dir.join(number.to_string()), file.size, number as u64)?;
    }
    Ok(())
}

fn tree() -> Result<App, LabError> {
    workload("tree")?.pop().ok_or_else(usage)
}

/// A process of the experiment, as its parent sees it.
struct Process {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Process {
    fn start(arguments: &[String]) -> Result<Process, LabError> {
        let what = || format!("starting {}", arguments.join(" "));
        let mut command = Command::new(out("postread"));
        command.args(["lab", "guest"]).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().tried(what)?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (input, output) = pipes.ok_or_else(usage)?;
        let mut process = Process { child, input, output: BufReader::new(output) };
        process.line()?;
        Ok(process)
    }

    fn go(&mut self) -> Result<(), LabError> {
        self.input.write_all(b"\n").tried(|| "opening the gate".into())
    }

    fn line(&mut self) -> Result<String, LabError> {
        let mut line = String::new();
        self.output.read_line(&mut line).tried(|| "waiting for a process".into())?;
        match line.is_empty() {
            false => Ok(line),
            true => Err(LabError::Read("a process of the workload failed".into())),
        }
    }

    /// Its counters, once it has ended.
    fn finish(mut self) -> Result<ClassStat, LabError> {
        drop(self.input);
        let mut text = String::new();
        self.output.read_to_string(&mut text).tried(|| "waiting for a process".into())?;
        let _ = self.child.wait();
        let numbers: Vec<u64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        match numbers[..] {
            [run_time_ns, run_delay_ns] => Ok(ClassStat { run_delay_ns, run_time_ns }),
            _ => Err(LabError::Read("a process of the workload failed".into())),
        }
    }
}

/// In a process: ready, then waits for its turn. False when there is none any more.
fn gate() -> Result<bool, LabError> {
    let what = || "the gate".to_owned();
    io::stdout().write_all(b"ready\n").and_then(|()| io::stdout().flush()).tried(what)?;
    let mut line = String::new();
    Ok(io::stdin().read_line(&mut line).tried(what)? > 0)
}

fn own_stat() -> Result<ClassStat, LabError> {
    let text = fs::read_to_string("/proc/self/schedstat").tried(|| "reading schedstat".into())?;
    stat(&text).ok_or_else(usage)
}

fn stat(text: &str) -> Option<ClassStat> {
    let found = postread_sys::schedstat::SchedStat::parse(text)?;
    Some(ClassStat { run_delay_ns: found.run_delay_ns, run_time_ns: found.run_time_ns })
}

/// Prints what this process used between the gate and its end.
fn report(before: ClassStat) -> Result<(), LabError> {
    let after = own_stat()?;
    let (time, delay) = (after.run_time_ns - before.run_time_ns, after.run_delay_ns - before.run_delay_ns);
    writeln!(io::stdout(), "{time} {delay}").tried(|| "reporting".into())
}

fn reader(dir: &Path, number: usize, thread: usize) -> Result<(), LabError> {
    let apps = workload("workload")?;
    let app = apps.get(number).ok_or_else(usage)?;
    let reads = app.threads.get(thread).ok_or_else(usage)?;
    let open = |file: usize| File::open(dir.join(format!("{number}-{file}")));
    let files = (0..app.files.len()).map(open).collect::<io::Result<Vec<_>>>().tried(|| "opening the files".into())?;
    let mut buf = vec![0; reads.iter().map(|read| read.len).max().unwrap_or(0) as usize];
    if !gate()? {
        return Ok(());
    }
    let before = own_stat()?;
    for read in reads {
        think(read.think_us, app.compute_permille);
        let buf = &mut buf[..read.len as usize];
        files[read.file as usize].read_exact_at(buf, read.offset).map_err(|e| LabError::Read(e.to_string()))?;
    }
    writeln!(io::stdout(), "done").and_then(|()| io::stdout().flush()).tried(|| "reporting".into())?;
    report(before)
}

/// Computes for a share of the time until its input ends.
fn burner(permille: usize) -> Result<(), LabError> {
    if !gate()? {
        return Ok(());
    }
    let before = own_stat()?;
    let ended = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut line = String::new();
            let _ = io::stdin().read_line(&mut line);
            ended.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        while !ended.load(std::sync::atomic::Ordering::Relaxed) {
            think(1000, permille as u32);
        }
    });
    report(before)
}

/// Archives every `jobs`th file of the tree, once for each time that the gate opens.
fn archiver(dir: &Path, job: usize, jobs: usize) -> Result<(), LabError> {
    let tree = tree()?;
    let what = || "archiving".to_owned();
    let mut buf = vec![0; 128 << 10];
    let before = own_stat()?;
    while gate()? {
        let mut archive = Archive::new(BufWriter::new(File::create("/dev/null").tried(what)?));
        for (number, file) in tree.files.iter().enumerate().skip(job).step_by(jobs) {
            archive.file(&file.name, file.size).tried(what)?;
            let mut open = File::open(dir.join(number.to_string())).tried(what)?;
            loop {
                match open.read(&mut buf).map_err(|e| LabError::Read(e.to_string()))? {
                    0 => break,
                    n => archive.data(&buf[..n]).tried(what)?,
                }
            }
            if file.size == 0 {
                archive.data(&[]).tried(what)?;
            }
        }
        archive.finish().tried(what)?;
    }
    report(before)
}

/// The counters of kernel threads: workers and others.
fn kernel_threads() -> HashMap<u32, (bool, ClassStat)> {
    let mut found = HashMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        let read = |name: &str| fs::read_to_string(entry.path().join(name)).unwrap_or_default();
        // A kernel thread has no command line.
        if !read("cmdline").is_empty() {
            continue;
        }
        if let Some(stat) = stat(&read("schedstat")) {
            found.insert(pid, (read("comm").starts_with("kworker/"), stat));
        }
    }
    found
}

fn since(before: &HashMap<u32, (bool, ClassStat)>) -> (ClassStat, ClassStat) {
    let (mut workers, mut others) = (ClassStat::default(), ClassStat::default());
    for (pid, (worker, now)) in kernel_threads() {
        let then = before.get(&pid).map(|(_, stat)| *stat).unwrap_or_default();
        let sum = if worker { &mut workers } else { &mut others };
        sum.run_delay_ns += now.run_delay_ns.saturating_sub(then.run_delay_ns);
        sum.run_time_ns += now.run_time_ns.saturating_sub(then.run_time_ns);
    }
    (workers, others)
}

const EVENTS: [&str; 7] = [
    "workqueue",
    "irq",
    "sched/sched_switch",
    "sched/sched_waking",
    "sched/sched_wakeup",
    "sched/sched_wakeup_new",
    "sched/sched_migrate_task",
];

fn tracing(name: &str, value: &str) -> Result<(), LabError> {
    fs::write(Path::new(TRACING).join(name), value).tried(|| format!("writing {name} in tracefs"))
}

/// Runs and counts one thing, cold.
fn one<T>(
    record: &mut RunRecord,
    number: usize,
    run: impl FnOnce() -> Result<(u64, T), LabError>,
) -> Result<T, LabError> {
    rustix::fs::sync();
    fs::write("/proc/sys/vm/drop_caches", "3").tried(|| "dropping the page cache".into())?;
    if record.traced {
        tracing("trace", "")?;
        for event in EVENTS {
            tracing(&format!("events/{event}/enable"), "1")?;
        }
    }
    let before = kernel_threads();
    let (wall, value) = run()?;
    let (workers, others) = since(&before);
    record.wall_ns += wall;
    record.workers.run_delay_ns += workers.run_delay_ns;
    record.workers.run_time_ns += workers.run_time_ns;
    record.kernel_threads.run_delay_ns += others.run_delay_ns;
    record.kernel_threads.run_time_ns += others.run_time_ns;
    if record.traced {
        for event in EVENTS {
            tracing(&format!("events/{event}/enable"), "0")?;
        }
        let name = format!("trace-{number}-{}", record.traces.len());
        let copy = || {
            let mut from = File::open(Path::new(TRACING).join("trace"))?;
            io::copy(&mut from, &mut File::create(out(&name))?)
        };
        copy().tried(|| "saving the trace".into())?;
        record.traces.push(name);
    }
    Ok(value)
}

fn add(record: &mut RunRecord, processes: Vec<Process>) -> Result<(), LabError> {
    for process in processes {
        let stat = process.finish()?;
        record.apps.run_delay_ns += stat.run_delay_ns;
        record.apps.run_time_ns += stat.run_time_ns;
    }
    Ok(())
}

fn app_start(record: &mut RunRecord, number: usize) -> Result<(), LabError> {
    let dir = format!("/mnt/{}/apps", record.file_system);
    for (at, app) in workload("workload")?.iter().enumerate() {
        let reader =
            |thread: usize| Process::start(&["reader".into(), dir.clone(), at.to_string(), thread.to_string()]);
        let mut readers = (0..app.threads.len()).map(reader).collect::<Result<Vec<_>, _>>()?;
        let burner = |_| Process::start(&["burner".into(), app.foreground_permille.to_string()]);
        let mut burners = (0..app.foreground_threads).map(burner).collect::<Result<Vec<_>, _>>()?;
        one(record, number, || {
            let begin = Instant::now();
            burners.iter_mut().chain(&mut readers).try_for_each(Process::go)?;
            for reader in &mut readers {
                reader.line()?;
            }
            Ok((begin.elapsed().as_nanos() as u64, ()))
        })?;
        add(record, readers)?;
        add(record, burners)?;
    }
    Ok(())
}

fn tar(record: &mut RunRecord, number: usize, jobs: usize) -> Result<(), LabError> {
    let dir = format!("/mnt/{}/tree", record.file_system);
    let job = |job: usize| Process::start(&["archiver".into(), dir.clone(), job.to_string(), jobs.to_string()]);
    let mut processes = (0..jobs).map(job).collect::<Result<Vec<_>, _>>()?;
    for _ in 0..PASSES {
        one(record, number, || {
            let begin = Instant::now();
            processes.iter_mut().try_for_each(Process::go)?;
            for process in &mut processes {
                process.line()?;
            }
            Ok((begin.elapsed().as_nanos() as u64, ()))
        })?;
    }
    add(record, processes)
}

fn measure() -> Result<(), LabError> {
    let orders = fs::read(out("orders")).tried(|| "reading the orders".into())?;
    let orders: Orders = serde_json::from_slice(&orders).map_err(|e| LabError::Kernel(e.to_string()))?;
    tracing("buffer_size_kb", "40000")?;
    let mut runs = Vec::new();
    for file_system in &orders.file_systems {
        for experiment in [Experiment::AppStart, Experiment::Tar] {
            for traced in [false, true] {
                runs.push((file_system.clone(), experiment, traced));
            }
        }
    }
    Random::new(orders.seed).shuffle(&mut runs);
    let mut results = Vec::new();
    for (number, (file_system, experiment, traced)) in runs.into_iter().enumerate() {
        let mut record = RunRecord {
            experiment,
            file_system,
            traced,
            wall_ns: 0,
            workers: ClassStat::default(),
            kernel_threads: ClassStat::default(),
            apps: ClassStat::default(),
            traces: Vec::new(),
        };
        match experiment {
            Experiment::AppStart => app_start(&mut record, number)?,
            Experiment::Tar => tar(&mut record, number, orders.jobs)?,
        }
        results.push(record);
    }
    let results = serde_json::to_vec(&results).map_err(|e| LabError::Kernel(e.to_string()))?;
    fs::write(out("results"), results).tried(|| "writing the results".into())
}

/// Archives by the kernel's own fscrypt, outside of any guest.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct OwnRun {
    pub(crate) jobs: usize,
    pub(crate) wall_ns: u64,
    pub(crate) workers: ClassStat,
}

fn measure_own(rounds: usize, most: usize) -> Result<(), LabError> {
    let dir = Path::new("/mnt/own/tree");
    let tree = tree()?;
    let mut results = Vec::new();
    rustix::fs::sync();
    for _ in 0..rounds {
        for jobs in 1..=most {
            let job = |job: usize| {
                let arguments = ["archiver".into(), dir.display().to_string(), job.to_string(), jobs.to_string()];
                Process::start(&arguments)
            };
            let mut processes = (0..jobs).map(job).collect::<Result<Vec<_>, _>>()?;
            for number in 0..tree.files.len() {
                let file = File::open(dir.join(number.to_string())).tried(|| "opening the tree".into())?;
                crate::protect::make_cold(&file)?;
            }
            let before = kernel_threads();
            let begin = Instant::now();
            processes.iter_mut().try_for_each(Process::go)?;
            for process in &mut processes {
                process.line()?;
            }
            let wall_ns = begin.elapsed().as_nanos() as u64;
            let (workers, _) = since(&before);
            results.push(OwnRun { jobs, wall_ns, workers });
            for process in processes {
                process.finish()?;
            }
        }
    }
    let results = serde_json::to_vec(&results).map_err(|e| LabError::Kernel(e.to_string()))?;
    fs::write(out("results"), results).tried(|| "writing the results".into())
}
