//! Directories that are written into, and what may be created or replaced in them.
//!
//! An image can hold names that differ on disk and are one name to the target's file system: `Config` and `CONFIG`
//! where case is folded, `a` and `a.` on FAT. A file that this run created must not be replaced by another name of the
//! image, so identity never depends on the image's spelling. A directory is listed when the run first comes to it. What
//! a later look-up finds may be replaced only if that listing contains exactly its name: then it was there before, and
//! each name of the image is used once. Anything else that a look-up finds was created by this run, or has a name that
//! the file system does not distinguish from it, and the name is refused. If a file system lists names in another
//! spelling than given, inode numbers replace names (see [`Listing`]).

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, RawMode, ResolveFlags, Stat, openat2};
use rustix::io::Errno;

use crate::listing::Listing;

/// A directory that is written into.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) fd: OwnedFd,
    pub(crate) before: Arc<Listing>,
}

/// Why a name can't be created.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PlaceError {
    /// Exists, but not under exactly this name before the run.
    #[error("refused: this directory already has this name, or one that its file system does not distinguish from it")]
    Taken,
    #[error("a directory is in the way")]
    Directory,
    #[error("something that is not a directory is in the way")]
    NotDirectory,
    /// The name no longer refers to the file that was just created.
    #[error("another file took its name while it was written")]
    Replaced,
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<Errno> for PlaceError {
    fn from(error: Errno) -> Self {
        Self::Io(error.into())
    }
}

