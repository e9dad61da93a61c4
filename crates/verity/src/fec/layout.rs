//! How a message is laid out in rows, and where its parity is.

use super::CODEWORD;

/// The fewest parity bytes of a codeword.
pub const MIN_ROOTS: u32 = 2;
/// The most parity bytes of a codeword.
pub const MAX_ROOTS: u32 = 24;

/// Why there is no such layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// A number of roots outside the limits.
    #[error("{roots} FEC roots: expected {MIN_ROOTS} to {MAX_ROOTS}")]
    Roots {
        /// The number given.
        roots: u32,
    },
    /// A block size that is not a power of two from 512 bytes to 512 KiB.
    #[error("FEC blocks of {block_size} bytes: expected a power of two from 512 to 524288")]
    BlockSize {
        /// The size given, in bytes.
        block_size: u64,
    },
    /// No blocks, or more than a device can have.
    #[error("FEC over {blocks} blocks of {block_size} bytes is impossible")]
    Blocks {
        /// The number given.
        blocks: u64,
        /// The block size, in bytes.
        block_size: usize,
    },
}

/// A message of blocks in `255 - roots` rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    roots: usize,
    block_size: usize,
    blocks: u64,
    row_blocks: u64,
}

impl Layout {
    /// Lays out a message of `blocks` blocks (data and hash blocks, which must have one size).
    ///
    /// # Errors
    /// What is outside the limits.
    pub fn new(roots: u32, block_size: usize, blocks: u64) -> Result<Self, LayoutError> {
        if !(MIN_ROOTS..=MAX_ROOTS).contains(&roots) {
            return Err(LayoutError::Roots { roots });
        }
        if !block_size.is_power_of_two() || !(512..=512 << 10).contains(&block_size) {
            return Err(LayoutError::BlockSize { block_size: block_size as u64 });
        }
        let rows = CODEWORD as u64 - u64::from(roots);
        if blocks == 0 || blocks > i64::MAX as u64 / block_size as u64 {
            return Err(LayoutError::Blocks { blocks, block_size });
        }
        Ok(Self { roots: roots as usize, block_size, blocks, row_blocks: blocks.div_ceil(rows) })
    }

    /// Parity bytes of a codeword.
    pub fn roots(&self) -> usize {
        self.roots
    }

    /// Rows of the message: bytes of a codeword before its parity.
    pub fn rows(&self) -> usize {
        CODEWORD - self.roots
    }

    /// Bytes in a block.
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    /// Blocks of the message.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Blocks in a row: the number of groups of columns, each as wide as a block.
    pub fn row_blocks(&self) -> u64 {
        self.row_blocks
    }

    /// The size of the parity of the whole message, in bytes.
    pub fn parity_size(&self) -> u64 {
        self.row_blocks * (self.block_size * self.roots) as u64
    }

    /// Where the parity of a group of columns begins, in bytes from the start of the parity.
    pub fn parity_offset(&self, group: u64) -> u64 {
        group * (self.block_size * self.roots) as u64
    }

    /// The row and the group of columns of a block of the message.
    pub fn place_of(&self, block: u64) -> (usize, u64) {
        ((block / self.row_blocks) as usize, block % self.row_blocks)
    }

    /// The block of the message in a row and a group of columns; `None` in the padding.
    pub fn block_at(&self, row: usize, group: u64) -> Option<u64> {
        let block = row as u64 * self.row_blocks + group;
        (row < self.rows() && group < self.row_blocks && block < self.blocks).then_some(block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_has_one_place() {
        for blocks in [1, 252, 253, 254, 506, 507, 1000] {
            let layout = Layout::new(2, 4096, blocks).unwrap();
            for block in 0..blocks {
                let (row, group) = layout.place_of(block);
                assert_eq!(layout.block_at(row, group), Some(block));
            }
            let places = (0..253).flat_map(|row| (0..layout.row_blocks()).map(move |group| (row, group)));
            assert_eq!(places.filter(|&(row, group)| layout.block_at(row, group).is_some()).count() as u64, blocks);
        }
    }

    #[test]
    fn limits() {
        assert_eq!(Layout::new(1, 4096, 1), Err(LayoutError::Roots { roots: 1 }));
        assert_eq!(Layout::new(25, 4096, 1), Err(LayoutError::Roots { roots: 25 }));
        assert_eq!(Layout::new(2, 1000, 1), Err(LayoutError::BlockSize { block_size: 1000 }));
        assert_eq!(Layout::new(2, 4096, 0), Err(LayoutError::Blocks { blocks: 0, block_size: 4096 }));
        assert_eq!(Layout::new(2, 4096, 1 << 51), Err(LayoutError::Blocks { blocks: 1 << 51, block_size: 4096 }));
        assert_eq!(Layout::new(24, 4096, (1 << 51) - 1).unwrap().rows(), 231);
    }
}
