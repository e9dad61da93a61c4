//! Control epochs: a small share of the time runs a fixed policy, with which `auto` is compared.

use super::decide::Way;

/// Bios in an epoch.
pub(crate) const EPOCH: u64 = 128;
/// One in this many epochs is a control.
const PERIOD: u64 = 50;
/// How many pairs are needed before a verdict, and how many of the latest count.
const PAIRS: usize = 10;
const MOST_PAIRS: usize = 40;
/// `auto` loses a pair where it is worse by more than this, in percent.
const MARGIN: u64 = 2;
/// `auto` is turned off when losses this frequent have less than this probability by chance.
const SIGNIFICANCE: f64 = 0.001;

/// What an epoch runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Epoch {
    Auto,
    Control(Way),
}

/// How `auto` was turned off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AutoOff {
    /// The fixed policy that took over.
    pub to: Way,
    /// Pairs of a control epoch and the `auto` epoch after it that were judged.
    pub pairs: u32,
    /// Of those, how many the control won by more than 2 %.
    pub losses: u32,
}

/// The comparison with fixed policies so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ControlStats {
    /// Epochs that ended, of 128 bios each.
    pub epochs: u64,
    /// Of those, controls.
    pub controls: u64,
    /// Pairs in the comparison: a control and the `auto` epoch after it.
    pub pairs: u32,
    /// Of those, how many the control won by more than 2 %.
    pub losses: u32,
    /// Set once the sign test has turned `auto` off.
    pub off: Option<AutoOff>,
}

#[derive(Debug, Default)]
pub(crate) struct Control {
    epochs: u64,
    controls: u64,
    /// The control that waits for its pair, and what it cost: picoseconds of reader stall per byte.
    open: Option<(Way, u64)>,
    /// The latest pairs: the control, and whether it won.
    pairs: Vec<(Way, bool)>,
    off: Option<AutoOff>,
}

impl Control {
    /// Ends an epoch; `cost` is its cost to readers per byte. Returns what the next one runs.
    pub(crate) fn ended(&mut self, epoch: Epoch, cost: u64) -> Epoch {
        self.epochs += 1;
        match epoch {
            Epoch::Control(way) => {
                self.controls += 1;
                self.open = Some((way, cost));
            }
            Epoch::Auto => {
                if let Some((way, control)) = self.open.take() {
                    let lost = cost > control.saturating_add(control.saturating_mul(MARGIN) / 100);
                    if self.pairs.len() == MOST_PAIRS {
                        self.pairs.remove(0);
                    }
                    self.pairs.push((way, lost));
                    self.judge();
                }
            }
        }
        if let Some(off) = self.off {
            return Epoch::Control(off.to);
        }
        if self.epochs.is_multiple_of(PERIOD) { Epoch::Control(self.next_way()) } else { Epoch::Auto }
    }

    /// The fixed policies take turns.
    fn next_way(&self) -> Way {
        [Way::Inline, Way::Unbound, Way::Bound][(self.controls % 3) as usize]
    }

    /// `auto` is turned off where one fixed policy wins too often for chance.
    fn judge(&mut self) {
        for way in [Way::Inline, Way::Bound, Way::Unbound] {
            let (pairs, losses) = self.count(|w| w == way);
            if pairs as usize >= PAIRS && at_least(losses, pairs) < SIGNIFICANCE {
                self.off = Some(AutoOff { to: way, pairs, losses });
            }
        }
    }

    fn count(&self, of: impl Fn(Way) -> bool) -> (u32, u32) {
        let mine = self.pairs.iter().filter(|(way, _)| of(*way));
        mine.fold((0, 0), |(pairs, losses), (_, lost)| (pairs + 1, losses + u32::from(*lost)))
    }

    pub(crate) fn stats(&self) -> ControlStats {
        let (pairs, losses) = self.count(|_| true);
        ControlStats { epochs: self.epochs, controls: self.controls, pairs, losses, off: self.off }
    }
}

/// The chance of at least `losses` heads in `pairs` throws.
fn at_least(losses: u32, pairs: u32) -> f64 {
    let mut term = 0.5f64.powi(i32::try_from(pairs).unwrap_or(i32::MAX));
    let mut sum = 0.0;
    for k in 0..=pairs {
        if k >= losses {
            sum += term;
        }
        term *= f64::from(pairs - k) / f64::from(k + 1);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs epochs with the given costs. Returns how many ran a control, and the result.
    fn run(epochs: usize, cost: impl Fn(Epoch, usize) -> u64) -> (usize, ControlStats) {
        let (mut control, mut epoch, mut controls) = (Control::default(), Epoch::Auto, 0);
        for n in 0..epochs {
            controls += usize::from(epoch != Epoch::Auto && control.off.is_none());
            epoch = control.ended(epoch, cost(epoch, n));
        }
        (controls, control.stats())
    }

    #[test]
    fn the_sign_test_is_the_binomial() {
        assert!((at_least(0, 10) - 1.0).abs() < 1e-12);
        assert!((at_least(10, 10) - 1.0 / 1024.0).abs() < 1e-12);
        assert!((at_least(9, 10) - 11.0 / 1024.0).abs() < 1e-12);
    }

    #[test]
    fn two_percent_are_controls_and_a_good_auto_stays() {
        let (controls, stats) = run(10_000, |epoch, n| match epoch {
            Epoch::Auto => 1000 + (n as u64 * 7919) % 100,
            Epoch::Control(_) => 1000 + (n as u64 * 104_729) % 100,
        });
        assert_eq!((controls, stats.off), (199, None), "{stats:?}");
        assert_eq!(stats.controls, 199);
    }

    #[test]
    fn an_auto_that_loses_is_turned_off_for_the_policy_that_won() {
        let (_, stats) = run(10_000, |epoch, _| match epoch {
            Epoch::Auto => 1000,
            Epoch::Control(Way::Bound) => 900,
            Epoch::Control(_) => 1100,
        });
        let off = stats.off.expect("it loses every time");
        assert_eq!((off.to, off.losses), (Way::Bound, off.pairs));
        // Within the margin it has not lost.
        let (_, stats) = run(10_000, |epoch, _| if epoch == Epoch::Auto { 1019 } else { 1000 });
        assert_eq!(stats.off, None);
    }
}
