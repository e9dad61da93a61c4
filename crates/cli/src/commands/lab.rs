//! `postread lab`: experiments on this machine.

use std::io::{IsTerminal, Write, stderr, stdout};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use postread::files::{OutputFile, read_whole, refuse_overwriting};
use postread_lab::html::Page;
use postread_lab::workload::{self, App};
use postread_lab::{Cipher, Cold, LabError, app_start, factors, kernel, record, tar};
use serde::Serialize;

use crate::exit::{CommandResult, Failure, Outcome};
use crate::report::write_report;
use crate::text::{name_for_stderr, output_failed};

/// The most bytes of a workload's text.
const TRACE_MAX: usize = 64 << 20;
/// Rounds of a whole run, and of `--quick`.
const ROUNDS: usize = 10;
const KERNEL_ROUNDS: usize = 12;
const FACTORS_ROUNDS: usize = 20;
const QUICK_ROUNDS: usize = 3;
const QUICK_FACTORS_ROUNDS: usize = 6;
/// Apps of `--quick`.
const QUICK_APPS: usize = 2;
/// Of the two experiments in one go, which are to take four minutes: the patch's ciphers, and as many apps.
const WHOLE_APPS: usize = 4;
const WHOLE_CIPHERS: [Cipher; 3] = [Cipher::AesXts, Cipher::AesXtsPortable, Cipher::SpeckXts];
/// A run of `lab factors --quick` and `lab tar --quick`.
const QUICK_RUN: Duration = Duration::from_millis(100);

#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct LabArgs {
    #[command(subcommand)]
    experiment: Option<Experiment>,
    #[command(flatten)]
    options: LabOptions,
}

#[derive(Subcommand, Debug)]
enum Experiment {
    /// Apps start cold: the fs-verity patch's experiment
    AppStart(AppStartArgs),
    /// Archive an encrypted tree: the fscrypt patch's experiment
    Tar(TarArgs),
    /// One factor at a time around two anchors, and the cube of placement, rank and completion context
    Factors(FactorsArgs),
    /// The patches themselves, on a real kernel that runs as a process (User-Mode Linux)
    Kernel(KernelArgs),
    /// Record a program's start as a workload (root; Linux 6.13 or later)
    Record(RecordArgs),
    /// What `kernel` runs inside its guest
    #[command(hide = true)]
    Guest(GuestArgs),
}

/// What all experiments take.
#[derive(Args, Debug, Clone)]
struct LabOptions {
    /// Number of rounds; each round runs every arm once
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
    /// Run fewer rounds over less data: enough to see that it works, too few for most answers
    #[arg(long)]
    quick: bool,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
    /// Write the report to FILE as one self-contained HTML page too
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Directory on a disk for the protected files [default: $TMPDIR, /tmp, /var/tmp or here]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Seed of the random order of the arms
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Show no progress on standard error
    #[arg(short, long)]
    quiet: bool,
}

#[derive(Args, Debug)]
struct AppStartArgs {
    #[command(flatten)]
    options: LabOptions,
    /// Replay another workload: a file, or `recorded` for the recorded starts of Python and Java
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Read with O_DIRECT instead of dropping files from the page cache
    #[arg(long)]
    direct: bool,
}

#[derive(Args, Debug)]
struct TarArgs {
    #[command(flatten)]
    options: LabOptions,
    /// Jobs that share the tree, 1 up to this many [default: the CPUs this program may use]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    jobs: Option<u32>,
}

#[derive(Args, Debug)]
struct FactorsArgs {
    #[command(flatten)]
    options: LabOptions,
}

#[derive(Args, Debug)]
struct KernelArgs {
    #[command(flatten)]
    options: LabOptions,
    /// The User-Mode Linux kernel, or one packed by zstd [default: $POSTREAD_UML, or what tests/uml/build made]
    #[arg(long, value_name = "FILE")]
    kernel: Option<PathBuf>,
}

