//! The harness: interleaved rounds, medians, ratios, bars, and the results page.
//!
//! Machines are shared and noisy, so absolute figures mean little. Every contestant runs once a round, in turn
//! (each round starts with another contestant), and what counts is the median over rounds of the ratio of two
//! contestants *within one round*.

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

/// What is within this share of a bar passes: the rule of the design.
pub const TOLERANCE: f64 = 0.05;

/// Which way is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// Throughput.
    Higher,
    /// Latency, time, memory.
    Lower,
}

/// One thing measured. It returns its figure for one round.
pub struct Contestant<'a> {
    name: String,
    run: Box<dyn FnMut() -> f64 + 'a>,
}

impl<'a> Contestant<'a> {
    /// A contestant that returns the figure of one round in the group's unit.
    pub fn new(name: impl Into<String>, run: impl FnMut() -> f64 + 'a) -> Self {
        Self { name: name.into(), run: Box::new(run) }
    }
}

/// The figures of one contestant, a round each.
#[derive(Clone, Debug)]
pub struct Series {
    /// The contestant's name.
    pub name: String,
    /// A figure a round.
    pub rounds: Vec<f64>,
}

impl Series {
    /// The median over the rounds.
    pub fn median(&self) -> f64 {
        median(&self.rounds)
    }
}

/// The median of `values`; NaN where there are none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted: Vec<f64> = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

/// One group of contestants, measured in the same run.
#[derive(Clone, Debug)]
pub struct Group {
    title: String,
    unit: &'static str,
    better: Better,
    series: Vec<Series>,
}

impl Group {
    /// Runs every contestant once a round, in turn, after one warm-up round that does not count.
    pub fn measure(
        title: impl Into<String>,
        unit: &'static str,
        better: Better,
        rounds: usize,
        mut contestants: Vec<Contestant<'_>>,
    ) -> Self {
        let mut series: Vec<Series> =
            contestants.iter().map(|c| Series { name: c.name.clone(), rounds: Vec::with_capacity(rounds) }).collect();
        for round in 0..=rounds {
            for turn in 0..contestants.len() {
                let who = (turn + round) % contestants.len();
                let figure = (contestants[who].run)();
                if round > 0 {
                    series[who].rounds.push(figure);
                }
            }
        }
        Self { title: title.into(), unit, better, series }
    }

    /// A group of figures measured elsewhere (by another process, say).
    pub fn from_series(title: impl Into<String>, unit: &'static str, better: Better, series: Vec<Series>) -> Self {
        Self { title: title.into(), unit, better, series }
    }

    /// The figures of a contestant. Panics where there is none of that name: a bar on nothing must not pass.
    pub fn series(&self, name: &str) -> &Series {
        self.series.iter().find(|s| s.name == name).unwrap_or_else(|| panic!("no contestant {name} in {}", self.title))
    }

    /// How many times better `ours` is than `theirs`: the median over rounds of the ratio within each round.
    pub fn times_better(&self, ours: &str, theirs: &str) -> f64 {
        let ratios: Vec<f64> = self
            .series(ours)
            .rounds
            .iter()
            .zip(&self.series(theirs).rounds)
            .map(|(o, t)| if self.better == Better::Higher { o / t } else { t / o })
            .collect();
        median(&ratios)
    }
}

/// The report of one subject: groups, bars, and `benches/results/SUBJECT.md`.
pub struct Report {
    subject: &'static str,
    body: String,
    missed: usize,
}

impl Report {
    /// Starts the report of a subject.
    pub fn new(subject: &'static str) -> Self {
        Self { subject, body: String::new(), missed: 0 }
    }

    /// Prints a group's medians and adds them to the report.
    pub fn group(&mut self, group: &Group) {
        let mut text = format!(
            "\n### {}\n\n| | {} (median of {}) | min | max |\n|---|---|---|---|\n",
            group.title,
            group.unit,
            group.series[0].rounds.len()
        );
        for s in &group.series {
            let min = s.rounds.iter().copied().fold(f64::INFINITY, f64::min);
            let max = s.rounds.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let _ = writeln!(text, "| {} | {:.4} | {:.4} | {:.4} |", s.name, s.median(), min, max);
        }
        self.say(&text);
    }

    /// A bar on a ratio: `ours` must be at least `at_least` times better than `theirs` in the group.
    pub fn bar(&mut self, group: &Group, ours: &str, theirs: &str, at_least: f64) {
        let ratio = group.times_better(ours, theirs);
        let what = format!("{}: {ours} at least {at_least}x {theirs}", group.title);
        self.verdict(&what, &format!("{ratio:.3}x"), ratio >= at_least * (1.0 - TOLERANCE));
    }

    /// A bar on an absolute figure, which must not be above `at_most`.
    pub fn limit(&mut self, what: &str, unit: &str, figure: f64, at_most: f64) {
        self.verdict(
            &format!("{what}: at most {at_most} {unit}"),
            &format!("{figure:.3} {unit}"),
            figure <= at_most * (1.0 + TOLERANCE),
        );
    }

    /// A bar that was judged by the caller.
    pub fn verdict(&mut self, what: &str, figure: &str, pass: bool) {
        if !pass {
            self.missed += 1;
        }
        self.say(&format!("\n- **{}** {what}: {figure}\n", if pass { "pass" } else { "MISS" }));
    }

    /// Text between the figures: what a number means, why a bar was missed.
    pub fn note(&mut self, text: &str) {
        self.say(&format!("\n{text}\n"));
    }

    fn say(&mut self, text: &str) {
        print!("{text}");
        self.body.push_str(text);
    }

    /// Writes `results/SUBJECT.md` beside this package; with `--check` among the arguments a missed bar fails.
    pub fn finish(self) -> ExitCode {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("results").join(format!("{}.md", self.subject));
        let text = format!("## {}\n{}", self.subject, self.body);
        if let Err(error) =
            std::fs::create_dir_all(path.parent().expect("has a parent")).and_then(|()| std::fs::write(&path, text))
        {
            eprintln!("{}: {error}", path.display());
            return ExitCode::from(4);
        }
        println!("\n{}: {} missed", self.subject, self.missed);
        if self.missed > 0 && std::env::args().any(|a| a == "--check") { ExitCode::FAILURE } else { ExitCode::SUCCESS }
    }
}
