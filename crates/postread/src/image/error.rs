//! What can go wrong within an image.

use std::fmt;

use postread_fscrypt::{ContextError, DataError, KeyError, MissingKey};
use postread_fsimage::ext4;
use postread_verity::{DescriptorError, FileDigest, GeometryError};

use crate::{EngineError, Error, ErrorKind, Remedy};

/// Why a part of an image could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// The file system, or the source below it.
    #[error(transparent)]
    Ext4(#[from] ext4::Error),
    /// An inode is encrypted, and its key is not available.
    #[error("inode {ino}: {missing}")]
    MissingKey {
        /// The inode.
        ino: u32,
        /// The key needed and the keys given.
        missing: MissingKey,
    },
    /// The key can't be used with the inode's policy.
    #[error("inode {ino}: {error}")]
    Key {
        /// The inode.
        ino: u32,
        /// Why.
        error: KeyError,
    },
    /// Linux would refuse the inode's encryption context.
    #[error("inode {ino}: {error}")]
    Context {
        /// The inode.
        ino: u32,
        /// Why.
        error: ContextError,
    },
    /// The inode is marked as encrypted and has no context.
    #[error("inode {ino} is marked as encrypted and has no encryption context")]
    NoContext {
        /// The inode.
        ino: u32,
    },
    /// A name, a link target or contents that can't be ciphertext.
    #[error("inode {ino}: {error}")]
    Data {
        /// The inode: the directory of a name.
        ino: u32,
        /// Why.
        error: DataError,
    },
    /// The inode's policy is not the one inherited from its directory.
    #[error("inode {ino}: its encryption policy is not that of its directory, inode {dir}")]
    PolicyMismatch {
        /// The inode.
        ino: u32,
        /// The directory.
        dir: u32,
    },
    /// The fs-verity descriptor of a file.
    #[error("inode {ino}: {error}")]
    Descriptor {
        /// The inode.
        ino: u32,
        /// Why.
        error: DescriptorError,
    },
    /// The descriptor's tree is larger than fs-verity allows, or than the available space.
    #[error("inode {ino}: {error}")]
    Tree {
        /// The inode.
        ino: u32,
        /// Why.
        error: TreeError,
    },
    /// The file has another digest than the caller trusts.
    #[error("inode {ino}: expected fs-verity digest {wanted}, found {found}")]
    Digest {
        /// The inode.
        ino: u32,
        /// The trusted digest.
        wanted: Box<FileDigest>,
        /// The one that its descriptor has.
        found: Box<FileDigest>,
    },
    /// There is no such path.
    #[error("no such file{}{}{}", if path.is_empty() { "" } else { ": " }, String::from_utf8_lossy(path), LockedAbove(locked.as_ref()))]
    NotFound {
        /// The path up to the missing name; empty where the caller names it.
        path: Vec<u8>,
        /// The key that its directory lacks, where its names are no-key names.
        locked: Option<MissingKey>,
    },
    /// A path with `..` in it.
    #[error("`..` has no meaning in a path within an image, which begins at the image's root: write it without")]
    Parent,
    /// A path goes through more symbolic links than Linux follows.
    #[error("too many levels of symbolic links")]
    Loop {
        /// The path.
        path: Vec<u8>,
    },
    /// A digest is trusted, but the file has no fs-verity.
    #[error("expected digest {wanted}, but the file has no fs-verity")]
    NoVerity {
        /// The trusted digest.
        wanted: Box<FileDigest>,
    },
    /// The file has fs-verity, but a digest is required and none was given.
    #[error("the file has fs-verity, and no digest is given for it")]
    NotListed,
    /// An inode without contents to read.
    #[error("is a {}", super::kind_name(*found))]
    NotAFile {
        /// What it is.
        found: ext4::FileType,
    },
    /// A path goes through what is not a directory.
    #[error("{}{}is not a directory", String::from_utf8_lossy(path), if path.is_empty() { "" } else { " " })]
    NotADirectory {
        /// The path up to there; empty where the caller names it.
        path: Vec<u8>,
    },
    /// An inode is not of the kind that an operation needs.
    #[error("inode {ino} is not a {wanted}")]
    WrongKind {
        /// The inode.
        ino: u32,
        /// What it would have to be.
        wanted: &'static str,
    },
    /// The engine.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// What is wrong with a file's Merkle tree as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TreeError {
    /// No such tree is possible.
    Geometry(GeometryError),
    /// The descriptor begins before the tree can have ended.
    Room {
        /// Bytes of the tree.
        wanted: u64,
        /// Bytes up to the descriptor.
        found: u64,
    },
}

