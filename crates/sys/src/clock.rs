//! The monotonic clock as a number.

use crate::raw::clock;

/// `CLOCK_MONOTONIC` in nanoseconds, for stamps by the million.
///
/// Through C's library, whose pointer to the vDSO is on a page that is never written. A pointer in a static of this
/// program may share a cache line with a counter that all CPUs write, and every stamp would then wait for that line.
pub fn monotonic_ns() -> u64 {
    clock::monotonic_ns()
}
