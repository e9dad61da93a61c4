//! A bio: one contiguous piece of a read in flight.

use crate::buf::Buf;
use crate::status::{BlockStatus, Statuses};

/// Why a bio was submitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Priority {
    /// Read-ahead: yields first.
    ReadAhead,
    /// A reader waits for it.
    #[default]
    Demand,
}

/// One contiguous piece of a read in flight: its offset, its buffer, and the status of each range.
///
/// It owns its buffer until it completes, even if its reader is gone.
#[derive(Debug)]
pub struct Bio {
    offset: u64,
    buf: Buf,
    statuses: Statuses,
    unit: u32,
    priority: Priority,
    begun_ns: u64,
}

impl Bio {
    /// A read of `buf.len()` bytes at `offset` of a source.
    pub fn new(offset: u64, buf: Buf) -> Self {
        Self { offset, buf, statuses: Statuses::new(), unit: 4096, priority: Priority::Demand, begun_ns: 0 }
    }

    /// The unit, in bytes, in which a source separates good bytes from bad ones when the whole cannot be read (default
    /// 4096).
    #[must_use]
    pub fn with_unit(mut self, unit: u32) -> Self {
        self.unit = unit.max(1);
        self
    }

    /// Sets why it is read.
    #[must_use]
    pub fn with_priority(mut self, priority: Priority) -> Self {
        self.priority = priority;
        self
    }

    /// Byte offset in the source.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.buf.len()
    }

    /// True for a read of nothing.
    pub fn is_empty(&self) -> bool {
        self.buf.is_empty()
    }

    /// The unit of isolation, see [`Bio::with_unit`].
    pub fn unit(&self) -> u32 {
        self.unit
    }

    /// Why it is read.
    pub fn priority(&self) -> Priority {
        self.priority
    }

    /// The buffer.
    pub fn buf(&self) -> &Buf {
        &self.buf
    }

    /// The buffer, to fill.
    pub fn buf_mut(&mut self) -> &mut Buf {
        &mut self.buf
    }

    /// The status of its ranges.
    pub fn statuses(&self) -> &Statuses {
        &self.statuses
    }

    /// The statuses, to mark ranges that failed.
    pub fn statuses_mut(&mut self) -> &mut Statuses {
        &mut self.statuses
    }

    /// Marks all of it as failed.
    pub fn fail_all(&mut self, status: &BlockStatus) {
        let len = self.buf.len();
        self.statuses.fail(0..len, status);
    }

    /// Stamps the time at which its source begins to read it: the time before that is the source's own queue. Only the
    /// first call counts.
    pub fn mark_begun(&mut self) {
        if self.begun_ns == 0 {
            self.begun_ns = postread_sys::stamp_ns();
        }
    }

    /// As [`Bio::mark_begun`], with an earlier stamp.
    pub(crate) fn mark_begun_at(&mut self, ns: u64) {
        self.begun_ns = ns;
    }

    /// When its source began to read it, in nanoseconds of [`postread_sys::stamp_ns`]; 0 where the source left no stamp.
    pub fn begun_ns(&self) -> u64 {
        self.begun_ns
    }

    /// The buffer and the statuses.
    pub fn into_parts(self) -> (Buf, Statuses) {
        (self.buf, self.statuses)
    }
}
