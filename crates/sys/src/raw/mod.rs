//! System calls without a safe wrapper elsewhere. Everything here is safe to call and contains no policy.

pub(crate) mod clock;
pub(crate) mod fsverity;
pub(crate) mod heap;
pub(crate) mod memory;
pub(crate) mod sched;
pub(crate) mod signal;
#[cfg(target_arch = "x86_64")]
pub(crate) mod tsc;
