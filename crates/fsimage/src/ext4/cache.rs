//! A small bounded cache of metadata. It reads in pieces larger than a block, which is the read-ahead that inode tables
//! and directories need: neighbouring blocks are usually needed next.

use std::collections::HashMap;
use std::io;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

use postread_io::ReadAt;

use super::bytes::to_u64;

/// Bytes read at once; at least the largest block size, so that no block spans two pieces.
const PIECE: usize = 128 << 10;
const PIECE_LEN: u64 = to_u64(PIECE);

/// Locks, so that threads that walk different parts rarely wait for each other.
const SHARDS: usize = 8;
const SHARDS_LEN: u64 = to_u64(SHARDS);

/// Bytes of the source. They keep the piece of the cache alive that they are in.
#[derive(Debug, Clone)]
pub(crate) struct Cached {
    piece: Arc<[u8]>,
    start: usize,
    len: usize,
}

impl Deref for Cached {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.piece[self.start..][..self.len]
    }
}

#[derive(Debug, Default)]
struct Shard {
    pieces: HashMap<u64, (Arc<[u8]>, u64)>,
    clock: u64,
}

/// The cache. It keeps at most its capacity; the pieces that callers hold come on top.
pub(crate) struct Cache {
    source: Arc<dyn ReadAt>,
    shards: [Mutex<Shard>; SHARDS],
    pieces_per_shard: usize,
}

impl Cache {
    pub(crate) fn new(source: Arc<dyn ReadAt>, capacity: usize) -> Self {
        let pieces_per_shard = (capacity / PIECE / SHARDS).max(1);
        Self { source, shards: Default::default(), pieces_per_shard }
    }

    pub(crate) fn source(&self) -> &Arc<dyn ReadAt> {
        &self.source
    }

    /// `len` bytes at `offset`, which may not cross a multiple of 128 KiB.
    pub(crate) fn read(&self, offset: u64, len: usize) -> io::Result<Cached> {
        let index = offset / PIECE_LEN;
        let start = usize::try_from(offset % PIECE_LEN).unwrap_or(PIECE);
        let Ok(piece) = self.piece(index) else { return self.alone(offset, len) };
        match piece.get(start..) {
            Some(rest) if rest.len() >= len => Ok(Cached { piece, start, len }),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Reads only the requested bytes, so that a bad sector does not affect other blocks. Not cached.
    fn alone(&self, offset: u64, len: usize) -> io::Result<Cached> {
        let mut bytes = vec![0; len];
        self.source.read_exact_at(&mut bytes, offset)?;
        Ok(Cached { piece: bytes.into(), start: 0, len })
    }

    fn piece(&self, index: u64) -> io::Result<Arc<[u8]>> {
        let shard = &self.shards[usize::try_from(index % SHARDS_LEN).unwrap_or(0)];
        {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.clock = shard.clock.saturating_add(1);
            let clock = shard.clock;
            if let Some((piece, used)) = shard.pieces.get_mut(&index) {
                *used = clock;
                return Ok(piece.clone());
            }
        }
        // Read without the lock; two threads may read the same piece, which does no harm.
        let mut bytes = vec![0; PIECE];
        let start = index.saturating_mul(PIECE_LEN);
        let mut filled = 0usize;
        while filled < bytes.len() {
            match self.source.read_at(&mut bytes[filled..], start.saturating_add(to_u64(filled))) {
                Ok(0) => break,
                Ok(n) => filled = filled.saturating_add(n),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        bytes.truncate(filled);
        let piece: Arc<[u8]> = bytes.into();
        let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
        while shard.pieces.len() >= self.pieces_per_shard {
            let Some(oldest) = shard.pieces.iter().min_by_key(|(_, (_, used))| *used).map(|(&index, _)| index) else {
                break;
            };
            shard.pieces.remove(&oldest);
        }
        let clock = shard.clock;
        shard.pieces.insert(index, (piece.clone(), clock));
        Ok(piece)
    }
}

impl std::fmt::Debug for Cache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cache").field("pieces_per_shard", &self.pieces_per_shard).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of which byte 5000 can't be read.
    struct Scratched;

    impl ReadAt for Scratched {
        fn len(&self) -> io::Result<u64> {
            Ok(1 << 20)
        }

        fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
            if (offset..offset + to_u64(buf.len())).contains(&5000) {
                return Err(io::Error::from_raw_os_error(5));
            }
            buf.iter_mut().zip(offset..).for_each(|(byte, at)| *byte = at.to_le_bytes()[0]);
            Ok(buf.len())
        }
    }

    #[test]
    fn a_bad_sector_costs_no_other_block() {
        let cache = Cache::new(Arc::new(Scratched), 1 << 20);
        for (offset, good) in [(0, true), (4096, false), (8192, true), (131_072, true)] {
            let found = cache.read(offset, 4096);
            assert_eq!(found.is_ok_and(|found| found.len() == 4096 && found[1] == 1), good, "{offset}");
        }
    }
}
