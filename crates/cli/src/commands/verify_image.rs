//! `postread verify` on an image: every file that has fs-verity, several at once, every bad range of each.

use std::collections::{BTreeMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use postread::image::{Found, Image, ImageError, canonical};
use postread::{Engine, TrustedDigests};
use postread_fsimage::ext4::{FileType, Inode};
use postread_io::{BlockStatus, Corruption, CorruptionKind};
use postread_volume::Magic;
use serde::Serialize;

use super::path_tree::{PathTree, TreePath};
use super::verify::VerifyArgs;
use crate::exit::{CommandResult, Failure, Outcome};
use crate::image::{ImageArgs, bytes_of, load_trusted, outcome_of, resolve};
use crate::progress::Progress;
use crate::read_options::StatsReport;
use crate::report::{Name, Output};
use crate::text::{bytes_for_stderr, complain, escape_controls, output_failed_after};
use crate::verity_target;
use postread::Progress as _;

/// How far a file may be ahead of the first that is not done. Results are kept that long, as they come in path order.
const AHEAD_MAX: usize = 256;
/// How much output one file may buffer before its turn; then it waits.
const KEPT_MAX: usize = 1024;

/// Whether the target is an image and not a plain file: an option says so, or it begins like one.
pub(super) fn is_image(args: &VerifyArgs) -> Result<bool, Failure> {
    if !args.paths.is_empty() || args.image.given() || args.digests.is_some() {
        return Ok(true);
    }
    if args.target.is_plain() || args.target.digest.is_some() {
        return Ok(false);
    }
    let magic = args.image.builder(&args.target.file).layers(&args.target.file)?.magic();
    Ok(is_device(&args.target.file) || is_image_magic(magic))
}

/// Whether a file is a block device or begins like an image. One that cannot be read is not.
pub(super) fn is_image_file(image: &ImageArgs, path: &Path) -> bool {
    is_device(path) || image.builder(path).layers(path).is_ok_and(|layers| is_image_magic(layers.magic()))
}

fn is_device(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_block_device())
}

fn is_image_magic(magic: Option<Magic>) -> bool {
    matches!(magic, Some(Magic::Ext4 | Magic::Gpt | Magic::Mbr))
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
        /// Those that are listed and not there among them.
        files: u64,
        good: u64,
        self_consistent: u64,
        exit_status: u8,
        #[serde(skip_serializing_if = "Option::is_none")]
        stats: Option<Box<StatsReport>>,
    },
}

/// What all threads write to.
struct Shared {
    output: Output,
    terminal: bool,
    quiet: bool,
    outcome: Outcome,
    files: u64,
    good: u64,
    /// Of the good ones, those for which no digest was given.
    self_consistent: u64,
    broken: Option<io::Error>,
    /// The file whose results are being printed, by its place among all.
    turn: usize,
    /// Results of files that are done before their turn.
    kept: BTreeMap<usize, Vec<Event>>,
}

struct Job {
    path: TreePath,
    ino: u32,
}

/// Something to print.
type Event = Box<dyn FnOnce(&mut Shared) + Send>;

/// The output of one file: printed at once if it is its turn, else kept until then.
struct Teller<'v, 'a> {
    verify: &'v Verify<'a>,
    index: usize,
    kept: Vec<Event>,
}

impl Teller<'_, '_> {
    fn tell(&mut self, event: impl FnOnce(&mut Shared) + Send + 'static) {
        self.kept.push(Box::new(event));
        let mut shared = self.verify.shared();
        if self.kept.len() >= KEPT_MAX {
            shared = self.verify.wait_while(shared, |shared| shared.turn < self.index);
        }
        if shared.turn == self.index {
            self.kept.drain(..).for_each(|event| event(&mut shared));
        }
    }
}

impl Drop for Teller<'_, '_> {
    fn drop(&mut self) {
        let mut shared = self.verify.shared();
        shared.kept.insert(self.index, std::mem::take(&mut self.kept));
        while let Some(events) = {
            let turn = shared.turn;
            shared.kept.remove(&turn)
        } {
            events.into_iter().for_each(|event| event(&mut shared));
            shared.turn += 1;
        }
        self.verify.turned.notify_all();
    }
}

struct Verify<'a> {
    image: &'a Image,
    engine: &'a Engine,
    trusted: &'a TrustedDigests,
    /// Whether a file without a trusted digest fails.
    require_digests: bool,
    /// Whether there is a list of digests, be it empty.
    list_given: bool,
    progress: &'a Progress,
    shared: Mutex<Shared>,
    /// Notified when it is another file's turn.
    turned: Condvar,
}

