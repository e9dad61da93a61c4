//! `postread verify` on an image: reports every file that has fs-verity, and every bad range of each.

use std::io::{self, IsTerminal, Write};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use postread::{BadPart, Error, FileVerdict, Finding, Layers, Target, TrustedDigests, VerifyTotals};
use postread_io::{BlockStatus, Corruption, CorruptionKind};
use postread_volume::Magic;
use serde::Serialize;

use super::verify::{VerifyArgs, bad_text, data_text, tree_text};
use crate::exit::{CommandResult, Failure, Outcome};
use crate::image::{ImageArgs, bytes_of, load_trusted};
use crate::progress::Progress;
use crate::read_options::StatsReport;
use crate::report::{Name, Output};
use crate::text::{bytes_for_stderr, complain, escape_controls, output_failed_after};
use crate::verity_target::outcome_of;

/// What a target is.
pub(super) enum Kind {
    PlainFile,
    /// An image, and its layers if they had to be opened to tell.
    Image(Option<Box<Layers>>),
}

/// Decides by the options, or else by how the target begins.
pub(super) fn kind(args: &VerifyArgs) -> Result<Kind, Failure> {
    if !args.paths.is_empty() || args.image.given() || args.digests.is_some() {
        return Ok(Kind::Image(None));
    }
    if args.target.is_plain() || args.target.digest.is_some() {
        return Ok(Kind::PlainFile);
    }
    let layers = args.image.builder(&args.target.file).layers(&args.target.file)?;
    let image = is_device(&args.target.file) || is_image_magic(layers.magic());
    // Where a passphrase is needed they are opened again, with the one that is asked for.
    let layers = Some(Box::new(layers)).filter(|layers| !layers.is_stopped());
    Ok(if image { Kind::Image(layers) } else { Kind::PlainFile })
}

/// Whether a file is a block device or begins like an image. One that cannot be read is not.
pub(super) fn is_image_file(image: &ImageArgs, path: &Path) -> bool {
    is_device(path) || image.builder(path).layers(path).is_ok_and(|layers| is_image_magic(layers.magic()))
}

fn is_device(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_block_device())
}

fn is_image_magic(magic: Option<Magic>) -> bool {
    matches!(magic, Some(Magic::Ext4 | Magic::Gpt | Magic::Mbr | Magic::Luks | Magic::Lvm2 | Magic::AndroidSuper))
}

/// One entry of the report.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Entry<'a> {
    /// A range of a file that is bad or cannot be verified.
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
    /// A path that could not be opened.
    Error {
        #[serde(flatten)]
        name: &'a Name,
        error: String,
        exit_status: u8,
    },
    /// The totals: always the last entry.
    Summary {
        /// Listed files that do not exist included.
        files: u64,
        good: u64,
        self_consistent: u64,
        exit_status: u8,
        #[serde(skip_serializing_if = "Option::is_none")]
        stats: Option<Box<StatsReport>>,
    },
}

/// Prints findings.
struct Reporter {
    output: Output,
    terminal: bool,
    quiet: bool,
    outcome: Outcome,
    /// Of the file whose findings arrive.
    file_outcome: Outcome,
    broken: Option<io::Error>,
}

pub(super) fn run(args: &VerifyArgs, layers: Option<Box<Layers>>) -> CommandResult {
    args.target.refuse_for_image()?;
    if args.range.is_some() || args.map.is_some() {
        return Err(Failure::usage("--range and --map are for a plain file"));
    }
    let engine = args.read.engine()?;
    let trusted = match args.target.digest {
        Some(digest) => TrustedDigests::only(digest),
        None => load_trusted(args.digests.as_deref())?,
    };
    let no_digests = trusted.is_empty();
    let builder = args.image.with_keys(&args.target.file, true)?;
    let builder = builder.engine(engine.clone()).trusted(trusted).require_digests(args.require_digests);
    let target = match layers {
        Some(layers) => builder.open_layers(&args.target.file, *layers)?,
        None => builder.open(&args.target.file)?,
    };
    if args.target.digest.is_some() && !is_one_file(args, &target) {
        return Err(Failure::usage("--digest takes one PATH, a file: for several there is --digests"));
    }
    let mut reporter = Reporter {
        output: Output::begin(args.json, "postread-verify-image-1")?,
        terminal: io::stdout().is_terminal(),
        quiet: args.quiet,
        outcome: Outcome::Good,
        file_outcome: Outcome::Good,
        broken: None,
    };
    let progress = Progress::new(args.quiet);
    let mut verifier = target.verifier().follow(args.image.follow()).progress(&progress);
    if let Some(jobs) = args.jobs {
        verifier = verifier.jobs(jobs);
    }
    let root = [std::ffi::OsString::from("/")];
    let paths = if args.paths.is_empty() { &root[..] } else { &args.paths[..] };
    let totals = verifier.run(paths, |path, finding| reporter.finding(path, finding));
    progress.finish();
    let stats = args.read.stats.then(|| StatsReport::of(&engine));
    if let Some(stats) = &stats {
        stats.tell();
    }
    if totals.files == 0 {
        // Nothing to verify is no success; a worse outcome stands.
        reporter.outcome = reporter.outcome.worst(Outcome::Nothing);
        if reporter.outcome == Outcome::Nothing {
            complain("no file with fs-verity here");
        }
    } else if args.digests.is_some() && no_digests {
        // The files were to be checked against a list, and were not.
        reporter.outcome = reporter.outcome.worst(Outcome::Nothing);
        complain("the list of digests is empty: no file was verified against it");
    }
    reporter.end(totals, no_digests, stats)
}

