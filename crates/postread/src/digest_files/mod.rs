//! Digests of many files, in parallel, in order: each small file by one thread, a large one by all threads together.
//!
//! Files are read with `pread`, never mapped: a file that shrinks under a reader gives an error, not a crash.

mod error;
mod large;
mod pool;
mod small;

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use postread_verity::{FileDigest, MerkleTreeParams, Tree, TreeGeometry, TreeSink};
use rustix::fs::OFlags;

use crate::error::{Error, Result};

pub use error::FileError;
pub use pool::Digester;

/// How much is read at a time. It stays in the CPU's cache until it is hashed.
const CHUNK: usize = 256 << 10;

/// All threads work together on a file of this size or more, in bytes.
const LARGE: u64 = 8 << 20;

/// Receives progress. Called from any thread.
pub trait Progress: Sync {
    /// `bytes` more bytes are done.
    fn advance(&self, bytes: u64);

    /// One more file is done.
    fn file_done(&self) {}
}

/// Ignores progress.
impl Progress for () {
    fn advance(&self, _bytes: u64) {}
}

/// A file to digest, with a tag that comes back with the result.
#[derive(Clone, Debug)]
pub struct DigestJob<T = ()> {
    /// The file.
    pub path: PathBuf,
    /// Hash algorithm, block size and salt.
    pub params: MerkleTreeParams,
    /// The caller's tag.
    pub tag: T,
}

/// A job, or an error in the input (for example a directory that cannot be read), which is reported in its turn.
pub type DigestInput<T = ()> = std::result::Result<DigestJob<T>, (DigestJob<T>, FileError)>;

/// The fs-verity digest of a file, with the default parameters: SHA-256, blocks of 4096 bytes, no salt. A large file is
/// hashed on all CPUs.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("empty");
/// # std::fs::write(&path, "")?;
/// let digest = postread::digest_file(&path)?;
/// assert_eq!(digest.to_string(), "sha256:3d248ca542a24fc62d1c43b916eae5016878e2533c88238480b26128a1f1af95");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// If it is not a regular file, cannot be read, or changes while it is read.
pub fn digest_file(path: impl AsRef<Path>) -> Result<FileDigest> {
    let path = path.as_ref();
    let tree = digest_tree(path, MerkleTreeParams::default()).map_err(|error| Error::from(error).about(path))?;
    Ok(tree.descriptor().file_digest())
}

/// One file, on all CPUs if that pays.
fn digest_tree(path: &Path, params: MerkleTreeParams) -> std::result::Result<Tree, FileError> {
    let small = path.metadata().is_ok_and(|metadata| metadata.len() < LARGE);
    let job = DigestJob { path: path.to_owned(), params, tag: () };
    let mut result = Err(FileError::Stopped);
    Digester::new().single_thread(small).run(std::iter::once(Ok(job)), |_, tree| {
        result = tree;
        ControlFlow::Continue(())
    });
    result
}

/// The fs-verity digests of files, on all CPUs, in the order of the paths: the default parameters, as for
/// [`digest_file`]. See [`Digester`] for other parameters, progress, and results as they come.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let paths = ["a", "b"].map(|name| dir.path().join(name));
/// # std::fs::write(&paths[0], "")?;
/// for (path, digest) in postread::digest_files(&paths) {
///     match digest {
///         Ok(digest) => println!("{digest} {}", path.display()),
///         Err(error) => eprintln!("{error}"),
///     }
/// }
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn digest_files(paths: impl IntoIterator<Item = impl AsRef<Path>>) -> Vec<(PathBuf, Result<FileDigest>)> {
    let params = MerkleTreeParams::default();
    let paths: Vec<PathBuf> = paths.into_iter().map(|path| path.as_ref().to_owned()).collect();
    let jobs = paths.into_iter().map(|path| Ok(DigestJob { path, params, tag: () }));
    let mut results = Vec::new();
    Digester::new().run(jobs, |job, tree| {
        let digest = match tree {
            Ok(tree) => Ok(tree.descriptor().file_digest()),
            Err(error) => Err(Error::from(error).about(&job.path)),
        };
        results.push((job.path, digest));
        ControlFlow::Continue(())
    });
    results
}

/// Opens a regular file for reading. A pipe without a writer does not block.
///
/// # Errors
/// If it cannot be opened or is anything but a regular file.
pub fn open_regular(path: &Path) -> std::result::Result<(File, Metadata), FileError> {
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
enum TreeOut<'a> {
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

/// `CHUNK` bytes that begin at a page: the hash loads whole cache lines, and loads that cross two cost 3 to 5 %.
fn aligned(buf: &mut Vec<u8>) -> &mut [u8] {
    const PAGE: usize = 4096;
    buf.resize(CHUNK + PAGE, 0);
    let pad = buf.as_ptr().align_offset(PAGE).min(PAGE);
    &mut buf[pad..pad + CHUNK]
}

/// Reads until `buf` is full; the file had the bytes when it was opened.
fn read_exact(file: &File, mut buf: &mut [u8], mut offset: u64, size: u64) -> std::result::Result<(), FileError> {
    while !buf.is_empty() {
        match file.read_at(buf, offset) {
            Ok(0) => return Err(FileError::Shrunk { expected: size, found: offset }),
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

/// If a file changed while it was read, its digest is meaningless. The modification time can be set back, but not the
/// change time.
fn check_unchanged(file: &File, before: &Metadata) -> std::result::Result<(), FileError> {
    let now = file.metadata().map_err(FileError::Open)?;
    let facts = |m: &Metadata| (m.len(), m.mtime(), m.mtime_nsec(), m.ctime(), m.ctime_nsec());
    if facts(&now) == facts(before) { Ok(()) } else { Err(FileError::Changed) }
}
