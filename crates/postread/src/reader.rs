//! A blocking reader with read-ahead.

use std::fmt;
use std::sync::{Arc, Mutex};

use postread_io::FailureKind;

use crate::error::ReadError;
use crate::file::{FileInner, Lent, ReadFuture};
use crate::stream::{Got, Stream, begin, lock};

/// Reads one file: blocking, by copy or by lending the buffer in which the bytes were checked.
///
/// It reads ahead while it is used from front to back. Several threads may use one reader, but read-ahead is then of
/// little use: give each its own ([`OpenFile::reader`](crate::OpenFile::reader)).
pub struct FileReader {
    file: Arc<FileInner>,
    stream: Arc<Mutex<Stream>>,
}

impl FileReader {
    pub(crate) fn new(file: Arc<FileInner>) -> Self {
        Self { file, stream: Arc::default() }
    }

    /// Length of the file in bytes.
    pub fn len(&self) -> u64 {
        self.file.len()
    }

    /// True for a file of no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
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
                    let mut stream = lock(&self.stream);
                    stream.read_to(at + n as u64);
                    if n < lent.len() {
                        lent.advance(n);
                        stream.keep(lent);
                    }
                }
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    /// Lends checked bytes from `offset` on, at most `max` and at most what one bio holds; none at the end of the file.
    /// Where `max` is less than what the bio holds, the bytes are copied out and the rest is kept for the next read.
    ///
    /// # Errors
    /// Where the block at `offset` is bad.
    pub fn lend(&self, offset: u64, max: usize) -> Result<Option<Lent>, ReadError> {
        if max == 0 {
            return Ok(None);
        }
        let Some(mut lent) = self.next_part(offset, max as u64)? else { return Ok(None) };
        let mut stream = lock(&self.stream);
        if max < lent.len() {
            let head = lent.split_to(max);
            stream.keep(lent);
            lent = head;
        }
        stream.read_to(offset + lent.len() as u64);
        Ok(Some(lent))
    }

    /// A read as a future, with this reader's read-ahead. Like [`OpenFile::read`](crate::OpenFile::read) otherwise.
    pub fn read(&self, offset: u64, len: u64) -> ReadFuture {
        ReadFuture::of_stream(&self.file, &self.stream, offset, len)
    }

    /// Good bytes from `offset` on: all that the bio there holds, if it was read whole.
    fn next_part(&self, offset: u64, want: u64) -> Result<Option<Lent>, ReadError> {
        self.file.check_open(offset)?;
        if offset >= self.file.len() {
            return Ok(None);
        }
        match begin(&self.file, &self.stream, offset, want) {
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
}

impl fmt::Debug for FileReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileReader").field("len", &self.len()).finish_non_exhaustive()
    }
}
