//! What a journal's replay would write, laid over the source: nothing is copied, blocks are taken from the journal
//! when they are read.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use postread_io::ReadAt;

/// Where the newest copy of a block lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Copy {
    /// The block of the journal.
    pub(crate) block: u64,
    /// Its first four bytes were the journal's magic number and had to be zeroed.
    pub(crate) escaped: bool,
}

/// A source with some of its blocks taken from elsewhere in it.
pub(crate) struct Overlay {
    source: Arc<dyn ReadAt>,
    block_size: u64,
    copies: BTreeMap<u64, Copy>,
    magic: [u8; 4],
}

impl Overlay {
    pub(crate) fn new(source: Arc<dyn ReadAt>, block_size: u64, copies: BTreeMap<u64, Copy>, magic: [u8; 4]) -> Self {
        Self { source, block_size, copies, magic }
    }
}

impl ReadAt for Overlay {
    fn len(&self) -> io::Result<u64> {
        self.source.len()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let n = self.source.read_at(buf, offset)?;
        let end = offset + n as u64;
        for (&block, copy) in self.copies.range(offset / self.block_size..end.div_ceil(self.block_size)) {
            let start = block * self.block_size;
            let (from, to) = (start.max(offset), (start + self.block_size).min(end));
            if from >= to {
                continue;
            }
            let part = &mut buf[(from - offset) as usize..(to - offset) as usize];
            self.source.read_exact_at(part, copy.block * self.block_size + (from - start))?;
            if copy.escaped {
                for (i, &byte) in self.magic.iter().enumerate() {
                    let at = start + i as u64;
                    if at >= from && at < to {
                        part[(at - from) as usize] = byte;
                    }
                }
            }
        }
        Ok(n)
    }
}
