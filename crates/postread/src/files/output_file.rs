//! Outputs that appear whole or not at all: written without a name, or under a temporary one, and named at the end.
//!
//! A full disk, an error or a kill leaves no part of an output, and the file that was there before stays. Devices,
//! pipes, files whose directory takes no new ones, files with several names and files of another owner are opened and
//! written in place. See `overwriting` for the check that comes first.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags};

use super::error::FilesError;
use super::overwriting::{future_name, links};

/// Permissions of a new file, before the umask.
const NEW: u32 = 0o666;
/// How many temporary names are tried.
const NAMES: u32 = 1000;

/// An output that is being written. Dropped before [`commit`](Self::commit), it leaves nothing.
///
/// ```
/// use postread::files::OutputFile;
///
/// let path = std::env::temp_dir().join(format!("output-{}", std::process::id()));
/// let mut output = OutputFile::create(&path)?;
/// output.write(b"whole")?;
/// assert!(!path.exists());
/// output.commit()?;
/// assert_eq!(std::fs::read(&path)?, b"whole");
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct OutputFile {
    /// As the caller names it.
    path: PathBuf,
    file: File,
    to: To,
}

/// What happens to the bytes at the end.
#[derive(Debug)]
enum To {
    /// The file gets this name.
    Name(PathBuf),
    /// The file is renamed from its temporary name.
    Rename(Temporary, PathBuf),
    /// They are copied there.
    Copy(File),
    /// Nothing: they are in place.
    InPlace,
}

/// A temporary name, removed on drop.
#[derive(Debug)]
struct Temporary(PathBuf);

impl Temporary {
    /// Gives the file its name.
    fn rename(mut self, to: &Path) -> io::Result<()> {
        fs::rename(&self.0, to)?;
        // Nothing is left to remove.
        self.0 = PathBuf::new();
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.0.as_os_str().is_empty() {
            let _ = fs::remove_file(&self.0);
        }
    }
}

impl OutputFile {
    /// Begins an output. A file that is at the path stays until [`commit`](Self::commit), unless it can only be written in
    /// place (a device, a pipe, a file with several names).
    ///
    /// # Errors
    /// [`FilesError`] if the path can't be a file's, or the system refuses to create or open it.
    pub fn create(path: &Path) -> Result<Self, FilesError> {
        let (file, to) = begin(path).map_err(|error| FilesError::new(path, error))?;
        Ok(Self { path: path.to_owned(), file, to })
    }

    /// The file, to be written at any offset.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// [`FilesError`] if they could not all be written.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), FilesError> {
        self.file.write_all(bytes).map_err(|error| FilesError::new(&self.path, error))
    }

    /// Puts the bytes under the name. Not synced: a crash of the system may lose them.
    ///
    /// # Errors
    /// [`FilesError`] if the file could not be named, or what only takes a copy could not be written.
    pub fn commit(self) -> Result<(), FilesError> {
        let Self { path, file, to } = self;
        let done = match to {
            To::InPlace => Ok(()),
            To::Rename(temporary, name) => temporary.rename(&name),
            To::Copy(target) => copy(file, target),
            To::Name(name) => link(&file, &name),
        };
        done.map_err(|error| FilesError::new(&path, error))
    }
}

