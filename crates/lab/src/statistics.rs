//! Medians, and intervals by resampling.

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
    /// The lower end of the 95 % interval.
    pub low: f64,
    /// Its upper end.
    pub high: f64,
}

/// The median change between pairs of the same round, with a 95 % interval by the percentile bootstrap: pairs are drawn
/// again with replacement, 2000 times, from a fixed seed. `None` below 5 pairs: the interval would be narrower than it says.
pub fn paired_change(before: &[f64], after: &[f64]) -> Option<Change> {
    let changes: Vec<f64> = before.iter().zip(after).map(|(b, a)| a - b).collect();
    if changes.len() < 5 {
        return None;
    }
    let mut random = Random::new(1);
    let mut medians: Vec<f64> = (0..2000)
        .map(|_| {
            let drawn: Vec<f64> = (0..changes.len()).map(|_| changes[random.below(changes.len())]).collect();
            median(&drawn)
        })
        .collect();
    medians.sort_by(f64::total_cmp);
    Some(Change { median: median(&changes), low: medians[50], high: medians[1949] })
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
        assert_eq!(paired_change(&before[..4], &faster[..4]), None);
    }
}
