//! The run as a whole: threads that write files while the tree is walked, then the directories' attributes.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use postread::image::Image;
use postread::{Engine, Error, ErrorKind, Result, TrustedDigests};
use postread_fsimage::ext4::Inode;

use crate::attributes::{Allowed, Applied, Attributes, Target};
use crate::counts::{Counts, LeftOut};
use crate::directories::{self, DirId, Directories, OpenPath};
use crate::events::{Events, Failure, Note};
use crate::file_job::FileJob;
use crate::from_image::{self, ImageAttributes};
use crate::top::Top;
use crate::tree_writer::TreeWriter;

/// The most files found and not yet taken by a thread.
const WAITING: usize = 64;
/// Files that one that waits keeps open: its directory, and its ciphertext twice. One that is written is one more.
const OPEN_WAITING: usize = 3;
/// Files open besides: standard streams, the image, what the engine measures with; and some for each CPU.
const OPEN_ELSE: usize = 32;
const OPEN_PER_CPU: usize = 4;
/// The most extended attributes that are named of those that the target does not support.
const UNSUPPORTED_MAX: usize = 32;

/// How to extract.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct Options<'a> {
    /// The engine that reads contents.
    pub engine: &'a Engine,
    /// Receives progress and failures.
    pub events: &'a dyn Events,
    /// Digests that files of the image must have; none where the caller has no list.
    pub trusted: Option<&'a TrustedDigests>,
    /// A file with fs-verity for which the list has no digest fails.
    pub require_digests: bool,
    /// Also set-id bits, device nodes and all extended attributes.
    pub privileged: bool,
    /// Keep the good parts of damaged files, with holes where blocks are bad.
    pub keep_going: bool,
    /// Files written at once.
    pub threads: usize,
    /// How many files this process may have open. There are fewer threads where this is too little for them.
    pub open_files: usize,
}

impl<'a> Options<'a> {
    /// Without digests or privileges, by as many threads as there are CPUs, within the usual 1024 open files.
    pub fn new(engine: &'a Engine, events: &'a dyn Events) -> Self {
        Self {
            engine,
            events,
            trusted: None,
            require_digests: false,
            privileged: false,
            keep_going: false,
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            open_files: 1024,
        }
    }
}

impl std::fmt::Debug for Options<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options").field("privileged", &self.privileged).finish_non_exhaustive()
    }
}

/// The source of attributes of files and directories. They are read when they are set, not when a file is found,
/// because a few bytes of an image can stand for very large attributes.
pub trait AttributeSource: Sync {
    /// The attributes with this key. Errors of unreadable ones are passed to `failed`; the others are still returned.
    fn attributes(&self, key: u64, failed: &mut dyn FnMut(Error)) -> Option<Attributes>;
}

/// What threads share.
#[derive(Default)]
pub(crate) struct Shared {
    pub(crate) counts: Counts,
    any_failed: bool,
    /// Extended attributes that the target's file system does not support, by name.
    unsupported: HashSet<Vec<u8>>,
    more_unsupported: bool,
    /// The inodes that were checked against a given digest, and whether they were verified: if not, that was reported.
    pub(crate) checked: HashMap<u32, bool>,
    /// Inodes of several names whose first one is done, and which file it is; `None` if it failed.
    pub(crate) first_done: HashMap<u32, Option<(u64, u64)>>,
}

/// A tree that is being extracted into a directory.
pub struct Extraction<'a> {
    pub(crate) options: Options<'a>,
    pub(crate) image: Option<&'a Image>,
    pub(crate) source: Option<&'a dyn AttributeSource>,
    top: Top,
    pub(crate) allowed: Allowed,
    directories: RwLock<Directories>,
    shared: Mutex<Shared>,
    /// Notified when the first name of an inode is done.
    pub(crate) first: Condvar,
}

impl std::fmt::Debug for Extraction<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Extraction").field("top", &self.top).finish_non_exhaustive()
    }
}

impl<'a> Extraction<'a> {
    /// Opens the directory to extract into, and creates it if it does not exist.
    ///
    /// # Errors
    /// If it can't be opened, or another run is writing into it.
    pub fn open(dir: &Path, options: Options<'a>) -> Result<Self> {
        let top = Top::open(dir).map_err(|(path, error)| Error::caused_by(ErrorKind::Io, error).about(path))?;
        let owners = rustix::process::geteuid().is_root();
        let allowed = Allowed { owners, privileged: options.privileged };
        let directories = RwLock::new(Directories::new(top.place().before.clone()));
        let shared = Mutex::default();
        Ok(Self { options, image: None, source: None, top, allowed, directories, shared, first: Condvar::new() })
    }

    /// Extracts the tree at `inode`, which is `path` of the image as the image spells it. A directory's contents go into
    /// the directory that was opened; a file goes there under its own name.
    pub fn image(mut self, image: &'a Image, inode: Inode, path: &[u8]) -> Counts {
        self.image = Some(image);
        let source = ImageAttributes(image);
        // What is lent to threads ends with this call.
        let this = Extraction { source: Some(&source), ..self };
        this.run(|writer| from_image::walk(writer, image, inode, path))
    }

