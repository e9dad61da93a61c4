//! Android sparse images: an image in pieces that are stored, filled with a pattern, or left out.
//!
//! Layout from AOSP, `system/core/libsparse/sparse_format.h`.

use std::fmt;
use std::io;
use std::sync::Arc;

use postread_io::ReadAt;

use crate::bytes::{le16, le32};
use crate::partition::{self, bytes};

/// The magic number at byte 0.
pub const SPARSE_MAGIC: u32 = 0xed26_ff3a;

/// The file header's length, at least.
pub const FILE_HEADER_LEN: usize = 28;

/// A chunk header's length, at least.
pub const CHUNK_HEADER_LEN: usize = 12;

/// Why a sparse image could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another magic number.
    #[error("not an Android sparse image")]
    NotSparse,
    /// The image contradicts the format.
    #[error("corrupt Android sparse image: chunk {chunk} at byte {offset}: {reason}")]
    Corrupt {
        /// The chunk's number from 0.
        chunk: u32,
        /// Where its header begins.
        offset: u64,
        /// What is wrong.
        reason: &'static str,
    },
    /// The file header contradicts the format.
    #[error("corrupt Android sparse image: its header's {field} is {value}")]
    Header {
        /// Which field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
    /// The source failed.
    #[error("reading the sparse image: {0}")]
    Io(#[source] partition::Error),
}

/// A file header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct SparseHeader {
    /// Length of this header.
    pub header_len: u16,
    /// Length of each chunk's header.
    pub chunk_header_len: u16,
    /// Block size in bytes.
    pub block_size: u32,
    /// Blocks of the image that it expands to.
    pub blocks: u32,
    /// Number of chunks.
    pub chunks: u32,
}

impl SparseHeader {
    /// Parses a file header.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        if bytes.len() < FILE_HEADER_LEN || le32(bytes, 0) != SPARSE_MAGIC {
            return Err(Error::NotSparse);
        }
        let header = Self {
            header_len: le16(bytes, 8),
            chunk_header_len: le16(bytes, 10),
            block_size: le32(bytes, 12),
            blocks: le32(bytes, 16),
            chunks: le32(bytes, 20),
        };
        let fault = |field, value| Err(Error::Header { field, value });
        match header {
            _ if le16(bytes, 4) != 1 => fault("major version", le16(bytes, 4).into()),
            _ if usize::from(header.header_len) < FILE_HEADER_LEN => fault("length", header.header_len.into()),
            _ if usize::from(header.chunk_header_len) < CHUNK_HEADER_LEN => {
                fault("chunk header length", header.chunk_header_len.into())
            }
            _ if header.block_size == 0 || !header.block_size.is_multiple_of(4) => {
                fault("block size", header.block_size.into())
            }
            _ => Ok(header),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Data {
    /// Stored from this byte of the source on.
    Raw(u64),
    /// This word, again and again.
    Fill([u8; 4]),
}

/// A run of bytes of the expanded image.
#[derive(Debug, Clone, Copy)]
struct Run {
    start: u64,
    len: u64,
    data: Data,
}

/// A sparse image as the image that it expands to. What it leaves out reads as zeros.
pub struct SparseImage {
    source: Arc<dyn ReadAt>,
    len: u64,
    runs: Vec<Run>,
}

impl fmt::Debug for SparseImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SparseImage").field("len", &self.len).field("runs", &self.runs.len()).finish_non_exhaustive()
    }
}

impl SparseImage {
    /// Reads all chunk headers; contents stay where they are. Memory grows with the number of chunks, each of which
    /// takes 12 bytes of the source.
    pub fn open(source: Arc<dyn ReadAt>) -> Result<Self, Error> {
        let header = SparseHeader::parse(&bytes(&*source, 0, FILE_HEADER_LEN).map_err(Error::Io)?)?;
        let len = source.len().map_err(|source| Error::Io(partition::Error::Io { offset: 0, len: 0, source }))?;
        let total = u64::from(header.blocks) * u64::from(header.block_size);
        let mut runs: Vec<Run> = Vec::new();
        let mut offset = u64::from(header.header_len);
        let mut start = 0u64;
        for chunk in 0..header.chunks {
            let corrupt = |reason| Error::Corrupt { chunk, offset, reason };
            let fields = bytes(&*source, offset, CHUNK_HEADER_LEN).map_err(Error::Io)?;
            if fields.len() < CHUNK_HEADER_LEN {
                return Err(corrupt("the file ends before its header"));
            }
            let (kind, blocks, size) = (le16(&fields, 0), le32(&fields, 4), le32(&fields, 8));
            let expanded = u64::from(blocks) * u64::from(header.block_size);
            let Some(stored) = u64::from(size).checked_sub(header.chunk_header_len.into()) else {
                return Err(corrupt("its size is less than its header's"));
            };
            let data_at = offset + u64::from(header.chunk_header_len);
            if stored > len.saturating_sub(data_at) {
                return Err(corrupt("it goes past the end of the file"));
            }
            let data = match kind {
                0xcac1 if stored == expanded => Some(Data::Raw(data_at)),
                0xcac2 if stored == 4 => {
                    let word = bytes(&*source, data_at, 4).map_err(Error::Io)?;
                    Some(Data::Fill([word[0], word[1], word[2], word[3]]))
                }
                0xcac3 if stored == 0 => None,
                // A checksum of the image so far; it covers no blocks.
                0xcac4 if stored == 4 && blocks == 0 => None,
                0xcac1..=0xcac4 => return Err(corrupt("its size does not fit its kind")),
                _ => return Err(corrupt("its kind is unknown")),
            };
            if start + expanded > total {
                return Err(corrupt("it goes past the end of the image"));
            }
            if let Some(data) = data.filter(|_| expanded > 0) {
                runs.push(Run { start, len: expanded, data });
            }
            start += expanded;
            offset = data_at + stored;
        }
        if start != total {
            return Err(Error::Header { field: "number of blocks", value: header.blocks.into() });
        }
        Ok(Self { source, len: total, runs })
    }

    /// The longest run from `offset` of the expanded image that is stored in one piece: its first byte in the source
    /// (nothing where it is not stored) and its length. What a plan maps reads with.
    pub fn map(&self, offset: u64) -> (Option<u64>, u64) {
        let (data, len) = self.run_at(offset);
        match data {
            Some((Data::Raw(at), skip)) => (Some(at + skip), len),
            _ => (None, len),
        }
    }

    /// What stands at `offset`, how far into its run that is, and how long it goes on.
    fn run_at(&self, offset: u64) -> (Option<(Data, u64)>, u64) {
        let at = self.runs.partition_point(|run| run.start + run.len <= offset);
        match self.runs.get(at) {
            Some(run) if run.start <= offset => {
                let skip = offset - run.start;
                (Some((run.data, skip)), run.len - skip)
            }
            Some(run) => (None, run.start - offset),
            None => (None, self.len.saturating_sub(offset)),
        }
    }
}

impl ReadAt for SparseImage {
    fn len(&self) -> io::Result<u64> {
        Ok(self.len)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let (data, len) = self.run_at(offset);
        let n = usize::try_from(len).map_or(buf.len(), |len| len.min(buf.len()));
        let buf = &mut buf[..n];
        match data {
            Some((Data::Raw(at), skip)) => self.source.read_at(buf, at + skip),
            Some((Data::Fill(word), skip)) => {
                for (byte, at) in buf.iter_mut().zip(skip..) {
                    *byte = word[(at % 4) as usize];
                }
                Ok(n)
            }
            None => {
                buf.fill(0);
                Ok(n)
            }
        }
    }
}
