//! Cheap stamps, for millions of them: the monotonic clock from the processor's counter.
//!
//! The vDSO's `clock_gettime` reads the same counter, and spends as much time again on an ordered read, on shared data
//! and on seconds. Here each thread keeps a pair of (counter, `CLOCK_MONOTONIC`) that is at most [`SPAN_NS`] old, and
//! extrapolates from it at a rate that was measured once; then it reads the kernel's clock again. So a suspend, a reset
//! of the counter and a slewed clock are all noticed within that time, which bounds the error.
//!
//! Only if the processor reports that its counter is invariant and the kernel uses it for its own clock (`clocksource`
//! is `tsc`): the kernel has then checked that all CPUs' counters agree. Elsewhere each stamp is the kernel's clock.

use crate::monotonic_ns;

/// A nanosecond stamp for measuring, cheaper than [`monotonic_ns`] if the processor has a suitable counter (about 10 ns
/// instead of 25).
///
/// It is `CLOCK_MONOTONIC` within about a microsecond: each thread reads the kernel's clock once per millisecond, and
/// extrapolates with the processor's counter for as long as that stays within 1000 ppm of the kernel's rate; a counter
/// that does not is not used again. Stamps of one thread never go back by more than that microsecond, nor do stamps of
/// two threads that synchronise, so use saturating subtraction.
#[inline]
pub fn stamp_ns() -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        counter::stamp_ns()
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        monotonic_ns()
    }
}

/// How old a thread's pair may be, in nanoseconds: with [`MAX_PPM`] the error is at most a microsecond, plus the pair's
/// own, some tens of nanoseconds.
#[cfg(target_arch = "x86_64")]
const SPAN_NS: u64 = 1_000_000;
/// The counter is given up when its rate differs so much from the one measured at first.
#[cfg(target_arch = "x86_64")]
const MAX_PPM: u64 = 1000;
/// The rate is measured over at least this long: two pairs of 100 ns each make 20 ppm.
#[cfg(target_arch = "x86_64")]
const CALIBRATION_NS: u64 = 10_000_000;

#[cfg(target_arch = "x86_64")]
mod counter {
    use std::cell::Cell;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::{CALIBRATION_NS, MAX_PPM, SPAN_NS, monotonic_ns};
    use crate::raw::tsc;

    /// A thread's pair, and what it needs to extrapolate from it.
    struct Base {
        ticks: Cell<u64>,
        ns: Cell<u64>,
        /// Nanoseconds per tick, with 32 bits of fraction.
        rate: Cell<u64>,
        /// How many ticks the pair is good for; 0 before the first.
        span: Cell<u64>,
    }

    thread_local! {
        static BASE: Base =
            const { Base { ticks: Cell::new(0), ns: Cell::new(0), rate: Cell::new(0), span: Cell::new(0) } };
    }

    #[inline]
    pub(super) fn stamp_ns() -> u64 {
        BASE.with(|base| {
            let ticks = tsc::read().wrapping_sub(base.ticks.get());
            if ticks < base.span.get() { base.ns.get() + scale(ticks, base.rate.get()) } else { anew(base) }
        })
    }

    /// `ticks` is below a span or so, and a span is a millisecond: no overflow below 4 seconds (2^32 ns).
    #[inline]
    fn scale(ticks: u64, rate: u64) -> u64 {
        ticks.wrapping_mul(rate) >> 32
    }

    /// The rate of all threads. On lines of its own: every thread reads it, and it is written once.
    #[repr(align(128))]
    struct Rate(AtomicU64);

    static RATE: Rate = Rate(AtomicU64::new(0));
    /// The counter is unfit.
    const UNFIT: u64 = u64::MAX;

    /// A read of both clocks, unless something came between.
    fn pair() -> (Option<u64>, u64) {
        let before = tsc::read();
        let ns = monotonic_ns();
        let took = tsc::read().wrapping_sub(before);
        // 2000 ticks are half a microsecond or so; a read takes some hundred at most.
        ((took < 2000).then(|| before.wrapping_add(took / 2)), ns)
    }

    #[cold]
    fn anew(base: &Base) -> u64 {
        let rate = match RATE.0.load(Ordering::Relaxed) {
            UNFIT => return monotonic_ns(),
            0 => return calibrate(),
            rate => rate,
        };
        let (Some(ticks), ns) = pair() else { return monotonic_ns() };
        let (past, span) = (ticks.wrapping_sub(base.ticks.get()), base.span.get());
        // A thread that stamps rarely gives no information about the rate: the machine may have been suspended, or the
        // counter reset. Below a span's length the pairs' own errors are too large.
        if span != 0 && past >= span && past / 16 < span {
            let (told, elapsed) = (scale(past, rate), ns.saturating_sub(base.ns.get()));
            // The pairs themselves are within 200 ns.
            if told.abs_diff(elapsed) > elapsed * MAX_PPM / 1_000_000 + 400 {
                RATE.0.store(UNFIT, Ordering::Relaxed);
                base.span.set(0);
                return ns;
            }
        }
        base.ticks.set(ticks);
        base.ns.set(ns);
        base.rate.set(rate);
        base.span.set((SPAN_NS << 32) / rate);
        ns
    }

    /// Finds the rate once two pairs are far enough apart.
    fn calibrate() -> u64 {
        static FIRST: OnceLock<Option<(u64, u64)>> = OnceLock::new();
        let (ticks, ns) = pair();
        let Some(ticks) = ticks else { return ns };
        match *FIRST.get_or_init(|| is_fit().then_some((ticks, ns))) {
            None => RATE.0.store(UNFIT, Ordering::Relaxed),
            Some((first_ticks, first_ns)) => {
                let elapsed = ns.saturating_sub(first_ns);
                if elapsed >= CALIBRATION_NS {
                    let rate = (u128::from(elapsed) << 32) / u128::from(ticks.wrapping_sub(first_ticks).max(1));
                    // 50 MHz to 50 GHz; any other figure is not a rate (say, the machine was suspended in between).
                    let rate = u64::try_from(rate).ok().filter(|r| (1 << 32) / 50 <= *r && *r <= (1 << 32) * 20);
                    RATE.0.store(rate.unwrap_or(UNFIT), Ordering::Relaxed);
                }
            }
        }
        ns
    }

    fn is_fit() -> bool {
        const CLOCK: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
        tsc::is_invariant() && std::fs::read_to_string(CLOCK).is_ok_and(|name| name.trim() == "tsc")
    }

    #[cfg(test)]
    pub(super) fn in_use() -> bool {
        !matches!(RATE.0.load(Ordering::Relaxed), 0 | UNFIT)
    }
    #[cfg(test)]
    pub(super) fn fit() -> bool {
        is_fit()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each stamp must be between the kernel's clock before and after it, over many spans and pauses.
    #[test]
    fn a_stamp_is_the_kernels_clock_within_a_microsecond() {
        let check = || {
            let mut seen = 0u64;
            let end = monotonic_ns() + 300_000_000;
            let mut after = monotonic_ns();
            while after < end {
                let before = after;
                let stamp = stamp_ns();
                after = monotonic_ns();
                assert!(stamp + 1000 >= before && stamp <= after + 1000, "{before} {stamp} {after}");
                seen += 1;
                if seen.is_multiple_of(100_000) {
                    std::thread::sleep(std::time::Duration::from_millis(5));
                }
            }
        };
        std::thread::scope(|s| {
            s.spawn(check);
            check();
        });
        #[cfg(target_arch = "x86_64")]
        assert_eq!(counter::in_use(), counter::fit());
    }
}
