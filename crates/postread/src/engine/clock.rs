//! The two clocks that stamps are taken with.

use std::sync::OnceLock;
use std::time::Instant;

/// Nanoseconds since the first call, by the monotonic clock; never 0, which stands for "no stamp".
pub(crate) fn now_ns() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    let start = START.get_or_init(Instant::now);
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX).saturating_add(1)
}

/// CPU time that this thread has used, in nanoseconds.
pub(crate) fn thread_cpu_ns() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    u64::try_from(t.tv_sec).unwrap_or(0).saturating_mul(1_000_000_000) + u64::try_from(t.tv_nsec).unwrap_or(0)
}
