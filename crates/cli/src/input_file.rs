//! Small files that are read whole or line by line: lists, keys, certificates, signatures, descriptors, workloads.
//!
//! They may come from a pipe (`<(...)`, `/dev/stdin`), as shells make them, and from anything else that reads; so how
//! much is read has a limit, whatever the file says of its length. A named pipe that nobody opens for writing would
//! hold the program up for ever: it is waited for, and then refused.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;

use crate::exit::{Failure, Outcome};
use crate::text::name_for_stderr;

/// How long a named pipe may have no writer, in seconds: whoever makes one starts its writer beside us.
const WRITER_WAIT: i64 = 5;

/// An open file, and the byte that was read from it to see whether anything comes.
pub(crate) type Opened = io::Chain<io::Cursor<Vec<u8>>, File>;

fn about(path: &Path, outcome: Outcome, what: impl std::fmt::Display) -> Failure {
    let name = if path == Path::new("-") { "standard input".to_owned() } else { name_for_stderr(path) };
    Failure::new(outcome, format!("{name}: {what}"))
}

/// Opens what can be read from start to end.
pub(crate) fn open(path: &Path) -> Result<Opened, Failure> {
    let io = |error: io::Error| about(path, Outcome::Environment, error);
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(io)?;
    let kind = file.metadata().map_err(io)?.file_type();
    if kind.is_dir() {
        return Err(about(path, Outcome::Usage, "a directory, not a file"));
    }
    let mut first = Vec::new();
    if kind.is_fifo() && !has_writer(&file, &mut first).map_err(io)? {
        let what = format!("a pipe that nobody opened for writing within {WRITER_WAIT} s");
        return Err(about(path, Outcome::Usage, what));
    }
    let flags = rustix::fs::fcntl_getfl(&file).map_err(|error| io(error.into()))?;
    rustix::fs::fcntl_setfl(&file, flags - OFlags::NONBLOCK).map_err(|error| io(error.into()))?;
    Ok(io::Cursor::new(first).chain(file))
}

/// Whether somebody writes, or wrote, to a pipe that was opened without waiting. What was read goes to `first`.
fn has_writer(pipe: &File, first: &mut Vec<u8>) -> io::Result<bool> {
    let timeout = Timespec { tv_sec: WRITER_WAIT, tv_nsec: 0 };
    let mut fds = [PollFd::from_borrowed_fd(pipe.as_fd(), PollFlags::IN)];
    // Anything: bytes, or a writer that has gone again.
    if rustix::io::retry_on_intr(|| poll(&mut fds, Some(&timeout)))? > 0 {
        return Ok(true);
    }
    // A writer that has written nothing yet is waited for without end, as every program waits. Only a read tells it
    // from none.
    let mut byte = [0];
    match rustix::io::retry_on_intr(|| rustix::io::read(pipe, &mut byte)) {
        Ok(0) => return Ok(false),
        Ok(_) => first.extend_from_slice(&byte),
        Err(rustix::io::Errno::AGAIN) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(true)
}

/// Reads all of a file of at most `limit` bytes; `what` names it in the error if it is longer.
pub(crate) fn read_whole(path: &Path, limit: usize, what: &str) -> Result<Vec<u8>, Failure> {
    // Room for all where the length is known: of a key, growing would leave copies.
    let len = path.metadata().map_or(0, |metadata| metadata.len());
    let mut bytes = Vec::with_capacity(usize::try_from(len).unwrap_or(limit).min(limit) + 1);
    let read = open(path)?.take(limit as u64 + 1).read_to_end(&mut bytes);
    read.map_err(|error| about(path, Outcome::Environment, error))?;
    match bytes.len() > limit {
        true => Err(about(path, Outcome::Usage, format!("longer than {what} can be ({limit} bytes)"))),
        false => Ok(bytes),
    }
}

/// Opens a list of lines; `-` is standard input.
pub(crate) fn open_list(path: &Path) -> Result<Box<dyn BufRead + Send>, Failure> {
    if path == Path::new("-") {
        return Ok(Box::new(BufReader::new(io::stdin())));
    }
    Ok(Box::new(BufReader::new(open(path)?)))
}
