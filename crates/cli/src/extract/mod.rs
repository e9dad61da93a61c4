//! Trees put down beneath a directory: several files at once, links and attributes behind them, all that fails told.

mod attributes;
mod beneath;
pub(crate) mod ciphertext;
mod directories;
mod file_job;
pub(crate) mod from_image;
mod listed;
pub(crate) mod restore;
mod saved_file;
mod survey;

use std::collections::{HashMap, HashSet};
use std::fmt::Display;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use postread::image::Image;
use postread::{Engine, TrustedDigests};
use serde::Serialize;

pub(crate) use attributes::LeftOut;
use attributes::{Allowed, Attributes, Put};
use beneath::{Beneath, check_name};
use directories::{DirId, Directories, Way};
use file_job::FileJob;
use listed::Listed;

use crate::exit::{Failure, Outcome};
use crate::open_files;
use crate::progress::Progress;
use crate::report::{ListReport, Name};
use crate::text::{bytes_for_stderr, complain, name_for_stderr, output_failed_after};

/// The longest path that is made, in bytes. What waits for a thread has one.
const PATH_MAX: usize = 1 << 20;
/// The most files found and not yet taken by a thread.
const WAITING: usize = 64;
/// Files that one that waits keeps open: its directory, and its ciphertext twice. One that is written is one more.
const OPEN_WAITING: usize = 3;
/// Files open besides: standard streams, the image, what the engine measures with; and some for each CPU.
const OPEN_ELSE: usize = 32;
const OPEN_A_CPU: usize = 4;

/// How to extract.
pub(crate) struct Settings<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) progress: &'a Progress,
    pub(crate) trusted: &'a TrustedDigests,
    pub(crate) privileged: bool,
    pub(crate) keep_going: bool,
    /// Whether there is a list of digests, be it empty.
    pub(crate) list_given: bool,
    pub(crate) require_digests: bool,
    pub(crate) threads: usize,
}

/// One entry of the report: what failed, and the whole at the end.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Entry {
    Error {
        #[serde(flatten)]
        name: Name,
        error: String,
        exit_status: u8,
    },
    /// Left out by design.
    LeftOut {
        #[serde(flatten)]
        name: Name,
        what: &'static str,
    },
    Summary(Counts),
}

/// What was done.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Counts {
    pub(crate) files: u64,
    pub(crate) bytes: u64,
    /// Files that were there already.
    pub(crate) already_there: u64,
    pub(crate) directories: u64,
    /// Symbolic and hard links, pipes, sockets, devices.
    pub(crate) others: u64,
    /// Files held against digests that the caller gave, those that were there already included.
    pub(crate) verified: u64,
    /// Files with fs-verity that agree with their own metadata, and no digest was given for.
    pub(crate) self_consistent: u64,
    /// Files without fs-verity: nothing says what is in them.
    pub(crate) copied: u64,
    /// Files that were there already and had another digest than the one given.
    pub(crate) replaced: u64,
    /// Files with holes where blocks were bad (`--keep-going`).
    pub(crate) damaged: u64,
    pub(crate) failed: u64,
    pub(crate) left_out: LeftOut,
    pub(crate) exit_status: u8,
}

struct Shared {
    counts: Counts,
    outcome: Outcome,
    report: Option<ListReport<Box<dyn Write + Send>>>,
    broken: Option<io::Error>,
    /// Extended attributes that the file system beneath does not take, by name.
    unsupported: HashSet<Vec<u8>>,
    /// The inodes that were held against a given digest, and whether they were verified: if not, that was told.
    held: HashMap<u32, bool>,
}

/// A hard link that waits for its file.
struct HardLink {
    dir: DirId,
    name: Box<[u8]>,
    /// The directory and the name of the file.
    first: (DirId, Box<[u8]>),
}

/// A tree being put down.
pub(crate) struct Extraction<'a> {
    settings: &'a Settings<'a>,
    image: Option<&'a Image>,
    top: Beneath,
    allowed: Allowed,
    shared: Mutex<Shared>,
}

/// What the walk keeps for the end, and where it puts files.
pub(crate) struct Feed<'a> {
    extraction: &'a Extraction<'a>,
    /// To the threads that write files; none where the system gave none.
    sender: Option<SyncSender<FileJob>>,
    directories: Directories,
    way: Way,
    /// The first name of each inode of several names.
    first: HashMap<u32, (DirId, Box<[u8]>)>,
    links: Vec<HardLink>,
    /// Hashes of the names that came before, with their directories: a second entry of the same name is the image's fault, and would be told
    /// as one of the directory's.
    names: HashSet<u64>,
    hasher: RandomState,
    /// What the top directory gets in the end, if it is this run's own.
    top_attributes: Option<Attributes>,
    listed: Listed,
}

