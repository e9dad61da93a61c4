//! The CPU clock of the calling thread. Stamps are taken with [`postread_sys::stamp_ns`].

/// CPU time that this thread has used, in nanoseconds.
pub(crate) fn thread_cpu_ns() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    u64::try_from(t.tv_sec).unwrap_or(0).saturating_mul(1_000_000_000) + u64::try_from(t.tv_nsec).unwrap_or(0)
}
