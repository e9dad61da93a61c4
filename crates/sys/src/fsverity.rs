//! The kernel's side of fs-verity: enable, measure, read metadata, and the verity attribute.
//!
//! Interface: Linux Documentation/filesystems/fsverity.rst. Computing digests and checking data against them is not
//! this crate's job.

use std::fmt;
use std::fs::File;
use std::io;

use rustix::fs::{AtFlags, StatxAttributes, StatxFlags, statx};

use crate::raw;

/// The request to the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation {
    /// `FS_IOC_ENABLE_VERITY`.
    Enable,
    /// `FS_IOC_MEASURE_VERITY`.
    Measure,
    /// `FS_IOC_READ_VERITY_METADATA`.
    ReadMetadata,
}

/// Why the kernel refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// This kind of file system has no fs-verity.
    NotSupported,
    /// This kind of file system could, but verity is off in it (for ext4: `tune2fs -O verity`) or in the kernel's build;
    /// the kernel gives one error for both.
    FeatureOff,
    /// The kernel lacks the hash algorithm.
    NoAlgorithm,
    /// Verity is already on.
    AlreadyEnabled,
    /// Another process is enabling it right now.
    InProgress,
    /// The file is open for writing somewhere.
    OpenForWriting,
    /// The file has no verity.
    NotVerity,
    /// Not a regular file.
    NotRegular,
    /// The caller may not write the file, or it is append-only or immutable.
    NotPermitted,
    /// The file system is read-only.
    ReadOnly,
    /// Parameters that this kernel and file system do not support: block size, algorithm, salt.
    InvalidParameters,
    /// The file is too large for this block size.
    TooLarge,
    /// Salt or signature is too long.
    TooLong,
    /// No certificate in the kernel's keyring matches the signature.
    NoCertificate,
    /// The signature is for another file.
    SignatureRejected,
    /// The signature, or the metadata on disk, is malformed.
    Malformed,
    /// Something else: see the source.
    Other,
}

/// A refused request.
#[derive(Debug, thiserror::Error)]
#[error("{operation}: {cause}")]
#[non_exhaustive]
pub struct Error {
    /// The request.
    pub operation: Operation,
    /// Why it failed.
    pub cause: Cause,
    /// The system's error.
    #[source]
    pub source: io::Error,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Operation::Enable => "cannot enable fs-verity",
            Operation::Measure => "cannot measure the fs-verity digest",
            Operation::ReadMetadata => "cannot read fs-verity metadata",
        })
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Cause::NotSupported => "this kind of file system has no fs-verity",
            Cause::FeatureOff => "fs-verity is off in this file system (ext4: tune2fs -O verity) or in this kernel",
            Cause::NoAlgorithm => "this kernel lacks the hash algorithm",
            Cause::AlreadyEnabled => "it is already enabled",
            Cause::InProgress => "another process is enabling it",
            Cause::OpenForWriting => "the file is open for writing",
            Cause::NotVerity => "the file has no fs-verity",
            Cause::NotRegular => "not a regular file",
            Cause::NotPermitted => "not permitted",
            Cause::ReadOnly => "the file system is read-only",
            Cause::InvalidParameters => "this kernel and file system do not support these parameters",
            Cause::TooLarge => "the file is too large for this block size",
            Cause::TooLong => "salt or signature is too long",
            Cause::NoCertificate => "no certificate in the kernel's keyring matches the signature",
            Cause::SignatureRejected => "the signature is for another file",
            Cause::Malformed => "the signature or the metadata on disk is malformed",
            Cause::Other => "the system refused",
        })
    }
}

impl Error {
    fn new(operation: Operation, source: io::Error) -> Error {
        let cause = match source.raw_os_error() {
            Some(libc::ENOTTY) => Cause::NotSupported,
            Some(libc::EOPNOTSUPP) => Cause::FeatureOff,
            Some(libc::ENOPKG) => Cause::NoAlgorithm,
            Some(libc::EEXIST) => Cause::AlreadyEnabled,
            Some(libc::EBUSY) => Cause::InProgress,
            Some(libc::ETXTBSY) => Cause::OpenForWriting,
            Some(libc::ENODATA) => Cause::NotVerity,
            Some(libc::EISDIR) => Cause::NotRegular,
            // The kernel says EINVAL for anything else that is not a regular file, too: `enable` looks first.
            Some(libc::EINVAL) => Cause::InvalidParameters,
            Some(libc::EPERM | libc::EACCES) => Cause::NotPermitted,
            Some(libc::EROFS) => Cause::ReadOnly,
            Some(libc::EFBIG) => Cause::TooLarge,
            Some(libc::EMSGSIZE) => Cause::TooLong,
            Some(libc::ENOKEY) => Cause::NoCertificate,
            Some(libc::EKEYREJECTED) => Cause::SignatureRejected,
            Some(libc::EBADMSG | libc::EUCLEAN) => Cause::Malformed,
            _ => Cause::Other,
        };
        Error { operation, cause, source }
    }
}

