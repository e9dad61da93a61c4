//! Where the blocks of a hash tree are in the hash area.
//!
//! Level 0 holds the digests of data blocks, each higher level those of the level below. The highest level, of one block,
//! comes first in the area, level 0 last. One data block needs no level: its digest is the root hash.

use std::ops::Range;

use crate::dm_verity::params::Params;

/// The most levels a tree can have.
const MAX_LEVELS: usize = 63;

/// Why a device cannot have a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GeometryError {
    /// A device of no blocks.
    #[error("a device of 0 data blocks cannot have a hash tree")]
    NoData,
    /// Data or tree past the largest signed 64-bit offset.
    #[error("{data_blocks} data blocks of {data_block_size} bytes: the device or its hash tree exceeds 2^63 bytes")]
    TooLarge {
        /// The number of data blocks.
        data_blocks: u64,
        /// Bytes in a data block.
        data_block_size: usize,
    },
}

/// The shape of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    data_blocks: u64,
    log_arity: u32,
    log_hash_block: u32,
    /// For each level from 0 up: its first block in the hash area, and how many blocks it has.
    levels: Vec<(u64, u64)>,
    hash_blocks: u64,
}

impl Geometry {
    /// Lays out the tree over `data_blocks` blocks.
    ///
    /// # Errors
    /// If there are no blocks, or more than a device can have.
    pub fn new(params: &Params, data_blocks: u64) -> Result<Self, GeometryError> {
        let data_block_size = params.data_block_size();
        let too_large = GeometryError::TooLarge { data_blocks, data_block_size };
        if data_blocks == 0 {
            return Err(GeometryError::NoData);
        }
        if data_blocks > (i64::MAX as u64) >> params.log_data_block_size() {
            return Err(too_large);
        }
        let log_arity = params.log_arity();
        let mut counts = Vec::new();
        let mut blocks = data_blocks;
        while blocks > 1 {
            blocks = blocks.div_ceil(1 << log_arity);
            counts.push(blocks);
        }
        debug_assert!(counts.len() <= MAX_LEVELS, "at least 8 digests fill a hash block");
        let mut levels = vec![(0, 0); counts.len()];
        let mut next = 0u64;
        for (level, &count) in counts.iter().enumerate().rev() {
            levels[level] = (next, count);
            next += count;
        }
        if next > (i64::MAX as u64) >> params.log_hash_block_size() {
            return Err(too_large);
        }
        Ok(Self { data_blocks, log_arity, log_hash_block: params.log_hash_block_size(), levels, hash_blocks: next })
    }

    /// The number of data blocks: at least 1.
    pub fn data_blocks(&self) -> u64 {
        self.data_blocks
    }

    /// How many digests a hash block holds.
    pub fn hashes_per_block(&self) -> u64 {
        1 << self.log_arity
    }

    /// The number of levels; 0 for one data block.
    pub fn num_levels(&self) -> usize {
        self.levels.len()
    }

    /// The blocks of `level`, counted from the start of the hash area. Panics if there is no such level.
    pub fn level(&self, level: usize) -> Range<u64> {
        let (first, count) = self.levels[level];
        first..first + count
    }

    /// Where `level` begins in the hash area, in bytes. Panics if there is no such level.
    pub fn level_offset(&self, level: usize) -> u64 {
        self.levels[level].0 << self.log_hash_block
    }

    /// The number of blocks of `level`. Panics if there is no such level.
    pub fn level_blocks(&self, level: usize) -> u64 {
        self.levels[level].1
    }

    /// The number of hash blocks of all levels.
    pub fn hash_blocks(&self) -> u64 {
        self.hash_blocks
    }

    /// The size of the hash area, in bytes.
    pub fn hash_area_size(&self) -> u64 {
        self.hash_blocks << self.log_hash_block
    }

    /// The level of a block counted from the start of the hash area, and its index in that level; `None` past the end.
    pub fn level_of(&self, block: u64) -> Option<(usize, u64)> {
        let level = self.levels.iter().position(|&(first, count)| block >= first && block - first < count)?;
        Some((level, block - self.levels[level].0))
    }

    /// How many children `level` has digests of: data blocks below level 0, hash blocks below the others.
    pub fn children(&self, level: usize) -> u64 {
        if level == 0 { self.data_blocks } else { self.levels[level - 1].1 }
    }

    /// The data blocks below block `index` of `level`.
    pub fn data_blocks_under(&self, level: usize, index: u64) -> Range<u64> {
        let shift = self.log_arity.saturating_mul(level as u32 + 1);
        let at = |i: u64| {
            let first = if i > u64::MAX.checked_shr(shift).unwrap_or(0) { u64::MAX } else { i << (shift % 64) };
            first.min(self.data_blocks)
        };
        at(index)..at(index.saturating_add(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_level_comes_first() {
        let of = |blocks| Geometry::new(&Params::default(), blocks).unwrap();
        assert_eq!((of(1).num_levels(), of(1).hash_blocks()), (0, 0));
        assert_eq!((of(2).num_levels(), of(2).level(0)), (1, 0..1));
        assert_eq!((of(128).num_levels(), of(129).num_levels()), (1, 2));
        let g = of(16385);
        assert_eq!((g.level(2), g.level(1), g.level(0), g.hash_blocks()), (0..1, 1..3, 3..132, 132));
        assert_eq!(
            (g.level_of(0), g.level_of(2), g.level_of(131), g.level_of(132)),
            (Some((2, 0)), Some((1, 1)), Some((0, 128)), None)
        );
        assert_eq!((g.children(0), g.children(1), g.children(2)), (16385, 129, 2));
        assert_eq!(
            (g.data_blocks_under(0, 128), g.data_blocks_under(1, 1), g.data_blocks_under(2, 0)),
            (16384..16385, 16384..16385, 0..16385)
        );
    }

    #[test]
    fn impossible_sizes() {
        assert_eq!(Geometry::new(&Params::default(), 0), Err(GeometryError::NoData));
        for data_blocks in [1 << 51, u64::MAX] {
            let error = GeometryError::TooLarge { data_blocks, data_block_size: 4096 };
            assert_eq!(Geometry::new(&Params::default(), data_blocks), Err(error));
        }
        assert!(Geometry::new(&Params::default(), (1 << 51) - 1).is_ok());
    }
}
