//! Errors: of reads, of engines, and the one that everything else returns.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;

use postread_io::{BlockStatus, FailureKind};

/// A read that found no good byte at its offset.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at byte {offset}: {status}")]
#[non_exhaustive]
pub struct ReadError {
    /// Byte offset in the file of the first byte that could not be read.
    pub offset: u64,
    /// What is wrong with its block.
    pub status: BlockStatus,
}

impl ReadError {
    /// What kind of failure it is.
    pub fn kind(&self) -> FailureKind {
        self.status.failure().unwrap_or(FailureKind::Io)
    }
}

/// Why an engine could not be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The workqueue was refused.
    #[error("the workqueue could not be created")]
    Workqueue(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// The kind of a failure: callers decide by it, and exit statuses derive from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Data or metadata does not match a digest, a checksum or a signature.
    Corrupt,
    /// The bytes contradict their format.
    Malformed,
    /// A key is missing, wrong or unusable.
    Key,
    /// The operating system failed: I/O, permission, memory.
    Io,
    /// There is nothing by that name or number.
    NotFound,
    /// The format is known but cannot be read here.
    Unsupported,
    /// There was nothing to verify.
    NothingToVerify,
    /// The caller asked for something that makes no sense.
    InvalidInput,
}

impl ErrorKind {
    /// The kind of a block's failure; `None` for a good block.
    pub fn of_status(status: &BlockStatus) -> Option<ErrorKind> {
        Some(match (status, status.failure()?) {
            (_, FailureKind::Corrupt) => ErrorKind::Corrupt,
            (_, FailureKind::MissingKey) => ErrorKind::Key,
            // A truncated file is not the file that was protected; a truncated tree is malformed.
            (BlockStatus::Short | BlockStatus::Truncated { .. }, _) => ErrorKind::Corrupt,
            (BlockStatus::Unmapped { checksum: true, .. }, _) => ErrorKind::Corrupt,
            (BlockStatus::Unmapped { .. }, _) => ErrorKind::Malformed,
            (BlockStatus::Input { cause, .. }, _) => match **cause {
                BlockStatus::Short => ErrorKind::Malformed,
                BlockStatus::Truncated { .. } | BlockStatus::Unmapped { .. } => return Self::of_status(cause),
                _ => ErrorKind::Io,
            },
            _ => ErrorKind::Io,
        })
    }

    fn to_io(self) -> io::ErrorKind {
        match self {
            ErrorKind::Corrupt | ErrorKind::Malformed => io::ErrorKind::InvalidData,
            ErrorKind::Key => io::ErrorKind::PermissionDenied,
            ErrorKind::NotFound => io::ErrorKind::NotFound,
            ErrorKind::Unsupported => io::ErrorKind::Unsupported,
            ErrorKind::InvalidInput => io::ErrorKind::InvalidInput,
            ErrorKind::Io | ErrorKind::NothingToVerify => io::ErrorKind::Other,
        }
    }
}

/// What a caller can do about a failure to open something. Programs translate it into their own options.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Remedy {
    /// Read the file system without its journal.
    IgnoreJournal,
    /// Give the device that the journal is on, or read the file system without its journal.
    GiveJournal,
    /// Use this backup of the superblock.
    UseSuperblock {
        /// The block that it is in.
        block: u64,
    },
    /// Read metadata with wrong checksums.
    IgnoreChecksums,
    /// Choose one of the partitions.
    ChoosePartition,
    /// Choose one of the logical volumes.
    ChooseVolume,
    /// Give the passphrase of a LUKS volume.
    GivePassphrase,
}

/// Why something could not be opened, read or verified.
///
/// It prints as `SUBJECT: what is wrong`. The subject is the target, or the path within it.
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    remedy: Option<Remedy>,
    subject: Option<OsString>,
    cause: Cause,
}

