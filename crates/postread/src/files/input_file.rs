//! Small files that are read whole or line by line: lists, keys, certificates, signatures, descriptors, workloads.
//!
//! They may be pipes (`<(...)`, `/dev/stdin`) or devices, so the amount read has a limit that does not depend on the
//! file's size. A named pipe that nobody opens for writing would block for ever; it is refused after a few seconds.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;

use super::error::{FilesError, Problem};

/// How long a named pipe may have no writer, in seconds: a shell starts it at the same time as this program.
const WRITER_WAIT: i64 = 5;

/// An open file, preceded by a byte that may have been read from it to see whether it has a writer.
pub type Opened = io::Chain<io::Cursor<Vec<u8>>, File>;

fn about(path: &Path, problem: impl Into<Problem>) -> FilesError {
    FilesError::new(if path == Path::new("-") { Path::new("standard input") } else { path }, problem)
}

/// Opens a file, a pipe or a device that is read once, from start to end.
///
/// # Errors
/// [`FilesError`] if it can't be opened, is a directory, or is a named pipe that gets no writer within 5 s.
pub fn open(path: &Path) -> Result<Opened, FilesError> {
    let io = |error: io::Error| about(path, error);
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(io)?;
    let kind = file.metadata().map_err(io)?.file_type();
    if kind.is_dir() {
        return Err(about(path, Problem::Directory));
    }
    let mut first = Vec::new();
    if kind.is_fifo() && !has_writer(&file, &mut first).map_err(io)? {
        return Err(about(path, Problem::NoWriter { seconds: WRITER_WAIT }));
    }
    let flags = rustix::fs::fcntl_getfl(&file).map_err(|error| io(error.into()))?;
    rustix::fs::fcntl_setfl(&file, flags - OFlags::NONBLOCK).map_err(|error| io(error.into()))?;
    Ok(io::Cursor::new(first).chain(file))
}

/// Whether a pipe that was opened without waiting has or had a writer. A byte read to find out goes to `first`.
fn has_writer(pipe: &File, first: &mut Vec<u8>) -> io::Result<bool> {
    let timeout = Timespec { tv_sec: WRITER_WAIT, tv_nsec: 0 };
    let mut fds = [PollFd::from_borrowed_fd(pipe.as_fd(), PollFlags::IN)];
    // Ready means bytes, or a writer that has already closed.
    if rustix::io::retry_on_intr(|| poll(&mut fds, Some(&timeout)))? > 0 {
        return Ok(true);
    }
    // A writer that has written nothing yet is waited for without limit, as every program does. Only a read can tell
    // it from no writer.
    let mut byte = [0];
    match rustix::io::retry_on_intr(|| rustix::io::read(pipe, &mut byte)) {
        Ok(0) => return Ok(false),
        Ok(_) => first.extend_from_slice(&byte),
        Err(rustix::io::Errno::AGAIN) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(true)
}

/// Reads all of a file of at most `limit` bytes. `what` names its kind, with an article, in the error if it is longer.
///
/// # Errors
/// Those of [`open`], and [`FilesError`] if reading fails or the file is longer.
pub fn read_whole(path: &Path, limit: usize, what: &str) -> Result<Vec<u8>, FilesError> {
    // Reserve the whole length if it is known: growing would leave copies of a key.
    let len = path.metadata().map_or(0, |metadata| metadata.len());
    let mut bytes = Vec::with_capacity(usize::try_from(len).unwrap_or(limit).min(limit) + 1);
    let read = open(path)?.take(limit as u64 + 1).read_to_end(&mut bytes);
    read.map_err(|error| about(path, error))?;
    match bytes.len() > limit {
        true => Err(about(path, Problem::TooLong { what: what.to_owned(), limit })),
        false => Ok(bytes),
    }
}

/// Opens a list of lines; `-` is standard input.
///
/// # Errors
/// Those of [`open`].
pub fn open_list(path: &Path) -> Result<Box<dyn BufRead + Send>, FilesError> {
    if path == Path::new("-") {
        return Ok(Box::new(BufReader::new(io::stdin())));
    }
    Ok(Box::new(BufReader::new(open(path)?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn the_limit_holds_whatever_the_size_says() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, b"12345").unwrap();
        assert_eq!(read_whole(&path, 5, "a key").unwrap(), b"12345");
        for path in [&*path, Path::new("/dev/zero")] {
            let error = read_whole(path, 4, "a key").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert_eq!(error.to_string(), format!("{}: longer than a key can be (4 bytes)", path.display()));
        }
    }

    #[test]
    fn directories_and_missing_files_are_distinct_errors() {
        let dir = tempfile::tempdir().unwrap();
        let error = open(dir.path()).unwrap_err();
        assert!(matches!(error.problem, Problem::Directory), "{error}");
        assert_eq!(open(&dir.path().join("none")).unwrap_err().kind(), ErrorKind::NotFound);
    }
}
