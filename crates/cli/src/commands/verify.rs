//! `postread verify`: reports every bad data block and every bad tree block of a file.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use clap::Args;
use postread::files::{OutputFile, refuse_overwriting};
use postread::{BadPart, Changed, VerifiedFile};
use postread_io::{BlockStatus, Corruption, CorruptionKind};
use postread_verity::Trust;
use postread_verity::ddrescue::{RangeStatus, RescueMap};
use serde::Serialize;

use super::verify_image::{self, Kind};
use crate::exit::{CommandResult, Failure, Outcome};
use crate::image::ImageArgs;
use crate::progress::Progress;
use crate::read_options::{ByteRange, ReadOptions, StatsReport, parse_jobs, parse_range};
use crate::report::{Name, Output};
use crate::text::{complain_of, escape_controls, output_failed_after};
use crate::verity_target::{VerityArgs, outcome_of};
use postread::Progress as _;

/// Scanned in one go; progress is shown in between.
const STRETCH: u64 = 64 << 20;

#[derive(Args, Debug)]
pub(crate) struct VerifyArgs {
    #[command(flatten)]
    pub(crate) target: VerityArgs,
    /// Files and directories in it, if it is an image or a block device [default: all]
    #[arg(value_name = "PATH", help_heading = None)]
    pub(crate) paths: Vec<OsString>,
    #[command(flatten, next_help_heading = "Images")]
    pub(crate) image: ImageArgs,
    /// Trusted digests of files of an image, as `fsverity digest` prints them, with their paths in the image
    #[arg(long, help_heading = "Images", value_name = "LIST", conflicts_with = "digest")]
    pub(crate) digests: Option<PathBuf>,
    /// Fail a file with fs-verity that has no digest in the list
    #[arg(long, help_heading = "Images", requires = "digests")]
    pub(crate) require_digests: bool,
    /// Number of files of an image to verify at once [default: the number of CPUs]
    #[arg(long, help_heading = "Images", value_name = "N", value_parser = parse_jobs)]
    pub(crate) jobs: Option<usize>,
    /// Only these bytes; the end is exclusive, and either may be left out
    #[arg(long, help_heading = "Plain files", value_name = "START..END", value_parser = parse_range)]
    pub(crate) range: Option<ByteRange>,
    /// Write a map of good and bad ranges to MAPFILE, in the format of GNU ddrescue
    #[arg(long, help_heading = "Plain files", value_name = "MAPFILE")]
    pub(crate) map: Option<PathBuf>,
    #[command(flatten, next_help_heading = "Reading")]
    pub(crate) read: ReadOptions,
    /// Print a report in JSON
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
    /// Print nothing about what is good, and show no progress
    #[arg(short, long, help_heading = "Output")]
    pub(crate) quiet: bool,
}

/// One entry of the report.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Entry {
    /// A range of the file that is bad or can't be verified.
    Data {
        offset: u64,
        length: u64,
        error: &'static str,
        message: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        wanted: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        found: Option<String>,
        /// The tree block that is to blame, in bytes into the tree.
        #[serde(skip_serializing_if = "Option::is_none")]
        tree_position: Option<u64>,
    },
    /// A hash block that is corrupt.
    Tree { position: u64, length: u32, level: u32, wanted: String, found: String },
    /// The verdict: always the last entry.
    Summary(Box<Summary>),
}

/// The verdict: always the last entry.
#[derive(Serialize)]
struct Summary {
    #[serde(flatten)]
    name: Name,
    verdict: &'static str,
    exit_status: u8,
    digest: String,
    trust: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    signer: Option<String>,
    size: u64,
    range_start: u64,
    range_end: u64,
    good_bytes: u64,
    bad_bytes: u64,
    bad_tree_blocks: u64,
    /// What became of the file while it was read. What was verified is the file that was opened, with `size` bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    changed: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stats: Option<StatsReport>,
}

struct Verify<'a> {
    args: &'a VerifyArgs,
    name: String,
    output: Output,
    outcome: Outcome,
    seen_tree: HashSet<u64>,
    /// What becomes of `--map`: nothing is kept where it is not wanted.
    map: Option<RescueMap>,
    mapped: u64,
    good: u64,
    bad: u64,
}

