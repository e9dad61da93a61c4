//! An open file of a target.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read, Seek, SeekFrom};

use postread_verity::TrustedDescriptor;

use super::Metadata;
use crate::error::{Error, ReadError, Result};
use crate::file::{Chunk, OpenFile, ReadFuture};
use crate::reader::{FileReader, seek};

/// An open file: bytes that were decrypted where the file is encrypted, and verified where it has fs-verity.
///
/// It reads ahead when it is read sequentially. Clones share only the file: each has its own position and its own
/// read-ahead.
#[derive(Debug)]
pub struct File {
    name: OsString,
    file: OpenFile,
    reader: FileReader,
    metadata: Metadata,
    position: u64,
}

impl Clone for File {
    fn clone(&self) -> Self {
        Self {
            name: self.name.clone(),
            file: self.file.clone(),
            reader: self.file.reader(),
            metadata: self.metadata.clone(),
            position: self.position,
        }
    }
}

impl File {
    pub(super) fn new(name: &OsStr, file: OpenFile, metadata: Metadata) -> Self {
        Self { name: name.to_owned(), reader: file.reader(), file, metadata, position: 0 }
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.file.len()
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The file's metadata.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The descriptor that every byte is checked against; `None` for a file without fs-verity. Its `file_digest()` is
    /// the file's fs-verity digest, and `trust().is_verified()` shows whether you supplied a digest for it.
    pub fn trusted(&self) -> Option<&TrustedDescriptor> {
        self.file.trusted()
    }

    /// Reads at most `buf.len()` bytes at `offset`: fewer at the end of the file, or before a bad block.
    ///
    /// # Errors
    /// If the block at `offset` is bad.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.reader.read_at(buf, offset).map_err(|error| self.error(error))
    }

    /// Fills `buf` from `offset`.
    ///
    /// # Errors
    /// If a block is bad, or the file ends before `buf` is full.
    pub fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let mut done = 0;
        while done < buf.len() {
            match self.read_at(&mut buf[done..], offset.saturating_add(done as u64))? {
                0 => return Err(Error::from(io::Error::from(io::ErrorKind::UnexpectedEof)).about(&self.name)),
                n => done += n,
            }
        }
        Ok(())
    }

    /// Lends at most `max` bytes from `offset`, in the buffer in which they were checked; `None` at the end of the file.
    ///
    /// # Errors
    /// If the block at `offset` is bad.
    pub fn lend(&self, offset: u64, max: usize) -> Result<Option<Chunk>> {
        self.reader.lend(offset, max).map_err(|error| self.error(error))
    }

    /// A read of at most `len` bytes at `offset` as a future. It needs no particular runtime.
    pub fn read_range(&self, offset: u64, len: u64) -> ReadFuture {
        self.reader.read_range(offset, len)
    }

    /// The file in the engine's terms: scans, readers.
    pub fn as_open_file(&self) -> &OpenFile {
        &self.file
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn poll_next(
        &mut self,
        cx: &mut std::task::Context<'_>,
        room: usize,
        put: impl FnMut(&[u8]),
    ) -> std::task::Poll<Result<usize>> {
        let ready = self.reader.poll_at(cx, self.position, room, put);
        ready.map(|read| match read {
            Ok(n) => {
                self.position += n as u64;
                Ok(n)
            }
            Err(error) => Err(self.error(error)),
        })
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    fn error(&self, error: ReadError) -> Error {
        Error::from(error).about(&self.name)
    }
}

impl Read for File {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.read_at(buf, self.position)?;
        self.position += n as u64;
        Ok(n)
    }
}

impl Seek for File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.position = seek(to, self.position, self.len())?;
        Ok(self.position)
    }
}
