//! Log-linear histograms of times: 16 buckets for each power of two nanoseconds, so a bucket is at most 6.3 % wide.

use std::ops::Sub;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const SUB_BITS: u32 = 4;
const SUB: usize = 1 << SUB_BITS;
/// Powers of two kept apart: what is above 2^40 ns (18 minutes) is in the last bucket.
const TOP: u32 = 40;
const BUCKETS: usize = SUB + (TOP - SUB_BITS) as usize * SUB;

fn bucket(ns: u64) -> usize {
    if ns < SUB as u64 {
        return ns as usize;
    }
    let exponent = ns.ilog2();
    if exponent >= TOP {
        return BUCKETS - 1;
    }
    let sub = (ns >> (exponent - SUB_BITS)) as usize - SUB;
    SUB + (exponent - SUB_BITS) as usize * SUB + sub
}

/// The smallest value of a bucket, and the smallest of the next one.
fn bounds(bucket: usize) -> (u64, u64) {
    if bucket < SUB {
        return (bucket as u64, bucket as u64 + 1);
    }
    let (octave, sub) = ((bucket - SUB) / SUB, (bucket - SUB) % SUB);
    let low = ((SUB + sub) as u64) << octave;
    (low, low + (1 << octave))
}

/// A histogram that many threads update without a lock.
pub struct AtomicHist {
    counts: Box<[AtomicU64; BUCKETS]>,
    max: AtomicU64,
}

impl Default for AtomicHist {
    fn default() -> AtomicHist {
        AtomicHist::new()
    }
}

impl std::fmt::Debug for AtomicHist {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut hist = Hist::new();
        self.add_to(&mut hist);
        hist.fmt(f)
    }
}

impl AtomicHist {
    /// An empty one.
    pub fn new() -> AtomicHist {
        AtomicHist { counts: Box::new([const { AtomicU64::new(0) }; BUCKETS]), max: AtomicU64::new(0) }
    }

    /// Counts one time.
    pub fn record(&self, ns: u64) {
        self.counts[bucket(ns)].fetch_add(1, Ordering::Relaxed);
        if ns > self.max.load(Ordering::Relaxed) {
            self.max.fetch_max(ns, Ordering::Relaxed);
        }
    }

    /// Adds what was counted so far to `sum`.
    pub fn add_to(&self, sum: &mut Hist) {
        for (to, from) in sum.counts.iter_mut().zip(self.counts.iter()) {
            *to += from.load(Ordering::Relaxed);
        }
        sum.max = sum.max.max(self.max.load(Ordering::Relaxed));
    }
}

/// A snapshot of a histogram of times. Subtract an earlier one to get the interval in between.
#[derive(Clone, PartialEq, Eq)]
pub struct Hist {
    counts: Vec<u64>,
    max: u64,
}

impl Default for Hist {
    fn default() -> Hist {
        Hist::new()
    }
}

impl Hist {
    /// An empty one.
    pub fn new() -> Hist {
        Hist { counts: vec![0; BUCKETS], max: 0 }
    }

    /// Counts `n` times of 0.
    pub fn add_zeros(&mut self, n: u64) {
        self.counts[0] += n;
    }

    /// How many times were counted.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The `q` quantile (0 to 1) of the times: the middle of its bucket, so within 3.2 %. `None` when nothing was
    /// counted.
    pub fn quantile(&self, q: f64) -> Option<Duration> {
        let count = self.count();
        // The rank of the value, 1 to count.
        let rank = ((count as f64 * q.clamp(0.0, 1.0)).ceil() as u64).max(1);
        let mut seen = 0;
        let found = self.counts.iter().position(|n| {
            seen += n;
            seen >= rank
        })?;
        let (low, high) = bounds(found);
        Some(Duration::from_nanos((low + (high - low) / 2).min(self.max.max(low))))
    }

    /// The median, as [`Hist::quantile`].
    pub fn p50(&self) -> Option<Duration> {
        self.quantile(0.5)
    }

    /// The 99th percentile, as [`Hist::quantile`].
    pub fn p99(&self) -> Option<Duration> {
        self.quantile(0.99)
    }

    /// The longest time: exact since counting began; of a difference of two snapshots, the upper edge of the highest
    /// bucket. `None` when nothing was counted.
    pub fn max(&self) -> Option<Duration> {
        let highest = self.counts.iter().rposition(|&n| n > 0)?;
        let max = if highest == BUCKETS - 1 { self.max } else { (bounds(highest).1 - 1).min(self.max) };
        Some(Duration::from_nanos(max))
    }

