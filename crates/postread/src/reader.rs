//! A blocking reader with read-ahead.

use std::fmt;
use std::io::{self, Read, Seek, SeekFrom};
use std::sync::{Arc, Mutex};

use postread_io::FailureKind;

use crate::error::ReadError;
use crate::file::{Chunk, FileInner, OpenFile, ReadFuture};
use crate::stream::{Begun, Stream, begin, lock};

/// Reads one file: blocking, by copy or by lending the buffer in which the bytes were checked.
///
/// It reads ahead while it is used sequentially. Several threads may use one reader, but read-ahead is then of little
/// use: give each its own ([`OpenFile::reader`]).
///
/// As [`Read`] and [`Seek`] it has a position of its own, which starts at 0 and which the methods with an offset neither
/// use nor move. A block that is not good is an error of `read` at its offset, never skipped and never the end of the
/// file; the error's inner one is [`Error`](crate::Error).
pub struct FileReader {
    file: Arc<FileInner>,
    stream: Arc<Mutex<Stream>>,
    position: u64,
    #[cfg(feature = "tokio")]
    polled: crate::async_read::Polled,
}

impl OpenFile {
    /// A reader with its own read-ahead.
    pub fn reader(&self) -> FileReader {
        FileReader {
            file: self.0.clone(),
            stream: Arc::default(),
            position: 0,
            #[cfg(feature = "tokio")]
            polled: Default::default(),
        }
    }
}

impl FileReader {
    /// Length of the file in bytes.
    pub fn len(&self) -> u64 {
        self.file.len()
    }

    /// True for a file of no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills `buf` from `offset` on and returns the number of bytes: fewer at the end of the file, or where a block after
    /// a good prefix is bad.
    ///
    /// # Errors
    /// If the block at `offset` itself is bad.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize, ReadError> {
        let mut done = 0;
        while done < buf.len() {
            let at = offset.saturating_add(done as u64);
            let want = (buf.len() - done) as u64;
            match self.next_part(at, want) {
                Ok(None) => break,
                Ok(Some(mut chunk)) => {
                    let n = chunk.len().min(buf.len() - done);
                    buf[done..done + n].copy_from_slice(&chunk[..n]);
                    done += n;
                    let mut stream = lock(&self.stream);
                    stream.read_to(at + n as u64);
                    if n < chunk.len() {
                        chunk.advance(n);
                        stream.keep(chunk);
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
    /// If the block at `offset` is bad.
    pub fn lend(&self, offset: u64, max: usize) -> Result<Option<Chunk>, ReadError> {
        if max == 0 {
            return Ok(None);
        }
        let Some(mut chunk) = self.next_part(offset, max as u64)? else { return Ok(None) };
        let mut stream = lock(&self.stream);
        if max < chunk.len() {
            let head = chunk.split_to(max);
            stream.keep(chunk);
            chunk = head;
        }
        stream.read_to(offset + chunk.len() as u64);
        Ok(Some(chunk))
    }

    /// A read as a future, with this reader's read-ahead. Otherwise as [`OpenFile::read`].
    pub fn read_range(&self, offset: u64, len: u64) -> ReadFuture {
        ReadFuture::of_stream(&self.file, &self.stream, offset, len)
    }

    /// Copies bytes from `offset` on to `put`, at most `room`; 0 at the end of the file. A read that is pending at another
    /// offset is cancelled.
    #[cfg(feature = "tokio")]
    pub(crate) fn poll_at(
        &mut self,
        cx: &mut std::task::Context<'_>,
        offset: u64,
        room: usize,
        put: impl FnMut(&[u8]),
    ) -> std::task::Poll<Result<usize, ReadError>> {
        // Read-ahead keeps the source busy: there is no need to wait for more than a bio.
        let max = room.min(self.file.engine.core.config.max_bio);
        let begin = || ReadFuture::of_stream(&self.file, &self.stream, offset, max as u64);
        self.polled.poll(cx, offset, room, begin, put)
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn advance(&mut self, n: usize) {
        self.position += n as u64;
    }

    /// Good bytes from `offset` on: all that the bio there holds, if it was read whole.
    fn next_part(&self, offset: u64, want: u64) -> Result<Option<Chunk>, ReadError> {
        self.file.check_open(offset)?;
        if offset >= self.file.len() {
            return Ok(None);
        }
        match begin(&self.file, &self.stream, offset, want) {
            Begun::Rest(chunk) => Ok(Some(chunk)),
            Begun::Bio { handle, ahead } => {
                handle.help(|| lock(&self.stream).to_run());
                let first = self.file.good_part(handle.wait(), offset, u64::MAX);
                let again = ahead && first.as_ref().is_err_and(|e| e.kind() == FailureKind::Io);
                if !again {
                    return first.map(|(chunk, _)| Some(chunk));
                }
                // If read-ahead failed, read again now that a reader needs it.
                let handle = self.file.start(offset, offset.saturating_add(want), 0);
                self.file.good_part(handle.wait(), offset, u64::MAX).map(|(chunk, _)| Some(chunk))
            }
        }
    }
}

impl Read for FileReader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.read_at(buf, self.position).map_err(io::Error::from)?;
        self.position += n as u64;
        Ok(n)
    }
}

/// The position that a seek leads to, in a file of `len` bytes.
pub(crate) fn seek(to: SeekFrom, position: u64, len: u64) -> io::Result<u64> {
    let (base, by) = match to {
        SeekFrom::Start(offset) => (offset, 0),
        SeekFrom::End(by) => (len, by),
        SeekFrom::Current(by) => (position, by),
    };
    let past_the_ends =
        || io::Error::new(io::ErrorKind::InvalidInput, "a seek to before byte 0 or past the last offset");
    base.checked_add_signed(by).ok_or_else(past_the_ends)
}

impl Seek for FileReader {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.position = seek(to, self.position, self.len())?;
        Ok(self.position)
    }

    fn stream_position(&mut self) -> io::Result<u64> {
        Ok(self.position)
    }
}

impl fmt::Debug for FileReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileReader").field("len", &self.len()).finish_non_exhaustive()
    }
}