fn is_one_file(args: &VerifyArgs, target: &Target) -> bool {
    let [path] = &args.paths[..] else { return false };
    target.image().find(bytes_of(path), args.image.follow()).map_or(true, |found| !found.inode.is_dir())
}

impl Reporter {
    fn finding(&mut self, path: &Path, finding: Finding) -> ControlFlow<()> {
        let name = Name::of_bytes(path.as_os_str().as_bytes());
        match finding {
            Finding::Tree(c) => self.tree(path, &name, &c),
            Finding::Data(part) => self.data(path, &name, &part),
            Finding::File(verdict) => self.file(path, &name, &verdict),
            Finding::Failed(error) | Finding::Unreadable(error) => self.error(path, &name, &error),
            _ => {}
        }
        // A reader that went away wants no more; after any other failure bad files still decide the exit status.
        match &self.broken {
            Some(error) if error.kind() == io::ErrorKind::BrokenPipe => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    }

    fn shown(&self, path: &Path) -> String {
        let bytes = path.as_os_str().as_bytes();
        if self.terminal { escape_controls(bytes) } else { String::from_utf8_lossy(bytes).into_owned() }
    }

    fn line(&mut self, path: &Path, text: impl std::fmt::Display) {
        let shown = self.shown(path);
        self.write(format_args!("{shown}: {text}"));
    }

    fn write(&mut self, text: std::fmt::Arguments<'_>) {
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

    fn error(&mut self, path: &Path, name: &Name, error: &Error) {
        let outcome = error.kind().into();
        self.outcome = self.outcome.worst(outcome);
        let message = error.message().to_string();
        complain(format_args!("{}: {message}", bytes_for_stderr(path.as_os_str().as_bytes())));
        self.push(&Entry::Error { name, error: message, exit_status: outcome.code() });
    }

    fn tree(&mut self, path: &Path, name: &Name, c: &Corruption) {
        self.line(path, tree_text(c));
        let (position, level, length) = (c.position, c.level.unwrap_or(0), c.block_size);
        self.push(&Entry::Tree {
            name,
            position,
            length,
            level,
            wanted: c.wanted.to_string(),
            found: c.found.to_string(),
        });
    }

    fn data(&mut self, path: &Path, name: &Name, part: &BadPart) {
        self.file_outcome = self.file_outcome.worst(outcome_of(&part.status));
        self.line(path, data_text(part));
        let (wanted, found) = match &part.status {
            BlockStatus::Corrupt(c) if c.kind == CorruptionKind::Data => {
                (Some(c.wanted.to_string()), Some(c.found.to_string()))
            }
            _ => (None, None),
        };
        let (offset, length) = (part.range.start, part.range.end - part.range.start);
        self.push(&Entry::Data { name, offset, length, message: part.status.to_string(), wanted, found });
    }

    fn file(&mut self, path: &Path, name: &Name, verdict: &FileVerdict) {
        let outcome = std::mem::take(&mut self.file_outcome);
        self.outcome = self.outcome.worst(outcome);
        let digest = verdict.descriptor.file_digest();
        let (good_bytes, bad_bytes, bad_tree_blocks) = (verdict.good_bytes, verdict.bad_bytes, verdict.bad_tree_blocks);
        let (word, trust) = match (verdict.is_good(), verdict.is_trusted()) {
            (false, trusted) => ("bad", if trusted { "digest" } else { "none" }),
            (true, true) => ("verified", "digest"),
            (true, false) => ("self-consistent", "none"),
        };
        if !verdict.is_good() {
            let bad = bad_text(good_bytes, bad_bytes, bad_tree_blocks);
            self.line(path, format_args!("{bad} ({digest})"));
        } else if !self.quiet {
            self.line(path, format_args!("{word}, {good_bytes} bytes ({digest})"));
        }
        self.push(&Entry::File {
            name,
            inode: verdict.ino,
            verdict: word,
            exit_status: outcome.code(),
            digest: digest.to_string(),
            trust,
            size: verdict.size,
            good_bytes,
            bad_bytes,
            bad_tree_blocks,
        });
    }

    fn end(mut self, totals: VerifyTotals, no_digests: bool, stats: Option<StatsReport>) -> CommandResult {
        let VerifyTotals { files, good, self_consistent, .. } = totals;
        let outcome = self.outcome;
        if files > 1 && !self.quiet {
            let trust = match (no_digests, self_consistent) {
                (true, _) => "; self-consistent only: no digests were given".to_owned(),
                (false, 0) => String::new(),
                (false, own) => format!(": {} verified, {own} self-consistent only", good - own),
            };
            self.write(format_args!("{good} of {files} files are good{trust}"));
        }
        let exit_status = outcome.code();
        self.push(&Entry::Summary { files, good, self_consistent, exit_status, stats: stats.map(Box::new) });
        match self.broken {
            Some(error) => Err(error),
            None => self.output.end(),
        }
        .map_err(|error| output_failed_after(outcome, error))?;
        Ok(outcome)
    }
}
