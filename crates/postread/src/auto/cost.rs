//! Measured costs: smoothed, and robust against a single preemption.

use std::sync::atomic::{AtomicU64, Ordering};

/// A moving average of times in which each new figure has a weight of an eighth. Figures are capped at eight times the
/// average: a single outlier is a preemption.
#[derive(Debug)]
pub(crate) struct Average(AtomicU64);

impl Average {
    pub(crate) const fn new(first: u64) -> Self {
        Self(AtomicU64::new(first))
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Two threads at once may lose one figure, which does no harm.
    pub(crate) fn add(&self, figure: u64) {
        let old = self.get();
        let figure = figure.min(old.saturating_mul(8)).max(1);
        // Rounded towards the figure, so that the average reaches it.
        let new = if figure > old { old + (figure - old).div_ceil(8) } else { old - (old - figure) / 8 };
        self.0.store(new, Ordering::Relaxed);
    }
}

/// What the steps of a plan cost per byte.
#[derive(Debug)]
pub(crate) struct StepCost {
    /// Picoseconds per byte.
    ps_per_byte: Average,
}

/// Until it is measured: SHA-256 on a middling core.
const FIRST_PS_PER_BYTE: u64 = 500;

impl Default for StepCost {
    fn default() -> Self {
        Self { ps_per_byte: Average::new(FIRST_PS_PER_BYTE) }
    }
}

impl StepCost {
    pub(crate) fn predict_ns(&self, bytes: usize) -> u64 {
        self.ps_per_byte.get().saturating_mul(bytes as u64) / 1000
    }

    pub(crate) fn measured(&self, bytes: usize, ns: u64) {
        if bytes > 0 {
            self.ps_per_byte.add(ns.saturating_mul(1000) / bytes as u64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_preemption_changes_little_and_a_real_change_is_followed() {
        let cost = StepCost::default();
        (0..50).for_each(|_| cost.measured(4096, 1200));
        let steady = cost.predict_ns(4096);
        assert!((1150..=1250).contains(&steady), "{steady}");
        // 10 ms in place of 1.2 us.
        cost.measured(4096, 10_000_000);
        assert!(cost.predict_ns(4096) < 2 * steady + 100);
        (0..30).for_each(|_| cost.measured(4096, 1200));
        (0..40).for_each(|_| cost.measured(4096, 12_000));
        let ten_times = cost.predict_ns(4096);
        assert!((11_000..=12_500).contains(&ten_times), "{ten_times}");
        assert_eq!(cost.predict_ns(0), 0);
        cost.measured(0, 5);
    }
}
