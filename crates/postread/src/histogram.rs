//! A histogram of times: 32 buckets an octave, filled without a lock.

use std::sync::atomic::{AtomicU64, Ordering};

const SUB_BITS: u32 = 5;
const BUCKETS: usize = 64 << SUB_BITS;

/// Recorded into from any thread.
pub(crate) struct Recorder {
    counts: Box<[AtomicU64]>,
    total: AtomicU64,
    max: AtomicU64,
}

fn bucket_of(ns: u64) -> usize {
    let octave = 63 - (ns | 1).leading_zeros();
    if octave < SUB_BITS {
        return ns as usize;
    }
    let sub = (ns >> (octave - SUB_BITS)) & ((1 << SUB_BITS) - 1);
    (((octave - SUB_BITS + 1) << SUB_BITS) as usize) + sub as usize
}

/// The largest value that falls in a bucket.
fn upper_edge(bucket: usize) -> u64 {
    let (row, sub) = ((bucket >> SUB_BITS) as u32, (bucket & ((1 << SUB_BITS) - 1)) as u64);
    if row == 0 {
        return sub;
    }
    let width = row - 1;
    let low = ((1u64 << SUB_BITS) + sub) << width;
    low + ((1u64 << width) - 1)
}

impl Recorder {
    pub(crate) fn new() -> Self {
        let counts = (0..BUCKETS).map(|_| AtomicU64::new(0)).collect();
        Self { counts, total: AtomicU64::new(0), max: AtomicU64::new(0) }
    }

    pub(crate) fn record(&self, ns: u64) {
        self.counts[bucket_of(ns)].fetch_add(1, Ordering::Relaxed);
        self.total.fetch_add(ns, Ordering::Relaxed);
        if self.max.load(Ordering::Relaxed) < ns {
            self.max.fetch_max(ns, Ordering::Relaxed);
        }
    }

    pub(crate) fn add_to(&self, sum: &mut Histogram) {
        if sum.counts.is_empty() {
            sum.counts = vec![0; BUCKETS];
        }
        for (to, from) in sum.counts.iter_mut().zip(&self.counts) {
            *to += from.load(Ordering::Relaxed);
        }
        sum.total += self.total.load(Ordering::Relaxed);
        sum.max = sum.max.max(self.max.load(Ordering::Relaxed));
    }
}

/// A snapshot of recorded times, in nanoseconds. Quantiles are exact to 3 %: they are the upper edge of
/// a bucket, a 32nd of an octave.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    counts: Vec<u64>,
    total: u64,
    max: u64,
}

impl Histogram {
    /// How many times were recorded.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Their sum, in nanoseconds.
    pub fn total_ns(&self) -> u64 {
        self.total
    }

    /// The largest, in nanoseconds, since the engine began.
    pub fn max_ns(&self) -> u64 {
        self.max
    }

    /// The time that a share `q` (0 to 1) of all do not exceed, in nanoseconds; none where nothing was recorded.
    pub fn quantile_ns(&self, q: f64) -> Option<u64> {
        let count = self.count();
        let rank = ((q.clamp(0.0, 1.0) * count as f64).ceil() as u64).clamp(1, count.max(1));
        let mut seen = 0;
        self.counts.iter().enumerate().find_map(|(bucket, n)| {
            seen += n;
            (seen >= rank && *n > 0).then(|| upper_edge(bucket).min(self.max))
        })
    }

    /// What was recorded since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut counts = self.counts.clone();
        for (now, then) in counts.iter_mut().zip(&earlier.counts) {
            *now = now.saturating_sub(*then);
        }
        Self { counts, total: self.total.saturating_sub(earlier.total), max: self.max }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_hold_what_falls_in_them() {
        let mut last = 0;
        for ns in (0..2000).chain((0..64).map(|b| 1u64 << b)).chain([u64::MAX, u64::MAX - 1, 12345, 999_999]) {
            let bucket = bucket_of(ns);
            assert!(bucket < BUCKETS);
            assert!(upper_edge(bucket) >= ns, "{ns}");
            assert!(bucket == 0 || upper_edge(bucket - 1) < ns, "{ns}");
            last = last.max(bucket);
        }
        assert_eq!(upper_edge(last), u64::MAX);
    }

    #[test]
    fn quantiles() {
        let r = Recorder::new();
        (1..=1000).for_each(|ns| r.record(ns));
        let mut h = Histogram::default();
        r.add_to(&mut h);
        assert_eq!((h.count(), h.total_ns(), h.max_ns()), (1000, 500_500, 1000));
        let p50 = h.quantile_ns(0.5).expect("not empty");
        assert!((500..=516).contains(&p50), "{p50}");
        assert_eq!(h.quantile_ns(1.0), Some(1000));
        assert_eq!(Histogram::default().quantile_ns(0.5), None);
        assert_eq!(h.since(&h).count(), 0);
    }
}
