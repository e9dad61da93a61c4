//! What an extraction reports while it runs.

use std::fmt;

use postread::{Error, ErrorKind};

/// Receives the progress of an extraction. Called from several threads.
pub trait Events: Sync {
    /// A part of the tree failed; the rest continues.
    fn failed(&self, failure: &Failure<'_>);

    /// Something is left out by design.
    fn left_out(&self, path: &[u8], what: &'static str) {
        let _ = (path, what);
    }

    /// Information for the caller that does not affect the result.
    fn note(&self, note: &Note<'_>) {
        let _ = note;
    }

    /// This many more bytes were read.
    fn read(&self, bytes: u64) {
        let _ = bytes;
    }

    /// One more file is done.
    fn file_done(&self) {}
}

/// A part of the tree that failed.
#[derive(Debug)]
#[non_exhaustive]
pub struct Failure<'a> {
    /// Its path below the directory that is extracted into, or what else failed.
    pub path: &'a [u8],
    /// Why.
    pub error: &'a Error,
    /// Whether this is a consequence of another reported failure, and does not count by itself.
    pub follows: bool,
}

impl<'a> Failure<'a> {
    /// One that counts by itself.
    pub fn new(path: &'a [u8], error: &'a Error) -> Self {
        Self { path, error, follows: false }
    }
}

/// Something to know about an extraction.
#[derive(Debug)]
#[non_exhaustive]
pub enum Note<'a> {
    /// The file of an earlier run has another digest, and is replaced.
    Replaced {
        /// Its path.
        path: &'a [u8],
    },
    /// The file of an earlier run is kept: it has fewer bad bytes.
    Kept {
        /// Its path.
        path: &'a [u8],
        /// Bad bytes in what was read now.
        bad: u64,
        /// Bad bytes in the file that is kept.
        bad_kept: u64,
    },
    /// The target's file system has no such extended attributes.
    UnsupportedXattr {
        /// The attribute's name.
        name: &'a [u8],
    },
    /// There are more such attributes than are listed.
    MoreUnsupportedXattrs,
    /// The list of digests is empty.
    EmptyList,
    /// The list of digests names none of the extracted files.
    ListDoesNotApply,
    /// Anything else, in words.
    Other(&'a str),
}

impl Note<'_> {
    /// The kind of failure, if it counts as one.
    pub fn kind(&self) -> Option<ErrorKind> {
        matches!(self, Self::EmptyList | Self::ListDoesNotApply).then_some(ErrorKind::NothingToVerify)
    }
}

impl fmt::Display for Note<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = String::from_utf8_lossy;
        match self {
            Self::Replaced { path } => write!(f, "{}: the existing file has another digest: replaced", text(path)),
            Self::Kept { path, bad, bad_kept } => {
                write!(
                    f,
                    "{}: {bad} bytes are bad, but only {bad_kept} of the existing file: kept the existing file",
                    text(path)
                )
            }
            Self::UnsupportedXattr { name } => {
                write!(f, "warning: the file system does not support the extended attribute {}: left out", text(name))
            }
            Self::MoreUnsupportedXattrs => {
                f.write_str("warning: there are more extended attributes that the file system does not support")
            }
            Self::EmptyList => f.write_str("the list of digests is empty: no file was verified against it"),
            Self::ListDoesNotApply => {
                f.write_str("the list of digests names none of the extracted files: none was verified against it")
            }
            Self::Other(what) => f.write_str(what),
        }
    }
}

/// Ignores all events.
impl Events for () {
    fn failed(&self, _: &Failure<'_>) {}
}
