//! Reports as text.

use std::fmt::Write as _;

use crate::app_start::Report;
use crate::arm::{ArmReport, Granted};
use crate::ledger_pass::ArmLedger;
use crate::meanwhile::Disturbances;
use crate::measured::Measured;
use crate::tar;
use crate::verdict::Verdict;

/// Puts cells under each other, the first column to the left, the others to the right.
pub fn align(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let pad = widths[column] - cell.chars().count();
            match column {
                0 => line.push_str(cell),
                _ => line.push_str("  "),
            }
            line.extend(std::iter::repeat_n(' ', pad));
            if column > 0 {
                line.push_str(cell);
            }
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// A bar of characters: each segment is a mark and a share of the whole width.
pub fn bar(segments: &[(char, f64)], width: usize) -> String {
    let (mut drawn, mut sum) = (String::new(), 0.0);
    for (mark, share) in segments {
        sum += share;
        let until = ((sum * width as f64).round() as usize).min(width);
        drawn.extend(std::iter::repeat_n(*mark, until.saturating_sub(drawn.chars().count())));
    }
    format!("{drawn:width$}")
}

/// A figure with thousands apart.
pub fn grouped(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    if value < -0.5 { format!("-{out}") } else { out }
}

/// What this machine cannot show, printed with the figures.
pub fn limits() -> String {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let mut text = format!(
        "{cpus} CPUs here. The patches' phones have big and little cores that change frequency; how much of \
         their gains came from those, this machine cannot show"
    );
    let asymmetric = postread_sys::topology::Topology::current().is_ok_and(|topology| topology.is_asymmetric());
    let scaling = std::path::Path::new("/sys/devices/system/cpu/cpu0/cpufreq").exists();
    match (asymmetric, scaling) {
        (true, true) => return format!("{cpus} CPUs here, of more than one kind, with frequency scaling."),
        (true, false) => text.push_str(": it has CPUs of more than one kind, and no frequency scaling."),
        (false, true) => text.push_str(": it has frequency scaling, and all CPUs are of one kind."),
        (false, false) => text.push_str(": it has neither."),
    }
    text
}

/// What all tables mean.
const LEGEND: &str = "\
An answer holds after Holm's correction over all questions above, and beyond what the A/A twins differ by. Effects are of\n\
the second arm relative to the first in the same round: the median of all pairs' means, with the interval of the\n\
signed-rank test (95 % from six rounds on). Latency of a class of threads: runnable and not running (run_delay). Queue: from\n\
queueing items to their start; it contains latency of workers and is not added to it. Delay of a demand read: from when its\n\
bytes had arrived until its reader ran with them, less the CPU time of the steps. Source queue: reads that wait for a\n\
completing thread; with inline, the steps of earlier reads are in front of them.\n";

/// Verdicts, one on each line.
pub fn verdict_lines(verdicts: &[Verdict]) -> String {
    let widest = verdicts.iter().map(|verdict| verdict.question.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for verdict in verdicts {
        let pad = widest - verdict.question.chars().count();
        let _ = write!(text, "  {}:{:pad$}  {}", verdict.question, "", verdict.answer);
        if let Some(effect) = &verdict.effect {
            let _ = write!(text, " ({effect}; noise {})", percent(verdict.noise_floor_percent));
        }
        text.push('\n');
    }
    text
}

fn percent(value: Option<f64>) -> String {
    value.map_or_else(|| "unknown".into(), |value| format!("{value:.1} %"))
}

/// Effects as whiskers around zero.
pub fn whiskers(verdicts: &[Verdict]) -> String {
    const WIDTH: usize = 61;
    let effects: Vec<_> = verdicts.iter().filter_map(|verdict| Some((&verdict.question, verdict.effect?))).collect();
    let ends = effects.iter().flat_map(|(_, effect)| [effect.low_percent.abs(), effect.high_percent.abs()]);
    // What is beyond 100 % ends at the edge.
    let most = ends.fold(1.0, f64::max).min(100.0);
    let place = |percent: f64| {
        let at = (percent.clamp(-most, most) / most + 1.0) / 2.0 * (WIDTH - 1) as f64;
        at.round() as usize
    };
    let mut rows = Vec::new();
    for (question, effect) in effects {
        let mut line = vec![' '; WIDTH];
        line[WIDTH / 2] = '|';
        for cell in &mut line[place(effect.low_percent)..=place(effect.high_percent)] {
            *cell = '-';
        }
        line[place(effect.low_percent)] = '[';
        line[place(effect.high_percent)] = ']';
        line[place(effect.percent)] = 'o';
        rows.push(vec![question.clone(), line.into_iter().collect()]);
    }
    if rows.is_empty() {
        return String::new();
    }
    let mut text = align(&rows);
    let _ = writeln!(text, "({:.0} % to {:+.0} % from left to right)", -most, most);
    text
}

/// What else the machine did.
pub(crate) fn disturbance(found: &Disturbances) -> String {
    let mut text = format!(
        "{} runs count; {} more were repeated because others used the machine meanwhile. During those that count the hypervisor\n\
         took {:.0} ms, and {:.0} % of the CPUs (median) went to other programs and to the kernel for itself.\n",
        found.runs, found.repeated, found.steal_ms, found.other_cpu_percent
    );
    if found.disturbed * 10 > found.runs {
        let _ = writeln!(
            text,
            "WARNING: {} runs count although they were disturbed: this machine was busy, and the figures are that work's too.",
            found.disturbed
        );
    }
    text
}

fn missing(granted: &Granted, run_delay_counts: bool) -> String {
    let mut text = granted.why.as_ref().map_or_else(String::new, |why| format!("Not granted here: {why}.\n"));
    if !run_delay_counts {
        text.push_str("This kernel does not count run_delay: scheduler latency reads 0.\n");
    }
    text
}

/// A quantile: two digits, as a histogram does not have more.
fn quantile(value: Option<f64>) -> String {
    let two = |value: f64| {
        let unit = 10f64.powi((value.abs().max(1.0).log10().floor() as i32 - 1).max(0));
        (value / unit).round() * unit
    };
    value.map_or_else(|| "n/a".into(), |value| grouped(two(value)))
}

/// Rows of arms; one that was refused says why after its name.
fn arm_table(
    header: Vec<Vec<String>>,
    arms: &[ArmReport<Measured>],
    cells: impl Fn(&Measured) -> Vec<String>,
) -> String {
    let mut rows = header;
    let titles = rows.len();
    for arm in arms {
        let mut row = vec![format!("  {}", arm.name)];
        row.extend(arm.measured.as_ref().map(&cells).unwrap_or_default());
        rows.push(row);
    }
    let mut text = String::new();
    for (at, line) in align(&rows).lines().enumerate() {
        let refused = at.checked_sub(titles).and_then(|at| arms.get(at)).filter(|arm| arm.measured.is_none());
        match refused {
            Some(arm) => drop(writeln!(text, "{line}  n/a: {}", arm.granted)),
            None => drop(writeln!(text, "{line}")),
        }
    }
    text
}

fn titles(rows: &[&[&str]]) -> Vec<Vec<String>> {
    rows.iter().map(|row| row.iter().map(ToString::to_string).collect()).collect()
}

/// The scheduler latency and the CPU time of every class of threads, side by side and summed.
fn thread_cells(measured: &Measured) -> Vec<String> {
    let figure = |name: &str| grouped(measured.figure(name));
    ["workers", "completers", "readers", "foreground", "all_threads"]
        .iter()
        .map(|class| figure(&format!("{class}_latency_us")))
        .chain([figure("all_threads_cpu_ms")])
        .collect()
}

fn ledger_table(arms: &[ArmReport<Measured>]) -> String {
    let measured: Vec<(&str, &ArmLedger)> = arms
        .iter()
        .filter_map(|arm| Some((arm.name.as_str(), arm.measured.as_ref()?.ledger.as_ref()?)))
        .filter(|(_, ledger)| ledger.stamped.items > 0)
        .collect();
    let Some((_, first)) = measured.first() else { return String::new() };
    let us = |ns: u64| grouped(ns as f64 / 1e3);
    let mut text = String::from("\nWhat items waited for, in a run of its own, in us: the sum over items.\n");
    let traced: Vec<_> = measured.iter().filter_map(|(name, ledger)| Some((*name, ledger.traced.as_ref()?))).collect();
    if traced.len() == measured.len() {
        let mut rows = vec![titles(&[&["", "items", "wait"]]).remove(0)];
        let shown: Vec<postread_ledger::Part> = postread_ledger::Part::ALL
            .into_iter()
            .filter(|part| traced.iter().any(|(_, totals)| totals.parts.get(*part) * 200 > totals.wait_ns))
            .collect();
        rows[0].extend(shown.iter().map(|part| part.label().split(' ').next().unwrap_or_default().to_owned()));
        for (name, totals) in &traced {
            let mut row = vec![format!("  {name}"), totals.items.to_string(), us(totals.wait_ns)];
            row.extend(shown.iter().map(|part| us(totals.parts.get(*part))));
            rows.push(row);
        }
        text.push_str(&align(&rows));
        let names: Vec<String> = shown.iter().map(|part| part.label().to_owned()).collect();
        let _ = writeln!(text, "  {}.", names.join("; "));
        text.push_str("  What max_active holds back is in P1 here: bios have no stamp of activation.\n");
    } else {
        let mut rows = titles(&[&["", "items", "wait", "P1 behind items", "P2 to P6", "of it at most in run queues"]]);
        for (name, ledger) in &measured {
            let found = &ledger.stamped;
            rows.push(vec![
                format!("  {name}"),
                found.items.to_string(),
                us(found.wait_ns),
                us(found.behind_item_ns),
                us(found.wake_to_start_ns),
                us(found.run_delay_ns.min(found.wake_to_start_ns)),
            ]);
        }
        text.push_str(&align(&rows));
        let why = first.not_traced.as_deref().unwrap_or("no scheduler events");
        let _ = writeln!(text, "  From stamps: {why}. {}.", postread_ledger::stamps::INSEPARABLE);
    }
    text
}

impl Report {
    /// The report: answers first, then tables.
    pub fn to_text(&self) -> String {
        let mut text = format!(
            "app-start: {} apps start cold, and what they read is verified through each queue policy. {} rounds, order from seed {}, {}.\n\n",
            self.apps.len(),
            self.rounds,
            self.seed,
            match self.cold {
                crate::protect::Cold::PageCacheDropped => "page cache dropped before each start",
                crate::protect::Cold::Direct => "read with O_DIRECT",
            }
        );
        text.push_str(&verdict_lines(&self.verdicts));
        for found in self.interactions.iter().filter_map(|i| Some((i.from, i.to, i.effect?))) {
            let (from, to, effect) = found;
            let _ = writeln!(
                text,
                "  interaction: the effect of bound on start-up at {} relative to that at {}: {effect}",
                to.name(),
                from.name()
            );
        }
        text.push('\n');
        text.push_str(&whiskers(&self.verdicts));
        text.push_str("\nTotals of a round (each app once), medians over rounds, in us; CPU time in ms.\n");
        let header = titles(&[
            &["", "start-up", "change", "interval", "workers'", "completers'", "readers'", "others'", "all", "all"],
            &["", "ms", "ms", "ms", "latency", "latency", "latency", "latency", "latency", "CPU"],
        ]);
        text.push_str(&arm_table(header, &self.arms, |measured| {
            let change = measured.change;
            let mut cells = vec![
                format!("{:.1}", measured.figure("start_up_ms")),
                change.map_or_else(String::new, |change| format!("{:+.1}", change.median)),
                change.map_or_else(String::new, |change| format!("{:+.1} to {:+.1}", change.low, change.high)),
            ];
            cells.extend(thread_cells(measured));
            cells
        }));
        text.push('\n');
        text.push_str(&bio_table(&self.arms));
        if let Some(measured) = self.arms.iter().find_map(|arm| arm.measured.as_ref()) {
            let _ = writeln!(
                text,
                "\nVerified in a round, read-ahead included: {} bytes, {} data blocks, {} hash blocks; {:.1} ms of CPU time.",
                grouped(measured.figure("bytes")),
                grouped(measured.figure("data_blocks")),
                grouped(measured.figure("tree_blocks")),
                measured.figure("step_cpu_ms"),
            );
        }
        text.push_str(&ledger_table(&self.arms));
        let _ = writeln!(
            text,
            "\nThe patch (Linux f959325e6ac3, Android app start-ups): workers' scheduler latency {} us unbound, {} us bound; cold\n\
             start about {} ms faster. Its totals are of another number of starts on another machine.",
            grouped(self.published.before_us as f64),
            grouped(self.published.after_us as f64),
            self.published.gain_ms
        );
        text.push_str(&disturbance(&self.disturbances));
        text.push_str(&missing(&self.granted, self.run_delay_counts));
        text.push_str(LEGEND);
        let _ = writeln!(text, "{}", limits());
        text
    }
}

/// What happens to bios and items.
fn bio_table(arms: &[ArmReport<Measured>]) -> String {
    let header = titles(&[
        &[
            "",
            "items",
            "queue",
            "p50",
            "p99",
            "demand",
            "p50",
            "p99",
            "read-ahead",
            "source",
            "unused",
            "completed on CPU",
        ],
        &["", "", "", "", "", "delay", "", "", "delay", "queue", "bios", "0, 1, ..."],
    ]);
    arm_table(header, arms, |measured| {
        vec![
            grouped(measured.figure("items")),
            grouped(measured.figure("queue_latency_us")),
            quantile(measured.quantile_us("queue_latency_p50")),
            quantile(measured.quantile_us("queue_latency_p99")),
            grouped(measured.figure("demand_delay_us")),
            quantile(measured.quantile_us("demand_delay_p50")),
            quantile(measured.quantile_us("demand_delay_p99")),
            grouped(measured.figure("read_ahead_delay_us")),
            grouped(measured.figure("source_queue_us")),
            grouped(measured.figure("unused_bios") + measured.figure("cancelled_bios")),
            measured.completions.iter().map(u64::to_string).collect::<Vec<_>>().join(", "),
        ]
    })
}

impl tar::Group {
    /// What it measures.
    pub fn title(&self) -> String {
        format!("{}, {} job{}", self.cipher.name(), self.jobs, if self.jobs == 1 { "" } else { "s" })
    }
}

impl tar::Report {
    /// The report: answers first, then tables.
    pub fn to_text(&self) -> String {
        let mut text = format!(
            "tar: {} files, {:.1} MB, encrypted, are archived through each queue policy; all reads complete on CPU {}. {} rounds,\n\
             order from seed {}, page cache dropped before each archive.\n\n",
            self.files,
            self.bytes as f64 / 1e6,
            self.completion_cpu,
            self.rounds,
            self.seed
        );
        text.push_str(&verdict_lines(&self.verdicts));
        text.push_str("\nThe patch (fscrypt's queue from bound to unbound, both high-priority) published:\n");
        for group in self.groups.iter().filter(|group| group.jobs == 1) {
            if let Some(published) = group.published {
                let _ = writeln!(text, "  {}: {published}", group.cipher.name());
            }
        }
        text.push('\n');
        text.push_str(&whiskers(&self.verdicts));
        text.push_str(
            "\nMedians over rounds; totals of a run in us, CPU time in ms. Effects are relative to the bound arm.\n",
        );
        for group in &self.groups {
            let _ = writeln!(text, "{}, archived {} times a run", group.title(), group.passes);
            let header = titles(&[
                &[
                    "",
                    "MB/s",
                    "effect",
                    "interval",
                    "workers'",
                    "completers'",
                    "jobs'",
                    "others'",
                    "all",
                    "all",
                    "items",
                    "queue",
                ],
                &["", "", "%", "%", "latency", "latency", "latency", "latency", "latency", "CPU", "", ""],
            ]);
            text.push_str(&arm_table(header, &group.arms, |measured| {
                let effect = measured.effect;
                let mut cells = vec![
                    format!("{:.0}", measured.figure("mb_per_s")),
                    effect.map_or_else(String::new, |e| format!("{:+.1}", e.percent)),
                    effect.map_or_else(String::new, |e| format!("{:+.1} to {:+.1}", e.low_percent, e.high_percent)),
                ];
                cells.extend(thread_cells(measured));
                cells.extend([grouped(measured.figure("items")), grouped(measured.figure("queue_latency_us"))]);
                cells
            }));
        }
        if let Some(group) = self.groups.last() {
            let _ = write!(text, "\n{}:", group.title());
            text.push_str(&ledger_table(&group.arms));
        }
        text.push_str(
            "\nThis kernel's own fscrypt (AES-256-XTS, ext4 on a loop device, its queue as this kernel made it):",
        );
        match &self.own_fscrypt.not_measured {
            Some(why) => drop(writeln!(text, " not measured: {why}")),
            None => text.push('\n'),
        }
        for group in &self.own_fscrypt.groups {
            let _ = writeln!(
                text,
                "  {} job{}: {:.0} MB/s; workers' scheduler latency {} us",
                group.jobs,
                if group.jobs == 1 { "" } else { "s" },
                group.mb_per_s,
                grouped(group.workers_latency_us)
            );
        }
        text.push_str(&disturbance(&self.disturbances));
        text.push_str(&missing(&self.granted, self.run_delay_counts));
        text.push_str(LEGEND);
        let _ = writeln!(text, "{}", limits());
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::Effect;

    #[test]
    fn whiskers_stand_where_the_interval_is() {
        let verdict = |percent, low_percent, high_percent| Verdict {
            question: "q".into(),
            effect: Some(Effect { percent, low_percent, high_percent, coverage_percent: 95.0, p: 0.01, rounds: 10 }),
            p_holm: None,
            noise_floor_percent: None,
            answer: String::new(),
        };
        let text = whiskers(&[verdict(-50.0, -100.0, 0.0), verdict(0.0, 0.0, 0.0), verdict(300.0, 20.0, 900.0)]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0].find('['), Some(3));
        assert_eq!((lines[0].find('o'), lines[0].find(']')), (Some(18), Some(33)));
        assert_eq!(lines[1].find('o'), Some(33));
        assert_eq!((lines[2].find('['), lines[2].find('o')), (Some(39), Some(63)));
        assert_eq!(bar(&[('a', 0.5), ('b', 0.25)], 8), "aaaabb  ");
    }
}