fn begin(path: &Path) -> io::Result<(File, To)> {
    // Reject a path that cannot be a file's now. A slash at the end would be lost with the next call.
    let bytes = path.as_os_str().as_bytes();
    if bytes.ends_with(b"/") || bytes.ends_with(b"/.") || path.file_name().is_none() {
        return Err(rustix::io::Errno::ISDIR.into());
    }
    let there = match fs::metadata(path) {
        Ok(there) => there,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return new_file(future_name(path)),
        Err(error) => return Err(error),
    };
    if !there.is_file() {
        let target = OpenOptions::new().write(true).open(path)?;
        // A pipe is written from start to end, whatever the order in which the bytes come.
        return match (&target).stream_position() {
            Ok(_) => Ok((target, To::InPlace)),
            Err(_) => Ok((unnamed(&std::env::temp_dir())?, To::Copy(target))),
        };
    }
    // Standard output redirected to this file: append to what it has, as writing to `/dev/stdout` does.
    for stream in [io::stdout().as_fd(), io::stderr().as_fd()] {
        if rustix::fs::fstat(stream).is_ok_and(|stat| (stat.st_dev, stat.st_ino) == (there.dev(), there.ino())) {
            return Ok((unnamed(&std::env::temp_dir())?, To::Copy(File::from(stream.try_clone_to_owned()?))));
        }
    }
    match replacement(path, &there)? {
        Some(output) => Ok(output),
        None => Ok((File::create(path)?, To::InPlace)),
    }
}

/// A file that will replace the existing one, with its owner and permissions. None if the existing one can only be
/// written in place.
fn replacement(path: &Path, there: &Metadata) -> io::Result<Option<(File, To)>> {
    rustix::fs::access(path, Access::WRITE_OK)?;
    if there.nlink() > 1 || leads_through_proc(path) {
        return Ok(None);
    }
    let Ok((file, to)) = new_file(fs::canonicalize(path)?) else { return Ok(None) };
    let ours = file.metadata()?;
    if (ours.uid(), ours.gid()) != (there.uid(), there.gid())
        && std::os::unix::fs::fchown(&file, Some(there.uid()), Some(there.gid())).is_err()
    {
        return Ok(None);
    }
    rustix::fs::fchmod(&file, Mode::from_raw_mode(there.mode() & 0o777))?;
    Ok(Some((file, to)))
}

/// Whether a path leads through a link in `/proc`, which names an open file and not a path.
fn leads_through_proc(path: &Path) -> bool {
    let is_proc = |link: &Path| {
        let parent = link.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        rustix::fs::statfs(parent).is_ok_and(|stat| stat.f_type == rustix::fs::PROC_SUPER_MAGIC)
    };
    links(path).any(|link| is_proc(&link))
}

/// A file that will be called `name`. Until then it has no name, if the file system supports that.
fn new_file(name: PathBuf) -> io::Result<(File, To)> {
    let dir = match name.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    if let Ok(file) = unnamed(dir)
        && Path::new(&proc_path(file.as_fd())).exists()
    {
        return Ok((file, To::Name(name)));
    }
    let (file, temporary) = named(dir, |path| OpenOptions::new().write(true).create_new(true).open(path))?;
    Ok((file, To::Rename(temporary, name)))
}

fn unnamed(dir: &Path) -> io::Result<File> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::open(dir, flags, Mode::from_raw_mode(NEW))?))
}

