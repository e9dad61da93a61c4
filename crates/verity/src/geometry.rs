//! The layout of a Merkle tree for a given file size. The names are the kernel's.
//!
//! Level 0 holds the digests of data blocks, each higher level the digests of the level below. The tree is stored with
//! the root level first and level 0 last. A file of one block has no tree: its root hash is the digest of the block. An
//! empty file has none either: its root hash is all zero.

use crate::params::{MAX_LEVELS, MerkleTreeParams};

/// Why a file cannot have a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GeometryError {
    /// A size above what a file can have (2^63 - 1 bytes).
    #[error("a file cannot have {data_size} bytes")]
    FileTooLarge {
        /// The size asked for, in bytes.
        data_size: u64,
    },
    /// The tree would have more levels than the format allows; the kernel answers `EFBIG`.
    #[error("{data_size} bytes need more than {MAX_LEVELS} levels of {block_size}-byte hash blocks")]
    TooManyLevels {
        /// The file's size, in bytes.
        data_size: u64,
        /// The tree's block size, in bytes.
        block_size: usize,
    },
}

/// The position of a digest: which hash block, and where in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashLocation {
    /// The hash block, counted within its level.
    pub index: u64,
    /// The hash block, counted from the start of the tree.
    pub block: u64,
    /// The digest's offset in the block, in bytes.
    pub offset: usize,
}

/// The shape of the tree over a file of known size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeGeometry {
    data_size: u64,
    data_blocks: u64,
    log_blocksize: u8,
    log_arity: u8,
    digest_size: u8,
    num_levels: u8,
    level_blocks: [u64; MAX_LEVELS],
    level_start: [u64; MAX_LEVELS],
    tree_blocks: u64,
}

impl TreeGeometry {
    /// Lays out the tree of a file of `data_size` bytes.
    pub fn new(params: &MerkleTreeParams, data_size: u64) -> Result<Self, GeometryError> {
        if data_size > i64::MAX as u64 {
            return Err(GeometryError::FileTooLarge { data_size });
        }
        let log_arity = params.log_arity();
        let data_blocks = data_size.div_ceil(params.block_size() as u64);
        let mut level_blocks = [0; MAX_LEVELS];
        let mut num_levels = 0;
        let mut blocks = data_blocks;
        while blocks > 1 {
            if num_levels == MAX_LEVELS {
                return Err(GeometryError::TooManyLevels { data_size, block_size: params.block_size() });
            }
            blocks = blocks.div_ceil(1 << log_arity);
            level_blocks[num_levels] = blocks;
            num_levels += 1;
        }
        let mut level_start = [0; MAX_LEVELS];
        let mut tree_blocks = 0;
        for level in (0..num_levels).rev() {
            level_start[level] = tree_blocks;
            tree_blocks += level_blocks[level];
        }
        Ok(Self {
            data_size,
            data_blocks,
            log_blocksize: params.log_blocksize(),
            log_arity: log_arity as u8,
            digest_size: params.digest_size() as u8,
            num_levels: num_levels as u8,
            level_blocks,
            level_start,
            tree_blocks,
        })
    }

    /// The file's size, in bytes.
    pub fn data_size(&self) -> u64 {
        self.data_size
    }

    /// The number of data blocks, the last perhaps partial.
    pub fn data_blocks(&self) -> u64 {
        self.data_blocks
    }

    /// Bytes in a block.
    pub fn block_size(&self) -> usize {
        1 << self.log_blocksize
    }

    /// Bytes in a digest.
    pub fn digest_size(&self) -> usize {
        usize::from(self.digest_size)
    }

    /// Digests in a hash block.
    pub fn hashes_per_block(&self) -> usize {
        1 << self.log_arity
    }

    /// The number of levels of hash blocks, 0 to 8. The root level is `num_levels() - 1`.
    pub fn num_levels(&self) -> usize {
        usize::from(self.num_levels)
    }

    /// The number of hash blocks of a level. Panics if there is no such level.
    pub fn level_blocks(&self, level: usize) -> u64 {
        assert!(level < self.num_levels(), "level {level} of {}", self.num_levels);
        self.level_blocks[level]
    }

    /// The first hash block of a level, counted in blocks from the start of the tree. Panics if there is no such level.
    pub fn level_start(&self, level: usize) -> u64 {
        assert!(level < self.num_levels(), "level {level} of {}", self.num_levels);
        self.level_start[level]
    }

    /// The number of hash blocks of the whole tree.
    pub fn tree_blocks(&self) -> u64 {
        self.tree_blocks
    }

    /// The size of the tree, in bytes.
    pub fn tree_size(&self) -> u64 {
        self.tree_blocks << self.log_blocksize
    }

    /// The level and the index in it of a hash block counted from the start of the tree; `None` past its end.
    pub fn level_of(&self, block: u64) -> Option<(usize, u64)> {
        if block >= self.tree_blocks {
            return None;
        }
        let level = (0..self.num_levels()).find(|&l| block >= self.level_start[l])?;
        Some((level, block - self.level_start[level]))
    }

