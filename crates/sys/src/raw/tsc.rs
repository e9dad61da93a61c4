//! The processor's time-stamp counter, and whether it counts time.
#![allow(unsafe_code)]

/// Does the counter run at a constant rate in every power state (CPUID 8000_0007h EDX bit 8, "invariant TSC")?
pub(crate) fn is_invariant() -> bool {
    use std::arch::x86_64::__cpuid;
    __cpuid(0x8000_0000).eax >= 0x8000_0007 && __cpuid(0x8000_0007).edx & 1 << 8 != 0
}

/// The counter; about 10 ns per read. The processor may read it a little early or late among the instructions around
/// it.
#[inline]
pub(crate) fn read() -> u64 {
    // SAFETY: every x86-64 processor has the instruction. Where a program is denied it (PR_SET_TSC), it gets a signal,
    // as it does from the vDSO's clock, which reads the same counter.
    unsafe { std::arch::x86_64::_rdtsc() }
}
