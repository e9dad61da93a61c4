//! Making files beneath one directory, whatever names and links an image holds: no path leaves it.
//!
//! Every directory is opened from the top one, or from another so opened, with `openat2` (beneath it, without symbolic
//! links), and what is made is made by a single name in a directory so opened.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, RawMode, ResolveFlags, openat2};

/// Where unfinished files lie, within the top directory.
pub(super) const PARTIAL: &str = ".postread-partial";

/// Other names that are tried for an unfinished file where directories are in the way.
const OTHER_NAMES: u32 = 16;

/// Why a name from an image is not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BadName {
    Empty,
    Dots,
    Slash,
    Nul,
    TooLong,
}

impl fmt::Display for BadName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "refused: its name is empty",
            Self::Dots => "refused: its name is . or ..",
            Self::Slash => "refused: its name holds a slash",
            Self::Nul => "refused: its name holds a NUL",
            Self::TooLong => "refused: its name is longer than 255 bytes",
        })
    }
}

/// Whether a name may be made in a directory.
pub(super) fn check_name(name: &[u8]) -> Result<(), BadName> {
    match name {
        b"" => Err(BadName::Empty),
        b"." | b".." => Err(BadName::Dots),
        _ if name.contains(&b'/') => Err(BadName::Slash),
        _ if name.contains(&0) => Err(BadName::Nul),
        _ if name.len() > 255 => Err(BadName::TooLong),
        _ => Ok(()),
    }
}

/// The directory that all is made in.
pub(super) struct Beneath {
    top: Arc<OwnedFd>,
    partial: OwnedFd,
    /// Whether the directory is this extraction's own: it was not there, or empty, or a run that was stopped left it.
    /// Then nobody else may look into it until all is done; this is the mode that it had.
    own: Option<Mode>,
}

/// Why the directory can't be used, and the path that this is about.
pub(super) type OpenError = (PathBuf, io::Error);

impl Beneath {
    /// Makes the directory if it is not there, opens it, and keeps other extractions out of it.
    pub(super) fn open(dir: &Path) -> Result<Self, OpenError> {
        let of_dir = |error| (dir.to_owned(), error);
        std::fs::create_dir_all(dir).map_err(of_dir)?;
        let top: OwnedFd = File::open(dir).map_err(of_dir)?.into();
        lock(top.as_fd()).map_err(of_dir)?;
        let mode = rustix::fs::fstat(&top).map_err(|error| of_dir(error.into()))?.st_mode;
        let own = is_own(dir).map_err(of_dir)?.then(|| Mode::from_raw_mode(mode));
        // Somebody else's directory that may be written to stays as it is.
        let own = own.filter(|_| rustix::fs::fchmod(&top, Mode::RWXU).is_ok());
        let of_partial = |error: io::Error| (dir.join(PARTIAL), error);
        match rustix::fs::mkdirat(&top, PARTIAL, Mode::RWXU) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(of_partial(error.into())),
        }
        let partial = open_dir(top.as_fd(), PARTIAL.as_bytes()).map_err(of_partial)?;
        Ok(Self { top: Arc::new(top), partial, own })
    }

    /// The mode that the directory had, if it is the extraction's own.
    pub(super) fn own(&self) -> Option<Mode> {
        self.own
    }

    /// The directory itself.
    pub(super) fn top(&self) -> Arc<OwnedFd> {
        self.top.clone()
    }

    /// A new unfinished file.
    pub(super) fn begin(&self, tag: &str) -> io::Result<(File, Unfinished<'_>)> {
        Unfinished::begin(self.partial.as_fd(), tag, Mode::RUSR | Mode::WUSR)
    }

    /// Takes the directory of unfinished files away, if nothing is left in it.
    pub(super) fn close(&self) {
        let _ = rustix::fs::unlinkat(&self.top, PARTIAL, AtFlags::REMOVEDIR);
    }
}

/// A file that is not whole yet, in a directory that is open: taken away unless it gets its name.
pub(super) struct Unfinished<'a> {
    dir: BorrowedFd<'a>,
    /// None once it has its name.
    name: Option<String>,
}

impl<'a> Unfinished<'a> {
    /// Makes it, in the place of a leftover. It is always a new file: no link, pipe or device of that name is opened.
    pub(super) fn begin(dir: BorrowedFd<'a>, name: &str, mode: Mode) -> io::Result<(File, Self)> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut last = rustix::io::Errno::EXIST;
        // A directory in the way stays, if it is not empty: it is not known whose it is.
        for name in std::iter::once(name.to_owned()).chain((1..=OTHER_NAMES).map(|n| format!("{name}.{n}"))) {
            match rustix::fs::unlinkat(dir, &name, AtFlags::empty()) {
                Ok(()) | Err(rustix::io::Errno::NOENT) => {}
                Err(error) => {
                    if rustix::fs::unlinkat(dir, &name, AtFlags::REMOVEDIR).is_err() {
                        last = error;
                        continue;
                    }
                }
            }
            let file = rustix::fs::openat(dir, &name, flags, mode)?.into();
            return Ok((file, Self { dir, name: Some(name) }));
        }
        Err(last.into())
    }

