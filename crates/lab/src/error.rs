//! Why an experiment could not be run.

use std::io;
use std::path::PathBuf;

/// What stopped an experiment. Nothing is reported that was not measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabError {
    /// The system refused something.
    #[error("{what}: {source}")]
    Io {
        /// What failed.
        what: String,
        /// Why not.
        source: io::Error,
    },
    /// Files in the directory can't be cold.
    #[error("{}: files there are never cold: it is a {kind}; choose a directory on a disk with --dir", dir.display())]
    NeverCold {
        /// The directory.
        dir: PathBuf,
        /// The file system.
        kind: String,
    },
    /// A file stayed in the page cache.
    #[error("{resident} of {total} pages of a file stayed in the page cache, so that the start would not be cold")]
    Warm {
        /// Pages that stayed.
        resident: u64,
        /// Pages it has.
        total: u64,
    },
    /// A read failed: figures of such a run are worth nothing.
    #[error("a read of the workload failed: {0}")]
    Read(String),
    /// The engine or its queues.
    #[error("{0}")]
    Engine(String),
    /// The guest kernel of `lab kernel`.
    #[error("{0}")]
    Kernel(String),
    /// The workload.
    #[error(transparent)]
    Workload(#[from] crate::workload::WorkloadError),
}

/// Names what was tried.
pub(crate) trait Tried<T> {
    fn tried(self, what: impl FnOnce() -> String) -> Result<T, LabError>;
}

impl<T, E: Into<io::Error>> Tried<T> for Result<T, E> {
    fn tried(self, what: impl FnOnce() -> String) -> Result<T, LabError> {
        self.map_err(|source| LabError::Io { what: what(), source: source.into() })
    }
}