/// Makes something under a temporary name that is free.
fn named<T>(dir: &Path, mut make: impl FnMut(&Path) -> io::Result<T>) -> io::Result<(T, Temporary)> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    for _ in 0..NAMES {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = dir.join(format!(".postread-{}-{number}.part", std::process::id()));
        match make(&path) {
            Ok(made) => return Ok((made, Temporary(path))),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

fn proc_path(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// Names a file that has no name, replacing any file of that name.
fn link(file: &File, name: &Path) -> io::Result<()> {
    let from = proc_path(file.as_fd());
    let link = |to: &Path| rustix::fs::linkat(CWD, &from, CWD, to, AtFlags::SYMLINK_FOLLOW).map_err(io::Error::from);
    match link(name) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let dir = name.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
            named(dir, link)?.1.rename(name)
        }
        other => other,
    }
}

fn copy(mut from: File, mut to: File) -> io::Result<()> {
    from.rewind()?;
    io::copy(&mut from, &mut to)?;
    to.flush()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn write(path: &Path, bytes: &[u8]) {
        let mut output = OutputFile::create(path).unwrap();
        output.write(bytes).unwrap();
        output.commit().unwrap();
    }

    #[test]
    fn nothing_is_there_before_the_end_and_nothing_else_after() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        let mut output = OutputFile::create(&path).unwrap();
        output.write(b"half").unwrap();
        assert!(!path.exists());
        drop(output);
        assert_eq!(names(dir.path()), Vec::<String>::new());
        write(&path, b"whole");
        assert_eq!(fs::read(&path).unwrap(), b"whole");
        // What was there stays until the end, and with it its permissions.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let mut output = OutputFile::create(&path).unwrap();
        output.write(b"other").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"whole");
        output.commit().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"other");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o640);
        assert_eq!(names(dir.path()), ["out"]);
    }

    #[test]
    fn a_new_files_permissions_are_those_of_any() {
        let dir = tempfile::tempdir().unwrap();
        write(&dir.path().join("a"), b"");
        File::create(dir.path().join("b")).unwrap();
        let mode = |name| fs::metadata(dir.path().join(name)).unwrap().mode();
        assert_eq!(mode("a"), mode("b"));
    }

    #[test]
    fn a_temporary_name_gives_the_same_result() {
        let dir = tempfile::tempdir().unwrap();
        let make = |path: &Path| OpenOptions::new().write(true).create_new(true).open(path);
        let (file, temporary) = named(dir.path(), make).unwrap();
        assert_eq!(names(dir.path()).len(), 1);
        let name = dir.path().join("out");
        OutputFile { path: name.clone(), file, to: To::Rename(temporary, name) }.commit().unwrap();
        assert_eq!(names(dir.path()), ["out"]);
        let (_, temporary) = named(dir.path(), make).unwrap();
        drop(temporary);
        assert_eq!(names(dir.path()), ["out"]);
    }

    #[test]
    fn links_and_several_names_stay() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        symlink("file", at("link")).unwrap();
        // To nothing yet, then to a file.
        for text in ["one", "two"] {
            write(&at("link"), text.as_bytes());
            assert!(fs::symlink_metadata(at("link")).unwrap().is_symlink());
            assert_eq!(fs::read_to_string(at("file")).unwrap(), text);
        }
        fs::hard_link(at("file"), at("hard")).unwrap();
        write(&at("hard"), b"three");
        assert_eq!(fs::read(at("file")).unwrap(), b"three");
        assert_eq!(names(dir.path()), ["file", "hard", "link"]);
    }

    #[test]
    fn devices_pipes_and_open_files_are_written_through() {
        write(Path::new("/dev/null"), b"gone");
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let mut full = OutputFile::create(Path::new("/dev/full")).unwrap();
        full.write(b"x").unwrap_err();
        rustix::fs::mknodat(CWD, at("fifo"), rustix::fs::FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        let path = at("fifo");
        let reader = std::thread::spawn(move || fs::read(path).unwrap());
        let mut output = OutputFile::create(&at("fifo")).unwrap();
        use std::os::unix::fs::FileExt;
        output.file().write_all_at(b"second", 6).unwrap();
        output.write(b"first ").unwrap();
        output.commit().unwrap();
        assert_eq!(reader.join().unwrap(), b"first second");
        // An open file by its number is that file, not a new one of its name.
        let open = File::create(at("open")).unwrap();
        write(Path::new(&proc_path(open.as_fd())), b"through");
        assert_eq!(open.metadata().unwrap().len(), 7);
    }

    #[test]
    fn a_path_that_cannot_be_a_files_fails_at_once() {
        let dir = tempfile::tempdir().unwrap();
        for path in [
            dir.path(),
            Path::new("/"),
            Path::new(".."),
            &dir.path().join("no/such"),
            &dir.path().join("new/"),
            &dir.path().join("new/."),
            Path::new(""),
        ] {
            OutputFile::create(path).unwrap_err();
        }
        assert_eq!(names(dir.path()), Vec::<String>::new());
    }
}