    /// Gives it its name.
    pub(super) fn finish(mut self, dir: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
        if let Some(own) = &self.name {
            rustix::fs::renameat(self.dir, own, dir, name)?;
        }
        self.name = None;
        Ok(())
    }
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            let _ = rustix::fs::unlinkat(self.dir, name, AtFlags::empty());
        }
    }
}

/// Opens a regular file to read it: no link is followed, and no pipe or device waited for. None where it is another
/// kind of file.
pub(super) fn open_file(dir: BorrowedFd<'_>, name: &[u8]) -> io::Result<Option<File>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file: File = match rustix::fs::openat(dir, name, flags, Mode::empty()) {
        Ok(file) => file.into(),
        // A link, a socket.
        Err(rustix::io::Errno::LOOP | rustix::io::Errno::NXIO) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    Ok(file.metadata()?.is_file().then_some(file))
}

/// Whether nothing but what a stopped run left is in a directory, or such a run was stopped in it.
fn is_own(dir: &Path) -> io::Result<bool> {
    let mut entries = std::fs::read_dir(dir)?;
    Ok(entries.next().is_none() || std::fs::symlink_metadata(dir.join(PARTIAL)).is_ok())
}

/// Keeps a directory for one run at a time, as long as the file is open.
pub(super) fn lock(dir: BorrowedFd<'_>) -> io::Result<()> {
    match rustix::fs::flock(dir, FlockOperation::NonBlockingLockExclusive) {
        Err(rustix::io::Errno::WOULDBLOCK) => {
            Err(io::Error::new(io::ErrorKind::WouldBlock, "another postread is writing into this directory"))
        }
        // Some file systems have no locks.
        _ => Ok(()),
    }
}

/// A directory beneath another, without following links.
pub(super) fn open_dir(from: BorrowedFd<'_>, path: &[u8]) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    Ok(openat2(from, path, flags, Mode::empty(), resolve)?)
}

/// The same for one that is to be written into, whatever its mode: an earlier run may have given it the image's.
pub(super) fn open_own_dir(from: BorrowedFd<'_>, name: &[u8]) -> io::Result<OwnedFd> {
    let opened = match open_dir(from, name) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
            let own = openat2(from, name, flags, Mode::empty(), resolve)?;
            // This names the directory that is open, and nothing that could take its place.
            let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&own));
            rustix::fs::chmod(path, Mode::RWXU)?;
            open_dir(from, name)?
        }
        other => other?,
    };
    rustix::fs::fchmod(&opened, Mode::RWXU)?;
    Ok(opened)
}

/// Makes a directory, or takes the one that is there.
pub(super) fn make_directory(dir: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
    match rustix::fs::mkdirat(dir, name, Mode::RWXU) {
        Err(rustix::io::Errno::EXIST) => {
            // A link or a file of that name is not what was asked for.
            let found = stat(dir, name)?.ok_or(io::ErrorKind::NotFound)?;
            if FileType::from_raw_mode(found.st_mode as RawMode) != FileType::Directory {
                return Err(io::Error::new(
                    io::ErrorKind::AlreadyExists,
                    "something that is no directory is in the way",
                ));
            }
            Ok(())
        }
        other => Ok(other?),
    }
}

/// What is at a name, links not followed; nothing where there is nothing.
pub(super) fn stat(dir: BorrowedFd<'_>, name: &[u8]) -> io::Result<Option<rustix::fs::Stat>> {
    match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) => Ok(Some(found)),
        Err(rustix::io::Errno::NOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Takes away what is at a name, a directory excepted.
pub(super) fn clear(dir: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
    match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        for (name, wanted) in [
            (&b""[..], BadName::Empty),
            (b".", BadName::Dots),
            (b"..", BadName::Dots),
            (b"a/b", BadName::Slash),
            (b"/", BadName::Slash),
            (b"a\0b", BadName::Nul),
            (&[b'x'; 256], BadName::TooLong),
        ] {
            assert_eq!(check_name(name), Err(wanted));
        }
        for name in [&b"..."[..], b" ", b"\x1b[31m", b"\xff", &[b'x'; 255]] {
            assert_eq!(check_name(name), Ok(()));
        }
    }
}
