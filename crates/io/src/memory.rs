//! Sources that complete on the caller: bytes in memory, and any [`ReadAt`].

use std::fmt;
use std::io;
use std::sync::Arc;

use crate::bio::Bio;
use crate::completion::Completion;
use crate::fill::fill_from;
use crate::read_at::ReadAt;
use crate::source::{BioId, Source};

/// Bytes in memory.
#[derive(Clone)]
pub struct MemorySource(Arc<[u8]>);

impl MemorySource {
    /// A source of these bytes.
    pub fn new(bytes: impl Into<Arc<[u8]>>) -> Self {
        Self(bytes.into())
    }
}

impl fmt::Debug for MemorySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemorySource({} bytes)", <[u8]>::len(&self.0))
    }
}

impl Source for MemorySource {
    fn len(&self) -> io::Result<u64> {
        Ok(<[u8]>::len(&self.0) as u64)
    }

    fn align(&self) -> u32 {
        1
    }

    fn submit(&self, mut bio: Bio, done: Completion) -> BioId {
        fill_from(&mut bio, &*self.0);
        done.complete_here(bio);
        BioId(0)
    }

    fn cancel(&self, _id: BioId) -> bool {
        false
    }
}

/// Any [`ReadAt`] as a source: read on the submitting thread before `submit` returns.
#[derive(Clone, Debug)]
pub struct ReadAtSource<R>(R);

impl<R: ReadAt> ReadAtSource<R> {
    /// A source that reads from `read_at`.
    pub fn new(read_at: R) -> Self {
        Self(read_at)
    }
}

impl<R: ReadAt> Source for ReadAtSource<R> {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn align(&self) -> u32 {
        1
    }

    fn submit(&self, mut bio: Bio, done: Completion) -> BioId {
        fill_from(&mut bio, &self.0);
        done.complete_here(bio);
        BioId(0)
    }

    fn cancel(&self, _id: BioId) -> bool {
        false
    }
}
