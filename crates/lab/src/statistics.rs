//! Medians, and their intervals.

/// The median; 0 of nothing.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

/// A change with its confidence interval.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Change {
    /// The median of the changes.
    pub median: f64,
    /// The lower end of the interval.
    pub low: f64,
    /// Its upper end.
    pub high: f64,
    /// How likely such an interval holds the median that infinitely many rounds would have, in percent: at least 95,
    /// except where there are fewer than six pairs.
    pub coverage_percent: f64,
}

/// The median change between pairs of the same round, and the interval of the sign test: from the `k`th smallest to the
/// `k`th largest change, with the largest `k` that covers 95 %, whatever the changes' distribution. Below six pairs no
/// interval does: it is then the whole range, and says what it covers. `None` below two pairs.
pub fn paired_change(before: &[f64], after: &[f64]) -> Option<Change> {
    let mut changes: Vec<f64> = before.iter().zip(after).map(|(b, a)| a - b).collect();
    let n = changes.len();
    if n < 2 {
        return None;
    }
    changes.sort_by(f64::total_cmp);
    // Each change is below the true median with probability 1/2: how many are is binomial. Outside of the interval it
    // lies when fewer than k are below it, or above.
    let outside = |k: usize| {
        let (mut term, mut sum) = (0.5f64.powi(i32::try_from(n).unwrap_or(i32::MAX)), 0.0);
        for i in 0..k {
            sum += term;
            term *= (n - i) as f64 / (i + 1) as f64;
        }
        2.0 * sum
    };
    let k = (1..=n / 2).take_while(|k| outside(*k) <= 0.05).last().unwrap_or(1);
    let coverage_percent = (1.0 - outside(k)) * 100.0;
    Some(Change { median: median(&changes), low: changes[k - 1], high: changes[n - k], coverage_percent })
}

/// Counts of all rounds as the mean of one.
pub(crate) fn per_round(counts: &[u64], rounds: usize) -> Vec<u64> {
    let rounds = (rounds as u64).max(1);
    counts.iter().map(|count| (count + rounds / 2) / rounds).collect()
}

/// A small generator (xorshift64*), so that an order of runs can be told by its seed.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// From a seed.
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `n`, which is not 0.
    pub fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % n
    }

    /// Puts values in a random order.
    pub fn shuffle<T>(&mut self, values: &mut [T]) {
        for i in (1..values.len()).rev() {
            values.swap(i, self.below(i + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_holds_the_change_and_tells_noise_from_it() {
        let before: Vec<f64> = (0..20).map(|i| 100.0 + f64::from(i % 5)).collect();
        let faster: Vec<f64> = before.iter().map(|b| b - 10.0).collect();
        let change = paired_change(&before, &faster).unwrap();
        assert_eq!((change.median, change.low, change.high), (-10.0, -10.0, -10.0));
        let noise: Vec<f64> = before.iter().zip(0..).map(|(b, i)| b + if i % 2 == 0 { 3.0 } else { -3.0 }).collect();
        let change = paired_change(&before, &noise).unwrap();
        assert!(change.low < 0.0 && change.high > 0.0, "{change:?}");
        assert_eq!(paired_change(&before[..1], &faster[..1]), None);
    }

    /// From tables of the sign test's intervals (Conover, Practical Nonparametric Statistics, of the binomial at 1/2).
    #[test]
    fn intervals_are_the_sign_tests() {
        for (n, k, covers) in [
            (2, 1, 50.0),
            (5, 1, 93.75),
            (6, 1, 96.875),
            (8, 1, 99.21875),
            (9, 2, 96.09375),
            (10, 2, 97.8515625),
            (20, 6, 95.86105),
        ] {
            let values: Vec<f64> = (1..=n).map(f64::from).collect();
            let change = paired_change(&vec![0.0; values.len()], &values).unwrap();
            assert_eq!((change.low, change.high), (f64::from(k), f64::from(n + 1 - k)), "{n}");
            assert!((change.coverage_percent - covers).abs() < 1e-4, "{n}: {change:?}");
        }
    }
}