/// A name that is to be made, and the directory that it is made in; the path from the top is for messages.
#[derive(Clone, Copy)]
struct At<'p> {
    dir: DirId,
    path: &'p [u8],
}

impl<'p> At<'p> {
    fn name(&self) -> &'p [u8] {
        last_name(self.path)
    }
}

/// A path's last name.
fn last_name(path: &[u8]) -> &[u8] {
    path.rsplit(|&b| b == b'/').next().unwrap_or(path)
}

impl<'a> Extraction<'a> {
    pub(crate) fn open(
        settings: &'a Settings<'a>,
        image: Option<&'a Image>,
        dir: &Path,
        report: Option<ListReport<Box<dyn Write + Send>>>,
    ) -> Result<Self, Failure> {
        let top = Beneath::open(dir)
            .map_err(|(path, error)| Failure::environment(format!("{}: {error}", name_for_stderr(&path))))?;
        let owners = rustix::process::geteuid().is_root();
        let shared = Shared {
            counts: Counts::default(),
            outcome: Outcome::Good,
            report,
            broken: None,
            unsupported: HashSet::new(),
            held: HashMap::new(),
        };
        let allowed = Allowed { owners, privileged: settings.privileged };
        Ok(Self { settings, image, top, allowed, shared: Mutex::new(shared) })
    }

