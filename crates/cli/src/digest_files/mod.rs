//! Digests of many files, in parallel, in order: small files one a thread, a large one by all threads together.
//!
//! Files are read with `pread`, never mapped: one that shrinks under a reader gives an error, not a crash.

mod large;
mod pool;

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use postread_verity::{
    BuildError, GeometryError, MerkleTreeParams, PartError, Tree, TreeBuilder, TreeGeometry, TreeSink,
};
use rustix::fs::OFlags;

use crate::exit::Outcome;
use crate::progress::Progress;

pub(crate) use pool::digest_all;

/// How much is read at a time. It stays in the CPU's cache until it is hashed.
const CHUNK: usize = 256 << 10;

/// Larger files are worked on by all threads.
const LARGE: u64 = 8 << 20;

/// Is a file of this size small enough for one thread?
pub(crate) fn is_small(size: u64) -> bool {
    size < LARGE
}

/// Why a file has no digest.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FileError {
    #[error("{0}")]
    Open(io::Error),
    #[error("not a regular file ({0})")]
    NotRegular(&'static str),
    /// Of a list of names.
    #[error("a line is too long for a name (65536 bytes or more): the rest is not read")]
    LongLine,
    #[error("reading at offset {offset}: {error}")]
    Read { offset: u64, error: io::Error },
    #[error("the file changed while it was read: it had {wanted} bytes, and ends at {found}")]
    Shrunk { wanted: u64, found: u64 },
    #[error("the file changed while it was read")]
    Changed,
    #[error("writing the Merkle tree: {0}")]
    Tree(io::Error),
    #[error("{0}")]
    TooLarge(#[from] GeometryError),
    #[error("{0}")]
    Part(#[from] PartError),
}

impl FileError {
    /// What it means for the exit status.
    pub(crate) fn outcome(&self) -> Outcome {
        match self {
            Self::NotRegular(_) | Self::TooLarge(_) | Self::LongLine => Outcome::Usage,
            // A name with a NUL, which the system was not asked for.
            Self::Open(error) if error.kind() == io::ErrorKind::InvalidInput && error.raw_os_error().is_none() => {
                Outcome::Usage
            }
            _ => Outcome::Environment,
        }
    }
}

impl From<BuildError<io::Error>> for FileError {
    fn from(error: BuildError<io::Error>) -> Self {
        match error {
            BuildError::Sink(error) => Self::Tree(error),
            BuildError::Geometry(error) => Self::TooLarge(error),
            BuildError::Part(error) => Self::Part(error),
            _ => Self::Tree(io::Error::other("the tree could not be built")),
        }
    }
}

/// A file to digest, with whatever the caller wants back with the result.
#[derive(Debug)]
pub(crate) struct Job<T> {
    pub(crate) path: PathBuf,
    pub(crate) params: MerkleTreeParams,
    pub(crate) tag: T,
}

/// Opens a regular file for reading. A pipe without a writer does not block.
pub(crate) fn open_regular(path: &Path) -> Result<(File, Metadata), FileError> {
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(FileError::Open)?;
    let metadata = file.metadata().map_err(FileError::Open)?;
    if !metadata.is_file() {
        let kind = metadata.file_type();
        return Err(FileError::NotRegular(if kind.is_dir() { "a directory" } else { "a pipe, socket or device" }));
    }
    Ok((file, metadata))
}

/// Where the tree goes, if it goes anywhere.
#[derive(Clone, Debug)]
pub(crate) enum TreeOut<'a> {
    None,
    File { file: &'a File, geometry: TreeGeometry },
}

impl TreeSink for TreeOut<'_> {
    type Error = io::Error;

    fn blocks(&mut self, level: usize, first: u64, blocks: &[u8]) -> io::Result<()> {
        let Self::File { file, geometry } = self else { return Ok(()) };
        file.write_all_at(blocks, (geometry.level_start(level) + first) * geometry.block_size() as u64)
    }

    fn repeat(&mut self, level: usize, first: u64, count: u64, block: &[u8]) -> io::Result<()> {
        if matches!(self, Self::None) {
            return Ok(());
        }
        let many = block.repeat(64.min(count) as usize);
        let mut done = 0;
        while done < count {
            let now = (count - done).min(64);
            self.blocks(level, first + done, &many[..now as usize * block.len()])?;
            done += now;
        }
        Ok(())
    }
}

/// `CHUNK` bytes that begin at a page: the hash loads whole cache lines, and one that lies across two costs it 3 to 5 %.
fn aligned(buf: &mut Vec<u8>) -> &mut [u8] {
    const PAGE: usize = 4096;
    buf.resize(CHUNK + PAGE, 0);
    let pad = buf.as_ptr().align_offset(PAGE).min(PAGE);
    &mut buf[pad..pad + CHUNK]
}

/// Reads until `buf` is full; the file is known to have the bytes.
fn read_exact(file: &File, mut buf: &mut [u8], mut offset: u64, size: u64) -> Result<(), FileError> {
    while !buf.is_empty() {
        match file.read_at(buf, offset) {
            Ok(0) => return Err(FileError::Shrunk { wanted: size, found: offset }),
            Ok(n) => {
                buf = &mut buf[n..];
                offset += n as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(FileError::Read { offset, error }),
        }
    }
    Ok(())
}

/// A digest of a file that changed meanwhile is of no file at all.
fn check_unchanged(file: &File, before: &Metadata) -> Result<(), FileError> {
    let now = file.metadata().map_err(FileError::Open)?;
    let facts = |m: &Metadata| (m.len(), m.mtime(), m.mtime_nsec());
    if facts(&now) == facts(before) { Ok(()) } else { Err(FileError::Changed) }
}

/// The digest of one file by the calling thread alone.
fn digest_small(
    file: &File,
    metadata: &Metadata,
    params: MerkleTreeParams,
    out: TreeOut<'_>,
    buf: &mut Vec<u8>,
    progress: &Progress,
) -> Result<Tree, FileError> {
    let size = metadata.len();
    let buf = aligned(buf);
    let mut builder = TreeBuilder::new(params, out);
    let mut offset = 0;
    while offset < size {
        let now = (size - offset).min(CHUNK as u64) as usize;
        read_exact(file, &mut buf[..now], offset, size)?;
        builder.push(&buf[..now])?;
        offset += now as u64;
        progress.advance(now as u64);
    }
    let (tree, _) = builder.finish()?;
    check_unchanged(file, metadata)?;
    Ok(tree)
}