impl fmt::Display for TreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TreeError::Geometry(error) => error.fmt(f),
            TreeError::Room { wanted, found } => {
                write!(f, "the Merkle tree needs {wanted} bytes, and only {found} are before the descriptor")
            }
        }
    }
}

/// The end of the message if the directory of a missing name is locked.
struct LockedAbove<'a>(Option<&'a MissingKey>);

impl fmt::Display for LockedAbove<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(missing) => write!(f, " (its directory is locked: {missing})"),
            None => Ok(()),
        }
    }
}

impl ImageError {
    /// The same error for a message that begins with `path`: it is not repeated.
    #[must_use]
    pub fn without_path(self, named: &[u8]) -> Self {
        match self {
            ImageError::NotFound { path, locked } if path == super::canonical(named) => {
                ImageError::NotFound { path: Vec::new(), locked }
            }
            ImageError::NotADirectory { path } if path == super::canonical(named) => {
                ImageError::NotADirectory { path: Vec::new() }
            }
            other => other,
        }
    }

    /// A remedy, if there is a known one.
    pub fn remedy(&self) -> Option<Remedy> {
        match self {
            ImageError::Ext4(error) => remedy_of(error),
            _ => None,
        }
    }

    /// What it is.
    pub fn kind(&self) -> ErrorKind {
        match self {
            ImageError::MissingKey { .. } | ImageError::Key { .. } => ErrorKind::Key,
            ImageError::Ext4(error) => kind_of(error),
            ImageError::Digest { .. } | ImageError::Descriptor { .. } | ImageError::Tree { .. } => ErrorKind::Corrupt,
            // A name that is missing because its directory is locked is a key error.
            ImageError::NotFound { locked: Some(_), .. } => ErrorKind::Key,
            ImageError::NotFound { locked: None, .. } => ErrorKind::NotFound,
            ImageError::NoVerity { .. } | ImageError::NotListed => ErrorKind::Corrupt,
            ImageError::Parent | ImageError::WrongKind { .. } | ImageError::Loop { .. } => ErrorKind::InvalidInput,
            ImageError::NotAFile { .. } | ImageError::NotADirectory { .. } => ErrorKind::InvalidInput,
            ImageError::Engine(_) => ErrorKind::Io,
            _ => ErrorKind::Malformed,
        }
    }
}

fn kind_of(error: &ext4::Error) -> ErrorKind {
    use ext4::{Error, Structure};
    match error {
        Error::DamagedSuperblock { error, .. } | Error::AfterReplay(error) => kind_of(error),
        Error::Io { source, .. } if postread_io::Corruption::of(source).is_some() => ErrorKind::Corrupt,
        Error::Io { source, .. } if source.kind() != std::io::ErrorKind::UnexpectedEof => ErrorKind::Io,
        Error::Corrupt(corrupt) if corrupt.is_checksum() => ErrorKind::Corrupt,
        // Checksums of a journal cover whole transactions, so anything wrong with it is one kind of failure. Metadata
        // of fs-verity protects the file, so anything wrong with it is the file's failure.
        Error::Corrupt(corrupt) if matches!(corrupt.structure(), Structure::Journal | Structure::Verity) => {
            ErrorKind::Corrupt
        }
        Error::UnsupportedFeatures(_) | Error::UnsupportedJournal(_) | Error::ExternalJournal { .. } => {
            ErrorKind::Unsupported
        }
        Error::WrongJournal(_) | Error::NoBackup { .. } => ErrorKind::InvalidInput,
        _ => ErrorKind::Malformed,
    }
}

/// The remedy for an error of a file system, if an option for reading it helps.
fn remedy_of(error: &ext4::Error) -> Option<Remedy> {
    use ext4::{Error, Structure};
    Some(match error {
        Error::DamagedSuperblock { backup, .. } => Remedy::UseSuperblock { block: *backup },
        Error::ExternalJournal { .. } => Remedy::GiveJournal,
        Error::AfterReplay(_) | Error::UnsupportedJournal(_) => Remedy::IgnoreJournal,
        Error::Corrupt(corrupt) if corrupt.structure() == Structure::Journal => Remedy::IgnoreJournal,
        Error::Corrupt(corrupt) if corrupt.is_checksum() => Remedy::IgnoreChecksums,
        _ => return None,
    })
}

impl From<ImageError> for Error {
    fn from(error: ImageError) -> Self {
        Error::caused_by(error.kind(), error)
    }
}
