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

/// How two arms differ: the median of paired ratios, with its interval, in percent.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Effect {
    /// The change of the second arm relative to the first: -10 means a tenth less.
    pub percent: f64,
    /// The lower end of the interval.
    pub low_percent: f64,
    /// Its upper end.
    pub high_percent: f64,
    /// How likely such an interval holds the effect that infinitely many rounds would show: at least 95, except where there
    /// are fewer than six pairs.
    pub coverage_percent: f64,
    /// The two-sided p value of no effect.
    pub p: f64,
    /// Pairs.
    pub rounds: usize,
}

impl std::fmt::Display for Effect {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:+.1} %, {:+.1} to {:+.1}", self.percent, self.low_percent, self.high_percent)
    }
}

/// A change in the figure's own unit, with its interval.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Change {
    /// The median of the paired changes.
    pub median: f64,
    /// The lower end of the interval.
    pub low: f64,
    /// Its upper end.
    pub high: f64,
    /// See [`Effect::coverage_percent`].
    pub coverage_percent: f64,
}

/// The median of the changes between pairs of the same round. `None` below two pairs.
pub fn paired_change(before: &[f64], after: &[f64]) -> Option<Change> {
    let changes: Vec<f64> = before.iter().zip(after).map(|(b, a)| a - b).collect();
    let located = locate(&changes)?;
    let Located { median, low, high, coverage, .. } = located;
    Some(Change { median, low, high, coverage_percent: coverage * 100.0 })
}

/// The effect of `after` relative to `before`, from pairs of the same round. `None` below two pairs, or where a value is
/// not positive.
pub fn effect(before: &[f64], after: &[f64]) -> Option<Effect> {
    if before.iter().chain(after).any(|value| !value.is_finite() || *value <= 0.0) {
        return None;
    }
    let logs: Vec<f64> = before.iter().zip(after).map(|(b, a)| (a / b).ln()).collect();
    of_logs(&logs)
}

/// How much the effect of one factor depends on another: the effect within the second pair of arms relative to that within
/// the first pair.
pub fn interaction(first: (&[f64], &[f64]), second: (&[f64], &[f64])) -> Option<Effect> {
    let positive = [first.0, first.1, second.0, second.1].iter().all(|list| list.iter().all(|v| *v > 0.0));
    if !positive {
        return None;
    }
    let within = |pair: (&[f64], &[f64])| pair.0.iter().zip(pair.1).map(|(b, a)| (a / b).ln()).collect::<Vec<_>>();
    let logs: Vec<f64> = within(first).iter().zip(within(second)).map(|(first, second)| second - first).collect();
    of_logs(&logs)
}

fn of_logs(logs: &[f64]) -> Option<Effect> {
    let located = locate(logs)?;
    let percent = |log: f64| log.exp_m1() * 100.0;
    Some(Effect {
        percent: percent(located.median),
        low_percent: percent(located.low),
        high_percent: percent(located.high),
        coverage_percent: located.coverage * 100.0,
        p: located.p,
        rounds: logs.len(),
    })
}

/// The centre of a distribution.
struct Located {
    median: f64,
    low: f64,
    high: f64,
    coverage: f64,
    p: f64,
}

/// The Hodges-Lehmann estimate (the median of all pairs' means), with the interval and the p value of Wilcoxon's
/// signed-rank test, both exact up to 100 values.
fn locate(values: &[f64]) -> Option<Located> {
    let n = values.len();
    if n < 2 {
        return None;
    }
    let mut walsh: Vec<f64> = Vec::with_capacity(n * (n + 1) / 2);
    for (i, a) in values.iter().enumerate() {
        walsh.extend(values[i..].iter().map(|b| (a + b) / 2.0));
    }
    walsh.sort_by(f64::total_cmp);
    let at_most = SignedRank::new(n);
    // The interval leaves out the k - 1 smallest and largest means, with the largest k that covers 95 %.
    let k =
        (1..=walsh.len() / 2).take_while(|k| 2.0 * at_most.probability(*k as f64 - 1.0) <= 0.05).last().unwrap_or(1);
    let coverage = 1.0 - 2.0 * at_most.probability(k as f64 - 1.0);
    let above = walsh.iter().map(|mean| if *mean > 0.0 { 1.0 } else { 0.0 } + if *mean == 0.0 { 0.5 } else { 0.0 });
    let above: f64 = above.sum();
    let smaller = above.min(walsh.len() as f64 - above);
    let p = (2.0 * at_most.probability(smaller.ceil())).min(1.0);
    Some(Located { median: median(&walsh), low: walsh[k - 1], high: walsh[walsh.len() - k], coverage, p })
}

