//! Where a builder puts the hash blocks it has finished.

use std::convert::Infallible;

use crate::geometry::TreeGeometry;

/// Takes hash blocks. Blocks of one level come in order; levels are interleaved. A block's place in the tree is
/// [`TreeGeometry::level_start`] of its level plus its index, known once the file's size is.
pub trait TreeSink {
    /// Why a block could not be taken.
    type Error;

    /// Takes one or more neighbouring blocks of `level`, the first with index `first` in its level.
    fn blocks(&mut self, level: usize, first: u64, blocks: &[u8]) -> Result<(), Self::Error>;

    /// Takes `count` equal neighbouring blocks: the tree over a hole. A sink that keeps nothing returns at once.
    fn repeat(&mut self, level: usize, first: u64, count: u64, block: &[u8]) -> Result<(), Self::Error> {
        (0..count).try_for_each(|i| self.blocks(level, first + i, block))
    }
}

impl<S: TreeSink + ?Sized> TreeSink for &mut S {
    type Error = S::Error;

    fn blocks(&mut self, level: usize, first: u64, blocks: &[u8]) -> Result<(), S::Error> {
        (**self).blocks(level, first, blocks)
    }

    fn repeat(&mut self, level: usize, first: u64, count: u64, block: &[u8]) -> Result<(), S::Error> {
        (**self).repeat(level, first, count, block)
    }
}

/// Keeps nothing: for when only the digest is needed.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoTree;

impl TreeSink for NoTree {
    type Error = Infallible;

    fn blocks(&mut self, _level: usize, _first: u64, _blocks: &[u8]) -> Result<(), Infallible> {
        Ok(())
    }

    fn repeat(&mut self, _level: usize, _first: u64, _count: u64, _block: &[u8]) -> Result<(), Infallible> {
        Ok(())
    }
}

/// Keeps the whole tree in memory: about 1/127 of the file with SHA-256 and blocks of 4096 bytes.
#[derive(Clone, Debug, Default)]
pub struct TreeInMemory {
    levels: Vec<Vec<u8>>,
}

impl TreeInMemory {
    /// The tree as it is stored, root level first. `None` if the blocks kept are not those of `geometry`: the sink of
    /// another file, or of a part of one.
    pub fn into_bytes(self, geometry: &TreeGeometry) -> Option<Vec<u8>> {
        let mut out = Vec::with_capacity(usize::try_from(geometry.tree_size()).ok()?);
        if self.levels.len() != geometry.num_levels() {
            return None;
        }
        for (level, blocks) in self.levels.iter().enumerate().rev() {
            if blocks.len() as u64 != geometry.level_blocks(level) * geometry.block_size() as u64 {
                return None;
            }
            out.extend_from_slice(blocks);
        }
        Some(out)
    }
}

impl TreeSink for TreeInMemory {
    type Error = Infallible;

    fn blocks(&mut self, level: usize, _first: u64, blocks: &[u8]) -> Result<(), Infallible> {
        if self.levels.len() <= level {
            self.levels.resize(level + 1, Vec::new());
        }
        self.levels[level].extend_from_slice(blocks);
        Ok(())
    }
}
