//! Times that an engine has measured: a histogram and their exact sum.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use postread_sys::hist::{AtomicHist, Hist};

/// Recorded into from any thread, without a lock.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    hist: AtomicHist,
    total: AtomicU64,
}

impl Recorder {
    pub(crate) fn record(&self, ns: u64) {
        self.hist.record(ns);
        self.total.fetch_add(ns, Ordering::Relaxed);
    }

    pub(crate) fn add_to(&self, sum: &mut Latency) {
        self.hist.add_to(&mut sum.hist);
        sum.total += self.total.load(Ordering::Relaxed);
    }
}

/// A snapshot of recorded times, in nanoseconds. The sum is exact; quantiles are the middle of their bucket, so within
/// 3.2 %.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    hist: Hist,
    total: u64,
}

impl Latency {
    /// How many times were recorded.
    pub fn count(&self) -> u64 {
        self.hist.count()
    }

    /// Their sum, in nanoseconds.
    pub fn total_ns(&self) -> u64 {
        self.total
    }

    /// The longest, in nanoseconds; 0 where nothing was recorded. Of a difference, the upper edge of the highest bucket.
    pub fn max_ns(&self) -> u64 {
        self.hist.max().map_or(0, nanoseconds)
    }

    /// The `q` quantile (0 to 1), in nanoseconds; `None` if nothing was recorded.
    pub fn quantile_ns(&self, q: f64) -> Option<u64> {
        self.hist.quantile(q).map(nanoseconds)
    }

    /// The histogram.
    pub fn hist(&self) -> &Hist {
        &self.hist
    }

    /// What was recorded since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self { hist: &self.hist - &earlier.hist, total: self.total.saturating_sub(earlier.total) }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_exact_and_differences_forget() {
        let recorder = Recorder::default();
        (1..=1000).for_each(|ns| recorder.record(ns));
        let mut latency = Latency::default();
        recorder.add_to(&mut latency);
        assert_eq!((latency.count(), latency.total_ns(), latency.max_ns()), (1000, 500_500, 1000));
        let p50 = latency.quantile_ns(0.5).expect("not empty");
        assert!((484..=516).contains(&p50), "{p50}");
        assert_eq!(Latency::default().quantile_ns(0.5), None);
        assert_eq!((latency.since(&latency).count(), latency.since(&latency).total_ns()), (0, 0));
    }
}
