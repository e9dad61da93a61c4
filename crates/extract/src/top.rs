//! The directory that is extracted into, and who owns it.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::Mode;

use crate::attributes::{Allowed, Applied, Attributes, Target};
use crate::listing::Listing;
use crate::place::{Place, lock};

/// The directory, open and locked.
#[derive(Debug)]
pub(crate) struct Top {
    place: Arc<Place>,
    /// Whether it gets the attributes of the extracted directory: this run created it, or it is our own and was empty.
    ours: bool,
    /// A directory that this run created is closed to others until everything in it has its mode. This is the mode that
    /// it gets at the end of the run if there is no other.
    restore: Option<Mode>,
}

/// Why the directory can't be used, and which path this is about.
pub(crate) type OpenError = (PathBuf, io::Error);

impl Top {
    /// Creates the directory if it does not exist, opens it, and keeps other runs out of it.
    pub(crate) fn open(dir: &Path) -> Result<Self, OpenError> {
        Self::open_unnamed(dir).map_err(|error| (dir.to_owned(), error))
    }

    fn open_unnamed(dir: &Path) -> io::Result<Self> {
        if let Some(above) = dir.parent() {
            std::fs::create_dir_all(above)?;
        }
        let created = match std::fs::create_dir(dir) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
            Err(error) => return Err(error),
        };
        let fd: OwnedFd = File::open(dir)?.into();
        lock(fd.as_fd())?;
        let found = rustix::fs::fstat(&fd)?;
        let before = Arc::new(Listing::of(fd.as_fd())?);
        let own = created || found.st_uid == rustix::process::geteuid().as_raw();
        let mut top = Self { ours: own && before.is_empty(), place: Arc::new(Place { fd, before }), restore: None };
        if created && top.ours {
            top.restore = Some(Mode::from_raw_mode(found.st_mode & 0o7777));
            // If modes can't be set, there is none to keep.
            let _ = rustix::fs::fchmod(&top.place.fd, Mode::RWXU);
        }
        Ok(top)
    }

    pub(crate) fn place(&self) -> Arc<Place> {
        self.place.clone()
    }

    /// Whether it gets the attributes of what is extracted.
    pub(crate) fn is_ours(&self) -> bool {
        self.ours
    }

    /// Keeps the directory closed to others: its right mode is not known.
    pub(crate) fn stay_private(&mut self) {
        self.restore = None;
    }

    /// Gives it the attributes of what was extracted.
    pub(crate) fn apply(&mut self, attributes: &Attributes, allowed: Allowed) -> Applied {
        self.restore = None;
        attributes.apply(Target::New(self.place.dir()), allowed)
    }
}

impl Drop for Top {
    fn drop(&mut self) {
        if let Some(mode) = self.restore {
            let _ = rustix::fs::fchmod(&self.place.fd, mode);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    /// An interrupted run leaves the previous mode, or that of a new directory.
    #[test]
    fn a_mode_is_put_back() {
        let dir = tempfile::tempdir().unwrap();
        let [there, full, other] = ["there", "full", "other"].map(|name| dir.path().join(name));
        for dir in [&there, &full, &other] {
            std::fs::create_dir(dir).unwrap();
        }
        std::fs::write(full.join("file"), "x").unwrap();
        for dir in [&there, &full] {
            std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o1777)).unwrap();
            let top = Top::open(dir).unwrap();
            assert_eq!((mode(dir), top.is_ours()), (0o1777, *dir == there));
            drop(top);
            assert_eq!(mode(dir), 0o1777);
        }
        let new = dir.path().join("a/new");
        let top = Top::open(&new).unwrap();
        assert_eq!((mode(&new), top.is_ours()), (0o700, true));
        assert!(Top::open(&new).is_err());
        drop(top);
        assert_eq!(mode(&new), mode(&other));
    }
}
