//! The superblock: 1024 bytes at byte 1024, and its backups at the start of some block groups.
//!
//! Layout from the kernel's documentation, `Documentation/filesystems/ext4/super.rst`. Which field is valid under which
//! feature follows what Linux reads; a field without its feature reads as zero here.

use super::bytes::{array, join, le16, le32, to_usize};
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
    /// Free blocks, as the superblock counts them.
    pub free_blocks_count: u64,
    /// Free inodes, as the superblock counts them.
    pub free_inodes_count: u32,
    /// The block that group 0 starts with: 1 where a block is 1 KiB, else 0.
    pub first_data_block: u32,
    /// Block size: a power of two from 1024 to 65536.
    pub block_size: u32,
    /// Unit of allocation: the block size, or more with `bigalloc`.
    pub cluster_size: u32,
    /// Blocks in a group.
    pub blocks_per_group: u32,
    /// Blocks reserved in each group for descriptors of groups to come, with `resize_inode`.
    pub reserved_gdt_blocks: u16,
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
    /// The journal's inode number, 0 without a journal or with one on another device.
    pub journal_inode: u32,
    /// The UUID of the device that the journal is on, zeros without one.
    pub journal_uuid: [u8; 16],
    /// First of the list of orphan inodes, 0 if it is empty.
    pub last_orphan: u32,
    /// The orphan file's inode number, 0 without one.
    pub orphan_file_inode: u32,
    /// The first block of descriptors that is in the groups it describes, with `meta_bg`.
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
    /// Parses and checks the superblock's 1024 bytes. With `verify` its checksum is verified, if it has one.
    pub fn parse(bytes: &[u8], verify: bool) -> Result<Self> {
        if bytes.len() < SUPERBLOCK_LEN {
            return Err(corrupt(Fault::Truncated { len: bytes.len(), needed: SUPERBLOCK_LEN }).into());
        }
        let magic = le16(bytes, 0x38);
        if magic != SUPERBLOCK_MAGIC {
            return Err(Error::NotExt4 { found: magic });
        }
        let (compat, incompat, ro_compat) = (
            Compat::from_bits_retain(le32(bytes, 0x5c)),
            Incompat::from_bits_retain(le32(bytes, 0x60)),
            RoCompat::from_bits_retain(le32(bytes, 0x64)),
        );
        let unsupported = incompat.difference(Incompat::SUPPORTED);
        if !unsupported.is_empty() {
            return Err(Error::UnsupportedFeatures(unsupported.names().join(", ")));
        }
        if ro_compat.contains(RoCompat::METADATA_CSUM) {
            if bytes[0x175] != 1 {
                return Err(field("the checksum type", bytes[0x175].into()).into());
            }
            let (found, wanted) = (le32(bytes, 0x3fc), crc32c(!0, &bytes[..0x3fc]));
            if verify && found != wanted {
                return Err(corrupt(Fault::Checksum { found, wanted }).into());
            }
        }
        // Revision 0 has inodes of one size. Its feature words still apply.
        let dynamic = le32(bytes, 0x4c) != 0;
        let uuid = array(bytes, 0x68);
        let block_size = size_from_log("the logarithm of the block size", le32(bytes, 0x18), 6)?;
        // A field that is there with a feature only.
        let with = |there: bool, value: u32| if there { value } else { 0 };
        let bit64 = incompat.contains(Incompat::BIT64);
        let journal = compat.contains(Compat::HAS_JOURNAL);
        let dir_index = compat.contains(Compat::DIR_INDEX);
        let sparse2 = compat.contains(Compat::SPARSE_SUPER2);
        let bigalloc = ro_compat.contains(RoCompat::BIGALLOC);
        let hurd = le32(bytes, 0x48) == 1;
        if hurd && (bit64 || incompat.contains(Incompat::EA_INODE)) {
            return Err(
                corrupt(Fault::Rule("the creator is the Hurd, which has no 64-bit or ea_inode file systems")).into()
            );
        }
        let superblock = Self {
            inodes_count: le32(bytes, 0),
            blocks_count: join(le32(bytes, 4), with(bit64, le32(bytes, 0x150))),
            free_blocks_count: join(le32(bytes, 0xc), with(bit64, le32(bytes, 0x158))),
            free_inodes_count: le32(bytes, 0x10),
            first_data_block: le32(bytes, 0x14),
            block_size,
            cluster_size: match bigalloc {
                true => size_from_log("the logarithm of the cluster size", le32(bytes, 0x1c), 20)?,
                false => block_size,
            },
            blocks_per_group: le32(bytes, 0x20),
            reserved_gdt_blocks: le16(bytes, 0xce),
            inodes_per_group: le32(bytes, 0x28),
            inode_size: if dynamic { le16(bytes, 0x58).into() } else { 128 },
            desc_size: if bit64 { le16(bytes, 0xfe).into() } else { 32 },
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
            journal_inode: with(journal, le32(bytes, 0xe0)),
            journal_uuid: if journal { array(bytes, 0xd0) } else { [0; 16] },
            last_orphan: le32(bytes, 0xe8),
            orphan_file_inode: with(compat.contains(Compat::ORPHAN_FILE), le32(bytes, 0x280)),
            first_meta_bg: with(incompat.contains(Incompat::META_BG), le32(bytes, 0x104)),
            backup_groups: [with(sparse2, le32(bytes, 0x24c)), with(sparse2, le32(bytes, 0x250))],
            hash_seed: [0xec, 0xf0, 0xf4, 0xf8].map(|at| with(dir_index, le32(bytes, at))),
            def_hash_version: if dir_index { bytes[0xfc] } else { 0 },
            flags: with(dir_index, le32(bytes, 0x160)),
            encoding: incompat
                .contains(Incompat::CASEFOLD)
                .then(|| Encoding { version: le16(bytes, 0x27c), flags: le16(bytes, 0x27e) }),
            mkfs_time: le32(bytes, 0x108),
            write_time: le32(bytes, 0x30),
        };
        superblock.check()?;
        superblock.check_clusters(le32(bytes, 0x1c), le32(bytes, 0x24))?;
        Ok(superblock)
    }

    fn check(&self) -> Result<(), Corrupt> {
        let block_size = self.block_size;
        if !self.inode_size.is_power_of_two() || self.inode_size < 128 || self.inode_size > block_size {
            return Err(field("the inode size", self.inode_size.into()));
        }
        let least = if self.incompat.contains(Incompat::BIT64) { 64 } else { 32 };
        if !self.desc_size.is_power_of_two() || !(least..=1024).contains(&self.desc_size) {
            return Err(field("the group descriptor size", self.desc_size.into()));
        }
        if self.cluster_size < block_size {
            return Err(field("the cluster size", self.cluster_size.into()));
        }
        // A bitmap of one block covers the clusters of a group.
        let bits = u64::from(block_size).saturating_mul(8);
        let blocks = bits.saturating_mul(u64::from(self.clusters().max(1)));
        let per_block = block_size.checked_div(self.inode_size).unwrap_or(1);
        for (what, value, first, last) in [
            ("the number of blocks per group", self.blocks_per_group, 1, blocks),
            ("the number of inodes per group", self.inodes_per_group, per_block, bits),
            ("the number of reserved descriptor blocks", self.reserved_gdt_blocks.into(), 0, (block_size / 4).into()),
        ] {
            let (value, first) = (u64::from(value), u64::from(first));
            if !(first..=last).contains(&value) {
                return Err(corrupt(Fault::Range { field: what, value, first, last }));
            }
        }
        let least = u32::from(block_size == 1024 && self.cluster_size == block_size);
        if !(least..=1).contains(&self.first_data_block) || u64::from(self.first_data_block) >= self.blocks_count {
            return Err(field("the first data block", self.first_data_block.into()));
        }
        if self.blocks_count.checked_mul(block_size.into()).is_none_or(|bytes| i64::try_from(bytes).is_err()) {
            return Err(field("the number of blocks", self.blocks_count));
        }
        let inodes = self.groups_count().saturating_mul(self.inodes_per_group.into());
        if u64::from(self.inodes_count) != inodes {
            let value = self.inodes_count.into();
            return Err(corrupt(Fault::Range { field: "the number of inodes", value, first: inodes, last: inodes }));
        }
        if self.first_inode < 11 {
            return Err(field("the first inode", self.first_inode.into()));
        }
        Ok(())
    }

    /// The fields about clusters must match those about blocks.
    fn check_clusters(&self, log: u32, per_group: u32) -> Result<(), Corrupt> {
        if self.cluster_size == self.block_size && 1024u32.checked_shl(log) != Some(self.block_size) {
            return Err(field("the logarithm of the cluster size", log.into()));
        }
        if per_group.checked_mul(self.clusters()) != Some(self.blocks_per_group) {
            return Err(field("the number of clusters per group", per_group.into()));
        }
        Ok(())
    }

    /// Blocks in a cluster.
    fn clusters(&self) -> u32 {
        self.cluster_size.checked_div(self.block_size).unwrap_or(0)
    }

    /// Size of the file system in bytes.
    pub fn size(&self) -> u64 {
        self.blocks_count.saturating_mul(self.block_size.into())
    }

    /// Number of block groups.
    pub fn groups_count(&self) -> u64 {
        let blocks = self.blocks_count.saturating_sub(self.first_data_block.into());
        blocks.div_ceil(self.blocks_per_group.max(1).into())
    }

    /// Blocks of an inode table.
    pub(crate) fn inode_table_blocks(&self) -> u64 {
        let bytes = u64::from(self.inodes_per_group).saturating_mul(self.inode_size.into());
        bytes.div_ceil(self.block_size.max(1).into())
    }

    /// The first block of `group`.
    pub(crate) fn group_start(&self, group: u64) -> u64 {
        group.saturating_mul(self.blocks_per_group.into()).saturating_add(self.first_data_block.into())
    }

    /// Group descriptors in a block.
    pub(crate) fn descriptors_per_block(&self) -> u64 {
        self.block_size.checked_div(self.desc_size).unwrap_or(1).max(1).into()
    }

    /// True if a block number is one of the file system's, past the superblock.
    pub(crate) fn has_blocks(&self, first: u64, count: u64) -> bool {
        first > self.first_data_block.into() && first.checked_add(count).is_some_and(|end| end <= self.blocks_count)
    }

    /// The fault of a block number for which [`Superblock::has_blocks`] is false.
    pub(crate) fn out_of_range(&self, what: &'static str, block: u64) -> Fault {
        let first = u64::from(self.first_data_block).saturating_add(1);
        Fault::Range { field: what, value: block, first, last: self.blocks_count.saturating_sub(1) }
    }

    /// True if metadata has CRC-32C checksums.
    pub fn has_metadata_csum(&self) -> bool {
        self.ro_compat.contains(RoCompat::METADATA_CSUM)
    }

    /// True if the journal must be replayed before the rest can be trusted.
    pub fn needs_recovery(&self) -> bool {
        self.incompat.contains(Incompat::RECOVER) && self.compat.contains(Compat::HAS_JOURNAL)
    }

    /// True if `group` starts with a superblock or a backup of it.
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

    /// The block with `group`'s descriptor, and where the descriptor is in it. `superblock` is the block that the
    /// superblock was read from, which the descriptors follow.
    pub(crate) fn descriptor_location(&self, group: u64, superblock: u64) -> (u64, usize) {
        let per_block = self.descriptors_per_block();
        let index = group.checked_div(per_block).unwrap_or(0);
        let first = index.saturating_mul(per_block);
        let at = to_usize(self.desc_size).saturating_mul(usize::try_from(group.saturating_sub(first)).unwrap_or(0));
        if self.has_classic_descriptors(index) {
            return (superblock.saturating_add(index).saturating_add(1), at);
        }
        let mut block = self.group_start(first).saturating_add(self.group_has_super(first).into());
        // Blocks of 1 KiB and a first data block of 0 (bigalloc): the superblock is in block 1, not 0.
        if self.block_size == 1024 && index == 0 && self.first_data_block == 0 {
            block = block.saturating_add(1);
        }
        (block, at)
    }

    /// Whether descriptor block `index` follows the superblock, as without `meta_bg`.
    fn has_classic_descriptors(&self, index: u64) -> bool {
        !self.incompat.contains(Incompat::META_BG) || index < self.first_meta_bg.into()
    }

    /// How many blocks at the start of `group` hold the superblock and group descriptors, or are reserved for them.
    pub(crate) fn base_metadata_blocks(&self, group: u64) -> u64 {
        let superblock = u64::from(self.group_has_super(group));
        let per_block = self.descriptors_per_block();
        let index = group.checked_div(per_block).unwrap_or(0);
        if !self.has_classic_descriptors(index) {
            // The first, second and last group of those that a block describes hold that block.
            let place = group.saturating_sub(index.saturating_mul(per_block));
            let holds = place == 0 || place == 1 || place == per_block.saturating_sub(1);
            return superblock.saturating_add(holds.into());
        }
        if superblock == 0 {
            return 0;
        }
        let descriptors = match self.incompat.contains(Incompat::META_BG) {
            true => self.first_meta_bg.into(),
            false => self.groups_count().div_ceil(per_block),
        };
        superblock.saturating_add(descriptors).saturating_add(self.reserved_gdt_blocks.into())
    }

    /// The largest size of a file that is mapped by extents, in bytes.
    pub(crate) fn max_size_of_extents(&self) -> u64 {
        let blocks = u64::from(u32::MAX);
        let limit = match self.ro_compat.contains(RoCompat::HUGE_FILE) {
            true => u64::MAX,
            // The count of sectors has 32 bits.
            false => u64::from(u32::MAX) << 9,
        };
        blocks.saturating_mul(self.block_size.into()).min(limit).min(i64::MAX.unsigned_abs())
    }

    /// The largest size of a file that is mapped by direct and indirect blocks, in bytes.
    pub(crate) fn max_size_of_block_map(&self) -> u64 {
        let per_block = u64::from(self.block_size / 4);
        let double = per_block.saturating_mul(per_block);
        let blocks =
            [per_block, double, double.saturating_mul(per_block)].iter().fold(12u64, |a, &b| a.saturating_add(b));
        // The count of sectors has 48 bits.
        let limit = if self.ro_compat.contains(RoCompat::HUGE_FILE) { 1u64 << 57 } else { u64::from(u32::MAX) << 9 };
        blocks.min(u32::MAX.into()).saturating_mul(self.block_size.into()).min(limit).min(i64::MAX.unsigned_abs())
    }
}

fn is_power_of(mut value: u64, base: u64) -> bool {
    while value > 1 && value.is_multiple_of(base) {
        value = value.checked_div(base).unwrap_or(0);
    }
    value == 1
}

fn size_from_log(name: &'static str, log: u32, limit: u32) -> Result<u32, Corrupt> {
    if log > limit {
        return Err(corrupt(Fault::Range { field: name, value: log.into(), first: 0, last: limit.into() }));
    }
    Ok(1024u32.checked_shl(log).unwrap_or(u32::MAX))
}

fn corrupt(fault: Fault) -> Corrupt {
    fault.of(Structure::Superblock)
}

fn field(field: &'static str, value: u64) -> Corrupt {
    corrupt(Fault::Field { field, value })
}
