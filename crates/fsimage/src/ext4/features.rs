//! Feature flags: which parts of the format a file system uses.
//!
//! Numbers from the kernel's documentation, `Documentation/filesystems/ext4/super.rst`; names as `dumpe2fs` prints
//! them.

use bitflags::bitflags;

bitflags! {
    /// Features that an implementation may ignore.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct Compat: u32 {
        /// Directories are preallocated.
        const DIR_PREALLOC = 0x1;
        /// AFS server inodes.
        const IMAGIC_INODES = 0x2;
        /// There is a journal.
        const HAS_JOURNAL = 0x4;
        /// Extended attributes.
        const EXT_ATTR = 0x8;
        /// Room for growing is reserved.
        const RESIZE_INODE = 0x10;
        /// Hashed directories.
        const DIR_INDEX = 0x20;
        /// Two backup superblocks at most.
        const SPARSE_SUPER2 = 0x200;
        /// The journal may hold fast commits.
        const FAST_COMMIT = 0x400;
        /// Inode numbers and the UUID never change, so that IVs may depend on them.
        const STABLE_INODES = 0x800;
        /// Orphan inodes may be listed in a file.
        const ORPHAN_FILE = 0x1000;
        const _ = !0;
    }

    /// Features that an implementation must know to read.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct Incompat: u32 {
        /// Compressed files; never in a released kernel.
        const COMPRESSION = 0x1;
        /// Directory entries have the file type.
        const FILETYPE = 0x2;
        /// The journal has to be replayed.
        const RECOVER = 0x4;
        /// This is a journal device.
        const JOURNAL_DEV = 0x8;
        /// Group descriptors are in the groups that they describe.
        const META_BG = 0x10;
        /// Files may use extents.
        const EXTENTS = 0x40;
        /// Block numbers may exceed 32 bits.
        const BIT64 = 0x80;
        /// Multiple mount protection.
        const MMP = 0x100;
        /// Metadata of several groups is kept together.
        const FLEX_BG = 0x200;
        /// Large attribute values in inodes of their own.
        const EA_INODE = 0x400;
        /// Data in directory entries; never in a released kernel.
        const DIRDATA = 0x1000;
        /// The seed of checksums is in the superblock.
        const CSUM_SEED = 0x2000;
        /// Directories larger than 2 GiB or of three index levels.
        const LARGEDIR = 0x4000;
        /// Small files are kept in their inodes.
        const INLINE_DATA = 0x8000;
        /// fscrypt.
        const ENCRYPT = 0x10000;
        /// Directories may fold case.
        const CASEFOLD = 0x20000;
        const _ = !0;
    }

    /// Features that an implementation must know to write.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct RoCompat: u32 {
        /// Few groups have backup superblocks.
        const SPARSE_SUPER = 0x1;
        /// Files larger than 2 GiB.
        const LARGE_FILE = 0x2;
        /// Never used.
        const BTREE_DIR = 0x4;
        /// Files counted in blocks rather than sectors.
        const HUGE_FILE = 0x8;
        /// Group descriptors have a CRC-16.
        const GDT_CSUM = 0x10;
        /// Directories may have more than 65,000 subdirectories.
        const DIR_NLINK = 0x20;
        /// Inodes larger than 128 bytes have more fields.
        const EXTRA_ISIZE = 0x40;
        /// Quota files in hidden inodes.
        const QUOTA = 0x100;
        /// Space is allocated in clusters of blocks.
        const BIGALLOC = 0x200;
        /// All metadata has a CRC-32C.
        const METADATA_CSUM = 0x400;
        /// Never written.
        const READONLY = 0x1000;
        /// Project quotas.
        const PROJECT = 0x2000;
        /// Blocks may be shared by files, as Android's read-only images do.
        const SHARED_BLOCKS = 0x4000;
        /// fs-verity.
        const VERITY = 0x8000;
        /// The orphan file is not empty.
        const ORPHAN_PRESENT = 0x10000;
        const _ = !0;
    }
}

impl Incompat {
    /// What this reader can read.
    pub const SUPPORTED: Self = Self::FILETYPE
        .union(Self::RECOVER)
        .union(Self::META_BG)
        .union(Self::EXTENTS)
        .union(Self::BIT64)
        .union(Self::MMP)
        .union(Self::FLEX_BG)
        .union(Self::EA_INODE)
        .union(Self::CSUM_SEED)
        .union(Self::LARGEDIR)
        .union(Self::INLINE_DATA)
        .union(Self::ENCRYPT)
        .union(Self::CASEFOLD);

    /// The names of the features set, by bit; an unknown one is `FEATURE_I` and its bit number, as in `dumpe2fs`.
    pub fn names(self) -> Vec<String> {
        names(self.bits(), INCOMPAT_NAMES, 'I')
    }
}

impl Compat {
    /// The names of the features set, by bit.
    pub fn names(self) -> Vec<String> {
        names(self.bits(), COMPAT_NAMES, 'C')
    }
}

impl RoCompat {
    /// The names of the features set, by bit.
    pub fn names(self) -> Vec<String> {
        names(self.bits(), RO_COMPAT_NAMES, 'R')
    }
}

const COMPAT_NAMES: &[(u32, &str)] = &[
    (0x1, "dir_prealloc"),
    (0x2, "imagic_inodes"),
    (0x4, "has_journal"),
    (0x8, "ext_attr"),
    (0x10, "resize_inode"),
    (0x20, "dir_index"),
    (0x40, "lazy_bg"),
    (0x80, "exclude_inode"),
    (0x100, "snapshot_bitmap"),
    (0x200, "sparse_super2"),
    (0x400, "fast_commit"),
    (0x800, "stable_inodes"),
    (0x1000, "orphan_file"),
];

const INCOMPAT_NAMES: &[(u32, &str)] = &[
    (0x1, "compression"),
    (0x2, "filetype"),
    (0x4, "needs_recovery"),
    (0x8, "journal_dev"),
    (0x10, "meta_bg"),
    (0x40, "extent"),
    (0x80, "64bit"),
    (0x100, "mmp"),
    (0x200, "flex_bg"),
    (0x400, "ea_inode"),
    (0x1000, "dirdata"),
    (0x2000, "metadata_csum_seed"),
    (0x4000, "large_dir"),
    (0x8000, "inline_data"),
    (0x10000, "encrypt"),
    (0x20000, "casefold"),
];

const RO_COMPAT_NAMES: &[(u32, &str)] = &[
    (0x1, "sparse_super"),
    (0x2, "large_file"),
    (0x4, "btree_dir"),
    (0x8, "huge_file"),
    (0x10, "uninit_bg"),
    (0x20, "dir_nlink"),
    (0x40, "extra_isize"),
    (0x80, "snapshot"),
    (0x100, "quota"),
    (0x200, "bigalloc"),
    (0x400, "metadata_csum"),
    (0x800, "replica"),
    (0x1000, "read-only"),
    (0x2000, "project"),
    (0x4000, "shared_blocks"),
    (0x8000, "verity"),
    (0x10000, "orphan_present"),
];

fn names(bits: u32, known: &[(u32, &str)], class: char) -> Vec<String> {
    (0..32)
        .filter(|bit| bits >> bit & 1 == 1)
        .map(|bit| match known.iter().find(|&&(flag, _)| flag == 1 << bit) {
            Some(&(_, name)) => name.to_owned(),
            None => format!("FEATURE_{class}{bit}"),
        })
        .collect()
}
