//! Orphans: inodes that were deleted or truncated while in use. They have no name, so no walk meets them; this lists
//! them for whoever examines an image.

use std::collections::BTreeSet;

use super::bytes::le32;
use super::checksum::crc32c;
use super::error::{Fault, Result, Structure};
use super::features::Compat;
use super::filesystem::Ext4;
use super::map::ExtentKind;

/// The magic number at the end of each block of an orphan file.
const ORPHAN_BLOCK_MAGIC: u32 = 0x0b10_ca04;

impl Ext4 {
    /// The numbers of all orphan inodes, in order: those of the list and those of the orphan file. An orphan that
    /// still has names is one whose truncation was under way.
    pub fn orphans(&self) -> Result<Vec<u32>> {
        let superblock = self.superblock();
        let mut found = BTreeSet::new();
        let mut next = superblock.last_orphan;
        while next != 0 {
            if next > superblock.inodes_count || !found.insert(next) {
                let fault = Fault::Field { field: "an inode number (out of range or met twice)", value: next.into() };
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
        let block_size = u64::from(superblock.block_size);
        let inode = self.any_inode(superblock.orphan_file_inode)?;
        let mut blocks = 0;
        for extent in self.extents_from(&inode, 0) {
            let extent = extent?;
            if extent.kind != ExtentKind::Written {
                continue;
            }
            for block in extent.physical / block_size..(extent.physical + extent.len) / block_size {
                let corrupt = |fault: Fault| fault.of(Structure::Orphans).in_inode(inode.ino).in_block(block);
                blocks += 1;
                if blocks > superblock.blocks_count {
                    return Err(corrupt(Fault::Rule("more blocks than the file system has")).into());
                }
                let bytes = self.block(block)?;
                let tail = bytes.len() - 8;
                let magic = le32(&bytes, tail);
                if magic != ORPHAN_BLOCK_MAGIC {
                    return Err(corrupt(Fault::Magic { found: magic, wanted: ORPHAN_BLOCK_MAGIC }).into());
                }
                if self.verifies_checksums() {
                    let crc = crc32c(inode.checksum_seed, &block.to_le_bytes());
                    let (found, wanted) = (le32(&bytes, tail + 4), crc32c(crc, &bytes[..tail]));
                    if found != wanted {
                        return Err(corrupt(Fault::Checksum { found, wanted }).into());
                    }
                }
                found.extend((0..tail).step_by(4).map(|at| le32(&bytes, at)).filter(|&ino| ino != 0));
            }
        }
        Ok(())
    }
}
