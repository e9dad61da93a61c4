//! Incomplete files: without a name, or with an unpredictable one.

use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use crate::listing::{Listing, UNFINISHED};
use crate::place::{Place, PlaceError, identity, path_of_fd, stat, taken};

/// How many unpredictable names are tried, in case one exists.
const TRIES: usize = 16;

/// An incomplete file. It is removed when this is dropped, unless it got its name.
#[derive(Debug)]
pub(crate) struct Unfinished {
    place: Arc<Place>,
    file: File,
    /// Its temporary name, if the file system has no files without one.
    name: Option<String>,
}

/// An unpredictable name: a hash under random keys from the system.
pub(crate) fn random_name() -> String {
    static KEYS: OnceLock<[RandomState; 2]> = OnceLock::new();
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let keys = KEYS.get_or_init(Default::default);
    let count = (COUNT.fetch_add(1, Ordering::Relaxed), std::process::id());
    format!("{UNFINISHED}{:016x}{:016x}", keys[0].hash_one(count), keys[1].hash_one(count))
}

impl Unfinished {
    pub(crate) fn begin(place: &Arc<Place>, mode: Mode) -> io::Result<Self> {
        let place = place.clone();
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        match rustix::fs::openat(place.dir(), ".", flags, mode) {
            Ok(file) => return Ok(Self { place, file: file.into(), name: None }),
            // Old kernels, and file systems that have no such files.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOENT | Errno::NOSYS) => {}
            Err(error) => return Err(error.into()),
        }
        Self::begin_named(place, mode)
    }

    fn begin_named(place: Arc<Place>, mode: Mode) -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        for _ in 0..TRIES {
            let name = random_name();
            match rustix::fs::openat(place.dir(), &name, flags, mode) {
                Ok(file) => return Ok(Self { place, file: file.into(), name: Some(name) }),
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(Errno::EXIST.into())
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Gives it its name, replacing what was there before the run. Fails unless the name then refers to this very file.
    /// Returns which file it is.
    pub(crate) fn finish(mut self, name: &[u8]) -> Result<(u64, u64), PlaceError> {
        // Two threads that check and rename at once could replace each other's file.
        static NAMING: Mutex<()> = Mutex::new(());
        let _naming = NAMING.lock().unwrap_or_else(PoisonError::into_inner);
        let place = self.place.clone();
        let dir = place.dir();
        match place.claim_for_file(name)? {
            None => self.link(dir, name)?,
            Some(_) => self.replace(dir, name)?,
        }
        let wanted = identity(&rustix::fs::fstat(&self.file)?);
        match stat(dir, name)? {
            Some(found) if identity(&found) == wanted => Ok(wanted),
            _ => Err(PlaceError::Replaced),
        }
    }

    /// Links the descriptor's own inode.
    fn link_own(&self, dir: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<()> {
        let linked = rustix::fs::linkat(CWD, path_of_fd(self.file.as_fd()), dir, name, AtFlags::SYMLINK_FOLLOW);
        match linked {
            // Without /proc: a privilege.
            Err(Errno::NOENT) => rustix::fs::linkat(&self.file, "", dir, name, AtFlags::EMPTY_PATH),
            other => other,
        }
    }

    /// At a name that is free.
    fn link(&mut self, dir: BorrowedFd<'_>, name: &[u8]) -> Result<(), PlaceError> {
        let Some(own) = self.name.clone() else { return self.link_own(dir, name).map_err(taken) };
        match rustix::fs::renameat_with(dir, &own, dir, name, RenameFlags::NOREPLACE) {
            // The name was free a moment ago, and no other thread names anything now.
            Err(Errno::INVAL | Errno::NOSYS) => rustix::fs::renameat(dir, &own, dir, name)?,
            other => other.map_err(taken)?,
        }
        self.name = None;
        Ok(())
    }

    /// At a name that has something else.
    fn replace(&mut self, dir: BorrowedFd<'_>, name: &[u8]) -> Result<(), PlaceError> {
        if self.name.is_none() {
            let own = random_name();
            self.link_own(dir, own.as_bytes())?;
            self.name = Some(own);
        }
        if let Some(own) = &self.name {
            rustix::fs::renameat(dir, own, dir, name)?;
        }
        self.name = None;
        Ok(())
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            let _ = rustix::fs::unlinkat(self.place.dir(), name, AtFlags::empty());
        }
    }
}

/// A directory of files that are replaced atomically: each is written without a name until it is complete.
#[derive(Debug)]
pub struct WholeFiles(Arc<Place>);

/// An incomplete file of such a directory.
#[derive(Debug)]
pub struct WholeFile(Unfinished);

impl WholeFiles {
    /// In an open directory.
    ///
    /// # Errors
    /// If it can't be listed.
    pub fn new(dir: OwnedFd) -> io::Result<Self> {
        let before = Arc::new(Listing::of(dir.as_fd())?);
        Ok(Self(Arc::new(Place { fd: dir, before })))
    }

    /// The directory.
    pub fn dir(&self) -> BorrowedFd<'_> {
        self.0.dir()
    }

    /// Begins a file of this mode, less the process's umask. It is gone when it is dropped before it is finished.
    ///
    /// # Errors
    /// What the system says.
    pub fn begin(&self, mode: u32) -> io::Result<WholeFile> {
        Unfinished::begin(&self.0, Mode::from_raw_mode(mode)).map(WholeFile)
    }
}

impl WholeFile {
    /// The file, to write to.
    pub fn file(&self) -> &File {
        self.0.file()
    }

