//! Why a file has no digest.

use std::io;

use postread_verity::{BuildError, GeometryError, PartError};

use crate::error::{Error, ErrorKind};

/// Why a file has no digest, or could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// It could not be opened.
    #[error("{0}")]
    Open(io::Error),
    /// It is not a regular file.
    #[error("not a regular file ({0})")]
    NotRegular(&'static str),
    /// A line of a list of names is too long to be a name.
    #[error("a line is too long for a name (65536 bytes or more): the rest of the list was not read")]
    LongLine,
    /// Reading failed.
    #[error("reading at offset {offset}: {error}")]
    Read {
        /// Where, in bytes.
        offset: u64,
        /// Why.
        error: io::Error,
    },
    /// The file became shorter while it was read.
    #[error("the file changed while it was read: it had {expected} bytes, and now ends at {found}")]
    Shrunk {
        /// The size when it was opened, in bytes.
        expected: u64,
        /// The size found, in bytes.
        found: u64,
    },
    /// The file changed while it was read.
    #[error("the file changed while it was read")]
    Changed,
    /// The Merkle tree could not be written.
    #[error("writing the Merkle tree: {0}")]
    Tree(io::Error),
    /// No tree can cover the file.
    #[error("{0}")]
    TooLarge(#[from] GeometryError),
    /// The parts of the tree do not fit together.
    #[error("{0}")]
    Part(#[from] PartError),
    /// The caller wanted no more results.
    #[error("stopped")]
    Stopped,
}

impl FileError {
    /// What kind of failure it is.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::NotRegular(_) | Self::TooLarge(_) | Self::LongLine => ErrorKind::InvalidInput,
            Self::Open(error) if error.kind() == io::ErrorKind::NotFound => ErrorKind::NotFound,
            // A name with a NUL byte, which never reached the system.
            Self::Open(error) if error.kind() == io::ErrorKind::InvalidInput && error.raw_os_error().is_none() => {
                ErrorKind::InvalidInput
            }
            _ => ErrorKind::Io,
        }
    }

    /// Whether there is no file of that name.
    pub fn is_not_found(&self) -> bool {
        self.kind() == ErrorKind::NotFound
    }
}

impl From<FileError> for Error {
    fn from(error: FileError) -> Self {
        Error::caused_by(error.kind(), error)
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