enum Cause {
    Message(Cow<'static, str>),
    Error(Box<dyn std::error::Error + Send + Sync>),
}

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error with its own message.
    pub fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Self(Box::new(Inner { kind, remedy: None, subject: None, cause: Cause::Message(message.into()) }))
    }

    /// An error caused by another one: it prints like that one, and has it as its source.
    pub fn caused_by(kind: ErrorKind, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self(Box::new(Inner { kind, remedy: None, subject: None, cause: Cause::Error(error.into()) }))
    }

    /// The same error about `subject`. An existing subject stays, because the innermost is the most precise.
    #[must_use]
    pub fn about(mut self, subject: impl AsRef<OsStr>) -> Self {
        self.0.subject.get_or_insert_with(|| subject.as_ref().to_owned());
        self
    }

    /// What kind of failure it is.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The same error with a remedy.
    #[must_use]
    pub(crate) fn with_remedy(mut self, remedy: Remedy) -> Self {
        self.0.remedy = Some(remedy);
        self
    }

    /// A remedy, if there is a known one.
    pub fn remedy(&self) -> Option<Remedy> {
        self.0.remedy.or_else(|| self.downcast_ref::<crate::image::ImageError>()?.remedy())
    }

    /// What it is about: the target, or the path within it.
    pub fn subject(&self) -> Option<&OsStr> {
        self.0.subject.as_deref()
    }

    /// What is wrong, without the subject.
    pub fn message(&self) -> impl fmt::Display + '_ {
        &self.0.cause
    }

    /// The underlying error, if it is a `T`.
    pub fn downcast_ref<T: std::error::Error + 'static>(&self) -> Option<&T> {
        match &self.0.cause {
            Cause::Error(error) => error.downcast_ref(),
            Cause::Message(_) => None,
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Message(message) => f.write_str(message),
            Cause::Error(error) => {
                error.fmt(f)?;
                // Not every error quotes its cause.
                match error.downcast_ref::<EngineError>() {
                    Some(EngineError::Workqueue(cause)) => write!(f, ": {cause}"),
                    None => Ok(()),
                }
            }
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(subject) = &self.0.subject {
            write!(f, "{}: ", subject.display())?;
        }
        self.0.cause.fmt(f)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Error");
        out.field("kind", &self.0.kind).field("subject", &self.0.subject);
        match &self.0.cause {
            Cause::Message(message) => out.field("message", message),
            Cause::Error(error) => out.field("error", error),
        };
        out.finish()
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.0.cause {
            Cause::Error(error) => Some(&**error),
            Cause::Message(_) => None,
        }
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        // One of our own that went through `std::io` keeps its kind.
        match error.downcast::<Error>() {
            Ok(error) => error,
            Err(error) => {
                let kind = match error.kind() {
                    io::ErrorKind::NotFound => ErrorKind::NotFound,
                    _ => ErrorKind::Io,
                };
                Error::caused_by(kind, error)
            }
        }
    }
}

impl From<ReadError> for Error {
    fn from(error: ReadError) -> Self {
        let kind = ErrorKind::of_status(&error.status).unwrap_or(ErrorKind::Io);
        Error::caused_by(kind, error)
    }
}

impl From<ReadError> for io::Error {
    fn from(error: ReadError) -> Self {
        Error::from(error).into()
    }
}

impl From<EngineError> for Error {
    fn from(error: EngineError) -> Self {
        Error::caused_by(ErrorKind::Io, error)
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        if let Some(source) = error.downcast_ref::<io::Error>()
            && error.0.subject.is_none()
            && let Some(errno) = source.raw_os_error()
        {
            return io::Error::from_raw_os_error(errno);
        }
        io::Error::new(error.kind().to_io(), error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_prints_its_subject_once_and_keeps_its_cause() {
        let error = Error::from(ReadError { offset: 7, status: BlockStatus::Short }).about("a").about("b");
        assert_eq!(error.to_string(), "a: at byte 7: the source ends before this block does");
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert_eq!(error.subject(), Some(OsStr::new("a")));
        assert!(error.downcast_ref::<ReadError>().is_some());
    }

    #[test]
    fn the_kind_survives_std_io() {
        let error = Error::new(ErrorKind::Key, "no key").about("f");
        let io: io::Error = error.into();
        assert_eq!(io.kind(), io::ErrorKind::PermissionDenied);
        let back = Error::from(io);
        assert_eq!((back.kind(), back.to_string()), (ErrorKind::Key, "f: no key".to_owned()));
        let io: io::Error = Error::from(io::Error::from_raw_os_error(5)).into();
        assert_eq!(io.raw_os_error(), Some(5));
    }
}