    /// Lets `walk` find what there is, with threads that write files meanwhile; then the links, then the directories'
    /// attributes.
    pub(crate) fn run(self, walk: impl FnOnce(&mut Feed<'_>)) -> Result<(Outcome, Counts), Failure> {
        let limit = open_files::raise_limit();
        let waiting = WAITING.min(limit / 16);
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let reserved = directories::OPEN_MAX + waiting * OPEN_WAITING + OPEN_ELSE + cpus * OPEN_A_CPU;
        let threads = open_files::threads(self.settings.threads, limit, reserved, OPEN_WAITING + 1);
        let (links, directories, top_attributes, listed) = std::thread::scope(|scope| {
            let (sender, receiver) = sync_channel::<FileJob>(waiting);
            let receiver = Arc::new(Mutex::new(receiver));
            let start = |_: &usize| {
                let (receiver, this) = (receiver.clone(), &self);
                let thread = std::thread::Builder::new().spawn_scoped(scope, move || {
                    loop {
                        let job = receiver.lock().unwrap_or_else(PoisonError::into_inner).recv();
                        let Ok(job) = job else { return };
                        this.file(job);
                    }
                });
                thread.is_ok()
            };
            // Where the system gives fewer threads they do it all, and where it gives none, this one does.
            let alone = (0..threads).take_while(start).count() == 0;
            drop(receiver);
            let mut feed = Feed {
                extraction: &self,
                sender: (!alone).then_some(sender),
                directories: Directories::new(),
                way: Way::new(self.top.top()),
                first: HashMap::new(),
                links: Vec::new(),
                names: HashSet::new(),
                hasher: RandomState::new(),
                top_attributes: None,
                listed: Listed::default(),
            };
            walk(&mut feed);
            (feed.links, feed.directories, feed.top_attributes, feed.listed)
        });
        let mut ways = [Way::new(self.top.top()), Way::new(self.top.top())];
        for link in &links {
            match self.hard_link(link, &directories, &mut ways) {
                Ok(()) => self.shared().counts.others += 1,
                Err(error) => {
                    // Its file was not made, and why has its own status.
                    let told = error.kind() == io::ErrorKind::NotFound && self.shared().outcome != Outcome::Good;
                    let outcome = if told { Outcome::Good } else { Outcome::Environment };
                    self.failed(&directories.path(link.dir, &link.name), &error, outcome);
                }
            }
        }
        if let Some(image) = self.image.filter(|_| self.settings.list_given) {
            self.check_list(image, &listed);
        }
        // What is within changes a directory's time, and its mode may forbid to write there.
        let [mut way, _] = ways;
        for (dir, attributes) in directories.last_first() {
            match way.open(&directories, dir) {
                Ok(fd) => self.attributes_put(|| directories.path_of(dir), attributes.put(fd.as_fd(), self.allowed)),
                Err(error) => self.failed(&directories.path_of(dir), &error, Outcome::Environment),
            }
        }
        self.top.close();
        if let Some(mode) = self.top.own() {
            let top = self.top.top();
            match top_attributes {
                Some(attributes) => self.attributes_put(|| b".".to_vec(), attributes.put(top.as_fd(), self.allowed)),
                // What saved ciphertext was of is not told there: it may have been private.
                None if self.image.is_none() => {}
                None => drop(rustix::fs::fchmod(&top, mode)),
            }
        }
        self.end()
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells what failed; the rest goes on.
    fn failed(&self, path: &[u8], error: &dyn Display, outcome: Outcome) {
        let mut shared = self.shared();
        shared.outcome = shared.outcome.worst(outcome);
        shared.counts.failed += 1;
        complain(format_args!("{}: {error}", bytes_for_stderr(path)));
        let name = Name::of_bytes(path);
        let entry = Entry::Error { name, error: error.to_string(), exit_status: outcome.code() };
        if let Some(report) = &mut shared.report
            && let Err(error) = report.push(&entry)
        {
            shared.broken = Some(error);
        }
    }

    /// Tells what could not be put on a file.
    fn attributes_put(&self, path: impl FnOnce() -> Vec<u8>, put: Put) {
        let mut shared = self.shared();
        shared.counts.left_out += put.left_out;
        shared.unsupported.extend(put.unsupported);
        drop(shared);
        if !put.failed.is_empty() {
            let path = path();
            for (what, error) in put.failed {
                // The image's own fault, where it is no refusal of the file system here.
                let malformed = error.kind() == io::ErrorKind::InvalidData;
                let outcome = if malformed { Outcome::Usage } else { Outcome::Environment };
                self.failed(&path, &format_args!("its {what}: {error}"), outcome);
            }
        }
    }

    /// Tells what is left out by design: nothing failed.
    fn left_out(&self, path: &[u8], what: &'static str) {
        let mut shared = self.shared();
        complain(format_args!("{}: {what}", bytes_for_stderr(path)));
        let entry = Entry::LeftOut { name: Name::of_bytes(path), what };
        if let Some(report) = &mut shared.report
            && let Err(error) = report.push(&entry)
        {
            shared.broken = Some(error);
        }
    }

    fn hard_link(&self, link: &HardLink, directories: &Directories, ways: &mut [Way; 2]) -> io::Result<()> {
        let HardLink { dir, name: to_name, first: (first, from_name) } = link;
        let (from_name, to_name) = (&**from_name, &**to_name);
        let (from_dir, to_dir) = (ways[0].open(directories, *first)?, ways[1].open(directories, *dir)?);
        let wanted = beneath::stat(from_dir.as_fd(), from_name)?.ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::NotFound,
                format!(
                    "the file of the same inode, {}, was not extracted",
                    directories.path(*first, from_name).escape_ascii()
                ),
            )
        })?;
        if let Some(found) = beneath::stat(to_dir.as_fd(), to_name)?
            && (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino)
        {
            return Ok(());
        }
        beneath::clear(to_dir.as_fd(), to_name)?;
        Ok(rustix::fs::linkat(&from_dir, from_name, &to_dir, to_name, rustix::fs::AtFlags::empty())?)
    }

    fn end(self) -> Result<(Outcome, Counts), Failure> {
        let shared = self.shared.into_inner().unwrap_or_else(PoisonError::into_inner);
        for name in &shared.unsupported {
            let name = bytes_for_stderr(name);
            complain(format_args!("warning: the file system does not take the extended attribute {name}: left out"));
        }
        if let Some(error) = shared.broken {
            return Err(output_failed_after(shared.outcome, error));
        }
        let counts = Counts { exit_status: shared.outcome.code(), ..shared.counts };
        if let Some(mut report) = shared.report {
            let ended = report.push(&Entry::Summary(counts)).and_then(|()| report.end());
            ended.map_err(|error| output_failed_after(shared.outcome, error))?;
        }
        Ok((shared.outcome, counts))
    }
}

