//! The result of a journal's replay.

/// Counts of a journal's replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Replay {
    /// Transactions replayed.
    pub transactions: u32,
    /// Blocks of the file system that now come from the journal.
    pub blocks: u64,
    /// Copies left out because a later transaction revoked them.
    pub revoked: u64,
    /// Fast commits replayed on top of the transactions.
    pub fast_commits: u32,
}