impl Place {
    pub(crate) fn dir(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// What there is under a name that the image is about to use: nothing, or what was there before this run.
    pub(crate) fn claim(&self, name: &[u8]) -> Result<Option<Stat>, PlaceError> {
        match stat(self.dir(), name)? {
            None => Ok(None),
            Some(found) if self.before.claim(self.dir(), name, found.st_ino) => Ok(Some(found)),
            Some(_) => Err(PlaceError::Taken),
        }
    }

    /// The same, for what can't replace a directory.
    pub(crate) fn claim_for_file(&self, name: &[u8]) -> Result<Option<Stat>, PlaceError> {
        match self.claim(name)? {
            Some(found) if kind_of(&found) == FileType::Directory => Err(PlaceError::Directory),
            found => Ok(found),
        }
    }

    /// Creates a link, pipe, socket or device by `create`, in the place of what was there before, and opens it: only as
    /// a path, so that attributes are set on it and not on something that takes its name meanwhile.
    pub(crate) fn create(
        &self,
        name: &[u8],
        kind: FileType,
        create: impl FnOnce(BorrowedFd<'_>) -> rustix::io::Result<()>,
    ) -> Result<OwnedFd, PlaceError> {
        if self.claim_for_file(name)?.is_some() {
            rustix::fs::unlinkat(self.dir(), name, AtFlags::empty())?;
        }
        create(self.dir()).map_err(taken)?;
        let made = open_path(self.dir(), name)?;
        let found = rustix::fs::fstat(&made)?;
        // Other users with write access may have put something else there. Leave theirs alone.
        let ours = found.st_uid == rustix::process::geteuid().as_raw() && found.st_nlink == 1;
        if kind_of(&found) != kind || !ours && stores_owners(self.dir()) {
            return Err(PlaceError::Replaced);
        }
        Ok(made)
    }

    /// Creates a directory, or opens the one that was there before.
    pub(crate) fn directory(&self, name: &[u8]) -> Result<Place, PlaceError> {
        match rustix::fs::mkdirat(&self.fd, name, Mode::RWXU) {
            Ok(()) => Ok(Place { fd: open_dir(self.dir(), name)?, before: Arc::default() }),
            Err(Errno::EXIST) => {
                match self.claim(name)? {
                    Some(found) if kind_of(&found) != FileType::Directory => return Err(PlaceError::NotDirectory),
                    _ => {}
                }
                let fd = open_own_dir(self.dir(), name)?;
                let before = Arc::new(Listing::of(fd.as_fd())?);
                Ok(Place { fd, before })
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// Created between the look-up and now: a name that the file system does not distinguish.
pub(crate) fn taken(error: Errno) -> PlaceError {
    match error {
        Errno::EXIST => PlaceError::Taken,
        error => error.into(),
    }
}

/// Whether the file system stores owners; some show one owner for all files.
fn stores_owners(dir: BorrowedFd<'_>) -> bool {
    /// `MSDOS_SUPER_MAGIC`, `EXFAT_SUPER_MAGIC`, `FUSE_SUPER_MAGIC`, `NFS_SUPER_MAGIC`, from the kernel's `magic.h`.
    const OTHERS: [u64; 4] = [0x4d44, 0x2011_bab0, 0x6573_5546, 0x6969];
    rustix::fs::fstatfs(dir).is_ok_and(|found| !OTHERS.contains(&(found.f_type as u64)))
}

pub(crate) fn kind_of(found: &Stat) -> FileType {
    FileType::from_raw_mode(found.st_mode as RawMode)
}

/// Which file this is.
pub(crate) fn identity(found: &Stat) -> (u64, u64) {
    (found.st_dev, found.st_ino)
}

/// Locks a directory for one run at a time, as long as it is open.
///
/// # Errors
/// If another run holds the lock.
pub fn lock(dir: BorrowedFd<'_>) -> io::Result<()> {
    match rustix::fs::flock(dir, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => {
            Err(io::Error::new(io::ErrorKind::WouldBlock, "another postread is writing into this directory"))
        }
        // Some file systems have no locks.
        _ => Ok(()),
    }
}

/// Opens a directory beneath another, without following links.
///
/// # Errors
/// What the system says.
pub fn open_dir(from: BorrowedFd<'_>, path: &[u8]) -> io::Result<OwnedFd> {
    open_beneath(from, path, OFlags::RDONLY)
}

fn open_beneath(from: BorrowedFd<'_>, path: &[u8], access: OFlags) -> io::Result<OwnedFd> {
    let flags = access | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    Ok(openat2(from, path, flags, Mode::empty(), resolve)?)
}

/// Opens whatever is at a name as a path only: it is neither followed nor opened.
pub(crate) fn open_path(dir: BorrowedFd<'_>, name: &[u8]) -> io::Result<OwnedFd> {
    Ok(rustix::fs::openat(dir, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?)
}

/// A path that leads to an open file and to nothing that takes its name.
pub(crate) fn path_of_fd(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// Opens an existing directory to write into it. If its mode, which may come from an image in an earlier run, denies
/// access to its owner, adds the owner's permissions; the mode is set again when the run ends.
fn open_own_dir(from: BorrowedFd<'_>, name: &[u8]) -> io::Result<OwnedFd> {
    let dir = open_beneath(from, name, OFlags::PATH)?;
    let found = rustix::fs::fstat(&dir)?;
    let euid = rustix::process::geteuid();
    let mode = Mode::from_raw_mode(found.st_mode);
    if found.st_uid == euid.as_raw() && !euid.is_root() && !mode.contains(Mode::RWXU) {
        let mode = (mode | Mode::RWXU) & Mode::from_raw_mode(0o7777);
        rustix::fs::chmod(path_of_fd(dir.as_fd()), mode)?;
    }
    open_dir(dir.as_fd(), b".")
}

/// Opens a regular file for reading: no link is followed, no pipe or device waited for. `None` if it is another kind
/// of file.
///
/// # Errors
/// What the system says.
pub fn open_file(dir: BorrowedFd<'_>, name: &[u8]) -> io::Result<Option<File>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file: File = match rustix::fs::openat(dir, name, flags, Mode::empty()) {
        Ok(file) => file.into(),
        // A link, a socket.
        Err(Errno::LOOP | Errno::NXIO) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    Ok(file.metadata()?.is_file().then_some(file))
}

/// What is at a name, links not followed; nothing if there is nothing.
pub(crate) fn stat(dir: BorrowedFd<'_>, name: &[u8]) -> io::Result<Option<Stat>> {
    match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) => Ok(Some(found)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn place(dir: &Path) -> Place {
        let fd: OwnedFd = File::open(dir).unwrap().into();
        let before = Arc::new(Listing::of(fd.as_fd()).unwrap());
        Place { fd, before }
    }

    /// Only what was there before under exactly this name is replaced: hard links stand for names that a file system does
    /// not distinguish.
    #[test]
    fn a_name_that_came_during_the_run_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("before"), "x").unwrap();
        let place = place(dir.path());
        std::fs::write(dir.path().join("since"), "y").unwrap();
        assert!(place.claim(b"before").unwrap().is_some());
        assert!(place.claim(b"nothing").unwrap().is_none());
        assert!(matches!(place.claim(b"since"), Err(PlaceError::Taken)));
        assert!(matches!(place.directory(b"before"), Err(PlaceError::NotDirectory)));
        assert!(matches!(place.directory(b"since"), Err(PlaceError::Taken)));
        let inner = place.directory(b"new").unwrap();
        assert!(inner.before.is_empty());
        assert!(matches!(place.directory(b"new"), Err(PlaceError::Taken)));
        assert!(matches!(place.claim_for_file(b"new"), Err(PlaceError::Taken)));
    }
}
