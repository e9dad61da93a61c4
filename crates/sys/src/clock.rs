//! Clocks as numbers.

use crate::raw::clock;

/// `CLOCK_MONOTONIC` in nanoseconds, for millions of stamps.
///
/// Through C's library, whose pointer to the vDSO is on a page that is never written. A pointer in a static of this
/// program may share a cache line with a counter that all CPUs write, and every stamp would then wait for that line.
pub fn monotonic_ns() -> u64 {
    clock::monotonic_ns()
}

/// The CPU time of the calling thread, in nanoseconds: `CLOCK_THREAD_CPUTIME_ID`. A system call, of about 0.2 us. Through
/// C's library, which also works where the vDSO lacks functions (in User-Mode Linux).
pub fn thread_cpu_ns() -> u64 {
    clock::thread_cpu_ns()
}
