//! A small bounded cache of metadata. It reads in pieces larger than a block, which is the read-ahead that inode
//! tables and directories need: neighbours are wanted next.

use std::collections::HashMap;
use std::io;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

use postread_io::ReadAt;

/// Bytes read at once; at least the largest block size, so that no block spans two pieces.
const PIECE: u64 = 128 << 10;

/// Locks, so that threads that walk different parts rarely meet.
const SHARDS: usize = 8;

/// Bytes of the source, kept alive by the cache's piece that they lie in.
#[derive(Debug, Clone)]
pub(crate) struct Cached {
    piece: Arc<[u8]>,
    start: usize,
    len: usize,
}

impl Deref for Cached {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.piece[self.start..self.start + self.len]
    }
}

#[derive(Debug, Default)]
struct Shard {
    pieces: HashMap<u64, (Arc<[u8]>, u64)>,
    clock: u64,
}

/// The cache. At most its capacity is kept, besides the pieces that callers hold.
pub(crate) struct Cache {
    source: Arc<dyn ReadAt>,
    shards: [Mutex<Shard>; SHARDS],
    pieces_per_shard: usize,
}

impl Cache {
    pub(crate) fn new(source: Arc<dyn ReadAt>, capacity: usize) -> Self {
        let pieces_per_shard = (capacity / PIECE as usize / SHARDS).max(1);
        Self { source, shards: Default::default(), pieces_per_shard }
    }

    pub(crate) fn source(&self) -> &Arc<dyn ReadAt> {
        &self.source
    }

    /// `len` bytes at `offset`, which may not cross a multiple of 128 KiB.
    pub(crate) fn read(&self, offset: u64, len: usize) -> io::Result<Cached> {
        let index = offset / PIECE;
        let start = (offset % PIECE) as usize;
        let piece = self.piece(index)?;
        if start + len > <[u8]>::len(&piece) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(Cached { piece, start, len })
    }

    fn piece(&self, index: u64) -> io::Result<Arc<[u8]>> {
        let shard = &self.shards[(index % SHARDS as u64) as usize];
        {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.clock += 1;
            let clock = shard.clock;
            if let Some((piece, used)) = shard.pieces.get_mut(&index) {
                *used = clock;
                return Ok(piece.clone());
            }
        }
        // Read without the lock; two threads may read the same piece, which is harmless.
        let mut bytes = vec![0; PIECE as usize];
        let mut filled = 0;
        while filled < bytes.len() {
            match self.source.read_at(&mut bytes[filled..], index * PIECE + filled as u64) {
                Ok(0) => break,
                Ok(n) => filled += n,
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
