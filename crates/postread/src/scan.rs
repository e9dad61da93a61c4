//! Reads a range to its end, past anything bad in it.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use postread_io::{BlockStatus, Corruption, CorruptionKind};

use crate::engine::flight::Ended;
use crate::file::{FileInner, Handle, OpenFile};

/// Most bios that a scan keeps in flight.
const MAX_FLIGHTS: usize = 8;

/// A part of a file that can't be read, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BadPart {
    /// Bytes of the file.
    pub range: Range<u64>,
    /// What is wrong with them. A corrupt hash block makes all the data below it bad.
    pub status: BlockStatus,
}

/// What a scan has read so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScanTotals {
    /// Bytes of the file that were good.
    pub good: u64,
    /// Bytes of the file that were not.
    pub bad: u64,
}

/// Scans a range and yields every bad part of it in ascending order, one per block of corrupt data; neighbours that
/// fail for the same reason are merged. Hash blocks found corrupt are collected in [`Scan::bad_tree`].
pub struct Scan {
    file: Arc<FileInner>,
    next: u64,
    end: u64,
    from: u64,
    flights: VecDeque<Handle>,
    found: VecDeque<BadPart>,
    tree: BTreeMap<u64, Corruption>,
    totals: ScanTotals,
}

impl OpenFile {
    /// Reads all of `range` and reports every bad part of it.
    pub fn scan(&self, range: Range<u64>) -> Scan {
        Scan::new(self.0.clone(), range)
    }
}

impl Scan {
    fn new(file: Arc<FileInner>, range: Range<u64>) -> Self {
        let end = range.end.min(file.len());
        Self {
            file,
            next: range.start,
            end,
            from: range.start,
            flights: VecDeque::new(),
            found: VecDeque::new(),
            tree: BTreeMap::new(),
            totals: ScanTotals::default(),
        }
    }

    /// The hash blocks found corrupt so far, in the order of the tree. A corrupt block hides those below it.
    pub fn bad_tree(&self) -> impl Iterator<Item = &Corruption> {
        self.tree.values()
    }

    /// What was read so far.
    pub fn totals(&self) -> ScanTotals {
        self.totals
    }

    fn pump(&mut self) {
        while self.next < self.end && self.flights.len() < MAX_FLIGHTS {
            let ahead = self.file.engine.core.config.tree_read_ahead;
            let handle = if self.flights.is_empty() {
                self.file.start(self.next, self.end, ahead)
            } else {
                let Some(handle) = self.file.try_start(self.next, self.end, ahead) else { return };
                handle
            };
            self.next = handle.range.end;
            // There is nothing to overlap with if bios end at once.
            let done = handle.is_done();
            self.flights.push_back(handle);
            if done {
                return;
            }
        }
    }

    fn take(&mut self, ended: &Ended) {
        let start = ended.offset;
        let until = (start + ended.buf.len() as u64).min(self.end);
        let begin = start.max(self.from);
        self.totals.good += until.saturating_sub(begin);
        for bad in ended.statuses.bad() {
            let range = (start + bad.range.start as u64).max(begin)..(start + bad.range.end as u64).min(until);
            if range.is_empty() {
                continue;
            }
            let bytes = range.end - range.start;
            self.totals.good -= bytes;
            self.totals.bad += bytes;
            if let BlockStatus::Corrupt(c) = &bad.status
                && c.kind == CorruptionKind::Tree
            {
                self.tree.entry(c.position).or_insert_with(|| (**c).clone());
            }
            match self.found.back_mut() {
                Some(last) if last.range.end == range.start && last.status == bad.status => last.range.end = range.end,
                _ => self.found.push_back(BadPart { range, status: bad.status.clone() }),
            }
        }
    }
}

impl Iterator for Scan {
    type Item = BadPart;

    fn next(&mut self) -> Option<BadPart> {
        loop {
            // The last one found may still grow with the next bio.
            if self.found.len() > 1 {
                return self.found.pop_front();
            }
            self.pump();
            let Some(handle) = self.flights.pop_front() else { return self.found.pop_front() };
            let ended = handle.wait();
            self.take(&ended);
        }
    }
}

impl fmt::Debug for Scan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scan").field("next", &self.next).field("end", &self.end).finish_non_exhaustive()
    }
}