    /// Gives it its name, in the place of what was there before.
    ///
    /// # Errors
    /// If something came to that name since the directory was opened, or a directory is in the way.
    pub fn finish(self, name: &[u8]) -> io::Result<()> {
        match self.0.finish(name) {
            Ok(_) => Ok(()),
            Err(PlaceError::Io(error)) => Err(error),
            Err(error) => Err(io::Error::new(io::ErrorKind::AlreadyExists, error.to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::path::Path;

    use super::*;

    fn place(dir: &Path) -> Arc<Place> {
        let fd: OwnedFd = File::open(dir).unwrap().into();
        let before = Arc::new(Listing::of(fd.as_fd()).unwrap());
        Arc::new(Place { fd, before })
    }

    type Begin = fn(&Arc<Place>) -> Unfinished;
    /// With and without files that have no name.
    const WAYS: [Begin; 2] = [
        |place| Unfinished::begin(place, Mode::RUSR | Mode::WUSR).unwrap(),
        |place| Unfinished::begin_named(place.clone(), Mode::RUSR | Mode::WUSR).unwrap(),
    ];

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_gets_its_name_or_goes() {
        for begin in WAYS {
            let dir = tempfile::tempdir().unwrap();
            std::fs::write(dir.path().join("old"), "old").unwrap();
            let place = place(dir.path());
            drop(begin(&place));
            assert_eq!(names(dir.path()), ["old"]);
            for name in ["new", "old"] {
                let unfinished = begin(&place);
                unfinished.file().write_all(b"whole").unwrap();
                unfinished.finish(name.as_bytes()).unwrap();
                assert_eq!(std::fs::read(dir.path().join(name)).unwrap(), b"whole");
            }
            // Not twice.
            assert!(matches!(begin(&place).finish(b"new"), Err(PlaceError::Taken)));
            assert_eq!(names(dir.path()), ["new", "old"]);
        }
    }

    /// Another file that replaces an unfinished one does not get its name unnoticed.
    #[test]
    fn another_file_in_its_place_is_an_error() {
        for name in [&b"new"[..], b"old"] {
            let dir = tempfile::tempdir().unwrap();
            std::fs::write(dir.path().join("old"), "old").unwrap();
            let place = place(dir.path());
            let unfinished = WAYS[1](&place);
            let own = unfinished.name.clone().unwrap();
            std::fs::remove_file(dir.path().join(&own)).unwrap();
            std::fs::write(dir.path().join(&own), "evil").unwrap();
            assert!(matches!(unfinished.finish(name), Err(PlaceError::Replaced)));
        }
    }

    #[test]
    fn a_directory_stays() {
        for begin in WAYS {
            let dir = tempfile::tempdir().unwrap();
            std::fs::create_dir(dir.path().join("directory")).unwrap();
            let place = place(dir.path());
            assert!(matches!(begin(&place).finish(b"directory"), Err(PlaceError::Directory)));
            assert_eq!(names(dir.path()), ["directory"]);
        }
    }
}
