//! The best way to read files asynchronously on this host.

use std::fs::File;
use std::io;
use std::sync::Arc;

use crate::pread::{PreadConfig, PreadOptions, PreadPool};
use crate::source::Source;
use crate::uring::{UringConfig, UringPool};

/// Rings where the host allows them, else reading threads.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum FilePool {
    /// `io_uring`.
    Uring(UringPool),
    /// Threads that `pread`.
    Pread {
        /// The threads.
        pool: PreadPool,
        /// Why `io_uring` is not used; `None` if it was not requested.
        refused: Option<Arc<io::Error>>,
    },
}

impl FilePool {
    /// Rings if available, else threads; [`FilePool::Pread`] has the reason.
    ///
    /// # Errors
    /// If threads can't be started either.
    pub fn uring_or_pread() -> io::Result<Self> {
        match UringPool::new(UringConfig::new()) {
            Ok(pool) => Ok(Self::Uring(pool)),
            Err(error) => Ok(Self::Pread { pool: PreadPool::new(PreadConfig::new())?, refused: Some(Arc::new(error)) }),
        }
    }

    /// Threads.
    ///
    /// # Errors
    /// If they can't be started.
    pub fn pread() -> io::Result<Self> {
        Ok(Self::Pread { pool: PreadPool::new(PreadConfig::new())?, refused: None })
    }

    /// A source that reads `file`.
    pub fn file(&self, file: File, options: PreadOptions) -> Arc<dyn Source> {
        match self {
            Self::Uring(pool) => Arc::new(pool.file(file, options)),
            Self::Pread { pool, .. } => Arc::new(pool.file(file, options)),
        }
    }
}
