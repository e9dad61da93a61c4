//! A source that answers at once, with faults that the test sets.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::bio::Bio;
use crate::completion::Completion;
use crate::fill::fill_from;
use crate::read_at::ReadAt;
use crate::source::{BioId, Source};

/// When a byte of a [`Faulty`] source reads with its bits flipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flip {
    /// Always.
    Always,
    /// From the second read of the byte on: the first is correct.
    FromSecondRead,
    /// Only on the first read.
    FirstRead,
}

#[derive(Default)]
struct Faults {
    flips: Vec<(u64, u8, Flip)>,
    reads_of: HashMap<u64, u64>,
    errors: Vec<(Range<u64>, i32)>,
    truncated: Option<u64>,
}

struct Inner {
    bytes: Vec<u8>,
    faults: Mutex<Faults>,
    reads: AtomicU64,
}

/// Bytes in memory with faults that can be set while it is read.
#[derive(Clone)]
pub struct Faulty(Arc<Inner>);

impl Faulty {
    /// A source without faults yet.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        let faults = Mutex::default();
        Self(Arc::new(Inner { bytes: bytes.into(), faults, reads: AtomicU64::new(0) }))
    }

    fn set(&self, f: impl FnOnce(&mut Faults)) {
        f(&mut self.0.faults.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// XORs the byte at `at` with `mask` on the reads that `flip` selects.
    pub fn flip(&self, at: u64, mask: u8, flip: Flip) {
        self.set(|f| f.flips.push((at, mask, flip)));
    }

    /// Fails reads that touch `range` with a system error number.
    pub fn fail(&self, range: Range<u64>, errno: i32) {
        self.set(|f| f.errors.push((range, errno)));
    }

    /// Ends the source at `len`.
    pub fn truncate(&self, len: u64) {
        self.set(|f| f.truncated = Some(len));
    }

    /// Removes all faults.
    pub fn heal(&self) {
        self.set(|f| *f = Faults::default());
    }

    /// How many reads there were.
    pub fn reads(&self) -> u64 {
        self.0.reads.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Faulty({} bytes)", self.0.bytes.len())
    }
}

impl ReadAt for Faulty {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.bytes.len() as u64)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.reads.fetch_add(1, Ordering::Relaxed);
        let mut faults = self.0.faults.lock().unwrap_or_else(PoisonError::into_inner);
        let len = faults.truncated.map_or(self.0.bytes.len(), |len| self.0.bytes.len().min(len as usize));
        let n = self.0.bytes[..len].read_at(buf, offset)?;
        let end = offset.saturating_add(n as u64);
        if let Some((_, errno)) = faults.errors.iter().find(|(bad, _)| bad.start < end && bad.end > offset) {
            return Err(io::Error::from_raw_os_error(*errno));
        }
        let Faults { flips, reads_of, .. } = &mut *faults;
        for (at, mask, flip) in flips.iter().filter(|(at, ..)| (offset..end).contains(at)) {
            let reads = reads_of.entry(*at).or_default();
            *reads += 1;
            let now = match flip {
                Flip::Always => true,
                Flip::FromSecondRead => *reads > 1,
                Flip::FirstRead => *reads == 1,
            };
            if now {
                buf[(at - offset) as usize] ^= mask;
            }
        }
        Ok(n)
    }
}

impl Source for Faulty {
    fn len(&self) -> io::Result<u64> {
        ReadAt::len(self)
    }

    fn align(&self) -> u32 {
        1
    }

    fn submit(&self, mut bio: Bio, done: Completion) -> BioId {
        fill_from(&mut bio, self);
        done.complete_here(bio);
        BioId(0)
    }

    fn cancel(&self, _id: BioId) -> bool {
        false
    }
}