    /// The sum of all times, from the buckets' middles: within 3.2 %.
    pub fn sum(&self) -> Duration {
        let middle = |(low, high): (u64, u64)| low + (high - 1 - low) / 2;
        let sum =
            self.counts.iter().enumerate().filter(|&(_, &n)| n > 0).map(|(i, &n)| middle(bounds(i)) as f64 * n as f64);
        Duration::from_secs_f64(sum.sum::<f64>() / 1e9)
    }

    /// The mean, as [`Hist::sum`]. `None` when nothing was counted.
    pub fn mean(&self) -> Option<Duration> {
        match self.count() {
            0 => None,
            n => Some(self.sum().div_f64(n as f64)),
        }
    }

    /// The buckets that are not empty: the smallest time in it, the smallest of the next one, and the count.
    pub fn buckets(&self) -> impl Iterator<Item = (Duration, Duration, u64)> + '_ {
        self.counts.iter().enumerate().filter(|&(_, &n)| n > 0).map(|(i, &n)| {
            let (low, high) = bounds(i);
            (Duration::from_nanos(low), Duration::from_nanos(high), n)
        })
    }

    /// How many times were at most this long, within the width of a bucket.
    pub fn count_to(&self, time: Duration) -> u64 {
        let last = bucket(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        self.counts[..=last].iter().sum()
    }
}

/// `p50 3.4us p99 17us max 120us (1000)`; `-` when nothing was counted.
impl std::fmt::Display for Hist {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.p50(), self.p99(), self.max()) {
            (Some(p50), Some(p99), Some(max)) => {
                write!(f, "p50 {p50:.1?} p99 {p99:.1?} max {max:.1?} ({})", self.count())
            }
            _ => f.write_str("-"),
        }
    }
}

impl Sub<&Hist> for &Hist {
    type Output = Hist;

    fn sub(self, earlier: &Hist) -> Hist {
        let counts = self.counts.iter().zip(&earlier.counts).map(|(a, b)| a.saturating_sub(*b)).collect();
        Hist { counts, max: self.max }
    }
}

impl std::fmt::Debug for Hist {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hist")
            .field("count", &self.count())
            .field("p50", &self.p50())
            .field("p99", &self.p99())
            .field("max", &self.max())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_inside_its_bucket_and_buckets_adjoin() {
        for shift in 0..TOP {
            for offset in [0u64, 1, 2, 3, 7, 1000] {
                let ns = (1u64 << shift) + offset;
                let (low, high) = bounds(bucket(ns));
                assert!(low <= ns && ns < high, "{ns}: {low}..{high}");
                assert!((high - low) as f64 <= 1.0f64.max(low as f64 / 16.0), "{ns}: {low}..{high}");
            }
        }
        for i in 1..BUCKETS {
            assert_eq!(bounds(i - 1).1, bounds(i).0, "bucket {i}");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn percentiles_agree_with_sorting() {
        let live = AtomicHist::new();
        // A known spread: squares.
        let values: Vec<u64> = (1..=1000u64).map(|i| i * i).collect();
        values.iter().for_each(|&v| live.record(v));
        let mut hist = Hist::new();
        live.add_to(&mut hist);
        for (q, index) in [(0.5, 499), (0.99, 989), (0.01, 9), (1.0, 999)] {
            let (got, want) = (hist.quantile(q).unwrap().as_nanos() as f64, values[index] as f64);
            assert!((got - want).abs() <= want * 0.033, "{q}: {got}, not {want}");
        }
        assert_eq!(hist.max(), Some(Duration::from_millis(1)));
        let mean = values.iter().sum::<u64>() as f64 / 1000.0;
        assert!((hist.mean().unwrap().as_nanos() as f64 - mean).abs() < mean * 0.033);
        assert_eq!(hist.count(), 1000);
    }

    #[test]
    fn snapshots_subtract() {
        let live = AtomicHist::new();
        live.record(5_000_000);
        let snapshot = |live: &AtomicHist| {
            let mut hist = Hist::new();
            live.add_to(&mut hist);
            hist
        };
        let before = snapshot(&live);
        assert_eq!((&before - &before).p50(), None);
        live.record(100);
        let between = &snapshot(&live) - &before;
        assert_eq!((between.count(), between.p50().map(|p| p.as_nanos() / 8)), (1, Some(12)));
        assert!(
            between.max().unwrap() < Duration::from_nanos(110),
            "the old maximum does not leak into the difference"
        );
    }
}