pub(crate) fn run(args: &VerifyArgs) -> CommandResult {
    if let Kind::Image(layers) = verify_image::kind(args)? {
        return verify_image::run(args, layers);
    }
    if args.digests.is_some() || args.jobs.is_some() {
        return Err(Failure::usage("--digests and --jobs are for images: a plain file takes --digest"));
    }
    if let Some(map) = &args.map {
        let inputs = args.target.inputs();
        let inputs: Vec<_> = inputs.iter().map(|(what, path)| (*what, path.as_path())).collect();
        refuse_overwriting(&[("--map", map)], &inputs)?;
    }
    // Report a map that can't be written before doing the work.
    let map = args.map.as_deref().map(OutputFile::create).transpose()?;
    let engine = args.read.engine()?;
    let (file, opened) = args.target.open(&engine)?;
    let range = ByteRange::within(args.range, file.len())?;
    let output = Output::begin(args.json, "postread-verify-1")?;
    let name = args.target.file.as_os_str();
    let name =
        if io::stdout().is_terminal() { escape_controls(name.as_bytes()) } else { name.to_string_lossy().into() };
    let mut verify = Verify {
        args,
        name,
        output,
        outcome: opened,
        seen_tree: HashSet::new(),
        map: map.is_some().then(RescueMap::new),
        mapped: 0,
        good: 0,
        bad: 0,
    };
    let progress = Progress::new(args.quiet);
    progress.set_total(range.end - range.start);
    let mut at = range.start;
    while at < range.end {
        let end = (at - at % STRETCH).saturating_add(STRETCH).min(range.end);
        let mut scan = file.file().scan(at..end);
        for part in scan.by_ref() {
            verify.bad_part(&part)?;
        }
        verify.good += scan.totals().good;
        verify.bad += scan.totals().bad;
        progress.advance(end - at);
        at = end;
    }
    verify.fill_map(range.end, RangeStatus::Finished, range.start);
    verify.fill_map(file.len(), RangeStatus::NonTried, range.start);
    // The verdict is printed whatever becomes of the map.
    let mapped = map.map_or(Ok(()), |mut map| {
        let text = verify.map.as_ref().map(RescueMap::to_text).unwrap_or_default();
        map.write(text.as_bytes())?;
        map.commit()
    });
    let stats = args.read.stats.then(|| StatsReport::of(&engine));
    if let Some(stats) = &stats {
        stats.tell();
    }
    let changed = file.changed().map_err(Failure::environment)?;
    let outcome = verify.end(&file, changed, range, stats)?;
    match mapped {
        Ok(()) => Ok(outcome),
        Err(error) => {
            let failure = Failure::from(error);
            Err(Failure { outcome: outcome.worst(failure.outcome), ..failure })
        }
    }
}

