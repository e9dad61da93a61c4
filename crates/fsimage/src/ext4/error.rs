//! What can go wrong, with the structure, the inode and the block named.

use std::fmt;
use std::io;

/// Why an ext4 image, or a part of it, could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The magic number at byte 1080 is not ext4's.
    #[error("not an ext4 file system: magic {found:#06x} at byte 1080 instead of 0xef53")]
    NotExt4 {
        /// What stands there.
        found: u16,
    },
    /// Incompatible features that this reader does not know or does not do.
    #[error("the file system uses features that are not supported: {0}")]
    UnsupportedFeatures(String),
    /// A journal that can't be replayed by this reader, although the kernel would.
    #[error("the file system was not unmounted cleanly, and its journal can't be replayed here: {0}")]
    UnsupportedJournal(&'static str),
    /// A structure on disk contradicts the format.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    /// The source failed or ended early.
    #[error("reading {len} bytes at byte {offset}: {source}")]
    Io {
        /// First byte wanted, from the start of the file system.
        offset: u64,
        /// Bytes wanted.
        len: usize,
        /// The source's own error.
        source: io::Error,
    },
    /// There is no inode of this number that a name could refer to.
    #[error("there is no inode {ino}: the file system has inodes 2 and {first} to {last}")]
    NoSuchInode {
        /// The number asked for.
        ino: u32,
        /// First inode number that is not reserved.
        first: u32,
        /// Last inode number.
        last: u32,
    },
    /// The inode is free: its link count is zero.
    #[error("inode {ino} is deleted")]
    Deleted {
        /// The inode's number.
        ino: u32,
    },
    /// The inode is not of the kind that the operation needs.
    #[error("inode {ino} is not a {wanted}")]
    WrongKind {
        /// The inode's number.
        ino: u32,
        /// What the operation needs: `directory`, `symbolic link`, `file with fs-verity`.
        wanted: &'static str,
    },
    /// No entry of this name.
    #[error("no entry `{}` in directory inode {dir}", name.escape_ascii())]
    NotFound {
        /// The directory's inode number.
        dir: u32,
        /// The name, raw.
        name: Vec<u8>,
    },
}

/// The kinds of structure on disk, as errors name them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Structure {
    /// The superblock.
    Superblock,
    /// A block group descriptor.
    GroupDescriptor,
    /// An inode.
    Inode,
    /// A node of an extent tree, in the inode or a block of its own.
    ExtentNode,
    /// The classic map of direct and indirect blocks.
    BlockMap,
    /// A block of directory entries.
    Directory,
    /// An index block of a hashed directory.
    Htree,
    /// Extended attributes.
    Xattr,
    /// Data kept in the inode.
    InlineData,
    /// The journal.
    Journal,
    /// The list or file of orphan inodes.
    Orphans,
    /// A symbolic link's target.
    Symlink,
    /// fs-verity metadata past the end of the file.
    Verity,
}

impl fmt::Display for Structure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Superblock => "superblock",
            Self::GroupDescriptor => "group descriptor",
            Self::Inode => "inode",
            Self::ExtentNode => "extent node",
            Self::BlockMap => "block map",
            Self::Directory => "directory block",
            Self::Htree => "directory index block",
            Self::Xattr => "extended attributes",
            Self::InlineData => "inline data",
            Self::Journal => "journal",
            Self::Orphans => "orphan list",
            Self::Symlink => "symbolic link",
            Self::Verity => "fs-verity metadata",
        })
    }
}

/// A structure that contradicts the format. What exactly is wrong is told by `Display` only, so that it may be told
/// better later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Corrupt {
    structure: Structure,
    inode: Option<u32>,
    block: Option<u64>,
    fault: Fault,
}

impl Corrupt {
    pub(crate) fn new(structure: Structure, fault: Fault) -> Self {
        Self { structure, inode: None, block: None, fault }
    }

    pub(crate) fn in_inode(mut self, ino: u32) -> Self {
        self.inode = Some(ino);
        self
    }

    pub(crate) fn in_block(mut self, block: u64) -> Self {
        self.block = Some(block);
        self
    }

    /// Which kind of structure is corrupt.
    pub fn structure(&self) -> Structure {
        self.structure
    }

    /// The inode it belongs to, where it belongs to one.
    pub fn inode(&self) -> Option<u32> {
        self.inode
    }

    /// The file system block it stands in (a group's number for descriptors), where that is known.
    pub fn block(&self) -> Option<u64> {
        self.block
    }

    /// True where a checksum is all that is wrong.
    pub fn is_checksum(&self) -> bool {
        matches!(self.fault, Fault::Checksum { .. })
    }
}

impl fmt::Display for Corrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "corrupt {}", self.structure)?;
        match (self.structure, self.inode) {
            (Structure::Inode, Some(ino)) => write!(f, " {ino}")?,
            (_, Some(ino)) => write!(f, " of inode {ino}")?,
            _ => {}
        }
        match (self.structure, self.block) {
            (Structure::GroupDescriptor, Some(group)) => write!(f, " of group {group}")?,
            (_, Some(block)) => write!(f, " in block {block}")?,
            _ => {}
        }
        write!(f, ": {}", self.fault)
    }
}

impl std::error::Error for Corrupt {}

/// What is wrong with a structure.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Fault {
    #[error("{len} bytes, at least {needed} needed")]
    Truncated { len: usize, needed: usize },
    #[error("checksum {found:#x}, its contents give {wanted:#x}")]
    Checksum { found: u32, wanted: u32 },
    #[error("magic {found:#x} instead of {wanted:#x}")]
    Magic { found: u32, wanted: u32 },
    #[error("{field} is {value}")]
    Field { field: &'static str, value: u64 },
    #[error("{field} is {value}, the limit is {limit}")]
    Limit { field: &'static str, value: u64, limit: u64 },
    #[error("{0}")]
    Rule(&'static str),
}

impl Fault {
    pub(crate) fn of(self, structure: Structure) -> Corrupt {
        Corrupt::new(structure, self)
    }
}

/// The result of reading an ext4 image.
pub type Result<T, E = Error> = std::result::Result<T, E>;
