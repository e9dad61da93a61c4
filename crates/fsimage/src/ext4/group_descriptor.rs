//! Block group descriptors: where a group's inode table lies.
//!
//! Layout from the kernel's documentation, `Documentation/filesystems/ext4/group_descr.rst`.

use super::bytes::{join, le16, le32};
use super::checksum::{crc16, crc32c};
use super::error::{Corrupt, Fault, Structure};
use super::features::RoCompat;
use super::superblock::Superblock;

/// What a reader needs of a block group descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupDescriptor {
    /// First block of the group's inode table.
    pub inode_table: u64,
    /// Block of the inode bitmap.
    pub inode_bitmap: u64,
    /// Block of the block bitmap.
    pub block_bitmap: u64,
    /// Flags: 1 inode bitmap not initialized, 2 block bitmap not initialized, 4 inode table zeroed.
    pub flags: u16,
    /// Inodes at the table's end that were never used.
    pub itable_unused: u32,
}

impl GroupDescriptor {
    /// Parses the descriptor of `group` (`superblock.desc_size` bytes). With `verify` its checksum is verified.
    pub fn parse(bytes: &[u8], group: u64, superblock: &Superblock, verify: bool) -> Result<Self, Corrupt> {
        let corrupt = |fault: Fault| fault.of(Structure::GroupDescriptor).in_block(group);
        let size = superblock.desc_size as usize;
        let Some(bytes) = bytes.get(..size) else {
            return Err(corrupt(Fault::Truncated { len: bytes.len(), needed: size }));
        };
        if verify && let Some(wanted) = checksum(bytes, group, superblock) {
            let found = le16(bytes, 0x1e);
            if found != wanted {
                return Err(corrupt(Fault::Checksum { found: found.into(), wanted: wanted.into() }));
            }
        }
        let wide = size >= 64;
        let high = |at| if wide { le32(bytes, at) } else { 0 };
        let descriptor = Self {
            block_bitmap: join(le32(bytes, 0), high(0x20)),
            inode_bitmap: join(le32(bytes, 4), high(0x24)),
            inode_table: join(le32(bytes, 8), high(0x28)),
            flags: le16(bytes, 0x12),
            itable_unused: u32::from(le16(bytes, 0x1c)) | if wide { u32::from(le16(bytes, 0x32)) << 16 } else { 0 },
        };
        let table = u64::from(superblock.inodes_per_group) * u64::from(superblock.inode_size);
        let blocks = table.div_ceil(u64::from(superblock.block_size));
        let end = descriptor.inode_table.saturating_add(blocks);
        if descriptor.inode_table <= u64::from(superblock.first_data_block) || end > superblock.blocks_count {
            return Err(corrupt(Fault::Limit {
                field: "the end of the inode table",
                value: end,
                limit: superblock.blocks_count,
            }));
        }
        Ok(descriptor)
    }
}

fn checksum(bytes: &[u8], group: u64, superblock: &Superblock) -> Option<u16> {
    let group = (group as u32).to_le_bytes();
    if superblock.ro_compat.contains(RoCompat::METADATA_CSUM) {
        let crc = crc32c(superblock.checksum_seed, &group);
        let crc = crc32c(crc32c(crc, &bytes[..0x1e]), &[0, 0]);
        Some(crc32c(crc, &bytes[0x20..]) as u16)
    } else if superblock.ro_compat.contains(RoCompat::GDT_CSUM) {
        let crc = crc16(crc16(!0, &superblock.uuid), &group);
        Some(crc16(crc16(crc, &bytes[..0x1e]), &bytes[0x20..]))
    } else {
        None
    }
}
