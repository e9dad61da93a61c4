//! Kernel-style workqueues in user space: bound and unbound, high-priority, max_active, flush, drain, cancel, latency statistics.
