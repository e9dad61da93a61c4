//! `postread verify` on an image: every file that has fs-verity, several at once, every bad range of each.

use std::io::{self, BufWriter, IsTerminal, Write};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use postread::Engine;
use postread::image::{Image, ImageError};
use postread_fsimage::ext4::{FileType, Inode};
use postread_io::{BlockStatus, Corruption, CorruptionKind};
use postread_volume::Magic;
use serde::Serialize;

use super::verify::VerifyArgs;
use crate::exit::{CommandResult, Failure, Outcome};
use crate::image::{Trusted, bytes_of, canonical, locked, look_into, outcome_of, resolve, try_resolve};
use crate::progress::Progress;
use crate::read_options::StatsReport;
use crate::report::{ListReport, Name};
use crate::text::{bytes_for_stderr, complain, escape_controls, output_failed, output_failed_after};
use crate::verity_target;

/// Files found and not yet taken by a thread.
const WAITING: usize = 64;

/// Whether the target is an image and not a plain file: it is said so, or it begins like one.
pub(super) fn is_image(args: &VerifyArgs) -> Result<bool, Failure> {
    if !args.paths.is_empty() || args.image.given() || args.digests.is_some() {
        return Ok(true);
    }
    if args.target.is_plain() || args.target.digest.is_some() {
        return Ok(false);
    }
    let is_device = std::fs::metadata(&args.target.file)
        .is_ok_and(|metadata| std::os::unix::fs::FileTypeExt::is_block_device(&metadata.file_type()));
    let magic = look_into(&args.target.file, None, None)?.magic;
    Ok(is_device || matches!(magic, Some(Magic::Ext4 | Magic::Gpt | Magic::Mbr)))
}

/// One entry of the report.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Entry<'a> {
    /// A range of a file that is bad or can't be verified.
    Data {
        #[serde(flatten)]
        name: &'a Name,
        offset: u64,
        length: u64,
        message: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        wanted: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        found: Option<String>,
    },
    /// A hash block that is corrupt.
    Tree {
        #[serde(flatten)]
        name: &'a Name,
        position: u64,
        length: u32,
        level: u32,
        wanted: String,
        found: String,
    },
    /// A file's verdict.
    File {
        #[serde(flatten)]
        name: &'a Name,
        inode: u32,
        verdict: &'static str,
        exit_status: u8,
        digest: String,
        trust: &'static str,
        size: u64,
        good_bytes: u64,
        bad_bytes: u64,
        bad_tree_blocks: u64,
    },
    /// What could not even be opened.
    Error {
        #[serde(flatten)]
        name: &'a Name,
        error: String,
        exit_status: u8,
    },
    /// The whole: always the last entry.
    Summary {
        files: u64,
        good: u64,
        exit_status: u8,
        #[serde(skip_serializing_if = "Option::is_none")]
        stats: Option<StatsReport>,
    },
}

enum Output {
    Lines(Box<dyn Write + Send>),
    Json(ListReport<Box<dyn Write + Send>>),
}

/// What all threads write to.
struct Shared {
    output: Output,
    terminal: bool,
    quiet: bool,
    outcome: Outcome,
    files: u64,
    good: u64,
    broken: Option<io::Error>,
}

struct Job {
    path: Vec<u8>,
    inode: Inode,
}

struct Verify<'a> {
    image: &'a Image,
    engine: &'a Engine,
    trusted: &'a Trusted,
    progress: &'a Progress,
    shared: Mutex<Shared>,
}

pub(super) fn run(args: &VerifyArgs) -> CommandResult {
    args.target.refuse_for_image()?;
    if args.range.is_some() || args.map.is_some() {
        return Err(Failure::usage("--range and --map are for a plain file"));
    }
    let engine = args.read.engine()?;
    let image = args.image.open(&args.target.file, true)?;
    let trusted = Trusted::load(args.digests.as_deref(), args.target.digest)?;
    let (mut roots, mut missing) = (Vec::new(), Vec::new());
    for path in &args.paths {
        let path = canonical(bytes_of(path));
        match try_resolve(&image, &path) {
            Ok(inode) => roots.push((inode, path)),
            Err(failure) => missing.push((path, failure)),
        }
    }
    if args.paths.is_empty() {
        roots.push((resolve(&image, b"")?, Vec::new()));
    }
    let one_file = args.paths.len() == 1 && roots.iter().all(|(inode, _)| !inode.is_dir());
    if args.target.digest.is_some() && !one_file {
        return Err(Failure::usage("--digest takes one PATH, a file: for several there is --digests"));
    }
    let stdout: Box<dyn Write + Send> = Box::new(BufWriter::new(io::stdout()));
    let output = match args.json {
        true => Output::Json(ListReport::begin(stdout, "postread-verify-image-1").map_err(output_failed)?),
        false => Output::Lines(stdout),
    };
    let progress = Progress::new(args.quiet);
    let terminal = io::stdout().is_terminal();
    let quiet = args.quiet;
    let shared = Shared { output, terminal, quiet, outcome: Outcome::Good, files: 0, good: 0, broken: None };
    let verify =
        Verify { image: &image, engine: &engine, trusted: &trusted, progress: &progress, shared: Mutex::new(shared) };
    for (path, Failure { outcome, message }) in &missing {
        verify.error(path, message, *outcome);
    }
    let threads = args.jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from)).max(1);
    std::thread::scope(|scope| {
        let (sender, receiver) = sync_channel::<Job>(WAITING);
        let receiver = Arc::new(Mutex::new(receiver));
        for _ in 0..threads {
            let (receiver, verify) = (receiver.clone(), &verify);
            scope.spawn(move || {
                while let Some(job) = next(&receiver) {
                    verify.file(&job);
                }
            });
        }
        drop(receiver);
        for (inode, path) in roots {
            verify.root(inode, &path, |job| sender.send(job).is_ok());
        }
    });
    verify.listed_but_missing();
    progress.finish();
    let stats = args.read.stats.then(|| StatsReport::of(&engine));
    if let Some(stats) = &stats {
        stats.tell();
    }
    verify.end(stats)
}