impl Feed<'_> {
    /// What the top directory gets, where it is this run's own.
    fn top(&mut self, attributes: Attributes) {
        self.top_attributes = Some(attributes);
    }

    fn failed(&self, path: &[u8], error: &dyn Display, outcome: Outcome) {
        self.extraction.failed(path, error, outcome);
    }

    /// Whether a name may be made; told where not.
    fn name_is_fine(&mut self, at: At<'_>, name: &[u8]) -> bool {
        let outcome = check_name(name).map_err(|bad| bad.to_string()).and_then(|()| match at.path {
            path if path == beneath::PARTIAL.as_bytes() => Err("refused: unfinished files lie there".to_owned()),
            path if path.len() > PATH_MAX => Err(format!("refused: a path of {} bytes", path.len())),
            _ if !self.names.insert(self.hasher.hash_one((at.dir, name))) => {
                Err("refused: its directory has a second entry of this name".to_owned())
            }
            _ => Ok(()),
        });
        outcome.inspect_err(|why| self.failed(at.path, why, Outcome::Usage)).is_ok()
    }

    fn parent(&mut self, at: At<'_>) -> io::Result<Arc<OwnedFd>> {
        self.way.open(&self.directories, at.dir)
    }

    /// A directory. None where it could not be made, so that nothing within it can be.
    fn directory(&mut self, at: At<'_>, attributes: Attributes) -> Option<DirId> {
        let made = self.parent(at).and_then(|dir| {
            beneath::make_directory(dir.as_fd(), at.name())?;
            // An earlier run may have left it without the right to write.
            beneath::open_own_dir(dir.as_fd(), at.name()).map(drop)
        });
        if let Err(error) = made {
            self.failed(at.path, &error, Outcome::Environment);
            return None;
        }
        let id = self.directories.add(at.dir, at.name(), attributes);
        match id {
            Some(_) => self.extraction.shared().counts.directories += 1,
            None => self.failed(at.path, &"refused: there are too many directories", Outcome::Usage),
        }
        id
    }

    /// A symbolic link.
    fn symlink(&mut self, at: At<'_>, target: &[u8], attributes: &Attributes) {
        if target.is_empty() || target.contains(&0) {
            return self.failed(at.path, &"refused: its target is empty or holds a NUL", Outcome::Usage);
        }
        let made = self.parent(at).and_then(|dir| {
            beneath::clear(dir.as_fd(), at.name())?;
            rustix::fs::symlinkat(target, &dir, at.name())?;
            Ok(attributes.put_at(dir.as_fd(), at.name(), true, self.extraction.allowed))
        });
        self.made(at.path, made);
    }

    /// A pipe, a socket, or (with the privilege) a device.
    fn special(&mut self, at: At<'_>, mode: u16, device: (u32, u32), attributes: &Attributes) {
        let kind = rustix::fs::FileType::from_raw_mode(mode.into());
        let is_device = matches!(kind, rustix::fs::FileType::CharacterDevice | rustix::fs::FileType::BlockDevice);
        if is_device && !self.extraction.allowed.privileged {
            self.extraction.shared().counts.left_out.devices += 1;
            return self.extraction.left_out(at.path, "a device node is only made with --privileged");
        }
        let made = self.parent(at).and_then(|dir| {
            beneath::clear(dir.as_fd(), at.name())?;
            let number = rustix::fs::makedev(device.0, device.1);
            rustix::fs::mknodat(&dir, at.name(), kind, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR, number)?;
            Ok(attributes.put_at(dir.as_fd(), at.name(), false, self.extraction.allowed))
        });
        self.made(at.path, made);
    }

    fn made(&self, path: &[u8], made: io::Result<Put>) {
        match made {
            Ok(put) => {
                self.extraction.shared().counts.others += 1;
                self.extraction.attributes_put(|| path.to_vec(), put);
            }
            Err(error) => self.failed(path, &error, Outcome::Environment),
        }
    }

    /// Whether this is another name of an inode that came before; it is then linked at the end.
    fn is_another_name(&mut self, at: At<'_>, ino: u32, names: u16) -> bool {
        if names < 2 {
            return false;
        }
        if let Some(first) = self.first.get(&ino) {
            self.links.push(HardLink { dir: at.dir, name: at.name().into(), first: first.clone() });
            return true;
        }
        // Where a directory is in the way of this name, the file is made under its next one.
        let found = self.parent(at).and_then(|dir| beneath::stat(dir.as_fd(), at.name()));
        if let Ok(Some(found)) = found
            && rustix::fs::FileType::from_raw_mode(found.st_mode) == rustix::fs::FileType::Directory
        {
            self.failed(at.path, &"a directory is in the way", Outcome::Environment);
            return true;
        }
        self.first.insert(ino, (at.dir, at.name().into()));
        false
    }

    /// A regular file, written by one of the threads, or here if there is none.
    fn file(&mut self, at: At<'_>, ino: u32, size: u64, from: file_job::From, attributes: Attributes) {
        match self.parent(at) {
            Ok(dir) => {
                let job = FileJob { path: at.path.to_vec(), dir, ino, size, from, attributes };
                match &self.sender {
                    // The threads live as long as this end does.
                    Some(sender) => drop(sender.send(job)),
                    None => self.extraction.file(job),
                }
            }
            Err(error) => {
                self.extraction.shared().held.insert(ino, false);
                self.failed(at.path, &error, Outcome::Environment);
            }
        }
    }
}
