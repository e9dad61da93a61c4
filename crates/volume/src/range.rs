//! A range of a source, as a source.

use std::fmt;
use std::io;
use std::sync::Arc;

use postread_io::ReadAt;

/// The bytes `offset..offset + len` of a source. It ends earlier where the source does.
#[derive(Clone)]
pub struct Range {
    source: Arc<dyn ReadAt>,
    offset: u64,
    len: u64,
}

impl Range {
    /// The bytes from `offset`, at most `len`. A range that would end past the last possible byte is cut there.
    pub fn new(source: Arc<dyn ReadAt>, offset: u64, len: u64) -> Self {
        Self { source, offset, len: len.min(u64::MAX - offset) }
    }

    /// Where it begins in the source, in bytes: what a plan adds to physical offsets.
    pub fn offset(&self) -> u64 {
        self.offset
    }
}

impl fmt::Debug for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Range").field("offset", &self.offset).field("len", &self.len).finish_non_exhaustive()
    }
}

impl ReadAt for Range {
    fn len(&self) -> io::Result<u64> {
        Ok(self.len.min(self.source.len()?.saturating_sub(self.offset)))
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let n = self.len.saturating_sub(offset).min(buf.len() as u64) as usize;
        if n == 0 {
            return Ok(0);
        }
        self.source.read_at(&mut buf[..n], self.offset + offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_end_is_crossed() {
        let source: Arc<dyn ReadAt> = Arc::new((0..100u8).collect::<Vec<_>>());
        let range = Range::new(source.clone(), 10, 20);
        let mut buf = [0; 30];
        assert_eq!(range.read_at(&mut buf, 5).unwrap(), 15);
        assert_eq!(buf[..15], (15..30).collect::<Vec<u8>>()[..]);
        assert_eq!(range.read_at(&mut buf, 20).unwrap(), 0);
        assert_eq!(range.read_at(&mut buf, u64::MAX).unwrap(), 0);
        assert_eq!(ReadAt::len(&Range::new(source.clone(), 90, 20)).unwrap(), 10);
        assert_eq!(ReadAt::len(&Range::new(source, u64::MAX, u64::MAX)).unwrap(), 0);
    }
}
