//! Block group descriptors: where a group's bitmaps and inode table are.
//!
//! Layout from the kernel's documentation, `Documentation/filesystems/ext4/group_descr.rst`.

use super::bytes::{join, le16, le32, low16, low32, to_usize};
use super::checksum::{crc16, crc32c};
use super::error::{Corrupt, Fault, Structure};
use super::features::{Incompat, RoCompat};
use super::superblock::Superblock;

/// The part of a block group descriptor that a reader needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupDescriptor {
    /// First block of the group's inode table.
    pub inode_table: u64,
    /// Block of the inode bitmap.
    pub inode_bitmap: u64,
    /// Block of the block bitmap.
    pub block_bitmap: u64,
    /// Flags: 1 inode bitmap not initialized, 2 block bitmap not initialized, 4 inode table zeroed. Zero where group
    /// descriptors have no checksums.
    pub flags: u16,
    /// Inodes at the table's end that were never used. Zero where group descriptors have no checksums.
    pub itable_unused: u32,
}

impl GroupDescriptor {
    /// Parses the descriptor of `group` (`superblock.desc_size` bytes). With `verify` its checksum is verified.
    pub fn parse(bytes: &[u8], group: u64, superblock: &Superblock, verify: bool) -> Result<Self, Corrupt> {
        let corrupt = |fault: Fault| fault.of(Structure::GroupDescriptor).in_block(group);
        let size = to_usize(superblock.desc_size);
        let Some(bytes) = bytes.get(..size) else {
            return Err(corrupt(Fault::Truncated { len: bytes.len(), needed: size }));
        };
        if verify && let Some((found, wanted)) = Self::wrong_checksum(bytes, group, superblock) {
            return Err(corrupt(Fault::Checksum { found: found.into(), wanted: wanted.into() }));
        }
        let high = |at| if size >= 64 { le32(bytes, at) } else { 0 };
        let summed = superblock.ro_compat.intersects(RoCompat::METADATA_CSUM | RoCompat::GDT_CSUM);
        let descriptor = Self {
            block_bitmap: join(le32(bytes, 0), high(0x20)),
            inode_bitmap: join(le32(bytes, 4), high(0x24)),
            inode_table: join(le32(bytes, 8), high(0x28)),
            flags: if summed { le16(bytes, 0x12) } else { 0 },
            itable_unused: match (summed, size >= 64) {
                (true, true) => u32::from(le16(bytes, 0x1c)) | u32::from(le16(bytes, 0x32)) << 16,
                (true, false) => le16(bytes, 0x1c).into(),
                (false, _) => 0,
            },
        };
        let (first, blocks) = (descriptor.inode_table, superblock.inode_table_blocks());
        if !superblock.has_blocks(first, blocks) {
            return Err(corrupt(superblock.out_of_range("the first block of the inode table", first)));
        }
        // Without flex_bg a group's table is in the group. The last group may be short, which was checked above.
        let start = superblock.group_start(group);
        let end = superblock.group_start(group.saturating_add(1));
        let flex = superblock.incompat.contains(Incompat::FLEX_BG);
        if !flex && (first < start || first.saturating_add(blocks) > end) {
            return Err(corrupt(Fault::Range {
                field: "the first block of the inode table",
                value: first,
                first: start,
                last: end.saturating_sub(blocks),
            }));
        }
        Ok(descriptor)
    }

    /// What the descriptor's checksum is and should be, where it has one and the two differ.
    pub(crate) fn wrong_checksum(bytes: &[u8], group: u64, superblock: &Superblock) -> Option<(u16, u16)> {
        let bytes = bytes.get(..to_usize(superblock.desc_size))?;
        let (found, wanted) = (le16(bytes, 0x1e), checksum(bytes, group, superblock)?);
        (found != wanted).then_some((found, wanted))
    }
}

fn checksum(bytes: &[u8], group: u64, superblock: &Superblock) -> Option<u16> {
    let group = low32(group).to_le_bytes();
    if superblock.ro_compat.contains(RoCompat::METADATA_CSUM) {
        let crc = crc32c(superblock.checksum_seed, &group);
        let crc = crc32c(crc32c(crc, &bytes[..0x1e]), &[0, 0]);
        Some(low16(crc32c(crc, &bytes[0x20..])))
    } else if superblock.ro_compat.contains(RoCompat::GDT_CSUM) {
        let crc = crc16(crc16(!0, &superblock.uuid), &group);
        Some(crc16(crc16(crc, &bytes[..0x1e]), &bytes[0x20..]))
    } else {
        None
    }
}