impl Verify<'_> {
    /// Appends to the map from where it ends up to `until`. What is before `from` was not read.
    fn fill_map(&mut self, until: u64, status: RangeStatus, from: u64) {
        let Some(map) = &mut self.map else { return };
        let mut push = |end: u64, status| {
            if end > self.mapped {
                map.push(self.mapped, end - self.mapped, status);
                self.mapped = end;
            }
        };
        push(from.min(until), RangeStatus::NonTried);
        push(until, status);
    }

    fn bad_part(&mut self, part: &BadPart) -> Result<(), Failure> {
        self.outcome = self.outcome.worst(outcome_of(&part.status));
        let tree = match &part.status {
            BlockStatus::Corrupt(c) if c.kind == CorruptionKind::Tree => Some(c),
            _ => None,
        };
        if let Some(c) = tree
            && self.seen_tree.insert(c.position)
        {
            self.bad_tree(c)?;
        }
        let from = if self.mapped == 0 { self.args.range.map_or(0, |range| range.start) } else { 0 };
        self.fill_map(part.range.start, RangeStatus::Finished, from);
        // A block under a bad hash block may be good, but there is no way to know.
        let hidden = tree.is_some() || matches!(part.status, BlockStatus::Input { .. });
        self.fill_map(part.range.end, if hidden { RangeStatus::NonTried } else { RangeStatus::Bad }, 0);

        let (offset, length) = (part.range.start, part.range.end - part.range.start);
        match &mut self.output {
            Output::Json(report) => report.push(&data_entry(part, offset, length)),
            Output::Lines(out) => writeln!(out, "{}: {}", self.name, data_text(part)),
        }
        .map_err(|error| output_failed_after(self.outcome, error))
    }

    fn bad_tree(&mut self, c: &Corruption) -> Result<(), Failure> {
        match &mut self.output {
            Output::Json(report) => report.push(&Entry::Tree {
                position: c.position,
                length: c.block_size,
                level: c.level.unwrap_or(0),
                wanted: c.wanted.to_string(),
                found: c.found.to_string(),
            }),
            Output::Lines(out) => writeln!(out, "{}: {}", self.name, tree_text(c)),
        }
        .map_err(|error| output_failed_after(self.outcome, error))
    }

    fn end(
        mut self,
        file: &VerifiedFile,
        changed: Option<Changed>,
        range: Range<u64>,
        stats: Option<StatsReport>,
    ) -> CommandResult {
        let digest = file.trusted().file_digest();
        let good = self.outcome == Outcome::Good;
        if changed.is_some() {
            self.outcome = self.outcome.worst(Outcome::Environment);
        }
        let outcome = self.outcome;
        match self.output {
            Output::Json(mut report) => {
                let (trust, signer) = match file.trusted().trust() {
                    Trust::Signature { signer } => ("signature", Some(signer.clone())),
                    _ => ("digest", None),
                };
                let summary = Summary {
                    name: Name::new(&self.args.target.file),
                    verdict: if good { "verified" } else { "bad" },
                    exit_status: self.outcome.code(),
                    digest: digest.to_string(),
                    trust,
                    signer,
                    size: file.len(),
                    range_start: range.start,
                    range_end: range.end,
                    good_bytes: self.good,
                    bad_bytes: self.bad,
                    bad_tree_blocks: self.seen_tree.len() as u64,
                    changed: changed.map(|changed| changed.to_string()),
                    stats,
                };
                report.push(&Entry::Summary(Box::new(summary))).and_then(|()| report.end())
            }
            Output::Lines(mut out) => {
                let by = match file.trusted().trust() {
                    Trust::Signature { signer } => format!(", signed by {signer}"),
                    _ => String::new(),
                };
                let part = match self.args.range {
                    Some(_) => format!("bytes {} to {} ", range.start, range.end.saturating_sub(1)),
                    None => String::new(),
                };
                let printed = match (good, self.args.quiet) {
                    (true, true) => Ok(()),
                    (true, false) => {
                        writeln!(out, "{}: {part}verified, {} bytes ({digest}{by})", self.name, self.good)
                    }
                    (false, _) => {
                        let bad = bad_text(self.good, self.bad, self.seen_tree.len() as u64);
                        writeln!(out, "{}: {part}{bad} ({digest}{by})", self.name)
                    }
                };
                printed.and_then(|()| out.flush())
            }
        }
        .map_err(|error| output_failed_after(outcome, error))?;
        if let Some(changed) = changed {
            let size = file.len();
            complain_of(
                &self.args.target.file,
                format_args!("{changed}; what was verified is the file that was opened, with {size} bytes"),
            );
        }
        Ok(outcome)
    }
}

/// A bad part of a file, in words.
pub(super) fn data_text(part: &BadPart) -> String {
    let (offset, length) = (part.range.start, part.range.end - part.range.start);
    match &part.status {
        BlockStatus::Corrupt(c) if c.kind == CorruptionKind::Data => {
            let (expected, found) = (&c.wanted, &c.found);
            format!("data block at {offset} ({length} bytes) is corrupt: expected {expected}, found {found}")
        }
        BlockStatus::Corrupt(c) => {
            format!("{length} bytes at {offset} can't be verified: the tree block at {} is corrupt", c.position)
        }
        status => format!("{length} bytes at {offset}: {status}"),
    }
}

/// A corrupt hash block, in words.
pub(super) fn tree_text(c: &Corruption) -> String {
    let (position, level) = (c.position, c.level.unwrap_or(0));
    format!("tree block at {position} (level {level}) is corrupt: expected {}, found {}", c.wanted, c.found)
}

/// The verdict on a file that is not good, in words.
pub(super) fn bad_text(good: u64, bad: u64, tree_blocks: u64) -> String {
    format!("BAD: {good} bytes are good, {bad} are not, {tree_blocks} tree blocks are corrupt")
}

fn data_entry(part: &BadPart, offset: u64, length: u64) -> Entry {
    let (error, wanted, found, tree_position) = match &part.status {
        BlockStatus::Corrupt(c) if c.kind == CorruptionKind::Data => {
            ("corrupt", Some(c.wanted.to_string()), Some(c.found.to_string()), None)
        }
        BlockStatus::Corrupt(c) => ("unverifiable", None, None, Some(c.position)),
        BlockStatus::Input { position, .. } => ("unverifiable", None, None, Some(*position)),
        BlockStatus::Short => ("truncated", None, None, None),
        _ => ("unreadable", None, None, None),
    };
    Entry::Data { offset, length, error, message: part.status.to_string(), wanted, found, tree_position }
}
