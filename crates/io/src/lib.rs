//! Buffers with owners, bios, sources that complete them, per-block status, and the budget of bytes in flight.
//!
//! A [`Source`] takes a [`Bio`] (an offset and an aligned, pooled [`Buf`]) and completes it exactly once through its
//! [`Completion`], on a CPU that it names, possibly before [`Source::submit`] returns. Failures are kept by range in
//! the bio's [`Statuses`], so that one bad block does not hide the good ones around it.

mod aligned;
mod bio;
mod budget;
mod buf;
mod completion;
mod completion_cpu;
mod direct;
mod file_pool;
mod fill;
mod groups;
mod lanes;
mod memory;
mod pread;
mod read_at;
mod source;
mod status;
#[cfg(feature = "testing")]
pub mod testing;
mod threads;
mod uring;

pub use bio::{Bio, Priority};
pub use budget::{Budget, Permit};
pub use buf::{BUF_ALIGN, Buf, BufPoolStats, buf_pool_stats, trim_buf_pool};
pub use completion::{BioEnd, Completion};
pub use completion_cpu::CompletionCpu;
pub use direct::open_direct;
pub use file_pool::FilePool;
pub use fill::fill_from;
pub use memory::{MemorySource, ReadAtSource};
pub use pread::{PreadConfig, PreadOptions, PreadPool, PreadSource};
pub use read_at::ReadAt;
pub use source::{BioId, Source};
pub use status::{BadRange, BlockStatus, Corruption, CorruptionKind, FailureKind, HashValue, Statuses};
pub use uring::{UringConfig, UringPool, UringSource};

/// The CPU that this thread runs on now, by the kernel's number.
pub fn current_cpu() -> u32 {
    postread_sys::affinity::current_cpu()
}
