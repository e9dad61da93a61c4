//! The superblock: 1024 bytes at byte 1024.
//!
//! Layout from the kernel's documentation, `Documentation/filesystems/ext4/super.rst`.

use super::bytes::{array, join, le16, le32};
use super::checksum::crc32c;
use super::error::{Corrupt, Error, Fault, Result, Structure};
use super::features::{Compat, Incompat, RoCompat};

/// Where the superblock starts, in bytes from the start of the file system.
pub const SUPERBLOCK_OFFSET: u64 = 1024;

/// The superblock's length in bytes.
pub const SUPERBLOCK_LEN: usize = 1024;

/// The magic number at byte 0x38 of the superblock.
pub const SUPERBLOCK_MAGIC: u16 = 0xef53;

/// The character encoding of directories that fold case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Encoding {
    /// 1 is UTF-8 by Unicode 12.1.
    pub version: u16,
    /// Bit 0: names that are not valid UTF-8 are refused ("strict").
    pub flags: u16,
}

impl Encoding {
    /// Whether names that are not valid UTF-8 are refused.
    pub fn is_strict(&self) -> bool {
        self.flags & 1 != 0
    }
}

/// A parsed superblock: the geometry and identity of a file system. Sizes are in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Superblock {
    /// Number of inodes; also the highest inode number.
    pub inodes_count: u32,
    /// Number of blocks.
    pub blocks_count: u64,
    /// Free blocks, as the superblock has it.
    pub free_blocks_count: u64,
    /// Free inodes, as the superblock has it.
    pub free_inodes_count: u32,
    /// The block that group 0 starts with: 1 where a block is 1 KiB, else 0.
    pub first_data_block: u32,
    /// Block size: a power of two from 1024 to 65536.
    pub block_size: u32,
    /// Unit of allocation: the block size, or more with `bigalloc`.
    pub cluster_size: u32,
    /// Blocks in a group.
    pub blocks_per_group: u32,
    /// Inodes in a group.
    pub inodes_per_group: u32,
    /// Size of an inode: a power of two from 128 to the block size.
    pub inode_size: u32,
    /// Size of a group descriptor: 32, or a power of two from 64.
    pub desc_size: u32,
    /// First inode number that is not reserved.
    pub first_inode: u32,
    /// Features that may be ignored.
    pub compat: Compat,
    /// Features that a reader must know.
    pub incompat: Incompat,
    /// Features that a writer must know.
    pub ro_compat: RoCompat,
    /// State bits: 1 unmounted cleanly, 2 errors found, 4 orphans being recovered.
    pub state: u16,
    /// The file system's UUID; keys by inode number (`IV_INO_LBLK_*`) depend on it.
    pub uuid: [u8; 16],
    /// Label, padded with zeros.
    pub volume_name: [u8; 16],
    /// Where it was last mounted, padded with zeros.
    pub last_mounted: [u8; 64],
    /// Seed of all metadata checksums.
    pub checksum_seed: u32,
    /// The journal's inode number, 0 without an inner journal.
    pub journal_inode: u32,
    /// First of the list of orphan inodes, 0 when it is empty.
    pub last_orphan: u32,
    /// The orphan file's inode number, 0 without one.
    pub orphan_file_inode: u32,
    /// First block group whose descriptors lie in the group itself, with `meta_bg`; in descriptor blocks.
    pub first_meta_bg: u32,
    /// The groups with backup superblocks, with `sparse_super2`.
    pub backup_groups: [u32; 2],
    /// The directory hash's seed.
    pub hash_seed: [u32; 4],
    /// The default version of directory hash.
    pub def_hash_version: u8,
    /// Flag bits: 1 directory hashes are signed, 2 unsigned.
    pub flags: u32,
    /// The encoding for case folding, with `casefold`.
    pub encoding: Option<Encoding>,
    /// Seconds since 1970 when it was made (low 32 bits).
    pub mkfs_time: u32,
    /// Seconds since 1970 when it was last written (low 32 bits).
    pub write_time: u32,
}