#[derive(Args, Debug)]
struct GuestArgs {
    /// What to do
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

#[derive(Args, Debug)]
struct RecordArgs {
    /// Write the workload there instead of to standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// A name for the app
    #[arg(long, default_value = "recorded")]
    name: String,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// The results of `postread lab`: what was run.
#[derive(Default, Serialize)]
struct Results {
    #[serde(skip_serializing_if = "Option::is_none")]
    app_start: Option<app_start::Report>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tar: Option<tar::Report>,
    #[serde(skip_serializing_if = "Option::is_none")]
    factors: Option<factors::Report>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kernel: Option<kernel::Report>,
}

impl Results {
    fn to_text(&self) -> String {
        let reports = [
            self.app_start.as_ref().map(app_start::Report::to_text),
            self.tar.as_ref().map(tar::Report::to_text),
            self.factors.as_ref().map(factors::Report::to_text),
            self.kernel.as_ref().map(kernel::Report::to_text),
        ];
        reports.into_iter().flatten().collect::<Vec<_>>().join("\n")
    }

    fn to_html(&self) -> String {
        let mut page = Page::new();
        self.app_start.iter().for_each(|report| page.app_start(report));
        self.tar.iter().for_each(|report| page.tar(report));
        self.factors.iter().for_each(|report| page.factors(report));
        self.kernel.iter().for_each(|report| page.kernel(report));
        page.finish()
    }
}

pub(crate) fn run(args: &LabArgs) -> CommandResult {
    let options = match &args.experiment {
        None => &args.options,
        Some(Experiment::AppStart(args)) => &args.options,
        Some(Experiment::Tar(args)) => &args.options,
        Some(Experiment::Factors(args)) => &args.options,
        Some(Experiment::Kernel(args)) => &args.options,
        Some(Experiment::Record(record)) => return run_record(record),
        Some(Experiment::Guest(guest)) => {
            kernel::guest_main(&guest.arguments).map_err(failure)?;
            return Ok(Outcome::Good);
        }
    };
    // An output that cannot be written is known before minutes are spent.
    let html = options.html.as_deref().map(OutputFile::create).transpose()?;
    let mut results = Results::default();
    match &args.experiment {
        None => {
            let whole = AppStartArgs { options: options.clone(), trace: None, direct: false };
            results.app_start = Some(run_app_start(&whole, WHOLE_APPS)?);
            if !options.json {
                // Each report as soon as it is there.
                write(format!("{}\n", results.to_text()).as_bytes())?;
            }
            let tar = run_tar(&TarArgs { options: options.clone(), jobs: None }, &WHOLE_CIPHERS)?;
            if !options.json {
                write(tar.to_text().as_bytes())?;
            }
            results.tar = Some(tar);
        }
        Some(Experiment::AppStart(args)) => results.app_start = Some(run_app_start(args, usize::MAX)?),
        Some(Experiment::Tar(args)) => results.tar = Some(run_tar(args, &Cipher::ALL)?),
        Some(Experiment::Factors(args)) => results.factors = Some(run_factors(args)?),
        Some(Experiment::Kernel(args)) => results.kernel = Some(run_kernel(args)?),
        Some(Experiment::Record(_) | Experiment::Guest(_)) => {}
    }
    if let Some(mut html) = html {
        html.write(results.to_html().as_bytes())?;
        html.commit()?;
    }
    if options.json {
        write_report(stdout().lock(), "postread-lab-2", &results).map_err(output_failed)?;
    } else if args.experiment.is_some() {
        write(results.to_text().as_bytes())?;
    }
    Ok(Outcome::Good)
}

fn write(bytes: &[u8]) -> CommandResult {
    stdout().write_all(bytes).map_err(output_failed)?;
    Ok(Outcome::Good)
}

fn failure(error: LabError) -> Failure {
    match error {
        LabError::Workload(_) | LabError::NeverCold { .. } => Failure::usage(error),
        // Files that this program has just made and that don't verify: the disk, or the memory.
        LabError::Read(_) => Failure::new(Outcome::Integrity, error),
        _ => Failure::environment(error),
    }
}

fn run_app_start(args: &AppStartArgs, most: usize) -> Result<app_start::Report, Failure> {
    let LabOptions { rounds, quick, seed, quiet, .. } = args.options.clone();
    let mut apps = workload_of(args.trace.as_deref())?;
    apps.truncate(if quick { QUICK_APPS } else { most });
    let options = app_start::Options {
        dir: directory(&args.options)?,
        apps,
        rounds: rounds.map_or(if quick { QUICK_ROUNDS } else { ROUNDS }, |n| n as usize),
        cold: if args.direct { Cold::Direct } else { Cold::PageCacheDropped },
        seed,
    };
    let show = Show::new(quiet);
    let report = app_start::run(&options, |progress| {
        show.line(&match progress {
            app_start::Progress::Protecting(i, n) => format!("protecting the files of app {} of {n}", i + 1),
            app_start::Progress::Starting(i, n) => format!("start {} of {n}", i + 1),
            app_start::Progress::Accounting(i, n) => format!("ledger {} of {n}", i + 1),
        });
    });
    show.line("");
    report.map_err(failure)
}

fn run_tar(args: &TarArgs, ciphers: &[Cipher]) -> Result<tar::Report, Failure> {
    let LabOptions { rounds, quick, seed, quiet, .. } = args.options.clone();
    let tree = workload::parse(workload::TREE).map_err(Failure::usage)?.remove(0);
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let most = args.jobs.map_or(cpus, |jobs| jobs as usize);
    let options = tar::Options {
        dir: directory(&args.options)?,
        tree,
        rounds: rounds.map_or(if quick { QUICK_ROUNDS } else { ROUNDS }, |n| n as usize),
        jobs: (1..=most).filter(|jobs| jobs.is_power_of_two() || *jobs == most).collect(),
        ciphers: ciphers.to_vec(),
        run: if quick { QUICK_RUN } else { tar::RUN },
        program: own_file()?,
        seed,
    };
    let show = Show::new(quiet);
    let report = tar::run(&options, |progress| {
        show.line(&match progress {
            tar::Progress::Encrypting(cipher) => format!("encrypting the tree: {}", cipher.name()),
            tar::Progress::Archiving(i, n) => format!("run {} of {n}", i + 1),
            tar::Progress::Accounting(i, n) => format!("ledger {} of {n}", i + 1),
        });
    });
    show.line("");
    report.map_err(failure)
}

fn run_factors(args: &FactorsArgs) -> Result<factors::Report, Failure> {
    let LabOptions { rounds, quick, seed, quiet, .. } = args.options.clone();
    let options = factors::Options {
        rounds: rounds.map_or(if quick { QUICK_FACTORS_ROUNDS } else { FACTORS_ROUNDS }, |n| n as usize),
        run: if quick { QUICK_RUN } else { factors::RUN },
        seed,
    };
    let show = Show::new(quiet);
    let report = factors::run(&options, &mut |done, all| show.line(&format!("run {} of {all}", done + 1)));
    show.line("");
    report.map_err(failure)
}

fn own_file() -> Result<PathBuf, Failure> {
    std::env::current_exe().map_err(|error| Failure::environment(format!("finding this program's own file: {error}")))
}

fn run_kernel(args: &KernelArgs) -> Result<kernel::Report, Failure> {
    let LabOptions { rounds, quick, seed, quiet, .. } = args.options.clone();
    let mut apps = workload_of(None)?;
    if quick {
        apps.truncate(QUICK_APPS);
    }
    let tree = workload::parse(workload::TREE).map_err(Failure::usage)?.remove(0);
    let options = kernel::Options {
        dir: directory(&args.options)?,
        kernel: args.kernel.clone(),
        program: own_file()?,
        apps,
        tree,
        rounds: rounds.map_or(if quick { QUICK_ROUNDS } else { KERNEL_ROUNDS }, |n| n as usize),
        seed,
    };
    let show = Show::new(quiet);
    let report = kernel::run(&options, |progress| {
        show.line(&match progress {
            kernel::Progress::Making => "the guest makes its file systems".to_owned(),
            kernel::Progress::Boot(i, n) => format!("boot {} of {n}", i + 1),
        });
    });
    show.line("");
    report.map_err(failure)
}

/// A line of progress on standard error, where that is a terminal.
struct Show(bool);

impl Show {
    fn new(quiet: bool) -> Show {
        Show(!quiet && stderr().is_terminal())
    }

