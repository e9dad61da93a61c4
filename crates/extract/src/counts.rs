//! Counts of an extraction.

use std::ops::AddAssign;

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Files written.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Files that an earlier run had extracted.
    pub already_there: u64,
    /// Directories.
    pub directories: u64,
    /// Symbolic and hard links, pipes, sockets, devices.
    pub others: u64,
    /// Files verified against digests that the caller gave, including those of earlier runs.
    pub verified: u64,
    /// Files with fs-verity that match their own metadata, for which no digest was given.
    pub self_consistent: u64,
    /// Files without fs-verity, whose contents can't be checked.
    pub copied: u64,
    /// Files of earlier runs that had another digest than the one given.
    pub replaced: u64,
    /// Files with holes where blocks were bad.
    pub damaged: u64,
    /// Failures, except damaged files.
    pub failed: u64,
    /// What was left out by design.
    pub left_out: LeftOut,
}

/// What was left out by design, not because anything failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeftOut {
    /// Device nodes.
    pub devices: u64,
    /// Set-id bits of files and directories.
    pub set_id: u64,
    /// Extended attributes other than `user.*` and access control lists: file capabilities, security labels.
    pub xattrs: u64,
    /// The immutable or append-only flag of files and directories.
    pub flags: u64,
}

impl AddAssign for LeftOut {
    fn add_assign(&mut self, other: Self) {
        self.devices += other.devices;
        self.set_id += other.set_id;
        self.xattrs += other.xattrs;
        self.flags += other.flags;
    }
}