impl Superblock {
    /// Parses and checks the superblock's 1024 bytes. With `verify` its checksum is verified where it has one.
    pub fn parse(bytes: &[u8], verify: bool) -> Result<Self> {
        if bytes.len() < SUPERBLOCK_LEN {
            return Err(corrupt(Fault::Truncated { len: bytes.len(), needed: SUPERBLOCK_LEN }).into());
        }
        let magic = le16(bytes, 0x38);
        if magic != SUPERBLOCK_MAGIC {
            return Err(Error::NotExt4 { found: magic });
        }
        let revision = le32(bytes, 0x4c);
        if revision > 1 {
            return Err(field("the revision", u64::from(revision)).into());
        }
        // Revision 0 has no feature words and fixed sizes.
        let dynamic = revision == 1;
        let word = |at| if dynamic { le32(bytes, at) } else { 0 };
        let compat = Compat::from_bits_retain(word(0x5c));
        let incompat = Incompat::from_bits_retain(word(0x60));
        let ro_compat = RoCompat::from_bits_retain(word(0x64));
        let unsupported = incompat.difference(Incompat::SUPPORTED);
        if !unsupported.is_empty() {
            return Err(Error::UnsupportedFeatures(unsupported.names().join(", ")));
        }
        let metadata_csum = ro_compat.contains(RoCompat::METADATA_CSUM);
        if metadata_csum {
            if bytes[0x175] != 1 {
                return Err(field("the checksum type", u64::from(bytes[0x175])).into());
            }
            let (found, wanted) = (le32(bytes, 0x3fc), crc32c(!0, &bytes[..0x3fc]));
            if verify && found != wanted {
                return Err(corrupt(Fault::Checksum { found, wanted }).into());
            }
        }
        let uuid = array(bytes, 0x68);
        let bit64 = incompat.contains(Incompat::BIT64);
        let superblock = Self {
            inodes_count: le32(bytes, 0),
            blocks_count: join(le32(bytes, 4), if bit64 { le32(bytes, 0x150) } else { 0 }),
            free_blocks_count: join(le32(bytes, 0xc), if bit64 { le32(bytes, 0x158) } else { 0 }),
            free_inodes_count: le32(bytes, 0x10),
            first_data_block: le32(bytes, 0x14),
            block_size: size_from_log("the logarithm of the block size", le32(bytes, 0x18), 6)?,
            cluster_size: if ro_compat.contains(RoCompat::BIGALLOC) {
                size_from_log("the logarithm of the cluster size", le32(bytes, 0x1c), 20)?
            } else {
                size_from_log("the logarithm of the block size", le32(bytes, 0x18), 6)?
            },
            blocks_per_group: le32(bytes, 0x20),
            inodes_per_group: le32(bytes, 0x28),
            inode_size: if dynamic { u32::from(le16(bytes, 0x58)) } else { 128 },
            desc_size: if bit64 { u32::from(le16(bytes, 0xfe)) } else { 32 },
            first_inode: if dynamic { le32(bytes, 0x54) } else { 11 },
            compat,
            incompat,
            ro_compat,
            state: le16(bytes, 0x3a),
            uuid,
            volume_name: array(bytes, 0x78),
            last_mounted: array(bytes, 0x88),
            checksum_seed: match incompat.contains(Incompat::CSUM_SEED) {
                true => le32(bytes, 0x270),
                false => crc32c(!0, &uuid),
            },
            journal_inode: le32(bytes, 0xe0),
            last_orphan: le32(bytes, 0xe8),
            orphan_file_inode: le32(bytes, 0x280),
            first_meta_bg: le32(bytes, 0x104),
            backup_groups: [le32(bytes, 0x24c), le32(bytes, 0x250)],
            hash_seed: [0xec, 0xf0, 0xf4, 0xf8].map(|at| le32(bytes, at)),
            def_hash_version: bytes[0xfc],
            flags: le32(bytes, 0x160),
            encoding: incompat
                .contains(Incompat::CASEFOLD)
                .then(|| Encoding { version: le16(bytes, 0x27c), flags: le16(bytes, 0x27e) }),
            mkfs_time: le32(bytes, 0x108),
            write_time: le32(bytes, 0x30),
        };
        superblock.check()?;
        Ok(superblock)
    }

