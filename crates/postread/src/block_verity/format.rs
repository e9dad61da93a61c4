//! Makes hash trees.

use std::io;

use postread_io::ReadAt;
use postread_verity::dm_verity::{DataHasher, Params, TreeBuilder};

use super::{BlockVerityError, Threads, parallel};

/// Bytes of data that a thread reads at a time (at least a block).
const CHUNK: usize = 1 << 20;

/// Chunks for each thread between two pushes to the builder: only their digests are held in memory.
const ROUND: u64 = 16;

/// Makes the tree over the first `data_blocks` blocks of `data` and returns its root hash. `write` stores hash blocks at a
/// byte offset of the hash area; blocks of one level come in order.
///
/// # Errors
/// If data cannot be read, or `write` fails.
pub fn format(
    data: &dyn ReadAt,
    params: &Params,
    data_blocks: u64,
    threads: Threads,
    write: &mut dyn FnMut(u64, &[u8]) -> io::Result<()>,
) -> Result<Vec<u8>, BlockVerityError> {
    let mut builder = TreeBuilder::new(params, data_blocks)?;
    let hasher = DataHasher::new(params);
    let block_size = params.data_block_size();
    let chunk = CHUNK.max(block_size);
    let size = data_blocks * block_size as u64;
    let chunks = size.div_ceil(chunk as u64);
    let mut write = |offset: u64, blocks: &[u8]| write(offset, blocks);
    let round = threads.0.get() as u64 * ROUND;
    let mut first = 0;
    while first < chunks {
        let count = round.min(chunks - first);
        let hashed = parallel(
            threads,
            count,
            || vec![0; chunk],
            |buf, job| {
                let offset = (first + job) * chunk as u64;
                let len = (size - offset).min(chunk as u64) as usize;
                let read = data.read_exact_at(&mut buf[..len], offset);
                read.map_err(|source| BlockVerityError::Read { offset, len, source })?;
                let mut digests = Vec::new();
                hasher.hash(&buf[..len], &mut digests);
                Ok::<_, BlockVerityError>(digests)
            },
        );
        for digests in hashed {
            builder.push_digests(&digests?, &mut write)?;
        }
        first += count;
    }
    Ok(builder.finish(&mut write)?)
}
