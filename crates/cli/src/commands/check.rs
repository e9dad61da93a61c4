//! `postread check`: as `sha256sum --check`, over fs-verity digests. Of a file that fails, and has its Merkle tree beside
//! it (`PATH.verity-tree`), every bad range is listed.

use std::io::{self, BufRead, IsTerminal, Read, Write};
use std::ops::ControlFlow;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use clap::Args;
use postread::files::open_list;
use postread::sidecar::{self, BadRange};
use postread::{DigestJob, Digester, FileError};
use postread_verity::list::{self, ListLineError, MAX_LINE, parse_line};
use postread_verity::{FileDigest, HashAlg, Tree, TrustedDescriptor};
use serde::Serialize;

use crate::exit::{CommandResult, Failure, Outcome};
use crate::hash_options::BlockOptions;
use crate::progress::Progress;
use crate::report::{Name, Output};
use crate::text::{complain, complain_of, escape_controls, name_for_stderr, output_failed};

/// The most bad ranges of one file that a JSON report holds.
const MAX_RANGES: usize = 1 << 16;

/// Longer lines of a list are skipped to their end; after this many bytes it is not a list.
const PASSED_OVER_MAX: u64 = 1 << 20;
/// So many lines, none of which is a list's, and it is no list.
const IMPROPER_MAX: u64 = 1 << 20;

/// Why no bad range of a failed file is reported.
const NO_TREE: &str = "no bad range is known: there is no Merkle tree beside the file (the salt and the block size must \
                       be those that the list was made with: --salt, --block-size)";

#[derive(Args, Debug)]
pub(crate) struct CheckArgs {
    /// A list of lines `ALG:HEX PATH`, as `postread digest` prints them [default: -, standard input]
    #[arg(value_name = "LIST")]
    list: Option<PathBuf>,
    /// Block size and salt of files without a descriptor next to them (PATH.verity-desc)
    #[command(flatten)]
    blocks: BlockOptions,
    /// Don't print OK for each file that verifies
    #[arg(short, long)]
    quiet: bool,
    /// Print nothing: only the exit status shows whether everything is good
    #[arg(long)]
    status: bool,
    /// Don't fail for, or report, missing files
    #[arg(long)]
    ignore_missing: bool,
    /// Improperly formatted lines fail the check
    #[arg(long)]
    strict: bool,
    /// Warn about each improperly formatted line
    #[arg(short, long)]
    warn: bool,
    /// Print a report in JSON
    #[arg(long)]
    json: bool,
}

/// What a line of the list asks for.
struct Wanted {
    digest: FileDigest,
    /// The descriptor beside the file, if its own digest is the wanted one.
    descriptor: Option<TrustedDescriptor>,
}

#[derive(Default)]
struct Counts {
    good: u64,
    failed: u64,
    unreadable: u64,
}

/// A bad range of a file that failed.
#[derive(Serialize)]
struct ReportedRange {
    offset: u64,
    length: u64,
    reason: String,
}

#[derive(Serialize)]
struct CheckResult {
    #[serde(flatten)]
    name: Name,
    status: &'static str,
    wanted: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    found: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bad_ranges: Option<Vec<ReportedRange>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    why_no_ranges: Option<String>,
}

/// The lines of the list as jobs; improper ones are counted.
struct Lines<'a> {
    args: &'a CheckArgs,
    name: &'a Path,
    list: Box<dyn BufRead + Send>,
    line: u64,
    proper: &'a AtomicU64,
    improper: &'a AtomicU64,
    /// What is wrong with the first improper line.
    first: &'a Mutex<Option<String>>,
    /// Why the rest was not read.
    failure: &'a Mutex<Option<Failure>>,
}