    fn check(&self) -> Result<(), Corrupt> {
        let block_size = self.block_size;
        if !self.inode_size.is_power_of_two() || self.inode_size < 128 || self.inode_size > block_size {
            return Err(field("the inode size", u64::from(self.inode_size)));
        }
        let least = if self.incompat.contains(Incompat::BIT64) { 64 } else { 32 };
        if !self.desc_size.is_power_of_two() || self.desc_size < least || self.desc_size > block_size {
            return Err(field("the group descriptor size", u64::from(self.desc_size)));
        }
        if self.cluster_size < block_size {
            return Err(field("the cluster size", u64::from(self.cluster_size)));
        }
        // A bitmap of one block tells of the clusters of a group.
        let ratio = u64::from(self.cluster_size / block_size);
        if self.blocks_per_group == 0 || u64::from(self.blocks_per_group) > u64::from(block_size) * 8 * ratio {
            return Err(field("the blocks per group", u64::from(self.blocks_per_group)));
        }
        if self.inodes_per_group == 0 || u64::from(self.inodes_per_group) > u64::from(block_size) * 8 {
            return Err(field("the inodes per group", u64::from(self.inodes_per_group)));
        }
        if self.first_data_block > 1 || u64::from(self.first_data_block) >= self.blocks_count {
            return Err(field("the first data block", u64::from(self.first_data_block)));
        }
        if self.blocks_count.checked_mul(u64::from(block_size)).is_none_or(|bytes| bytes > i64::MAX as u64) {
            return Err(field("the number of blocks", self.blocks_count));
        }
        let inodes = self.groups_count().saturating_mul(u64::from(self.inodes_per_group));
        if self.inodes_count == 0 || u64::from(self.inodes_count) > inodes {
            return Err(corrupt(Fault::Limit {
                field: "the number of inodes",
                value: u64::from(self.inodes_count),
                limit: inodes,
            }));
        }
        if self.first_inode < 11 {
            return Err(field("the first inode", u64::from(self.first_inode)));
        }
        Ok(())
    }

    /// Size of the file system in bytes.
    pub fn size(&self) -> u64 {
        self.blocks_count.saturating_mul(self.block_size.into())
    }

    /// Number of block groups.
    pub fn groups_count(&self) -> u64 {
        (self.blocks_count - u64::from(self.first_data_block)).div_ceil(u64::from(self.blocks_per_group))
    }

    /// True where metadata has CRC-32C checksums.
    pub fn has_metadata_csum(&self) -> bool {
        self.ro_compat.contains(RoCompat::METADATA_CSUM)
    }

    /// True where the journal must be replayed before the rest can be trusted.
    pub fn needs_recovery(&self) -> bool {
        self.incompat.contains(Incompat::RECOVER) && self.compat.contains(Compat::HAS_JOURNAL)
    }

    /// True where `group` starts with a superblock or a copy of it.
    pub(crate) fn group_has_super(&self, group: u64) -> bool {
        if group == 0 {
            return true;
        }
        if self.compat.contains(Compat::SPARSE_SUPER2) {
            return self.backup_groups.iter().any(|&backup| u64::from(backup) == group);
        }
        if group == 1 || !self.ro_compat.contains(RoCompat::SPARSE_SUPER) {
            return true;
        }
        [3, 5, 7].into_iter().any(|base| is_power_of(group, base))
    }

    /// The block with `group`'s descriptor, and the descriptor's first byte in it.
    pub(crate) fn descriptor_location(&self, group: u64) -> (u64, usize) {
        let per_block = u64::from(self.block_size / self.desc_size);
        let (index, slot) = (group / per_block, group % per_block);
        let at = (slot * u64::from(self.desc_size)) as usize;
        let super_block = SUPERBLOCK_OFFSET / u64::from(self.block_size);
        if !self.incompat.contains(Incompat::META_BG) || index < u64::from(self.first_meta_bg) {
            return (super_block + 1 + index, at);
        }
        let first = index * per_block;
        let mut block = u64::from(self.first_data_block) + first * u64::from(self.blocks_per_group);
        block += u64::from(self.group_has_super(first));
        // Blocks of 1 KiB and a first data block of 0 (bigalloc): the superblock is in block 1, not 0.
        if self.block_size == 1024 && index == 0 && self.first_data_block == 0 {
            block += 1;
        }
        (block, at)
    }
}

fn is_power_of(mut value: u64, base: u64) -> bool {
    while value > 1 && value.is_multiple_of(base) {
        value /= base;
    }
    value == 1
}

fn size_from_log(name: &'static str, log: u32, limit: u32) -> Result<u32, Corrupt> {
    if log > limit {
        return Err(corrupt(Fault::Limit { field: name, value: u64::from(log), limit: u64::from(limit) }));
    }
    Ok(1024 << log)
}

fn corrupt(fault: Fault) -> Corrupt {
    fault.of(Structure::Superblock)
}

fn field(field: &'static str, value: u64) -> Corrupt {
    corrupt(Fault::Field { field, value })
}