/// What to enable.
#[derive(Debug, Clone, Copy)]
pub struct Enable<'a> {
    /// The kernel's number of the hash algorithm: 1 SHA-256, 2 SHA-512.
    pub hash_algorithm: u32,
    /// Merkle tree block size in bytes.
    pub block_size: u32,
    /// At most 32 bytes.
    pub salt: &'a [u8],
    /// A PKCS#7 signature for the kernel to check and keep, or empty.
    pub signature: &'a [u8],
}

impl Default for Enable<'_> {
    /// As `fsverity enable`: SHA-256, 4096, no salt, no signature.
    fn default() -> Self {
        Enable { hash_algorithm: 1, block_size: 4096, salt: &[], signature: &[] }
    }
}

/// Enables fs-verity on a file, opened for reading. The kernel builds and keeps the tree; from then on the file cannot
/// be written.
pub fn enable(file: &File, parameters: &Enable<'_>) -> Result<(), Error> {
    let Enable { hash_algorithm, block_size, salt, signature } = *parameters;
    let not_regular = match file.metadata() {
        Ok(metadata) => !metadata.is_file(),
        Err(source) => return Err(Error::new(Operation::Enable, source)),
    };
    raw::fsverity::enable(file, hash_algorithm, block_size, salt, signature).map_err(|source| {
        let mut error = Error::new(Operation::Enable, source);
        if not_regular {
            error.cause = Cause::NotRegular;
        }
        error
    })
}

/// A digest reported by the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Measurement {
    /// The kernel's number of the hash algorithm: 1 SHA-256, 2 SHA-512.
    pub hash_algorithm: u16,
    /// The file digest.
    pub digest: Vec<u8>,
}

/// The file digest against which the kernel verifies the file.
pub fn measure(file: &File) -> Result<Measurement, Error> {
    let (hash_algorithm, digest) =
        raw::fsverity::measure(file).map_err(|source| Error::new(Operation::Measure, source))?;
    Ok(Measurement { hash_algorithm, digest })
}

/// A part of a file's verity metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Metadata {
    /// The Merkle tree, root level first.
    MerkleTree = 1,
    /// The descriptor, without a signature.
    Descriptor = 2,
    /// The signature.
    Signature = 3,
}

/// Reads metadata at `offset` into `buf`, and returns how many bytes there were; 0 at the end. Linux 5.12 and later.
pub fn read_metadata(file: &File, kind: Metadata, offset: u64, buf: &mut [u8]) -> Result<usize, Error> {
    raw::fsverity::read_metadata(file, kind as u64, offset, buf)
        .map_err(|source| Error::new(Operation::ReadMetadata, source))
}

/// Reads a whole part of the metadata, at most `limit` bytes.
///
/// # Errors
/// As [`read_metadata`]; [`Cause::TooLarge`] if there is more than `limit`.
pub fn read_all_metadata(file: &File, kind: Metadata, limit: usize) -> Result<Vec<u8>, Error> {
    let mut all = Vec::new();
    let mut buf = vec![0; 65536];
    loop {
        let len = read_metadata(file, kind, all.len() as u64, &mut buf)?;
        if len == 0 {
            return Ok(all);
        }
        if len > limit - all.len() {
            return Err(Error::new(Operation::ReadMetadata, io::Error::from_raw_os_error(libc::EFBIG)));
        }
        all.extend_from_slice(&buf[..len]);
    }
}

/// Is verity on, by `statx(2)`? `None` if the file system does not report it.
pub fn is_verity(file: &File) -> io::Result<Option<bool>> {
    let stat = statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)?;
    let told = stat.stx_attributes_mask.contains(StatxAttributes::VERITY);
    Ok(told.then(|| stat.stx_attributes.contains(StatxAttributes::VERITY)))
}
