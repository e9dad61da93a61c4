//! Open files as tokio's [`AsyncRead`] and [`AsyncSeek`]. They need only the traits, and run on any executor.
//!
//! They share the position that [`Read`](std::io::Read) and [`Seek`] use. A block that is not good is an error of the read
//! at its offset; bytes before it are returned first.

use std::collections::VecDeque;
use std::io::{self, Seek, SeekFrom};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncSeek, ReadBuf};

use crate::error::ReadError;
use crate::file::{Chunk, ReadFuture};
use crate::reader::FileReader;
use crate::target::File;
use crate::verified_file::VerifiedFile;

/// A polled reader's state between two polls.
#[derive(Default)]
pub(crate) struct Polled {
    /// The read that is pending, and its offset.
    pending: Option<(u64, ReadFuture)>,
    /// Bytes read that the caller's buffer had no room for: it may be smaller than when the read began.
    rest: VecDeque<Chunk>,
}

impl Polled {
    /// Copies bytes from `offset` on to `put`, at most `room`; `begin` starts a read there.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        offset: u64,
        room: usize,
        begin: impl FnOnce() -> ReadFuture,
        mut put: impl FnMut(&[u8]),
    ) -> Poll<Result<usize, ReadError>> {
        if room == 0 {
            return Poll::Ready(Ok(0));
        }
        if self.rest.front().is_some_and(|chunk| chunk.offset() != offset) {
            self.rest.clear();
        }
        if self.rest.is_empty() {
            if self.pending.as_ref().is_some_and(|(at, _)| *at != offset) {
                self.pending = None;
            }
            let (_, read) = self.pending.get_or_insert_with(|| (offset, begin()));
            let read = ready!(Pin::new(read).poll(cx));
            self.pending = None;
            self.rest.extend(read?.into_parts());
        }
        let mut done = 0;
        while let Some(chunk) = self.rest.front_mut() {
            let n = chunk.len().min(room - done);
            put(&chunk[..n]);
            done += n;
            if n < chunk.len() {
                chunk.advance(n);
                break;
            }
            self.rest.pop_front();
        }
        Poll::Ready(Ok(done))
    }
}

impl AsyncRead for FileReader {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let position = this.position();
        let n = ready!(this.poll_at(cx, position, buf.remaining(), |bytes| buf.put_slice(bytes)))?;
        this.advance(n);
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for File {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let read = ready!(self.get_mut().poll_next(cx, buf.remaining(), |bytes| buf.put_slice(bytes)));
        Poll::Ready(read.map(|_| ()).map_err(io::Error::from))
    }
}

impl AsyncRead for VerifiedFile {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.get_mut().reader_mut()).poll_read(cx, buf)
    }
}

/// A seek never waits: it moves the position, and the next read cancels a read pending at another position.
macro_rules! async_seek {
    ($($file:ty),*) => {$(
        impl AsyncSeek for $file {
            fn start_seek(self: Pin<&mut Self>, to: SeekFrom) -> io::Result<()> {
                self.get_mut().seek(to).map(|_| ())
            }

            fn poll_complete(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<u64>> {
                Poll::Ready(Ok(self.position()))
            }
        }
    )*};
}
async_seek!(FileReader, File, VerifiedFile);
