//! Orphans: inodes that were deleted or truncated while in use. They have no name, so no walk finds them; this lists
//! them for those who examine an image.

use std::collections::BTreeSet;

use super::bytes::{le32, le32s};
use super::checksum::crc32c;
use super::error::{Fault, Result, Structure};
use super::features::Compat;
use super::filesystem::Ext4;
use super::map::ExtentKind;

/// The magic number at the end of each block of an orphan file.
const ORPHAN_BLOCK_MAGIC: u32 = 0x0b10_ca04;

impl Ext4 {
    /// The numbers of all orphan inodes, in order: those of the list and those of the orphan file. An orphan that
    /// still has names was being truncated.
    pub fn orphans(&self) -> Result<Vec<u32>> {
        let superblock = self.superblock();
        let mut found = BTreeSet::new();
        let mut next = superblock.last_orphan;
        while next != 0 {
            if next > superblock.inodes_count || !found.insert(next) {
                let fault =
                    Fault::Field { field: "an inode number (out of range or listed twice)", value: next.into() };
                return Err(fault.of(Structure::Orphans).into());
            }
            next = self.raw_inode(next)?.dtime;
        }
        if superblock.compat.contains(Compat::ORPHAN_FILE) {
            self.orphan_file(&mut found)?;
        }
        Ok(found.into_iter().collect())
    }

    fn orphan_file(&self, found: &mut BTreeSet<u32>) -> Result<()> {
        let superblock = self.superblock();
        let inode = self.any_inode(superblock.orphan_file_inode)?;
        let in_blocks = |bytes: u64| bytes.checked_div(self.block_size()).unwrap_or(0);
        let mut left = superblock.blocks_count;
        for extent in self.extents_from(&inode, 0) {
            let extent = extent?;
            if extent.kind != ExtentKind::Written {
                continue;
            }
            for block in in_blocks(extent.physical)..in_blocks(extent.physical.saturating_add(extent.len)) {
                let corrupt = |fault: Fault| fault.of(Structure::Orphans).in_inode(inode.ino).in_block(block);
                left =
                    left.checked_sub(1).ok_or_else(|| corrupt(Fault::Rule("more blocks than the file system has")))?;
                let bytes = self.block(block)?;
                let Some((entries, tail)) = bytes.split_last_chunk::<8>() else { continue };
                let magic = le32(tail, 0);
                if magic != ORPHAN_BLOCK_MAGIC {
                    return Err(corrupt(Fault::Magic { found: magic, wanted: ORPHAN_BLOCK_MAGIC }).into());
                }
                if self.verifies_checksums() {
                    let crc = crc32c(inode.checksum_seed, &block.to_le_bytes());
                    let (found, wanted) = (le32(tail, 4), crc32c(crc, entries));
                    if found != wanted {
                        return Err(corrupt(Fault::Checksum { found, wanted }).into());
                    }
                }
                found.extend(le32s(entries).filter(|&ino| ino != 0));
            }
        }
        Ok(())
    }
}