fn next(receiver: &Mutex<Receiver<Job>>) -> Option<Job> {
    receiver.lock().unwrap_or_else(PoisonError::into_inner).recv().ok()
}

impl Verify<'_> {
    fn shared(&self) -> std::sync::MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives every file with fs-verity at or beneath `path` to `send`.
    fn root(&self, inode: Inode, path: &[u8], mut send: impl FnMut(Job) -> bool) {
        if !inode.is_dir() {
            if inode.is_verity() || self.trusted.get(path).is_some() {
                send(Job { path: path.to_vec(), inode });
            }
            return;
        }
        match locked(self.image, &inode) {
            Ok(None) => {}
            Ok(Some(error)) | Err(error) => return self.error(path, &error, outcome_of(&error)),
        }
        let mut walk = self.image.walk(inode.ino);
        while let Some(visit) = walk.next() {
            let path = if visit.path.is_empty() { path.to_vec() } else { [path, b"/", &visit.path].concat() };
            let inode = match visit.inode {
                Ok(inode) => inode,
                Err(error) => {
                    self.error(&path, &error, outcome_of(&error));
                    continue;
                }
            };
            if inode.is_dir() {
                match locked(self.image, &inode) {
                    Ok(None) => {}
                    Ok(Some(error)) | Err(error) => {
                        self.error(&path, &error, outcome_of(&error));
                        walk.skip_dir();
                    }
                }
            } else if inode.file_type == FileType::Regular
                && (inode.is_verity() || self.trusted.get(&path).is_some())
                && !send(Job { path, inode })
            {
                return;
            }
        }
    }

    /// A trusted path that the image does not have must not pass in silence.
    fn listed_but_missing(&self) {
        for path in self.trusted.paths() {
            if let Err(error @ ImageError::NotFound { .. }) = self.image.resolve(path) {
                self.error(path, &error, Outcome::Integrity);
            }
        }
    }

    fn error(&self, path: &[u8], error: &dyn std::fmt::Display, outcome: Outcome) {
        let mut shared = self.shared();
        shared.outcome = shared.outcome.worst(outcome);
        complain(format_args!("{}: {error}", bytes_for_stderr(path)));
        let name = Name::of_bytes(path);
        shared.push(&Entry::Error { name: &name, error: error.to_string(), exit_status: outcome.code() });
    }

    fn file(&self, job: &Job) {
        // A reader that went away wants no more; any other failure must not hide a bad file behind it.
        if self.shared().broken.as_ref().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe) {
            return;
        }
        if let Err(error) = self.try_file(job) {
            self.shared().files += 1;
            self.error(&job.path, &error, error.outcome());
        }
        self.progress.file_done();
    }

    fn try_file(&self, job: &Job) -> Result<(), super::cat_image::PlanError> {
        let trusted = self.trusted.get(&job.path);
        let Some(verity) = self.image.verity(&job.inode)? else {
            return match trusted {
                Some(wanted) => Err(super::cat_image::PlanError::NoVerity(*wanted)),
                None => Ok(()),
            };
        };
        if let Some(trusted) = trusted {
            verity.check_digest(trusted)?;
        }
        let digest = verity.digest();
        let name = Name::of_bytes(&job.path);
        let file = self.engine.open(verity.plan()?.0);
        let mut scan = file.scan(0..file.len());
        let mut outcome = Outcome::Good;
        let mut told = std::collections::HashSet::new();
        for part in scan.by_ref() {
            outcome = outcome.worst(verity_target::outcome_of(&part.status));
            let mut shared = self.shared();
            if let BlockStatus::Corrupt(c) = &part.status
                && c.kind == CorruptionKind::Tree
                && told.insert(c.position)
            {
                shared.tree(&job.path, &name, c);
            }
            shared.data(&job.path, &name, part.range.start, part.range.end - part.range.start, &part.status);
        }
        let totals = scan.totals();
        self.progress.advance(file.len());
        let (verdict, trust) = match (outcome == Outcome::Good, trusted.is_some()) {
            (false, trusted) => ("bad", if trusted { "digest" } else { "none" }),
            (true, true) => ("verified", "digest"),
            (true, false) => ("self-consistent", "none"),
        };
        let mut shared = self.shared();
        shared.files += 1;
        shared.good += u64::from(outcome == Outcome::Good);
        shared.outcome = shared.outcome.worst(outcome);
        let shown = shared.shown(&job.path);
        let bad_tree = told.len();
        if outcome != Outcome::Good {
            let (good, bad) = (totals.good, totals.bad);
            let what = format!("BAD: {good} bytes are good, {bad} are not, {bad_tree} tree blocks are corrupt");
            shared.line(format_args!("{shown}: {what} ({digest})"));
        } else if !shared.quiet {
            shared.line(format_args!("{shown}: {verdict}, {} bytes ({digest})", totals.good));
        }
        shared.push(&Entry::File {
            name: &name,
            inode: job.inode.ino,
            verdict,
            exit_status: outcome.code(),
            digest: digest.to_string(),
            trust,
            size: file.len(),
            good_bytes: totals.good,
            bad_bytes: totals.bad,
            bad_tree_blocks: bad_tree as u64,
        });
        Ok(())
    }

    fn end(self, stats: Option<StatsReport>) -> CommandResult {
        let mut shared = self.shared.into_inner().unwrap_or_else(PoisonError::into_inner);
        if shared.files == 0 {
            // Nothing to verify is no success; a worse outcome stands.
            shared.outcome = shared.outcome.worst(Outcome::Nothing);
            if shared.outcome == Outcome::Nothing {
                complain("no file with fs-verity here");
            }
        }
        let (files, good, outcome) = (shared.files, shared.good, shared.outcome);
        if files > 1 && !shared.quiet {
            let trust = if self.trusted.any() { "" } else { "; self-consistent only: no digests were given" };
            shared.line(format_args!("{good} of {files} files are good{trust}"));
        }
        shared.push(&Entry::Summary { files, good, exit_status: outcome.code(), stats });
        if let Some(error) = shared.broken {
            return Err(output_failed_after(outcome, error));
        }
        match shared.output {
            Output::Lines(mut out) => out.flush(),
            Output::Json(report) => report.end(),
        }
        .map_err(|error| output_failed_after(outcome, error))?;
        Ok(outcome)
    }
}

