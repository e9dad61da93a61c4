//! What can go wrong, with the structure, the inode and the block named.

use std::fmt;
use std::io;

/// Why an ext4 image, or a part of it, could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The magic number at byte 1080 is not that of ext4.
    #[error("not an ext4 file system: expected magic 0xef53 at byte 1080, found {found:#06x}")]
    NotExt4 {
        /// What was found instead.
        found: u16,
    },
    /// The source is too short for a superblock.
    #[error("not an ext4 file system: it has {found} bytes, expected at least 2048")]
    TooShort {
        /// Its bytes.
        found: u64,
    },
    /// There is no usable superblock at the start, and a backup of it is where backups usually are.
    #[error("{error}; block {backup} has a backup of the superblock")]
    DamagedSuperblock {
        /// What is wrong with the first superblock.
        error: Box<Error>,
        /// The block with the backup: what [`Options::superblock`](super::Options::superblock) takes.
        backup: u64,
    },
    /// The file system cannot be read with the contents of its journal over it.
    #[error("after the journal was replayed: {0}")]
    AfterReplay(Box<Error>),
    /// There is no superblock in the block that [`Options::superblock`](super::Options::superblock) names.
    #[error(
        "no ext4 superblock in block {block}: backups are usually in block 8193 (blocks of 1 KiB), 16384 (2 KiB) or \
         32768 (4 KiB)"
    )]
    NoBackup {
        /// The block.
        block: u64,
    },
    /// Incompatible features that this reader does not support.
    #[error("the file system uses features that are not supported: {0}")]
    UnsupportedFeatures(String),
    /// A journal that this reader cannot replay, although the kernel would.
    #[error("the file system was not unmounted cleanly, and its journal cannot be replayed here: {0}")]
    UnsupportedJournal(&'static str),
    /// The file system needs its journal replayed, and the journal is on another device, which was not given.
    #[error(
        "the file system was not unmounted cleanly, and its journal is on another device (UUID {}), which is needed to \
         replay it",
        uuid_text(.uuid)
    )]
    ExternalJournal {
        /// The UUID of the journal device.
        uuid: [u8; 16],
    },
    /// A journal device was given that is not the one of this file system.
    #[error("{0}")]
    WrongJournal(String),
    /// A structure on disk contradicts the format.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    /// The source failed or ended early.
    #[error("reading {len} bytes at byte {offset}: {source}")]
    Io {
        /// First byte requested, from the start of the file system.
        offset: u64,
        /// Bytes requested.
        len: usize,
        /// The error of the source.
        source: io::Error,
    },
    /// The source ends before the file system does, and before the requested bytes: the image was truncated.
    #[error("the image is truncated before byte {end}: expected {expected} bytes, found {found}")]
    Truncated {
        /// The end of the requested bytes, from the start of the file system.
        end: u64,
        /// Bytes of the file system, according to its superblock.
        expected: u64,
        /// Bytes of the source.
        found: u64,
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

/// A UUID as tools print it.
pub(crate) fn uuid_text(uuid: &[u8; 16]) -> String {
    let mut out = String::with_capacity(36);
    for (i, byte) in uuid.iter().enumerate() {
        if matches!(i, 4 | 6 | 8 | 10) {
            out.push('-');
        }
        for digit in [byte >> 4, byte & 0xf] {
            out.extend(char::from_digit(digit.into(), 16));
        }
    }
    out
}

/// Something that is wrong or may be out of date, but does not prevent reading.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Warning {
    /// The descriptor of a block group has a wrong checksum. Its contents are used, as a read-only mount does; inodes
    /// and directories have their own checksums if the feature `metadata_csum` is on.
    #[error("the descriptor of block group {group} has a wrong checksum; it is used all the same")]
    GroupChecksum {
        /// The block group.
        group: u64,
    },
    /// The descriptors of block groups are unusable: inodes of these groups cannot be read.
    #[error("{count} block group descriptors are unusable, the first is of group {group}: {error}")]
    Groups {
        /// How many groups.
        count: u64,
        /// The first of them.
        group: u64,
        /// What is wrong with its descriptor.
        error: String,
    },
    /// The journal was not replayed, as the caller requested.
    #[error(
        "the journal was ignored: what was written last before the file system was cut off may be missing, or there in \
         part only"
    )]
    JournalIgnored,
    /// The superblock is a backup.
    #[error(
        "the superblock is the backup in block {block}: its feature flags, label and counts of free space may be older \
         than the file system, and the group descriptors beside it may be too"
    )]
    BackupSuperblock {
        /// The block that it is in.
        block: u64,
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
    /// A node of an extent tree, in the inode or a separate block.
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

/// A structure that contradicts the format. `Display` describes what exactly is wrong; the wording may change.
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

    /// The inode it belongs to, if any.
    pub fn inode(&self) -> Option<u32> {
        self.inode
    }

    /// The file system block that it is in (for descriptors, the group), if known.
    pub fn block(&self) -> Option<u64> {
        self.block
    }

    /// True if only a checksum is wrong.
    pub fn is_checksum(&self) -> bool {
        matches!(self.fault, Fault::Checksum { .. } | Fault::WrongChecksum(_))
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
    #[error("expected at least {needed} bytes, found {len}")]
    Truncated { len: usize, needed: usize },
    #[error("expected checksum {wanted:#x}, found {found:#x}")]
    Checksum { found: u32, wanted: u32 },
    #[error("{0} has a wrong checksum")]
    WrongChecksum(&'static str),
    #[error("expected magic {wanted:#x}, found {found:#x}")]
    Magic { found: u32, wanted: u32 },
    #[error("{field} is {value}")]
    Field { field: &'static str, value: u64 },
    #[error("{field} is {value}, the limit is {limit}")]
    Limit { field: &'static str, value: u64, limit: u64 },
    #[error("{field} is {value}, expected {first}{}", Last(*first, *last))]
    Range { field: &'static str, value: u64, first: u64, last: u64 },
    #[error("file block {logical} is in block {block}, which holds file system metadata")]
    Metadata { logical: u64, block: u64 },
    #[error("{0}")]
    Rule(&'static str),
}

/// The end of a range in a message, where it has more than one number.
struct Last(u64, u64);

impl fmt::Display for Last {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(first, last) = self;
        if first == last { Ok(()) } else { write!(f, " to {last}") }
    }
}

impl Fault {
    pub(crate) fn of(self, structure: Structure) -> Corrupt {
        Corrupt::new(structure, self)
    }
}

/// The result of reading an ext4 image.
pub type Result<T, E = Error> = std::result::Result<T, E>;
