//! A file of saved ciphertext, checked against the manifest before any of it is decrypted.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use postread::{Error, ErrorKind, Result};
use sha2::{Digest, Sha256};

use crate::{STEP, open_regular};

/// The saved contents of one inode.
pub(crate) struct SavedContents {
    path: PathBuf,
    file: File,
    length: u64,
    /// The ranges with ciphertext, start and length, in the manifest's order.
    data: Vec<(u64, u64)>,
    sha256: [u8; 32],
}

impl SavedContents {
    pub(crate) fn open(path: &Path, data: Vec<(u64, u64)>, sha256: [u8; 32]) -> Result<Self> {
        let (file, metadata) = open_regular(path).map_err(|error| match error.downcast_ref::<io::Error>() {
            // Part of the input, like a line of the manifest.
            Some(cause) if cause.kind() == io::ErrorKind::NotFound => {
                Error::new(ErrorKind::Malformed, "missing: what was saved is not complete").about(path)
            }
            _ => error,
        })?;
        Ok(Self { path: path.to_owned(), file, length: metadata.len(), data, sha256 })
    }

    /// The file, to read from.
    pub(crate) fn file(&self) -> Result<File> {
        self.file.try_clone().map_err(|error| Error::from(error).about(&self.path))
    }

    /// Reads all of it: length and digest must match the manifest.
    pub(crate) fn check(&self) -> Result<()> {
        let corrupt = |message: String| Err(Error::new(ErrorKind::Corrupt, message).about(&self.path));
        // The parsed ranges don't overflow.
        let wanted = self.data.iter().map(|(start, len)| start.saturating_add(*len)).max().unwrap_or(0);
        if self.length != wanted {
            return corrupt(format!("expected {wanted} bytes, found {}", self.length));
        }
        let mut hash = Sha256::new();
        let mut buf = vec![0; STEP.min(wanted) as usize];
        for &(start, len) in &self.data {
            let mut done = 0;
            while done < len {
                let n = STEP.min(len - done) as usize;
                let read = self.file.read_exact_at(&mut buf[..n], start + done);
                read.map_err(|error| Error::caused_by(ErrorKind::Io, error).about(&self.path))?;
                hash.update(&buf[..n]);
                done += n as u64;
            }
        }
        let found: [u8; 32] = hash.finalize().into();
        if found != self.sha256 {
            return corrupt(format!("expected SHA-256 {}, found {}", hex::encode(self.sha256), hex::encode(found)));
        }
        Ok(())
    }
}
