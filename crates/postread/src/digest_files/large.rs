//! Hashes one large file with several threads. Each takes the next piece, reads it and hashes its data blocks; the
//! digests are joined in order. Holes are found with `SEEK_DATA` and `SEEK_HOLE` and cost nothing.

use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use postread_verity::{MerkleTreeParams, Part, PartBuilder, Tree, TreeBuilder, TreeGeometry};
use rustix::fs::{SeekFrom, seek};

use super::{CHUNK, FileError, Progress, TreeOut, aligned, check_unchanged, read_exact};

/// How much a thread takes at a time, in bytes.
const PIECE: u64 = 1 << 20;

/// How many pieces may be finished ahead of one that is not: bounds the memory.
const WINDOW: u64 = 256;

/// A file hashed by all threads that call [`help`](Self::help).
pub(super) struct LargeFile<'a> {
    file: File,
    metadata: Metadata,
    params: MerkleTreeParams,
    geometry: TreeGeometry,
    progress: &'a dyn Progress,
    /// The caller wants no more.
    stopped: &'a AtomicBool,
    state: Mutex<State<'a>>,
    /// A piece was put in place, or a thread is done.
    moved: Condvar,
}

struct State<'a> {
    /// Where the next piece begins.
    next: u64,
    /// Pieces handed out, holes included; pieces put in place.
    taken: u64,
    placed: u64,
    ready: BTreeMap<u64, Piece>,
    /// This range is known to be data.
    data: Range<u64>,
    /// Threads at work on a piece.
    working: usize,
    builder: Option<TreeBuilder<TreeOut<'a>>>,
    error: Option<FileError>,
}

enum Piece {
    Data(Part),
    Hole(u64),
}

impl<'a> LargeFile<'a> {
    pub(super) fn new(
        file: File,
        metadata: Metadata,
        params: MerkleTreeParams,
        out: TreeOut<'a>,
        progress: &'a dyn Progress,
        stopped: &'a AtomicBool,
    ) -> Result<Self, FileError> {
        let geometry = TreeGeometry::new(&params, metadata.len())?;
        let state = Mutex::new(State {
            next: 0,
            taken: 0,
            placed: 0,
            ready: BTreeMap::new(),
            data: 0..0,
            working: 0,
            builder: Some(TreeBuilder::new(params, out)),
            error: None,
        });
        Ok(Self { file, metadata, params, geometry, progress, stopped, state, moved: Condvar::new() })
    }

    fn lock(&self) -> MutexGuard<'_, State<'a>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is anything left to take.
    pub(super) fn has_work(&self) -> bool {
        let state = self.lock();
        state.error.is_none() && state.next < self.geometry.data_size()
    }

    /// Works on pieces until none is left to take.
    pub(super) fn help(&self, buf: &mut Vec<u8>) {
        while let Some((turn, range)) = self.take() {
            let result = self.hash(range, buf);
            let mut state = self.lock();
            state.working -= 1;
            match result {
                Ok(part) => self.place(&mut state, turn, Piece::Data(part)),
                Err(error) => state.error = state.error.take().or(Some(error)),
            }
            drop(state);
            self.moved.notify_all();
        }
    }

    /// Waits for the other threads and ends the file. The thread that called [`new`](Self::new) calls it once.
    pub(super) fn finish(&self) -> Result<Tree, FileError> {
        let mut state = self.lock();
        while state.working > 0 {
            state = self.moved.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if let Some(error) = state.error.take() {
            // No thread may take another piece.
            state.next = self.geometry.data_size();
            return Err(error);
        }
        let builder = state.builder.take().ok_or(FileError::Changed)?;
        drop(state);
        let (tree, _) = builder.finish()?;
        check_unchanged(&self.file, &self.metadata)?;
        Ok(tree)
    }

    /// The next piece with data in it. Holes on the way are put in place at once.
    fn take(&self) -> Option<(u64, Range<u64>)> {
        let size = self.geometry.data_size();
        let mut state = self.lock();
        loop {
            if self.stopped.load(Ordering::Relaxed) {
                state.error.get_or_insert(FileError::Stopped);
            }
            if state.error.is_some() || state.next >= size {
                return None;
            }
            if state.taken - state.placed >= WINDOW {
                state = self.moved.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let start = state.next;
            if state.data.end <= start {
                state.data = self.find_data(start);
            }
            let turn = state.taken;
            let hole = state.data.start.min(size) - start.min(state.data.start);
            let hole = if state.data.start >= size { size - start } else { hole / PIECE * PIECE };
            state.taken += 1;
            if hole > 0 {
                state.next += hole;
                self.progress.advance(hole);
                self.place(&mut state, turn, Piece::Hole(hole));
                continue;
            }
            let end = size.min(start + PIECE);
            state.next = end;
            state.working += 1;
            return Some((turn, start..end));
        }
    }

    /// The next range with data at or after `from`; an empty one at the end of the file if there is none. If the file
    /// system does not report holes, everything is data.
    fn find_data(&self, from: u64) -> Range<u64> {
        let size = self.geometry.data_size();
        let start = match seek(&self.file, SeekFrom::Data(from)) {
            Ok(start) => start.max(from),
            Err(rustix::io::Errno::NXIO) => return size..u64::MAX,
            Err(_) => return from..size,
        };
        let end = seek(&self.file, SeekFrom::Hole(start)).unwrap_or(size);
        start..end.max(start + 1)
    }

    fn hash(&self, range: Range<u64>, buf: &mut Vec<u8>) -> Result<Part, FileError> {
        let log = self.params.log_blocksize();
        let blocks = range.start >> log..range.end.div_ceil(1 << log);
        let mut part = PartBuilder::of_blocks(self.params, &self.geometry, blocks).ok_or(FileError::Changed)?;
        let mut offset = range.start;
        let buf = aligned(buf);
        while offset < range.end {
            let now = (range.end - offset).min(CHUNK as u64) as usize;
            read_exact(&self.file, &mut buf[..now], offset, self.geometry.data_size())?;
            part.push(&buf[..now]).map_err(without_sink)?;
            offset += now as u64;
            self.progress.advance(now as u64);
        }
        Ok(part.finish().map_err(without_sink)?.0)
    }

    /// Puts a piece in place, and the later ones that waited for it.
    fn place(&self, state: &mut State<'a>, turn: u64, piece: Piece) {
        state.ready.insert(turn, piece);
        while let Some(piece) = state.ready.remove(&state.placed) {
            state.placed += 1;
            let Some(builder) = state.builder.as_mut() else { return };
            let result = match piece {
                Piece::Data(part) => builder.push_part(&part),
                Piece::Hole(bytes) => builder.push_zeros(bytes),
            };
            if let Err(error) = result {
                state.error = state.error.take().or(Some(error.into()));
                return;
            }
        }
    }
}

/// A part has no sink, so it cannot fail.
fn without_sink(error: postread_verity::BuildError<std::convert::Infallible>) -> FileError {
    use postread_verity::BuildError;
    match error {
        BuildError::Geometry(error) => error.into(),
        BuildError::Part(error) => error.into(),
        _ => FileError::Changed,
    }
}
