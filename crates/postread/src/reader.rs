//! A blocking reader with read-ahead.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use postread_io::FailureKind;

use crate::error::ReadError;
use crate::file::{FileInner, Handle, Lent, OpenFile, ReadFuture};

#[derive(Default)]
struct Stream {
    /// Where the next read begins if the reader is sequential.
    next: u64,
    /// How far to read ahead now.
    grow: u64,
    /// Bios read ahead, in order.
    window: VecDeque<Handle>,
    /// What the last bio had left.
    rest: Option<Lent>,
}

/// Reads one file: blocking, by copy or by lending the buffer in which the bytes were checked.
///
/// It reads ahead while it is used from front to back. Several threads may use one reader, but read-ahead is then of
/// little use: give each its own ([`OpenFile::reader`]).
pub struct FileReader {
    file: Arc<FileInner>,
    stream: Mutex<Stream>,
}

enum Got {
    Rest(Lent),
    Bio { handle: Handle, ahead: bool },
}

impl FileReader {
    pub(crate) fn new(file: Arc<FileInner>) -> Self {
        Self { file, stream: Mutex::default() }
    }

    /// Length of the file in bytes.
    pub fn len(&self) -> u64 {
        self.file.len()
    }

    /// True for a file of no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn lock(&self) -> MutexGuard<'_, Stream> {
        self.stream.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fills `buf` from `offset` on, and tells how many bytes it could: fewer at the end of the file, or where a block
    /// is bad behind a good prefix.
    ///
    /// # Errors
    /// Where the block at `offset` itself is bad.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize, ReadError> {
        let mut done = 0;
        while done < buf.len() {
            let at = offset.saturating_add(done as u64);
            let want = (buf.len() - done) as u64;
            match self.next_part(at, want) {
                Ok(None) => break,
                Ok(Some(mut lent)) => {
                    let n = lent.len().min(buf.len() - done);
                    buf[done..done + n].copy_from_slice(&lent[..n]);
                    done += n;
                    if n < lent.len() {
                        lent.advance(n);
                        self.lock().rest = Some(lent);
                    }
                }
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        if done > 0 {
            self.lock().next = offset + done as u64;
        }
        Ok(done)
    }

    /// Lends checked bytes from `offset` on, at most `max` and at most what one bio holds; none at the end of the file.
    ///
    /// # Errors
    /// Where the block at `offset` is bad.
    pub fn lend(&self, offset: u64, max: usize) -> Result<Option<Lent>, ReadError> {
        if max == 0 {
            return Ok(None);
        }
        let Some(mut lent) = self.next_part(offset, max as u64)? else { return Ok(None) };
        lent.shorten(max);
        self.lock().next = offset + lent.len() as u64;
        Ok(Some(lent))
    }

    /// A read as a future, without read-ahead. See [`OpenFile::read`].
    pub fn read(&self, offset: u64, len: u64) -> ReadFuture {
        OpenFile::from_inner(self.file.clone()).read(offset, len)
    }

    /// Good bytes from `offset` on: all that the bio there holds, if it was read whole.
    fn next_part(&self, offset: u64, want: u64) -> Result<Option<Lent>, ReadError> {
        self.file.check_open(offset)?;
        if offset >= self.file.len() {
            return Ok(None);
        }
        match self.begin(offset, want) {
            Got::Rest(lent) => Ok(Some(lent)),
            Got::Bio { handle, ahead } => {
                let first = self.file.good_part(handle.wait(), offset, u64::MAX);
                let again = ahead && first.as_ref().is_err_and(|e| e.kind() == FailureKind::Io);
                if !again {
                    return first.map(Some);
                }
                // What failed ahead of the reader is asked for once more now that it is wanted.
                let handle = self.file.start(offset, offset.saturating_add(want), 0);
                self.file.good_part(handle.wait(), offset, u64::MAX).map(Some)
            }
        }
    }

    fn begin(&self, offset: u64, want: u64) -> Got {
        let config = &self.file.engine.config;
        let mut guard = self.lock();
        let stream = &mut *guard;
        if let Some(mut rest) = stream.rest.take()
            && rest.offset() <= offset
            && offset < rest.offset() + rest.len() as u64
        {
            let skip = (offset - rest.offset()) as usize;
            rest.advance(skip);
            return Got::Rest(rest);
        }
        let sequential = offset == stream.next && config.read_ahead > 0;
        while stream.window.front().is_some_and(|h| h.range.end <= offset) {
            stream.window.pop_front();
        }
        let read_ahead = match stream.window.front() {
            Some(front) if front.range.start <= offset => stream.window.pop_front(),
            _ => None,
        };
        let ahead = read_ahead.is_some();
        let handle = match read_ahead {
            Some(handle) => {
                handle.raise();
                handle
            }
            None => {
                // A jump: what was read ahead is of no use any more.
                stream.window.clear();
                let max_bio = config.max_bio as u64;
                stream.grow = if sequential { stream.grow.max(max_bio) } else { 0 };
                let reach = offset.saturating_add(if sequential { want.max(max_bio) } else { want });
                let tree_ahead = if sequential { config.tree_read_ahead } else { 0 };
                self.file.start(offset, reach, tree_ahead)
            }
        };
        // A source that answers at once, with steps that ran at once, leaves nothing to overlap.
        if ahead || !handle.is_done() {
            let beyond = offset.saturating_add(want).saturating_sub(handle.range.end);
            let far = if sequential || ahead { stream.grow } else { 0 };
            self.top_up(stream, handle.range.end, far.max(beyond));
            stream.grow = (stream.grow * 2).min(config.read_ahead as u64);
        }
        Got::Bio { handle, ahead }
    }

    fn top_up(&self, stream: &mut Stream, from: u64, far: u64) {
        let mut next = stream.window.back().map_or(from, |h| h.range.end);
        let until = from.saturating_add(far).min(self.file.len());
        while next < until {
            let Some(handle) = self.file.start_ahead(next, self.file.engine.config.tree_read_ahead) else { return };
            next = handle.range.end;
            stream.window.push_back(handle);
        }
    }
}

impl fmt::Debug for FileReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileReader").field("len", &self.len()).finish_non_exhaustive()
    }
}
