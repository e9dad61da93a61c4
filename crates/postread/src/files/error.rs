//! Why an input could not be read or an output could not be written.

use std::io;
use std::path::{Path, PathBuf};

use crate::error::{Error, ErrorKind};

/// Why a file could not be read or written. It prints as `PATH: what is wrong`.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", path.display())]
#[non_exhaustive]
pub struct FilesError {
    /// The file as the caller names it; `standard input` for the input `-`.
    pub path: PathBuf,
    /// What is wrong with it.
    pub problem: Problem,
}

/// What is wrong with a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// The operating system failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// An input is a directory.
    #[error("a directory, not a file")]
    Directory,
    /// An input is a named pipe that has no writer.
    #[error("a pipe that nobody opened for writing within {seconds} s")]
    NoWriter {
        /// How long a writer was waited for, in seconds.
        seconds: i64,
    },
    /// An input is longer than its kind can be.
    #[error("longer than {what} can be ({limit} bytes)")]
    TooLong {
        /// What it should have been, with its article: `a key`.
        what: String,
        /// The most that it can have, in bytes.
        limit: usize,
    },
    /// An output would overwrite an input or another output.
    #[error("{output} and {other} are the same file: nothing was written")]
    Overwrites {
        /// What the caller calls the output.
        output: String,
        /// What the caller calls the other file.
        other: String,
    },
}

impl FilesError {
    pub(super) fn new(path: &Path, problem: impl Into<Problem>) -> Self {
        Self { path: path.to_owned(), problem: problem.into() }
    }

    /// What kind of failure it is.
    pub fn kind(&self) -> ErrorKind {
        self.problem.kind()
    }
}

impl Problem {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Io(error) if error.kind() == io::ErrorKind::NotFound => ErrorKind::NotFound,
            Self::Io(_) => ErrorKind::Io,
            _ => ErrorKind::InvalidInput,
        }
    }
}

impl From<FilesError> for Error {
    fn from(FilesError { path, problem }: FilesError) -> Self {
        Error::caused_by(problem.kind(), problem).about(path)
    }
}
