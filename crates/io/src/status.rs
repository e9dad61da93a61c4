//! The status of each block of a bio.

use std::fmt;
use std::io;
use std::ops::Range;

/// A hash as found in a tree, a descriptor, or as computed: at most 64 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct HashValue {
    bytes: [u8; 64],
    len: u8,
}

impl HashValue {
    /// Takes at most the first 64 bytes of `bytes`.
    pub fn new(bytes: &[u8]) -> Self {
        let n = bytes.len().min(64);
        let mut value = Self { bytes: [0; 64], len: n as u8 };
        value.bytes[..n].copy_from_slice(&bytes[..n]);
        value
    }

    /// The hash's bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl fmt::Display for HashValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_bytes().iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl fmt::Debug for HashValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The kind of a block that does not have the expected hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CorruptionKind {
    /// A block of the file's own bytes.
    Data,
    /// A hash block of the Merkle tree.
    Tree,
}

/// A block that was read and does not have the expected hash.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Corruption {
    /// A data block or a hash block.
    pub kind: CorruptionKind,
    /// Where the block begins: bytes into the file (data) or into the tree as it is stored (hash block).
    pub position: u64,
    /// The block's length in bytes.
    pub block_size: u32,
    /// The level of the hash block, leaf level 0; for a data block none.
    pub level: Option<u32>,
    /// The hash in its parent.
    pub wanted: HashValue,
    /// The hash of its bytes.
    pub found: HashValue,
}

impl Corruption {
    /// A corrupt data block at `position` bytes into the file.
    pub fn data(position: u64, block_size: u32, wanted: &[u8], found: &[u8]) -> Self {
        let (wanted, found) = (HashValue::new(wanted), HashValue::new(found));
        Self { kind: CorruptionKind::Data, position, block_size, level: None, wanted, found }
    }

    /// A corrupt hash block at `position` bytes into the tree.
    pub fn tree(position: u64, block_size: u32, level: u32, wanted: &[u8], found: &[u8]) -> Self {
        let (wanted, found) = (HashValue::new(wanted), HashValue::new(found));
        Self { kind: CorruptionKind::Tree, position, block_size, level: Some(level), wanted, found }
    }
}

impl Corruption {
    /// The corruption inside a source's error, if that is what it is: devices that verify their reads report it this
    /// way.
    pub fn of(error: &io::Error) -> Option<&Corruption> {
        error.get_ref()?.downcast_ref()
    }
}

impl std::error::Error for Corruption {}

impl From<Corruption> for io::Error {
    fn from(corruption: Corruption) -> Self {
        io::Error::new(io::ErrorKind::InvalidData, corruption)
    }
}

impl fmt::Display for Corruption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.level {
            None => write!(f, "data block at {}", self.position)?,
            Some(level) => write!(f, "tree block at {} (level {level})", self.position)?,
        }
        write!(f, " is corrupt: expected {}, found {}", self.wanted, self.found)
    }
}

/// The kind of a failure, without its details.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FailureKind {
    /// The bytes could not be read: an I/O error, or a source that ended early or did not answer.
    Io,
    /// The bytes are not those that were protected.
    Corrupt,
    /// The key is missing.
    MissingKey,
    /// The read was cancelled.
    Cancelled,
}

/// The status of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BlockStatus {
    /// Read, and good according to the steps that ran.
    Good,
    /// The source reported an error.
    Io {
        /// Its kind.
        kind: io::ErrorKind,
        /// The system's error number, where there is one.
        errno: Option<i32>,
    },
    /// The source ends before the block does: the file was truncated.
    Short,
    /// The device that the block is on ends before the block does: its image was truncated.
    Truncated {
        /// The device's size according to its own metadata, in bytes.
        expected: u64,
        /// Its real size, in bytes.
        found: u64,
    },
    /// The mapping of the block to its place on the device is damaged, so its location is unknown.
    Unmapped {
        /// What is wrong with the map.
        message: Box<str>,
        /// Whether a checksum detected it.
        checksum: bool,
    },
    /// The source dropped the bio without an answer, or panicked.
    Lost,
    /// The reader went away first.
    Cancelled,
    /// The block, or a hash block above it, does not have the expected hash.
    Corrupt(Box<Corruption>),
    /// The block is encrypted with a key that was not given.
    MissingKey {
        /// The key identifier or descriptor wanted, in hex.
        wanted: Box<str>,
    },
    /// A step could not do its work for another reason.
    Step {
        /// The step's message.
        message: Box<str>,
    },
    /// The block may be good, but something that its check needs (a hash block) could not be read.
    Input {
        /// Where the input begins, in bytes into its own file or tree.
        position: u64,
        /// The status of the input.
        cause: Box<BlockStatus>,
    },
}

impl BlockStatus {
    /// The status for an I/O error, or for the corruption that it is ([`Corruption::of`]).
    pub fn from_io(error: &io::Error) -> Self {
        if let Some(corruption) = Corruption::of(error) {
            return Self::Corrupt(Box::new(corruption.clone()));
        }
        Self::Io { kind: error.kind(), errno: error.raw_os_error() }
    }

    /// True for [`BlockStatus::Good`].
    pub fn is_good(&self) -> bool {
        matches!(self, Self::Good)
    }

    /// What kind of failure it is; none where the block is good.
    pub fn failure(&self) -> Option<FailureKind> {
        Some(match self {
            Self::Good => return None,
            Self::Io { .. } | Self::Short | Self::Truncated { .. } => FailureKind::Io,
            Self::Unmapped { .. } | Self::Lost | Self::Step { .. } => FailureKind::Io,
            Self::Cancelled => FailureKind::Cancelled,
            Self::Corrupt(_) => FailureKind::Corrupt,
            Self::MissingKey { .. } => FailureKind::MissingKey,
            Self::Input { cause, .. } => return cause.failure(),
        })
    }
}