impl Lines<'_> {
    /// The next line, whose end is thrown away if it is too long for any name. `None` at the end.
    fn next_line(&mut self) -> Result<Option<Vec<u8>>, Failure> {
        let io = |error: io::Error| Failure::environment(format!("{}: {error}", name_for_stderr(self.name)));
        let mut line = Vec::new();
        let limit = MAX_LINE as u64 + 2;
        if (&mut self.list).take(limit).read_until(b'\n', &mut line).map_err(io)? == 0 {
            return Ok(None);
        }
        self.line += 1;
        if line.len() as u64 == limit && line.last() != Some(&b'\n') {
            let passed = (&mut self.list).take(PASSED_OVER_MAX).skip_until(b'\n').map_err(io)?;
            if passed as u64 == PASSED_OVER_MAX {
                let what = format!("line {} is longer than {PASSED_OVER_MAX} bytes", self.line);
                return Err(self.no_list(&what));
            }
        }
        Ok(Some(line))
    }

    fn no_list(&self, what: &str) -> Failure {
        let name = name_for_stderr(self.name);
        Failure::usage(format!("{name}: {what}: this is no list of digests, the rest is not read"))
    }

    fn improper(&self, error: &ListLineError) -> Result<(), Failure> {
        if self.args.warn && !self.args.status {
            complain_of(self.name, format_args!("line {}: {error}", self.line));
        }
        let improper = self.improper.fetch_add(1, Ordering::Relaxed) + 1;
        if self.proper.load(Ordering::Relaxed) > 0 {
            return Ok(());
        }
        let mut first = self.first.lock().unwrap_or_else(|e| e.into_inner());
        first.get_or_insert_with(|| format!("line {}: {error}", self.line));
        if improper < IMPROPER_MAX { Ok(()) } else { Err(self.no_list(&format!("none of its first {improper} lines"))) }
    }
}

impl Lines<'_> {
    /// The end, before the list's.
    fn fail<T>(&self, failure: Failure) -> Option<T> {
        *self.failure.lock().unwrap_or_else(|e| e.into_inner()) = Some(failure);
        None
    }
}

impl Iterator for Lines<'_> {
    type Item = Result<DigestJob<Wanted>, (DigestJob<Wanted>, FileError)>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let line = match self.next_line() {
                Ok(line) => line?,
                Err(failure) => return self.fail(failure),
            };
            match parse_line(&line) {
                Ok(None) => {}
                Err(error) => {
                    if let Err(failure) = self.improper(&error) {
                        return self.fail(failure);
                    }
                }
                Ok(Some(entry)) => {
                    self.proper.fetch_add(1, Ordering::Relaxed);
                    let path = PathBuf::from(std::ffi::OsString::from_vec(entry.name));
                    let descriptor = sidecar::trusted_descriptor(&path, &entry.digest);
                    let params = match &descriptor {
                        Some(descriptor) => *descriptor.params(),
                        // Block size and salt were checked before.
                        None => self.args.blocks.params(entry.digest.alg()).unwrap_or_default(),
                    };
                    return Some(Ok(DigestJob { path, params, tag: Wanted { digest: entry.digest, descriptor } }));
                }
            }
        }
    }
}

pub(crate) fn run(args: &CheckArgs) -> CommandResult {
    args.blocks.params(HashAlg::Sha256)?;
    let (proper, improper) = (AtomicU64::new(0), AtomicU64::new(0));
    let (first, failure) = (Mutex::new(None), Mutex::new(None));
    if args.list.is_none() && io::stdin().is_terminal() {
        return Err(Failure::usage("check what? give a LIST (- for what is typed here)"));
    }
    let path = args.list.as_deref().unwrap_or(Path::new("-"));
    let list = open_list(path)?;
    let name = if path == Path::new("-") { Path::new("standard input") } else { path };
    let (proper, improper, first, failure) = (&proper, &improper, &first, &failure);
    let lines = Lines { args, name, list, line: 0, proper, improper, first, failure };
    let mut output = Some(Output::begin(args.json, "postread-check-1")?);
    let progress = Progress::new(args.quiet || args.status);
    let mut counts = Counts::default();
    let mut outcome = Outcome::Good;
    let mut broken = None;
    Digester::new().progress(&progress).run(lines, |job, result| {
        if let Err(failure) = judge(args, &job, result, output.as_mut(), &mut counts, &mut outcome) {
            // Judging goes on: the exit status says what was found.
            output = None;
            broken.get_or_insert(failure);
        }
        ControlFlow::Continue(())
    });
    progress.finish();
    let ended = output.map_or(Ok(()), Output::end);
    // What was found wrong counts, whether or not it could be printed.
    if let Some(Failure { outcome: failed, message }) = broken.or(ended.map_err(output_failed).err()) {
        return Err(Failure { outcome: outcome.worst(failed), message });
    }

    let (proper, improper) = (proper.load(Ordering::Relaxed), improper.load(Ordering::Relaxed));
    let first = first.lock().unwrap_or_else(|e| e.into_inner()).take();
    // What ended the list is always reported: the files after it were not checked.
    if let Some(Failure { outcome: failed, message }) = failure.lock().unwrap_or_else(|e| e.into_inner()).take() {
        outcome = outcome.worst(failed);
        complain(message);
    } else if improper > 0 && (args.strict || proper == 0) {
        outcome = outcome.worst(Outcome::Usage);
        if let Some(first) = first.filter(|_| proper == 0 && !args.status && !args.warn) {
            complain_of(name, format_args!("no line of a digest list; {first}"));
        }
    } else if outcome == Outcome::Good && counts.good == 0 {
        outcome = Outcome::Nothing;
        if !args.status {
            complain_of(name, "no file was verified");
        }
    }
    if !args.status {
        summarize(improper, "line is improperly formatted", "lines are improperly formatted");
        summarize(counts.unreadable, "listed file could not be read", "listed files could not be read");
        summarize(counts.failed, "computed digest did NOT match", "computed digests did NOT match");
    }
    Ok(outcome)
}

