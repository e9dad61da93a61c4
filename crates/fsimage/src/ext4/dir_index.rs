//! Where the index of a hashed directory expects names. A name elsewhere is damaged or forged: Linux neither lists such
//! a name nor finds it.

use std::collections::HashMap;

use super::bytes::to_usize;
use super::error::Result;
use super::features::Compat;
use super::filesystem::Ext4;
use super::htree::{entries, parse_htree_root};
use super::inode::{Inode, InodeFlags};
use super::name_hash::NameHash;

/// An index is never deeper than this, with the feature `large_dir`.
const LEVELS_MAX: u8 = 3;

/// The lowest hash that the names in each block of entries may have.
#[derive(Debug)]
pub(crate) struct DirIndex {
    hash: NameHash,
    lowest: HashMap<u64, u32>,
}

impl DirIndex {
    /// Reads the index of a directory. Nothing if it has none, or one that Linux does not rely on: since 6.14 it searches
    /// every block of a directory that folds case for a name that the index does not find.
    pub(crate) fn read(fs: &Ext4, dir: &Inode) -> Option<Self> {
        let superblock = fs.superblock();
        let indexed = dir.flags.contains(InodeFlags::INDEX) && superblock.compat.contains(Compat::DIR_INDEX);
        if !indexed || dir.has_inline_data() || dir.is_casefolded() {
            return None;
        }
        let hash @ NameHash::Computed { version: 0..=5, .. } = fs.name_hash(dir).ok()? else { return None };
        let left = dir.size.div_ceil(fs.block_size().max(1)).min(fs.usable_blocks());
        let mut reader = Reader { fs, dir, lowest: HashMap::new(), left };
        let root = reader.block(0).ok()?;
        let levels = parse_htree_root(&root)?.indirect_levels;
        if levels > LEVELS_MAX {
            return None;
        }
        reader.node(&root, true, levels, 0)?;
        Some(Self { hash, lowest: reader.lowest })
    }

    /// Whether the index would find this name in file block `block`.
    pub(crate) fn expects(&self, name: &[u8], block: u64) -> bool {
        self.lowest.get(&block).is_none_or(|&lowest| self.hash.of(name, None).0 >= lowest)
    }
}

struct Reader<'a> {
    fs: &'a Ext4,
    dir: &'a Inode,
    lowest: HashMap<u64, u32>,
    /// Blocks that may still be visited: the index has at most as many as the directory.
    left: u64,
}

impl Reader<'_> {
    fn block(&self, block: u64) -> Result<Vec<u8>> {
        let mut bytes = vec![0; to_usize(self.fs.superblock().block_size)];
        let from = block.saturating_mul(self.fs.block_size());
        self.fs.read_metadata_at(self.dir, from, &mut bytes)?;
        Ok(bytes)
    }

    /// Goes through a node with `levels` levels of nodes below it; the names beneath have hashes of at least `lowest`.
    fn node(&mut self, bytes: &[u8], root: bool, levels: u8, lowest: u32) -> Option<()> {
        for (hash, block) in entries(bytes, root, self.fs.superblock().has_metadata_csum())? {
            self.left = self.left.checked_sub(1)?;
            let (block, lowest) = (u64::from(block), lowest.max(hash));
            match levels.checked_sub(1) {
                // Bit 0 marks a hash that continues from the block before.
                None => drop(self.lowest.insert(block, lowest & !1)),
                Some(levels) => {
                    let bytes = self.block(block).ok()?;
                    self.node(&bytes, false, levels, lowest)?;
                }
            }
        }
        Some(())
    }
}
