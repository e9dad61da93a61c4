//! Errors of reads.

use postread_io::{BlockStatus, FailureKind};

/// A read that found no good byte at its offset.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at byte {offset}: {status}")]
#[non_exhaustive]
pub struct ReadError {
    /// Byte offset in the file of the first byte that could not be given.
    pub offset: u64,
    /// What is wrong with its block.
    pub status: BlockStatus,
}

impl ReadError {
    /// What kind of failure it is.
    pub fn kind(&self) -> FailureKind {
        self.status.failure().unwrap_or(FailureKind::Io)
    }
}

/// Why an engine could not be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The workqueue was refused.
    #[error("the workqueue could not be made")]
    Workqueue(#[source] Box<dyn std::error::Error + Send + Sync>),
}
