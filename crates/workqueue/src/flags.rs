//! A queue's flags, with the kernel's names.

bitflags::bitflags! {
    /// What a queue is. Exactly one of [`PERCPU`](WqFlags::PERCPU) and [`UNBOUND`](WqFlags::UNBOUND) is to be given.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct WqFlags: u32 {
        /// Unbound: items run on whichever CPU the scheduler finds, as soon as possible. Bit 1, as the kernel's
        /// `WQ_UNBOUND`.
        const UNBOUND = 1 << 1;
        /// The workers run at high priority: nice -20 where that is allowed, else a short slice. What took effect is
        /// in [`PoolStats::priority`](crate::PoolStats). Bit 4, as `WQ_HIGHPRI`.
        const HIGHPRI = 1 << 4;
        /// Bound: an item runs on the CPU that it was queued on (or to). Bit 8, as `WQ_PERCPU` of Linux 6.17.
        const PERCPU = 1 << 8;
    }
}
