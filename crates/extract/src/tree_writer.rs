//! Creates each entry of a tree as a walk finds it.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::fd::AsFd;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, PoisonError};

use postread::{Error, ErrorKind};
use rustix::fs::{AtFlags, FileType, Mode};

use crate::attributes::Target;
use crate::directories::{DirId, OpenPath, TOP};
use crate::extraction::Extraction;
use crate::file_job::{Contents, FileJob, Named};
use crate::listed::Listed;
use crate::name::{check_name, last_name};
use crate::place::{Place, PlaceError, identity, stat, taken};

/// The longest path that is created, in bytes.
const PATH_MAX: usize = 1 << 20;

/// Writes a tree below the directory that is extracted into. It keeps the state needed for later entries.
pub struct TreeWriter<'a> {
    pub(crate) extraction: &'a Extraction<'a>,
    /// To the threads that write files; `None` if none could be started.
    sender: Option<SyncSender<FileJob<'a>>>,
    open: OpenPath,
    /// The first name of each inode of several names.
    first: HashMap<u32, (DirId, Box<[u8]>)>,
    /// Hashes of earlier names, by directory, to refuse a second entry of the same name.
    names: HashMap<DirId, HashSet<u64>>,
    hasher: RandomState,
    /// The attributes that the top directory gets at the end, if it is this run's own.
    top_key: Option<u64>,
    pub(crate) listed: Listed,
}

impl std::fmt::Debug for TreeWriter<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TreeWriter").finish_non_exhaustive()
    }
}

/// Where something is created: a name in a directory that was created before.
#[derive(Clone, Copy, Debug)]
pub struct At<'p> {
    /// The directory.
    pub dir: DirId,
    /// Its path from the top directory, the name included: its last name is what is created.
    pub path: &'p [u8],
}

impl<'p> At<'p> {
    fn name(&self) -> &'p [u8] {
        last_name(self.path)
    }
}

/// A file's or directory's metadata.
#[derive(Clone, Copy, Debug)]
pub struct Meta {
    /// Inode number: names of one inode are hard links of one file.
    pub ino: u32,
    /// How many names it has.
    pub links: u16,
    /// Which attributes it has: a key for the tree's [`AttributeSource`](crate::AttributeSource).
    pub key: u64,
}

pub(crate) fn place_error(error: PlaceError) -> Error {
    Error::caused_by(ErrorKind::Io, error)
}

impl<'a> TreeWriter<'a> {
    pub(crate) fn new(extraction: &'a Extraction<'a>, sender: Option<SyncSender<FileJob<'a>>>) -> Self {
        Self {
            extraction,
            sender,
            open: OpenPath::new(extraction.top().place()),
            first: HashMap::new(),
            names: HashMap::new(),
            hasher: RandomState::new(),
            top_key: None,
            listed: Listed::default(),
        }
    }

    pub(crate) fn end(self) -> (Option<u64>, Listed) {
        (self.top_key, self.listed)
    }

    /// Which attributes the top directory gets, where it is this run's own.
    pub fn top(&mut self, key: u64) {
        self.top_key = Some(key);
    }

    /// Reports a failure; the rest continues.
    pub fn failed(&self, path: &[u8], error: &Error) {
        self.extraction.failed(path, error);
    }

    /// The path of a name in a directory.
    pub fn path(&self, dir: DirId, name: &[u8]) -> Vec<u8> {
        self.extraction.path(dir, name)
    }

    /// A directory is finished: drops the state kept for its names.
    pub fn leave(&mut self, dir: DirId) {
        self.names.remove(&dir);
    }

    /// Whether a name may be created; if not, that is reported.
    pub fn accepts(&mut self, at: At<'_>, name: &[u8]) -> bool {
        let outcome = check_name(name).map_err(|bad| bad.to_string()).and_then(|()| match at.path {
            path if path.len() > PATH_MAX => Err(format!("refused: a path of {} bytes", path.len())),
            _ if !self.names.entry(at.dir).or_default().insert(self.hasher.hash_one(name)) => {
                Err("refused: its directory has a second entry of this name".to_owned())
            }
            _ => Ok(()),
        });
        outcome.map_err(|why| self.failed(at.path, &Error::new(ErrorKind::Malformed, why))).is_ok()
    }

    fn place(&mut self, dir: DirId) -> Result<Arc<Place>, PlaceError> {
        Ok(self.open.open(&self.extraction.directories(), dir)?)
    }

    /// A directory. `None` if it can't be created, so that nothing within it can be; that is reported.
    pub fn directory(&mut self, at: At<'_>, key: u64) -> Option<DirId> {
        let made = self.place(at.dir).and_then(|place| place.directory(at.name()));
        let before = match made {
            Ok(made) => made.before,
            Err(error) => {
                self.failed(at.path, &place_error(error));
                return None;
            }
        };
        let id = self.extraction.directories_mut().add(at.dir, at.name(), before, key);
        match id {
            Some(_) => self.extraction.shared().counts.directories += 1,
            None => self.failed(at.path, &Error::new(ErrorKind::Malformed, "refused: there are too many directories")),
        }
        id
    }

    /// A symbolic link.
    pub fn symlink(&mut self, at: At<'_>, meta: Meta, target: &[u8]) {
        if self.is_another_name(at, meta) {
            return;
        }
        if target.is_empty() || target.contains(&0) {
            let error = Error::new(ErrorKind::Malformed, "refused: its target is empty or contains a NUL byte");
            self.failed(at.path, &error);
            return self.first_done(meta, None);
        }
        self.create(at, meta, FileType::Symlink, |dir| rustix::fs::symlinkat(target, dir, at.name()));
    }