    /// Where the digest of a data block is, at level 0. `None` if the tree has no levels (the root hash is the digest)
    /// or the file no such block.
    pub fn hash_at_leaf(&self, data_block: u64) -> Option<HashLocation> {
        if data_block >= self.data_blocks { None } else { self.hash_at_level(0, data_block) }
    }

    /// Where level `level` holds the digest of block `child` of the level below (of data block `child` for level 0).
    /// `None` if there is no such level or block: the digest of the root level's only block is the root hash.
    pub fn hash_at_level(&self, level: usize, child: u64) -> Option<HashLocation> {
        if level >= self.num_levels() {
            return None;
        }
        let children = if level == 0 { self.data_blocks } else { self.level_blocks[level - 1] };
        if child >= children {
            return None;
        }
        let index = child >> self.log_arity;
        let offset = (child as usize & (self.hashes_per_block() - 1)) * self.digest_size();
        Some(HashLocation { index, block: self.level_start[level] + index, offset })
    }

    /// The hash block of `level` above data block `data_block`, counted within its level.
    pub fn ancestor(&self, level: usize, data_block: u64) -> u64 {
        data_block.checked_shr(u32::from(self.log_arity) * (level as u32 + 1)).unwrap_or(0)
    }

    /// The data blocks below hash block `index` of `level`, cut at the end of the file.
    pub fn data_blocks_under(&self, level: usize, index: u64) -> std::ops::Range<u64> {
        let shift = u32::from(self.log_arity) * (level as u32 + 1);
        let at = |i: u64| {
            let wide = u128::from(i).checked_shl(shift).unwrap_or(u128::MAX);
            u64::try_from(wide).unwrap_or(u64::MAX).min(self.data_blocks)
        };
        at(index)..at(index.saturating_add(1))
    }
}

#[cfg(test)]
mod tests {
    use postread_blockcrypt::hash::HashAlg;

    use super::*;

    fn shape(alg: HashAlg, block_size: u32, data_size: u64) -> TreeGeometry {
        TreeGeometry::new(&MerkleTreeParams::new(alg, block_size, b"").unwrap(), data_size).unwrap()
    }

    #[test]
    fn no_tree_up_to_one_block() {
        for size in [0, 1, 4095, 4096] {
            let g = shape(HashAlg::Sha256, 4096, size);
            assert_eq!((g.num_levels(), g.tree_size()), (0, 0));
            assert_eq!(g.hash_at_leaf(0), None);
        }
    }

    #[test]
    fn the_root_level_comes_first() {
        // 129 blocks: two leaf blocks under one root block.
        let g = shape(HashAlg::Sha256, 4096, 128 * 4096 + 1);
        assert_eq!((g.num_levels(), g.level_start(1), g.level_start(0), g.tree_blocks()), (2, 0, 1, 3));
        assert_eq!(g.hash_at_leaf(128), Some(HashLocation { index: 1, block: 2, offset: 0 }));
        assert_eq!(g.hash_at_leaf(127), Some(HashLocation { index: 0, block: 1, offset: 127 * 32 }));
        assert_eq!(g.hash_at_leaf(129), None);
        assert_eq!(g.hash_at_level(1, 1), Some(HashLocation { index: 0, block: 0, offset: 32 }));
        assert_eq!(g.hash_at_level(1, 2), None);
        assert_eq!(g.hash_at_level(2, 0), None);
        assert_eq!((g.level_of(0), g.level_of(2), g.level_of(3)), (Some((1, 0)), Some((0, 1)), None));
        assert_eq!(g.data_blocks_under(0, 1), 128..129);
        assert_eq!(g.data_blocks_under(1, 0), 0..129);
        assert_eq!((g.ancestor(0, 128), g.ancestor(1, 128)), (1, 0));
    }

    #[test]
    fn sizes_of_known_trees() {
        // `fsverity digest --out-merkle-tree` of 200,000 and 100,000,000 bytes.
        assert_eq!(shape(HashAlg::Sha256, 4096, 200_000).tree_size(), 4096);
        assert_eq!(shape(HashAlg::Sha256, 1024, 131_072).tree_size(), 5 * 1024);
        assert_eq!(shape(HashAlg::Sha256, 4096, 100_000_000).tree_size(), 194 * 4096);
    }

    #[test]
    fn eight_levels_and_no_more() {
        // Arity 8: eight levels cover 8^8 blocks of 512 bytes.
        let limit = 8u64.pow(8) * 512;
        assert_eq!(shape(HashAlg::Sha512, 512, limit).num_levels(), 8);
        let params = MerkleTreeParams::new(HashAlg::Sha512, 512, b"").unwrap();
        let too_many = GeometryError::TooManyLevels { data_size: limit + 1, block_size: 512 };
        assert_eq!(TreeGeometry::new(&params, limit + 1), Err(too_many));
        // With 4096-byte blocks and SHA-256 there is always room, up to the largest file.
        assert_eq!(shape(HashAlg::Sha256, 4096, i64::MAX as u64).num_levels(), 8);
        for size in [1 << 63, u64::MAX] {
            let error = TreeGeometry::new(&MerkleTreeParams::default(), size);
            assert_eq!(error, Err(GeometryError::FileTooLarge { data_size: size }));
        }
    }
}