impl fmt::Display for BlockStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Good => f.write_str("good"),
            // ENODATA: a sparse image without these bytes.
            Self::Io { errno: Some(61), .. } => {
                f.write_str("the image does not contain these bytes (if it is a split image, give all pieces)")
            }
            Self::Io { errno: Some(errno), .. } => write!(f, "{}", io::Error::from_raw_os_error(*errno)),
            Self::Io { kind, .. } => write!(f, "{kind}"),
            Self::Short => f.write_str("the source ends before this block does"),
            Self::Truncated { expected, found } => {
                write!(f, "the image is truncated: expected {expected} bytes, found {found}")
            }
            Self::Unmapped { message, .. } => f.write_str(message),
            Self::Lost => f.write_str("the source did not answer"),
            Self::Cancelled => f.write_str("cancelled"),
            Self::Corrupt(corruption) => corruption.fmt(f),
            Self::MissingKey { wanted } => write!(f, "the key {wanted} is missing"),
            Self::Step { message } => f.write_str(message),
            Self::Input { position, cause } => write!(f, "the hash block at {position} could not be read: {cause}"),
        }
    }
}

/// A range of a bio, in bytes from its start, and its status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadRange {
    /// Bytes from the bio's start.
    pub range: Range<usize>,
    /// Never [`BlockStatus::Good`].
    pub status: BlockStatus,
}

/// The statuses of a bio's blocks: anything not listed is good. Nothing is allocated while all is good.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statuses {
    /// Sorted and disjoint.
    bad: Vec<BadRange>,
}

impl Statuses {
    /// All good.
    pub const fn new() -> Self {
        Self { bad: Vec::new() }
    }

    /// True if no range failed.
    pub fn is_good(&self) -> bool {
        self.bad.is_empty()
    }

    /// The bad ranges in ascending order.
    pub fn bad(&self) -> &[BadRange] {
        &self.bad
    }

    /// The first bad range that has a byte in `range`.
    pub fn first_bad(&self, range: Range<usize>) -> Option<&BadRange> {
        let at = self.bad.partition_point(|b| b.range.end <= range.start);
        self.bad.get(at).filter(|b| b.range.start < range.end)
    }

    /// The status of the byte at `at`.
    pub fn at(&self, at: usize) -> &BlockStatus {
        self.first_bad(at..at + 1).map_or(&BlockStatus::Good, |b| &b.status)
    }

    /// Marks `range` as failed. Bytes that had failed before keep their first status: the cause, not its effects.
    pub fn fail(&mut self, range: Range<usize>, status: &BlockStatus) {
        if status.is_good() || range.is_empty() {
            return;
        }
        let mut at = self.bad.partition_point(|b| b.range.end <= range.start);
        let mut from = range.start;
        while from < range.end {
            let (until, next) = match self.bad.get(at) {
                Some(b) if b.range.start < range.end => (b.range.start, b.range.end),
                _ => (range.end, range.end),
            };
            if from < until {
                self.bad.insert(at, BadRange { range: from..until, status: status.clone() });
                at += 1;
            }
            at += 1;
            from = next.max(until);
        }
    }

    /// The statuses of `range` alone, counted from its start.
    pub fn window(&self, range: Range<usize>) -> Self {
        let bad = self
            .bad
            .iter()
            .filter(|b| b.range.start < range.end && b.range.end > range.start)
            .map(|b| BadRange {
                range: b.range.start.max(range.start) - range.start..b.range.end.min(range.end) - range.start,
                status: b.status.clone(),
            })
            .collect();
        Self { bad }
    }

    /// Forgets all failures, and keeps the memory.
    pub fn clear(&mut self) {
        self.bad.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(s: &Statuses) -> Vec<(Range<usize>, BlockStatus)> {
        s.bad().iter().map(|b| (b.range.clone(), b.status.clone())).collect()
    }

    #[test]
    fn the_first_cause_wins() {
        let mut s = Statuses::new();
        s.fail(10..20, &BlockStatus::Short);
        s.fail(30..40, &BlockStatus::Short);
        s.fail(0..50, &BlockStatus::Lost);
        assert_eq!(
            ranges(&s),
            [
                (0..10, BlockStatus::Lost),
                (10..20, BlockStatus::Short),
                (20..30, BlockStatus::Lost),
                (30..40, BlockStatus::Short),
                (40..50, BlockStatus::Lost)
            ]
        );
        assert_eq!(s.at(15), &BlockStatus::Short);
        assert_eq!(s.at(50), &BlockStatus::Good);
        assert_eq!(s.first_bad(50..60), None);
        assert_eq!(ranges(&s.window(15..35)).len(), 3);
        assert_eq!(s.window(15..35).bad()[0].range, 0..5);
    }

    #[test]
    fn every_pair_of_overlaps_agrees_with_a_byte_map() {
        for (a, b, c, d) in (0..5usize).flat_map(|a| {
            (a..6usize).flat_map(move |b| (0..5usize).flat_map(move |c| (c..6usize).map(move |d| (a, b, c, d))))
        }) {
            let mut s = Statuses::new();
            s.fail(a..b, &BlockStatus::Short);
            s.fail(c..d, &BlockStatus::Lost);
            for at in 0..7 {
                let wanted = if (a..b).contains(&at) {
                    BlockStatus::Short
                } else if (c..d).contains(&at) {
                    BlockStatus::Lost
                } else {
                    BlockStatus::Good
                };
                assert_eq!(s.at(at), &wanted, "{a}..{b} then {c}..{d} at {at}");
            }
        }
    }
}