    /// A pipe, a socket, or with the privilege a device, as `mode` says.
    pub fn special(&mut self, at: At<'_>, meta: Meta, mode: u16, device: (u32, u32)) {
        let kind = FileType::from_raw_mode(mode.into());
        let is_device = matches!(kind, FileType::CharacterDevice | FileType::BlockDevice);
        if is_device && !self.extraction.allowed.privileged {
            return self.extraction.left_out_device(at.path);
        }
        if self.is_another_name(at, meta) {
            return;
        }
        let number = rustix::fs::makedev(device.0, device.1);
        self.create(at, meta, kind, |dir| rustix::fs::mknodat(dir, at.name(), kind, Mode::RUSR | Mode::WUSR, number));
    }

    fn create(
        &mut self,
        at: At<'_>,
        meta: Meta,
        kind: FileType,
        create: impl FnOnce(std::os::fd::BorrowedFd<'_>) -> rustix::io::Result<()>,
    ) {
        let made = self.place(at.dir).and_then(|place| {
            let made = place.create(at.name(), kind, create)?;
            let found = identity(&rustix::fs::fstat(&made)?);
            Ok((made, found))
        });
        match made {
            Ok((made, found)) => {
                self.extraction.shared().counts.others += 1;
                let fd = made.as_fd();
                let target = if kind == FileType::Symlink { Target::Link(fd) } else { Target::Special(fd) };
                self.extraction.apply(&|| at.path.to_vec(), meta.key, target);
                self.first_done(meta, Some(found));
            }
            Err(error) => {
                self.failed(at.path, &place_error(error));
                self.first_done(meta, None);
            }
        }
    }

    fn first_done(&self, meta: Meta, made: Option<(u64, u64)>) {
        if meta.links > 1 {
            self.extraction.first_done(meta.ino, made);
        }
    }

    /// Whether this is another name of an earlier inode. If so, links it as soon as that one is complete.
    fn is_another_name(&mut self, at: At<'_>, meta: Meta) -> bool {
        if meta.links < 2 {
            return false;
        }
        if let Some(first) = self.first.get(&meta.ino).cloned() {
            match self.hard_link(at, meta.ino, first) {
                Ok(()) => self.extraction.shared().counts.others += 1,
                Err(Linking::NoFirst(error)) => self.extraction.failed_too(at.path, &error),
                Err(Linking::Failed(error)) => self.failed(at.path, &place_error(error)),
            }
            return true;
        }
        // If this name can't be used, the file is created under its next one.
        if let Err(error) = self.place(at.dir).and_then(|place| place.claim_for_file(at.name())) {
            self.failed(at.path, &place_error(error));
            return true;
        }
        self.first.insert(meta.ino, (at.dir, at.name().into()));
        false
    }

    fn hard_link(&mut self, at: At<'_>, ino: u32, first: (DirId, Box<[u8]>)) -> Result<(), Linking> {
        let (first_dir, first_name) = first;
        let mut shared = self.extraction.shared();
        let made = loop {
            match shared.first_done.get(&ino) {
                Some(made) => break *made,
                None => shared = self.extraction.first.wait(shared).unwrap_or_else(PoisonError::into_inner),
            }
        };
        drop(shared);
        let Some(made) = made else {
            let path = self.path(first_dir, &first_name);
            let what = format!("the file of the same inode, {}, was not extracted", path.escape_ascii());
            return Err(Linking::NoFirst(Error::new(ErrorKind::NotFound, what)));
        };
        let (from, to) = (self.place(first_dir)?, self.place(at.dir)?);
        if let Some(found) = to.claim_for_file(at.name())? {
            if identity(&found) == made {
                // An earlier run linked it.
                return Ok(());
            }
            rustix::fs::unlinkat(to.dir(), at.name(), AtFlags::empty()).map_err(PlaceError::from)?;
        }
        rustix::fs::linkat(from.dir(), &*first_name, to.dir(), at.name(), AtFlags::empty()).map_err(taken)?;
        match stat(to.dir(), at.name()).map_err(PlaceError::from)? {
            Some(found) if identity(&found) == made => Ok(()),
            // The first name now refers to another file.
            _ => {
                let _ = rustix::fs::unlinkat(to.dir(), at.name(), AtFlags::empty());
                Err(PlaceError::Replaced.into())
            }
        }
    }

    /// A regular file, written by one of the threads, or here if there is none or it is `large`: what is kept for it
    /// would add up while it waits.
    pub fn file(&mut self, at: At<'_>, meta: Meta, size: u64, contents: Contents) {
        if self.is_another_name(at, meta) {
            return;
        }
        let extraction = self.extraction;
        match self.place(at.dir) {
            Ok(place) => {
                let named = Named::new(extraction, meta);
                let (dir, name) = (at.dir, at.name().into());
                let large = contents.is_large();
                let job = FileJob { dir, name, place, meta, size, contents, named };
                match &self.sender {
                    // The threads live as long as this end of the channel.
                    Some(sender) if !large => drop(sender.send(job)),
                    _ => extraction.file(job),
                }
            }
            Err(error) => {
                extraction.shared().checked.insert(meta.ino, false);
                self.failed(at.path, &place_error(error));
                self.first_done(meta, None);
            }
        }
    }

    /// The top directory.
    pub fn top_dir(&self) -> DirId {
        TOP
    }
}

enum Linking {
    /// There is no file to link to.
    NoFirst(Error),
    Failed(PlaceError),
}

impl From<PlaceError> for Linking {
    fn from(error: PlaceError) -> Self {
        Self::Failed(error)
    }
}

impl From<io::Error> for Linking {
    fn from(error: io::Error) -> Self {
        Self::Failed(error.into())
    }
}