pub(super) fn run(args: &VerifyArgs) -> CommandResult {
    args.target.refuse_for_image()?;
    if args.range.is_some() || args.map.is_some() {
        return Err(Failure::usage("--range and --map are for a plain file"));
    }
    let engine = args.read.engine()?;
    let mut trusted = match args.target.digest {
        Some(digest) => TrustedDigests::only(digest),
        None => load_trusted(args.digests.as_deref())?,
    };
    let image = args.image.open(&args.target.file, true)?;
    trusted.follow_links(&image);
    let (mut roots, mut missing) = (Vec::new(), Vec::new());
    for path in &args.paths {
        let path = bytes_of(path);
        match image.find(path, args.image.follow()) {
            Ok(found) => roots.push(found),
            Err(error) => missing.push((canonical(path), error.without_path(path))),
        }
    }
    if args.paths.is_empty() {
        roots.push(resolve(&image, b"", args.image.follow())?);
    }
    let one_file = args.paths.len() == 1 && roots.iter().all(|found| !found.inode.is_dir());
    if args.target.digest.is_some() && !one_file {
        return Err(Failure::usage("--digest takes one PATH, a file: for several there is --digests"));
    }
    let output = Output::begin(args.json, "postread-verify-image-1")?;
    let progress = Progress::new(args.quiet);
    let terminal = io::stdout().is_terminal();
    let quiet = args.quiet;
    let shared = Shared {
        output,
        terminal,
        quiet,
        outcome: Outcome::Good,
        files: 0,
        good: 0,
        self_consistent: 0,
        broken: None,
        turn: 0,
        kept: BTreeMap::new(),
    };
    let verify = Verify {
        image: &image,
        engine: &engine,
        trusted: &trusted,
        require_digests: args.require_digests,
        list_given: args.digests.is_some(),
        progress: &progress,
        shared: Mutex::new(shared),
        turned: Condvar::new(),
    };
    for (path, error) in &missing {
        verify.error(path, error, outcome_of(error));
    }
    let threads = args.jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from)).max(1);
    let (mut jobs, mut paths) = (Vec::new(), PathTree::new());
    for Found { inode, path, .. } in roots {
        verify.root(inode, &path, |path, ino| jobs.push(Job { path: paths.add(path), ino }));
    }
    jobs.sort_by(|a, b| paths.compare(&a.path, &b.path));
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some((index, job)) = {
            let index = next.fetch_add(1, Ordering::Relaxed);
            jobs.get(index).map(|job| (index, job))
        } {
            verify.file(index, job.ino, &paths.path(&job.path));
        }
    };
    std::thread::scope(|scope| {
        // Where the system gives fewer threads they do it all, and where it gives none, this one does.
        for _ in 1..threads.min(jobs.len()) {
            if std::thread::Builder::new().spawn_scoped(scope, work).is_err() {
                break;
            }
        }
        work();
    });
    verify.listed_but_not_verified(jobs.iter().map(|job| paths.path(&job.path)));
    progress.finish();
    let stats = args.read.stats.then(|| StatsReport::of(&engine));
    if let Some(stats) = &stats {
        stats.tell();
    }
    verify.end(stats)
}

