//! A queue's flags, with the kernel's names.

bitflags::bitflags! {
    /// Flags of a queue. Exactly one of [`PERCPU`](WqFlags::PERCPU) and [`UNBOUND`](WqFlags::UNBOUND) must be set.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct WqFlags: u32 {
        /// Unbound: items run on whichever CPU the scheduler picks, as soon as possible. Bit 1, as the kernel's
        /// `WQ_UNBOUND`.
        const UNBOUND = 1 << 1;
        /// The workers run at high priority: nice -20 where that is allowed, else a short slice. What took effect is
        /// in [`PoolStats::priority`](crate::PoolStats). Bit 4, as `WQ_HIGHPRI`.
        const HIGHPRI = 1 << 4;
        /// The queue gets a rescuer: a thread that runs the queue's items when no other thread can be created for them.
        /// For queues that others depend on when the system is short of threads or memory. Bit 3, as `WQ_MEM_RECLAIM`.
        const MEM_RECLAIM = 1 << 3;
        /// Items of a bound queue do not hold up the items after them: each counts as [`blocking`](crate::blocking)
        /// while it runs. They start in the usual order. Has no effect on an unbound queue. Bit 5, as
        /// `WQ_CPU_INTENSIVE`.
        const CPU_INTENSIVE = 1 << 5;
        /// Bound: an item runs on the CPU that it was queued on. Bit 8, as `WQ_PERCPU` of Linux 6.17.
        const PERCPU = 1 << 8;
    }
}
