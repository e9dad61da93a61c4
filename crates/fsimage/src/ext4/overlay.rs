//! An overlay of the blocks that a journal's replay would write: nothing is copied, blocks are read from the journal on
//! demand.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use postread_io::ReadAt;

use super::bytes::to_u64;

/// Where the newest copy of a block is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Copy {
    /// The block, on the device that the journal is on.
    pub(crate) block: u64,
    /// Its first four bytes were the journal's magic number and had to be zeroed.
    pub(crate) escaped: bool,
}

/// A source with some of its blocks taken from a journal, which may be on the same device or on another one.
pub(crate) struct Overlay {
    source: Arc<dyn ReadAt>,
    journal: Arc<dyn ReadAt>,
    block_size: u64,
    copies: BTreeMap<u64, Copy>,
    magic: [u8; 4],
}

impl Overlay {
    /// `block_size` is not 0.
    pub(crate) fn new(
        source: Arc<dyn ReadAt>,
        journal: Arc<dyn ReadAt>,
        block_size: u64,
        copies: BTreeMap<u64, Copy>,
        magic: [u8; 4],
    ) -> Self {
        Self { source, journal, block_size: block_size.max(1), copies, magic }
    }

    /// Replaces the part of `buf`, which holds the bytes from `offset` on, that is in `block`.
    fn replace(&self, buf: &mut [u8], offset: u64, block: u64, copy: Copy) -> io::Result<()> {
        let start = block.saturating_mul(self.block_size);
        // Where the block begins in the buffer, or how much of it is before the buffer.
        let skip = offset.saturating_sub(start);
        let at = usize::try_from(start.saturating_sub(offset)).unwrap_or(usize::MAX);
        let rest = buf.get_mut(at..).unwrap_or_default();
        let len = usize::try_from(self.block_size.saturating_sub(skip)).unwrap_or(usize::MAX).min(rest.len());
        let part = &mut rest[..len];
        if part.is_empty() {
            return Ok(());
        }
        self.journal.read_exact_at(part, copy.block.saturating_mul(self.block_size).saturating_add(skip))?;
        if copy.escaped
            && let Ok(skip) = usize::try_from(skip)
        {
            let magic = self.magic.get(skip..).unwrap_or_default();
            part.iter_mut().zip(magic).for_each(|(byte, &magic)| *byte = magic);
        }
        Ok(())
    }
}

impl ReadAt for Overlay {
    fn len(&self) -> io::Result<u64> {
        self.source.len()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let len = self.source.read_at(buf, offset)?;
        let end = offset.saturating_add(to_u64(len)).div_ceil(self.block_size);
        let first = offset.checked_div(self.block_size).unwrap_or(0);
        if first < end {
            for (&block, &copy) in self.copies.range(first..end) {
                self.replace(&mut buf[..len], offset, block, copy)?;
            }
        }
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads of every length at every offset: a block from another device, and an escaped one from the same.
    #[test]
    fn blocks_come_from_the_journal() {
        let disk: Vec<u8> = (0..64).collect();
        let journal: Vec<u8> = (100..164).collect();
        let copies = BTreeMap::from([
            (2, Copy { block: 5, escaped: false }),
            (3, Copy { block: 0, escaped: true }),
            (7, Copy { block: 1, escaped: true }),
        ]);
        let mut wanted = disk.clone();
        wanted[16..24].copy_from_slice(&journal[40..48]);
        wanted[24..32].copy_from_slice(&journal[..8]);
        wanted[24..28].copy_from_slice(b"jbd2");
        wanted[56..64].copy_from_slice(&journal[8..16]);
        wanted[56..60].copy_from_slice(b"jbd2");
        let overlay = Overlay::new(Arc::new(disk), Arc::new(journal), 8, copies, *b"jbd2");
        for offset in 0..=64 {
            for len in 0..=64 - offset {
                let mut buf = vec![0; len];
                assert_eq!(overlay.read_at(&mut buf, offset as u64).unwrap(), len);
                assert_eq!(buf, wanted[offset..offset + len], "{len} bytes at {offset}");
            }
        }
    }
}
