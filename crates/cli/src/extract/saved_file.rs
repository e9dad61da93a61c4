//! A file of saved ciphertext, held to what the manifest says of it before anything of it is decrypted.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::exit::Outcome;
use crate::text::name_for_stderr;
use postread::{FileError, open_regular};

/// Bytes hashed at once.
const STEP: u64 = 1 << 20;

/// What was saved of one inode.
pub(crate) struct SavedFile {
    path: PathBuf,
    file: File,
    found: u64,
    /// The ranges with ciphertext, start and length, in the manifest's order.
    data: Vec<(u64, u64)>,
    sha256: [u8; 32],
}

/// Why a file of saved ciphertext is not taken.
#[derive(Debug, thiserror::Error)]
pub(super) enum SavedError {
    #[error("{}: {found} bytes, and {wanted} were saved", name_for_stderr(.path))]
    Length { path: PathBuf, wanted: u64, found: u64 },
    #[error("{}: its SHA-256 is {}, and not {}", name_for_stderr(.path), hex::encode(.found), hex::encode(.wanted))]
    Digest { path: PathBuf, wanted: [u8; 32], found: [u8; 32] },
    #[error("{}: it is not there: what was saved is not whole", name_for_stderr(.path))]
    Missing { path: PathBuf },
    #[error("{}: {error}", name_for_stderr(.path))]
    Open { path: PathBuf, error: FileError },
    #[error("{}: {error}", name_for_stderr(.path))]
    Read { path: PathBuf, error: io::Error },
}

impl SavedError {
    pub(super) fn outcome(&self) -> Outcome {
        match self {
            Self::Length { .. } | Self::Digest { .. } => Outcome::Integrity,
            // A part of the input, as a line of the manifest is.
            Self::Missing { .. } => Outcome::Usage,
            Self::Open { error, .. } => Outcome::of_file(error),
            Self::Read { .. } => Outcome::Environment,
        }
    }
}

impl SavedFile {
    pub(super) fn open(path: &Path, data: Vec<(u64, u64)>, sha256: [u8; 32]) -> Result<Self, SavedError> {
        let of = |error| match error {
            FileError::Open(error) if error.kind() == io::ErrorKind::NotFound => {
                SavedError::Missing { path: path.to_owned() }
            }
            error => SavedError::Open { path: path.to_owned(), error },
        };
        let (file, metadata) = open_regular(path).map_err(of)?;
        Ok(Self { path: path.to_owned(), file, found: metadata.len(), data, sha256 })
    }

    /// The file, to read from.
    pub(super) fn file(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// Reads all of it: it has the length and the digest that the manifest says, or it is not taken.
    pub(super) fn check(&self) -> Result<(), SavedError> {
        let path = || self.path.clone();
        // The ends were checked not to overflow.
        let wanted = self.data.iter().map(|(start, len)| start.saturating_add(*len)).max().unwrap_or(0);
        if self.found != wanted {
            return Err(SavedError::Length { path: path(), wanted, found: self.found });
        }
        let mut hash = Sha256::new();
        let mut buf = vec![0; STEP.min(wanted) as usize];
        for &(start, len) in &self.data {
            let mut done = 0;
            while done < len {
                let n = STEP.min(len - done) as usize;
                let read = self.file.read_exact_at(&mut buf[..n], start + done);
                read.map_err(|error| SavedError::Read { path: path(), error })?;
                hash.update(&buf[..n]);
                done += n as u64;
            }
        }
        let found: [u8; 32] = hash.finalize().into();
        if found != self.sha256 {
            return Err(SavedError::Digest { path: path(), wanted: self.sha256, found });
        }
        Ok(())
    }
}
