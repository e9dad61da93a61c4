//! Sources of bytes at rest.

use std::io;
use std::sync::Arc;

use crate::bio::Bio;
use crate::completion::Completion;

/// Identifies a submitted bio to its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BioId(pub u64);

/// A source of bytes at rest. It completes every bio exactly once, possibly before `submit` returns.
pub trait Source: Send + Sync {
    /// Length in bytes.
    fn len(&self) -> io::Result<u64>;

    /// True if there are no bytes at all.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// What offsets and lengths of bios must be multiples of, in bytes: 1 for most, a sector or page for `O_DIRECT`.
    fn align(&self) -> u32;

    /// Reads `bio`. Ranges past the end fail as [`BlockStatus::Short`], unreadable ones as [`BlockStatus::Io`], each in
    /// the bio's own units.
    ///
    /// [`BlockStatus::Short`]: crate::BlockStatus::Short
    /// [`BlockStatus::Io`]: crate::BlockStatus::Io
    fn submit(&self, bio: Bio, done: Completion) -> BioId;

    /// Cancels a bio that has not been started: it completes as cancelled before this returns true. False if it is
    /// running or has ended.
    fn cancel(&self, id: BioId) -> bool;

    /// Makes a queued read-ahead bio a demand one. False if it is not queued.
    fn raise(&self, id: BioId) -> bool {
        let _ = id;
        false
    }

    /// The kernel's ids of the threads that complete bios, for their `run_delay`; empty if bios complete on the
    /// caller's threads.
    fn completing_threads(&self) -> Vec<u32> {
        Vec::new()
    }
}

impl<S: Source + ?Sized> Source for Arc<S> {
    fn len(&self) -> io::Result<u64> {
        (**self).len()
    }

    fn align(&self) -> u32 {
        (**self).align()
    }

    fn submit(&self, bio: Bio, done: Completion) -> BioId {
        (**self).submit(bio, done)
    }

    fn cancel(&self, id: BioId) -> bool {
        (**self).cancel(id)
    }

    fn raise(&self, id: BioId) -> bool {
        (**self).raise(id)
    }

    fn completing_threads(&self) -> Vec<u32> {
        (**self).completing_threads()
    }
}
