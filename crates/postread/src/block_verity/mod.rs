//! dm-verity over files and block devices: hash trees made and checked by several threads, damage found and repaired.
//!
//! ```
//! use postread::block_verity::{Device, Threads, format, verify};
//! use postread_verity::dm_verity::{Params, Verifier};
//!
//! let data = vec![7; 1000 * 4096];
//! let params = Params::default();
//! let mut tree = vec![0; 9 * 4096];
//! let root_hash = format(&data, &params, 1000, Threads::default(), &mut |offset, blocks| {
//!     tree[offset as usize..][..blocks.len()].copy_from_slice(blocks);
//!     Ok(())
//! })?;
//!
//! let device = Device { data: &data, hash: &tree, hash_area: 0 };
//! let verifier = Verifier::new(&params, 1000, &root_hash)?;
//! assert!(verify(&device, &verifier, Threads::default()).bad.is_empty());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod fec;
mod format;
mod in_place;
mod repair;
mod verify;

use std::io;
use std::num::NonZeroUsize;

use postread_io::ReadAt;
use postread_verity::dm_verity::{BuildError, GeometryError};
use postread_verity::fec::LayoutError;

pub use fec::{Fec, Message, encode_fec};
pub use format::format;
pub use in_place::{InPlaceError, repair_in_place};
pub use repair::{RepairReport, Repaired, repair};
pub use verify::{Area, BadRun, Cause, VerifyReport, verify};

/// How many threads work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Threads(pub NonZeroUsize);

impl Default for Threads {
    /// As many as the process may use CPUs.
    fn default() -> Self {
        Self(std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN))
    }
}

/// The data device and the device with the tree; they may be the same.
#[derive(Clone, Copy)]
pub struct Device<'a> {
    /// The data, from byte 0 on.
    pub data: &'a dyn ReadAt,
    /// What holds the tree.
    pub hash: &'a dyn ReadAt,
    /// Where the tree begins there, in bytes: after the superblock.
    pub hash_area: u64,
}

impl std::fmt::Debug for Device<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Device").field("hash_area", &self.hash_area).finish_non_exhaustive()
    }
}

/// Why a tree or parity could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BlockVerityError {
    /// A device cannot have this many blocks.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// There is no such FEC.
    #[error(transparent)]
    Fec(#[from] LayoutError),
    /// The data could not be read.
    #[error("reading {len} bytes of data at byte {offset}: {source}")]
    Read {
        /// The first byte.
        offset: u64,
        /// The number of bytes.
        len: usize,
        /// The error.
        source: io::Error,
    },
    /// The output could not be written.
    #[error("writing: {0}")]
    Write(#[source] io::Error),
}

impl From<BuildError<io::Error>> for BlockVerityError {
    fn from(error: BuildError<io::Error>) -> Self {
        match error {
            BuildError::Write(error) => Self::Write(error),
            other => Self::Write(io::Error::other(other.to_string())),
        }
    }
}

/// Calls `work(state, job)` for each job below `jobs` on several threads, and returns the results by job.
fn parallel<S, R: Send>(
    threads: Threads,
    jobs: u64,
    state: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, u64) -> R + Sync,
) -> Vec<R> {
    let next = std::sync::atomic::AtomicU64::new(0);
    let mut results: Vec<(u64, R)> = Vec::new();
    std::thread::scope(|scope| {
        let run = || {
            let mut state = state();
            let mut done = Vec::new();
            loop {
                let job = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                if job >= jobs {
                    return done;
                }
                done.push((job, work(&mut state, job)));
            }
        };
        let count = (threads.0.get() as u64).min(jobs).max(1);
        let others: Vec<_> = (1..count).map(|_| scope.spawn(run)).collect();
        results.extend(run());
        for other in others {
            match other.join() {
                Ok(done) => results.extend(done),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
    });
    results.sort_by_key(|(job, _)| *job);
    results.into_iter().map(|(_, result)| result).collect()
}
