//! A reader's stream: its leftover bytes, and the bios read ahead.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::engine::flight::Flight;
use crate::file::{Chunk, FileInner, Handle};

#[derive(Default)]
pub(crate) struct Stream {
    /// Where the next read begins if the reader is sequential.
    next: u64,
    /// How far to read ahead now.
    grow: u64,
    /// Bios read ahead, in order.
    window: VecDeque<Handle>,
    /// The rest of the last bio.
    rest: Option<Chunk>,
}

impl Stream {
    /// Keeps the rest of a read's bio.
    pub(crate) fn keep(&mut self, rest: Chunk) {
        self.rest = Some(rest);
    }

    /// The first bio read ahead whose steps have not begun.
    pub(crate) fn to_run(&self) -> Option<Arc<Flight>> {
        self.window.iter().find_map(Handle::to_run)
    }

    /// The reader has read up to `offset`.
    pub(crate) fn read_to(&mut self, offset: u64) {
        self.next = offset;
    }
}

pub(crate) fn lock(stream: &Mutex<Stream>) -> MutexGuard<'_, Stream> {
    stream.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a read begins with.
pub(crate) enum Begun {
    /// Bytes that an earlier read left.
    Rest(Chunk),
    /// A bio; `ahead` if it was read ahead.
    Bio { handle: Handle, ahead: bool },
}

/// The bytes or the bio for a read at `offset` of `want` bytes, and the bios to read ahead of it.
pub(crate) fn begin(file: &Arc<FileInner>, stream: &Mutex<Stream>, offset: u64, want: u64) -> Begun {
    let config = &file.engine.core.config;
    let mut guard = lock(stream);
    let stream = &mut *guard;
    if let Some(mut rest) = stream.rest.take()
        && rest.offset() <= offset
        && offset < rest.offset() + rest.len() as u64
    {
        let skip = (offset - rest.offset()) as usize;
        rest.advance(skip);
        return Begun::Rest(rest);
    }
    let sequential = offset == stream.next && config.read_ahead > 0;
    while stream.window.front().is_some_and(|h| h.range.end <= offset) {
        stream.window.pop_front();
    }
    let read_ahead = match stream.window.front() {
        Some(front) if front.range.start <= offset => stream.window.pop_front(),
        _ => None,
    };
    let ahead = read_ahead.is_some();
    let handle = match read_ahead {
        Some(handle) => {
            handle.raise();
            handle
        }
        None => {
            // A jump: the read-ahead is useless now.
            stream.window.clear();
            let max_bio = config.max_bio as u64;
            stream.grow = if sequential { stream.grow.max(max_bio) } else { 0 };
            let reach = offset.saturating_add(if sequential { want.max(max_bio) } else { want });
            let tree_ahead = if sequential { config.tree_read_ahead } else { 0 };
            file.start(offset, reach, tree_ahead)
        }
    };
    // A source that answers at once, with steps that ran at once, leaves nothing to overlap.
    if ahead || !handle.is_done() {
        let beyond = offset.saturating_add(want).saturating_sub(handle.range.end);
        let far = if sequential || ahead { stream.grow } else { 0 };
        top_up(file, stream, handle.range.end, far.max(beyond));
        stream.grow = (stream.grow * 2).min(config.read_ahead as u64);
    }
    Begun::Bio { handle, ahead }
}

fn top_up(file: &Arc<FileInner>, stream: &mut Stream, from: u64, far: u64) {
    let mut next = stream.window.back().map_or(from, |h| h.range.end);
    let until = from.saturating_add(far).min(file.len());
    while next < until {
        let Some(handle) = file.start_ahead(next, file.engine.core.config.tree_read_ahead) else { return };
        next = handle.range.end;
        stream.window.push_back(handle);
    }
}