/// The distribution of Wilcoxon's signed-rank statistic without an effect.
struct SignedRank {
    n: usize,
    /// The probability of each value, up to 100 ranks.
    exact: Vec<f64>,
}

impl SignedRank {
    fn new(n: usize) -> SignedRank {
        let mut exact = Vec::new();
        if n <= 100 {
            exact = vec![0.0; n * (n + 1) / 2 + 1];
            exact[0] = 1.0;
            // Each rank is positive with probability 1/2.
            for rank in 1..=n {
                for sum in (0..exact.len()).rev() {
                    let with = if sum >= rank { exact[sum - rank] } else { 0.0 };
                    exact[sum] = (exact[sum] + with) / 2.0;
                }
            }
        }
        SignedRank { n, exact }
    }

    /// How likely the statistic is at most `value`.
    fn probability(&self, value: f64) -> f64 {
        if !self.exact.is_empty() {
            return self.exact.iter().take(value as usize + 1).sum::<f64>().min(1.0);
        }
        let n = self.n as f64;
        let (mean, variance) = (n * (n + 1.0) / 4.0, n * (n + 1.0) * (2.0 * n + 1.0) / 24.0);
        normal((value + 0.5 - mean) / variance.sqrt())
    }
}

/// The standard normal distribution's cumulative probability (Abramowitz and Stegun 26.2.17: to 7.5e-8).
fn normal(x: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.231_641_9 * x.abs());
    let series = [0.319_381_530, -0.356_563_782, 1.781_477_937, -1.821_255_978, 1.330_274_429];
    let sum = series.iter().rev().fold(0.0, |sum, term| (sum + term) * t);
    let tail = sum * (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
    if x > 0.0 { 1.0 - tail } else { tail }
}

/// Counts of all rounds as the mean of one.
pub(crate) fn per_round(counts: &[u64], rounds: usize) -> Vec<u64> {
    let rounds = (rounds as u64).max(1);
    counts.iter().map(|count| (count + rounds / 2) / rounds).collect()
}

/// A small generator (xorshift64*), so that a seed gives the same order of runs again.
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

    /// Critical values of the signed-rank test at 5 %, two-sided, from published tables (for example Conover, Practical
    /// Nonparametric Statistics, table A12): the largest sum that is significant.
    #[test]
    fn intervals_and_p_values_are_the_signed_rank_tests() {
        for (n, critical) in [(6, 0), (7, 2), (8, 3), (9, 5), (10, 8), (12, 13), (15, 25), (20, 52)] {
            let distribution = SignedRank::new(n);
            assert!(2.0 * distribution.probability(f64::from(critical)) <= 0.05, "{n}");
            assert!(2.0 * distribution.probability(f64::from(critical) + 1.0) > 0.05, "{n}");
        }
        // Below six pairs no interval covers 95 %: it is the whole range, and says what it covers.
        let change = paired_change(&[0.0; 5], &[1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
        assert_eq!((change.low, change.high, change.coverage_percent), (1.0, 5.0, 93.75));
        let large = SignedRank::new(101);
        let exact = SignedRank::new(100);
        assert!((large.probability(2000.0) - exact.probability(1950.0)).abs() < 0.01);
    }

    #[test]
    fn ratios_are_paired_and_relative() {
        let before = [100.0, 200.0, 50.0, 400.0, 80.0, 120.0];
        let after = before.map(|b| b * 0.9);
        let found = effect(&before, &after).unwrap();
        assert!((found.percent + 10.0).abs() < 1e-9 && (found.high_percent + 10.0).abs() < 1e-9, "{found:?}");
        assert_eq!(effect(&before, &[0.0; 6]), None);
        // The effect within the second pair is 1.5 times that within the first.
        let found = interaction((&before, &after), (&before, &before.map(|b| b * 0.9 * 1.5))).unwrap();
        assert!((found.percent - 50.0).abs() < 1e-9, "{found:?}");
    }
}