    /// Extracts a tree from elsewhere: `walk` passes what there is to the writer. What it was extracted from is not known
    /// to have been open to others, so a directory that is created for it stays closed to them.
    pub fn tree(self, source: &dyn AttributeSource, walk: impl FnOnce(&mut TreeWriter<'_>)) -> Counts {
        let mut this = Extraction { source: Some(source), ..self };
        this.top.stay_private();
        this.run(walk)
    }

    /// Lets `walk` find what there is, with threads that write files meanwhile; then come the directories' attributes.
    fn run(mut self, walk: impl FnOnce(&mut TreeWriter<'_>)) -> Counts {
        let limit = self.options.open_files;
        let waiting = WAITING.min(limit / 16);
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let reserved = directories::OPEN_MAX + waiting * OPEN_WAITING + OPEN_ELSE + cpus * OPEN_PER_CPU;
        // At least one: it reports what it can't open.
        let threads = (limit.saturating_sub(reserved) / (OPEN_WAITING + 1)).clamp(1, self.options.threads.max(1));
        let (top_key, listed) = std::thread::scope(|scope| {
            let (sender, receiver) = sync_channel::<FileJob<'_>>(waiting);
            let receiver = Arc::new(Mutex::new(receiver));
            let this = &self;
            let start = |_: &usize| {
                let receiver = receiver.clone();
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
            let mut writer = TreeWriter::new(this, (!alone).then_some(sender));
            walk(&mut writer);
            writer.end()
        });
        if let (Some(image), Some(trusted)) = (self.image, self.options.trusted) {
            self.check_list(image, trusted, &listed);
        }
        self.finish_directories();
        self.finish_top(top_key);
        self.end()
    }

    /// What is created in a directory changes its time, and its mode may forbid to write there: so these come last.
    fn finish_directories(&self) {
        let directories = self.directories();
        let mut path = OpenPath::new(self.top.place());
        for (dir, key) in directories.last_first() {
            let name = || directories.path_of(dir);
            match path.open(&directories, dir) {
                Ok(place) => self.apply(&name, key, Target::New(place.dir())),
                Err(error) => self.failed(&name(), &Error::caused_by(ErrorKind::Io, error)),
            }
        }
    }

    fn finish_top(&mut self, key: Option<u64>) {
        let Some(key) = key.filter(|_| self.top.is_ours()) else { return };
        if let Some(attributes) = self.attributes(&|| b".".to_vec(), key) {
            let applied = self.top.apply(&attributes, self.allowed);
            self.report_applied(&|| b".".to_vec(), applied);
        }
    }

    pub(crate) fn top(&self) -> &Top {
        &self.top
    }

    pub(crate) fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn directories(&self) -> RwLockReadGuard<'_, Directories> {
        self.directories.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn directories_mut(&self) -> RwLockWriteGuard<'_, Directories> {
        self.directories.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The path of a name, for messages.
    pub(crate) fn path(&self, dir: DirId, name: &[u8]) -> Vec<u8> {
        self.directories().path(dir, name)
    }

    /// Reports a failure; the rest continues.
    pub(crate) fn failed(&self, path: &[u8], error: &Error) {
        let mut shared = self.shared();
        shared.any_failed = true;
        shared.counts.failed += 1;
        drop(shared);
        self.options.events.failed(&Failure::new(path, error));
    }

    /// Reports a failure that is the consequence of another reported one.
    pub(crate) fn failed_too(&self, path: &[u8], error: &Error) {
        let mut shared = self.shared();
        let follows = shared.any_failed;
        shared.counts.failed += 1;
        drop(shared);
        self.options.events.failed(&Failure { path, error, follows });
    }

    /// Reports bad blocks of a file that is kept with holes: it counts as damaged.
    pub(crate) fn damaged(&self, path: &[u8], error: &Error) {
        self.shared().any_failed = true;
        self.options.events.failed(&Failure::new(path, error));
    }

    pub(crate) fn note(&self, note: &Note<'_>) {
        self.options.events.note(note);
    }

    /// The attributes with this key; what can't be read of them is reported.
    pub(crate) fn attributes(&self, path: &dyn Fn() -> Vec<u8>, key: u64) -> Option<Attributes> {
        let source = self.source?;
        source.attributes(key, &mut |error| self.failed(&path(), &error))
    }

    /// Sets the attributes with this key, and reports what can't be set.
    pub(crate) fn apply(&self, path: &dyn Fn() -> Vec<u8>, key: u64, target: Target<'_>) {
        if let Some(attributes) = self.attributes(path, key) {
            self.report_applied(path, attributes.apply(target, self.allowed));
        }
    }

    fn report_applied(&self, path: &dyn Fn() -> Vec<u8>, applied: Applied) {
        let mut shared = self.shared();
        shared.counts.left_out += applied.left_out;
        for name in applied.unsupported {
            if shared.unsupported.len() < UNSUPPORTED_MAX {
                shared.unsupported.insert(name);
            } else if !shared.unsupported.contains(&name) {
                shared.more_unsupported = true;
            }
        }
        drop(shared);
        if applied.failed.is_empty() {
            return;
        }
        let path = path();
        for (what, error) in applied.failed {
            // The image's fault, unless the target file system refused.
            let malformed = error.kind() == std::io::ErrorKind::InvalidData;
            let kind = if malformed { ErrorKind::Malformed } else { ErrorKind::Io };
            self.failed(&path, &Error::new(kind, format!("its {what}: {error}")));
        }
    }

    /// A device node that is left out by design: nothing failed.
    pub(crate) fn left_out_device(&self, path: &[u8]) {
        self.shared().counts.left_out += LeftOut { devices: 1, ..LeftOut::default() };
        self.options.events.left_out(path, "a device node is only made with --privileged");
    }

    fn end(self) -> Counts {
        let shared = self.shared.into_inner().unwrap_or_else(PoisonError::into_inner);
        let mut unsupported: Vec<_> = shared.unsupported.iter().collect();
        unsupported.sort();
        for name in unsupported {
            self.options.events.note(&Note::UnsupportedXattr { name });
        }
        if shared.more_unsupported {
            self.options.events.note(&Note::MoreUnsupportedXattrs);
        }
        shared.counts
    }
}
