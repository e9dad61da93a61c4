//! One line per question: how large the effect is, how sure it is, and what follows.

use serde::Serialize;

use crate::statistics::{Effect, effect};

/// The family-wise error that Holm's correction keeps over all questions of a report.
const ALPHA: f64 = 0.05;
/// An interval within this answers the question with "no difference above N %".
const SMALL_PERCENT: f64 = 5.0;

/// A comparison of two arms by one figure.
#[derive(Clone, Debug)]
pub struct Question<'a> {
    /// As it is printed.
    pub question: String,
    /// The arm that the effect is relative to, and its value in each round.
    pub first: (&'a str, &'a [f64]),
    /// The other arm, in the same rounds.
    pub second: (&'a str, &'a [f64]),
    /// Whether a higher value is the better one.
    pub higher_is_better: bool,
    /// What the better arm is called: `faster`, `less`.
    pub better: &'a str,
    /// The difference between identical arms, in percent: see [`noise_floor`].
    pub noise_floor_percent: Option<f64>,
}

/// The answer to a question.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    /// The question.
    pub question: String,
    /// The second arm's value relative to the first one's; null where it could not be measured.
    pub effect: Option<Effect>,
    /// Its p value after Holm's correction over all questions of the report.
    pub p_holm: Option<f64>,
    /// The largest difference between two arms that are the same, in percent: the A/A twins' interval.
    pub noise_floor_percent: Option<f64>,
    /// `bound faster`, `no difference above 1.5 %`, `inconclusive: run longer` and the like.
    pub answer: String,
}

impl Verdict {
    /// The line of a report.
    pub fn line(&self) -> String {
        match &self.effect {
            None => format!("{}: {}", self.question, self.answer),
            Some(effect) => format!("{}: {} ({effect})", self.question, self.answer),
        }
    }
}

/// The largest difference between two identical arms, in percent: the end of their interval that is farther from zero.
pub fn noise_floor(twin: &[f64], other: &[f64]) -> Option<f64> {
    effect(twin, other).map(|effect| effect.low_percent.abs().max(effect.high_percent.abs()))
}

/// Answers questions together: p values are corrected by Holm's method, and no effect counts that the A/A twins show too.
pub fn verdicts(questions: &[Question<'_>]) -> Vec<Verdict> {
    let effects: Vec<Option<Effect>> = questions.iter().map(|q| effect(q.first.1, q.second.1)).collect();
    let mut order: Vec<(usize, f64)> =
        effects.iter().enumerate().filter_map(|(at, effect)| effect.map(|effect| (at, effect.p))).collect();
    order.sort_by(|a, b| a.1.total_cmp(&b.1));
    let mut corrected = vec![None; questions.len()];
    let mut most = 0.0f64;
    for (rank, (at, p)) in order.iter().enumerate() {
        most = most.max((p * (order.len() - rank) as f64).min(1.0));
        corrected[*at] = Some(most);
    }
    let one = |((question, effect), p_holm): ((&Question<'_>, Option<Effect>), Option<f64>)| Verdict {
        question: question.question.clone(),
        effect,
        p_holm,
        noise_floor_percent: question.noise_floor_percent,
        answer: answer(question, effect, p_holm),
    };
    questions.iter().zip(effects).zip(corrected).map(one).collect()
}

fn answer(question: &Question<'_>, effect: Option<Effect>, p_holm: Option<f64>) -> String {
    let (Some(effect), Some(p)) = (effect, p_holm) else { return "not measured".into() };
    let floor = question.noise_floor_percent.unwrap_or(0.0);
    let (low, high) = (effect.low_percent, effect.high_percent);
    let farthest = low.abs().max(high.abs());
    if p <= ALPHA && effect.percent.abs() > floor && (low > 0.0 || high < 0.0) {
        let second = (effect.percent > 0.0) == question.higher_is_better;
        let name = if second { question.second.0 } else { question.first.0 };
        return format!("{name} {}", question.better);
    }
    if effect.coverage_percent >= 95.0 && farthest <= SMALL_PERCENT {
        return format!("no difference above {farthest:.1} %");
    }
    "inconclusive: run longer".into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question<'a>(first: &'a [f64], second: &'a [f64], floor: Option<f64>) -> Question<'a> {
        Question {
            question: "start-up".into(),
            first: ("unbound", first),
            second: ("bound", second),
            higher_is_better: false,
            better: "faster",
            noise_floor_percent: floor,
        }
    }

    fn rounds(n: usize, f: impl Fn(usize) -> f64) -> Vec<f64> {
        (0..n).map(f).collect()
    }

    #[test]
    fn an_effect_beyond_noise_and_chance_has_a_winner() {
        let unbound = rounds(12, |i| 200.0 + (i % 3) as f64);
        let bound = rounds(12, |i| 180.0 + (i % 4) as f64);
        let found = verdicts(&[question(&unbound, &bound, Some(1.0))]);
        assert_eq!(found[0].answer, "bound faster");
        // The names follow the values, not the order.
        let swapped =
            Question { first: ("bound", &bound), second: ("unbound", &unbound), ..question(&[], &[], Some(1.0)) };
        assert_eq!(verdicts(&[swapped])[0].answer, "bound faster");
        // The same effect is nothing if identical arms differ by more.
        assert_eq!(verdicts(&[question(&unbound, &bound, Some(15.0))])[0].answer, "inconclusive: run longer");
        // Too few rounds for any effect to be significant.
        assert_eq!(verdicts(&[question(&unbound[..4], &bound[..4], None)])[0].answer, "inconclusive: run longer");
    }

    #[test]
    fn equal_arms_have_a_bound_on_their_difference() {
        let a = rounds(20, |i| 100.0 + (i % 5) as f64 * 0.1);
        let b = rounds(20, |i| 100.0 + (i % 7) as f64 * 0.1);
        let verdict = &verdicts(&[question(&a, &b, Some(0.5))])[0];
        assert!(verdict.answer.starts_with("no difference above 0."), "{verdict:?}");
        let wild = rounds(20, |i| if i % 2 == 0 { 80.0 } else { 125.0 });
        assert_eq!(verdicts(&[question(&a, &wild, None)])[0].answer, "inconclusive: run longer");
    }

    #[test]
    fn holms_correction_is_over_all_questions() {
        let a = rounds(8, |_| 100.0);
        let b = rounds(8, |i| 110.0 + i as f64);
        let alone = &verdicts(&[question(&a, &b, None)])[0];
        let many: Vec<Question<'_>> = (0..10).map(|_| question(&a, &b, None)).collect();
        let among = &verdicts(&many)[0];
        assert_eq!(alone.p_holm.map(|p| p * 10.0), among.p_holm);
        assert_eq!((alone.answer.as_str(), among.answer.as_str()), ("unbound faster", "inconclusive: run longer"));
    }

    #[test]
    fn what_was_not_measured_has_no_winner() {
        assert_eq!(verdicts(&[question(&[], &[], None)])[0].answer, "not measured");
        assert_eq!(verdicts(&[question(&[1.0, 1.0], &[0.0, 1.0], None)])[0].answer, "not measured");
    }
}