fn summarize(count: u64, one: &str, many: &str) {
    match count {
        0 => {}
        1 => complain(format_args!("WARNING: 1 {one}")),
        n => complain(format_args!("WARNING: {n} {many}")),
    }
}

fn judge(
    args: &CheckArgs,
    job: &DigestJob<Wanted>,
    result: Result<Tree, FileError>,
    output: Option<&mut Output>,
    counts: &mut Counts,
    outcome: &mut Outcome,
) -> Result<(), Failure> {
    let wanted = &job.tag.digest;
    let mut report = CheckResult {
        name: Name::new(&job.path),
        status: "ok",
        wanted: wanted.to_string(),
        found: None,
        error: None,
        bad_ranges: None,
        why_no_ranges: None,
    };
    let verdict = match result {
        Err(error) if args.ignore_missing && error.is_not_found() => return Ok(()),
        Err(error) => {
            counts.unreadable += 1;
            *outcome = outcome.worst(Outcome::of_file(&error));
            if !args.status {
                complain_of(&job.path, &error);
            }
            report.status = "error";
            report.error = Some(error.to_string());
            "FAILED open or read"
        }
        Ok(tree) => {
            let found = tree.descriptor().file_digest();
            report.found = Some(found.to_string());
            if found == *wanted {
                counts.good += 1;
                "OK"
            } else {
                counts.failed += 1;
                *outcome = outcome.worst(Outcome::Integrity);
                report.status = "failed";
                "FAILED"
            }
        }
    };
    match output {
        Some(Output::Lines(out)) => {
            if !args.status && (verdict != "OK" || !args.quiet) {
                out.write_all(&verdict_line(&job.path, verdict)).map_err(output_failed)?;
            }
            if verdict == "FAILED" && !args.status {
                // In the order that a reader of both expects.
                out.flush().map_err(output_failed)?;
                list_ranges(job, |range| complain_of(&job.path, range), |why| complain_of(&job.path, why));
            }
        }
        Some(Output::Json(list)) => {
            if verdict == "FAILED" {
                let mut ranges = Vec::new();
                let mut why = None;
                let keep = |BadRange { offset, length, reason }| {
                    if ranges.len() < MAX_RANGES {
                        ranges.push(ReportedRange { offset, length, reason });
                    }
                };
                list_ranges(job, keep, |reason| why = Some(reason));
                report.why_no_ranges = why;
                report.bad_ranges = if report.why_no_ranges.is_none() { Some(ranges) } else { None };
            }
            list.push(&report).map_err(output_failed)?;
        }
        None => {}
    }
    Ok(())
}

/// Lists the bad ranges of a file that failed, if its tree is beside it; else, or if that says nothing, why not.
fn list_ranges(job: &DigestJob<Wanted>, range: impl FnMut(BadRange), mut why_not: impl FnMut(String)) {
    let Wanted { digest, descriptor } = &job.tag;
    let why = match sidecar::bad_ranges(&job.path, &job.params, digest, descriptor.as_ref(), range) {
        Ok(true) => return,
        Ok(false) => NO_TREE.into(),
        Err(why) => why.to_string(),
    };
    why_not(match sidecar::other_descriptor(&job.path, digest) {
        Some(other) => format!("{why}; {other}"),
        None => why,
    });
}

fn verdict_line(path: &Path, verdict: &str) -> Vec<u8> {
    let name = path.as_os_str().as_bytes();
    if io::stdout().is_terminal() {
        return format!("{}: {verdict}\n", escape_controls(name)).into_bytes();
    }
    let (escaped, name) = list::escape_name(name);
    let mut line = if escaped { vec![b'\\'] } else { Vec::new() };
    line.extend_from_slice(&name);
    line.extend_from_slice(format!(": {verdict}\n").as_bytes());
    line
}