    fn line(&self, text: &str) {
        if self.0 {
            // Progress that can't be shown is not worth a failure.
            let _ = write!(stderr(), "\r\x1b[K{text}");
        }
    }
}

fn workload_of(trace: Option<&Path>) -> Result<Vec<App>, Failure> {
    match trace {
        None => workload::parse(workload::APP_START).map_err(Failure::usage),
        Some(path) if path == Path::new("recorded") => workload::parse(workload::RECORDED).map_err(Failure::usage),
        Some(path) => {
            let named = |error: &dyn std::fmt::Display| format!("{}: {error}", name_for_stderr(path));
            let text = String::from_utf8(read_whole(path, TRACE_MAX, "a workload")?);
            let text = text.map_err(|error| Failure::usage(named(&format_args!("no workload: {error}"))))?;
            workload::parse(&text).map_err(|error| Failure::usage(named(&error)))
        }
    }
}

/// The directory asked for, or the first usual one whose files can be cold.
fn directory(options: &LabOptions) -> Result<PathBuf, Failure> {
    if let Some(dir) = &options.dir {
        return Ok(dir.clone());
    }
    let on_disk = |dir: &PathBuf| {
        postread_sys::filesystem::of_path(dir).is_ok_and(|stat| !stat.kind.is_memory())
            && rustix::fs::access(dir, rustix::fs::Access::WRITE_OK).is_ok()
    };
    let usual = [std::env::temp_dir(), "/tmp".into(), "/var/tmp".into(), ".".into()];
    usual.into_iter().find(on_disk).ok_or_else(|| {
        Failure::usage("no directory on a disk to make files in: $TMPDIR, /tmp, /var/tmp and the current one are in memory; use --dir")
    })
}

/// The file of a program that is called by name, as a shell finds it.
fn program_file(program: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut found = std::env::split_paths(&path).map(|dir| dir.join(program)).filter(|file| file.is_file());
    if program.contains('/') { program.into() } else { found.next().unwrap_or_else(|| program.into()) }
}

fn run_record(args: &RecordArgs) -> CommandResult {
    let mut output = None;
    if let Some(path) = &args.output {
        // What the command line names may be read by the program; the program itself is.
        let program = program_file(&args.command[0]);
        let mut inputs = vec![("COMMAND", program.as_path())];
        inputs.extend(args.command[1..].iter().map(|argument| ("an argument of COMMAND", Path::new(argument))));
        inputs.retain(|(_, path)| path.exists());
        refuse_overwriting(&[("--output", path)], &inputs)?;
        output = Some(OutputFile::create(path)?);
    }
    let (app, counts) = record::record(&args.name, &args.command)
        .map_err(|error| Failure::environment(format!("recording {}: {error}", args.command[0])))?;
    let text = workload::format(&[app]);
    match output {
        Some(mut output) => {
            output.write(text.as_bytes())?;
            output.commit()?;
        }
        None => {
            write(text.as_bytes())?;
        }
    }
    let _ = writeln!(
        stderr(),
        "{} faults, {} look-ups by read, {} additions to the page cache; left out: {} repeated, {} of unknown files",
        counts.faults,
        counts.gets,
        counts.adds,
        counts.repeated,
        counts.unknown
    );
    Ok(Outcome::Good)
}