impl Verify<'_> {
    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_while<'g>(
        &self,
        shared: MutexGuard<'g, Shared>,
        condition: impl FnMut(&mut Shared) -> bool,
    ) -> MutexGuard<'g, Shared> {
        self.turned.wait_while(shared, condition).unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives every file with fs-verity at or beneath `path` to `send`.
    fn root(&self, inode: Inode, path: &[u8], mut send: impl FnMut(&[u8], u32)) {
        if !inode.is_dir() {
            if inode.is_verity() || self.trusted.get(path).is_some() {
                send(path, inode.ino);
            }
            return;
        }
        match self.image.locked(&inode) {
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
                match self.image.locked(&inode) {
                    Ok(None) => {}
                    Ok(Some(error)) | Err(error) => {
                        self.error(&path, &error, outcome_of(&error));
                        walk.skip_dir();
                    }
                }
            } else if inode.file_type == FileType::Regular && (inode.is_verity() || self.trusted.get(&path).is_some()) {
                send(&path, inode.ino);
            }
        }
    }

    /// A trusted path that no file was held to must not pass in silence, except a file that was not asked for.
    fn listed_but_not_verified(&self, paths: impl Iterator<Item = Vec<u8>>) {
        // Hashes: whole paths would take the square of a deep chain.
        let hasher = RandomState::new();
        let trusted = self.trusted;
        let judged: HashSet<u64> = match trusted.is_empty() {
            true => HashSet::new(),
            false => paths.map(|path| hasher.hash_one(path)).collect(),
        };
        let is_judged = |path: &[u8]| judged.contains(&hasher.hash_one(trusted.real_path(path).to_vec()));
        for path in trusted.paths().filter(|path| trusted.contradicts(path) || !is_judged(path)) {
            if let Some(error) = trusted.trouble(self.image, path) {
                self.shared().files += 1;
                self.error(path, &error, error.kind().into());
            }
        }
    }

    fn error(&self, path: &[u8], error: &dyn std::fmt::Display, outcome: Outcome) {
        self.shared().error(path, error, outcome);
    }

    fn file(&self, index: usize, ino: u32, path: &[u8]) {
        let shared = self.wait_while(self.shared(), |shared| index > shared.turn + AHEAD_MAX);
        // A reader that went away wants no more; any other failure must not hide a bad file behind it.
        let broken = shared.broken.as_ref().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe);
        drop(shared);
        let mut teller = Teller { verify: self, index, kept: Vec::new() };
        if broken {
            return;
        }
        if let Err(error) = self.try_file(ino, path, &mut teller) {
            let path = path.to_vec();
            teller.tell(move |shared| {
                shared.files += 1;
                shared.error(&path, &error, outcome_of(&error));
            });
        }
        self.progress.file_done();
    }

    fn try_file(&self, ino: u32, path: &[u8], teller: &mut Teller<'_, '_>) -> Result<(), ImageError> {
        let trusted = self.trusted.get(path);
        let inode = self.image.fs().inode(ino).map_err(ImageError::from)?;
        let Some(verity) = self.image.verity(&inode)? else {
            return match trusted {
                Some(wanted) => Err(ImageError::NoVerity { wanted: Box::new(*wanted) }),
                None => Ok(()),
            };
        };
        let verity = match trusted {
            Some(digest) => verity.trust(digest)?,
            None if self.require_digests => return Err(ImageError::NotListed),
            None => verity.self_consistent(),
        };
        let digest = *verity.descriptor().file_digest();
        let trust = verity.descriptor().trust().clone();
        let file = self.engine.open(verity.plan()?.0);
        let named = Arc::new((path.to_vec(), Name::of_bytes(path)));
        let mut scan = file.scan(0..file.len());
        let mut outcome = Outcome::Good;
        let mut told = HashSet::new();
        for part in scan.by_ref() {
            outcome = outcome.worst(verity_target::outcome_of(&part.status));
            let new_tree = match &part.status {
                BlockStatus::Corrupt(c) => c.kind == CorruptionKind::Tree && told.insert(c.position),
                _ => false,
            };
            let named = named.clone();
            teller.tell(move |shared| {
                if let (true, BlockStatus::Corrupt(c)) = (new_tree, &part.status) {
                    shared.tree(&named.0, &named.1, c);
                }
                shared.data(&named.0, &named.1, part.range.start, part.range.end - part.range.start, &part.status);
            });
        }
        let (good_bytes, bad_bytes) = (scan.totals().good, scan.totals().bad);
        let (size, bad_tree, trusted) = (file.len(), told.len(), trust.is_verified());
        self.progress.advance(size);
        teller.tell(move |shared| {
            let (path, name) = &*named;
            let good = outcome == Outcome::Good;
            let (verdict, trust) = match (good, trusted) {
                (false, trusted) => ("bad", if trusted { "digest" } else { "none" }),
                (true, true) => ("verified", "digest"),
                (true, false) => ("self-consistent", "none"),
            };
            shared.files += 1;
            shared.good += u64::from(good);
            shared.self_consistent += u64::from(good && !trusted);
            shared.outcome = shared.outcome.worst(outcome);
            let shown = shared.shown(path);
            if !good {
                let what = format!(
                    "BAD: {good_bytes} bytes are good, {bad_bytes} are not, {bad_tree} tree blocks are corrupt"
                );
                shared.line(format_args!("{shown}: {what} ({digest})"));
            } else if !shared.quiet {
                shared.line(format_args!("{shown}: {verdict}, {good_bytes} bytes ({digest})"));
            }
            shared.push(&Entry::File {
                name,
                inode: ino,
                verdict,
                exit_status: outcome.code(),
                digest: digest.to_string(),
                trust,
                size,
                good_bytes,
                bad_bytes,
                bad_tree_blocks: bad_tree as u64,
            });
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
        } else if self.list_given && self.trusted.is_empty() {
            // What was asked for, files held against a list, was not done.
            shared.outcome = shared.outcome.worst(Outcome::Nothing);
            complain("the list of digests is empty: no file was verified against it");
        }
        let (files, good, outcome) = (shared.files, shared.good, shared.outcome);
        if files > 1 && !shared.quiet {
            let own = shared.self_consistent;
            let trust = match (!self.trusted.is_empty(), own) {
                (false, _) => "; self-consistent only: no digests were given".to_owned(),
                (true, 0) => String::new(),
                (true, own) => format!(": {} verified, {own} self-consistent only", good - own),
            };
            shared.line(format_args!("{good} of {files} files are good{trust}"));
        }
        let self_consistent = shared.self_consistent;
        shared.push(&Entry::Summary {
            files,
            good,
            self_consistent,
            exit_status: outcome.code(),
            stats: stats.map(Box::new),
        });
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

    fn error(&mut self, path: &[u8], error: &dyn std::fmt::Display, outcome: Outcome) {
        self.outcome = self.outcome.worst(outcome);
        complain(format_args!("{}: {error}", bytes_for_stderr(path)));
        let name = Name::of_bytes(path);
        self.push(&Entry::Error { name: &name, error: error.to_string(), exit_status: outcome.code() });
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
