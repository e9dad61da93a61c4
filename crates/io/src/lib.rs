//! Buffers with owners, bios, sources that complete them, per-block status, and the budget of bytes in flight.

mod read_at;

pub use read_at::ReadAt;