impl Shared {
    fn shown(&self, path: &[u8]) -> String {
        if self.terminal { escape_controls(path) } else { String::from_utf8_lossy(path).into_owned() }
    }

    fn line(&mut self, text: std::fmt::Arguments<'_>) {
        if let Output::Lines(out) = &mut self.output
            && let Err(error) = writeln!(out, "{text}")
        {
            self.broken.get_or_insert(error);
        }
    }

    fn push(&mut self, entry: &Entry<'_>) {
        if let Output::Json(report) = &mut self.output
            && let Err(error) = report.push(entry)
        {
            self.broken.get_or_insert(error);
        }
    }

    fn tree(&mut self, path: &[u8], name: &Name, c: &Corruption) {
        let (position, level, length) = (c.position, c.level.unwrap_or(0), c.block_size);
        let (wanted, found) = (c.wanted.to_string(), c.found.to_string());
        let shown = self.shown(path);
        let what = format!("tree block at {position} (level {level}) is corrupt: wanted {wanted}, found {found}");
        self.line(format_args!("{shown}: {what}"));
        self.push(&Entry::Tree { name, position, length, level, wanted, found });
    }

    fn data(&mut self, path: &[u8], name: &Name, offset: u64, length: u64, status: &BlockStatus) {
        let shown = self.shown(path);
        let (wanted, found) = match status {
            BlockStatus::Corrupt(c) if c.kind == CorruptionKind::Data => {
                self.line(format_args!(
                    "{shown}: data block at {offset} ({length} bytes) is corrupt: wanted {}, found {}",
                    c.wanted, c.found
                ));
                (Some(c.wanted.to_string()), Some(c.found.to_string()))
            }
            BlockStatus::Corrupt(c) => {
                let what = format!("can't be verified: the tree block at {} is corrupt", c.position);
                self.line(format_args!("{shown}: {length} bytes at {offset} {what}"));
                (None, None)
            }
            status => {
                self.line(format_args!("{shown}: {length} bytes at {offset}: {status}"));
                (None, None)
            }
        };
        self.push(&Entry::Data { name, offset, length, message: status.to_string(), wanted, found });
    }
}
