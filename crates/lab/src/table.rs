//! Reports as text.

use std::fmt::Write as _;

use crate::app_start::{Measured, Report};
use crate::statistics::Change;
use crate::{Cipher, tar};

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

fn optional(value: Option<f64>) -> String {
    value.map_or_else(|| "n/a".into(), grouped)
}

/// What this machine can't show, said beside the figures.
pub fn limits() -> String {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let mut text = format!(
        "{cpus} CPUs here. The patches' phones have big and little cores that change frequency; how much of \
         their gains came from those, this machine can't show"
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

/// What both tables mean.
const LEGEND: &str = "\nnice -20: the kernel's rank for its high-priority workers; short slice: the shortest EEVDF slice, which needs no\n\
     privilege; normal: as all other threads. Items: work items queued. p50 and p99: of one item, or of one bio, to 3 %.\n\
     Scheduler latency: workers runnable and not running, before an item starts and within it. Queue latency: from queueing\n\
     an item to its start, behind other items and behind other threads. Post-read delay: from bytes arrived to plaintext\n\
     delivered, less the steps' own CPU time. Three different things that overlap: they are never added up.\n";

/// What else the machine did, and a warning where that is too much for the figures to mean anything.
fn disturbance(steal_ms: f64, other_cpu_percent: f64) -> String {
    let mut text = format!(
        "Meanwhile the hypervisor took {} ms, and {other_cpu_percent:.0} % of the CPUs went to other programs and to the kernel for itself.\n",
        grouped(steal_ms)
    );
    if other_cpu_percent > BUSY_PERCENT {
        text.push_str("WARNING: this machine was busy with other work: the differences above are that work's as much as the policies'.\n");
    }
    text
}

/// What an idle machine does beside an experiment stays below this: its disk's work, its own services.
const BUSY_PERCENT: f64 = 15.0;

/// How sure the intervals are.
fn interval(mut changes: impl Iterator<Item = Change>) -> String {
    changes.next().map_or_else(String::new, |change| {
        let range =
            if change.coverage_percent < 95.0 { " (the whole range: six rounds or more give 95 %)" } else { "" };
        format!(
            "\nAn interval holds the median of infinitely many rounds with {:.1} %{range}.",
            change.coverage_percent
        )
    })
}

/// A quantile: two digits, as a histogram does not have more.
fn quantile(value: Option<f64>) -> String {
    let two = |value: f64| {
        let unit = 10f64.powi((value.abs().max(1.0).log10().floor() as i32 - 1).max(0));
        (value / unit).round() * unit
    };
    optional(value.map(two))
}

impl Report {
    /// The table, and how to read it.
    pub fn to_text(&self) -> String {
        let mut text =
            String::from("app-start: apps start cold, and what they read is verified through each queue policy.\n\n");
        for app in &self.apps {
            let _ = writeln!(
                text,
                "  {}: {} reads of {} MB in {} MB of files, {} threads, {} more that compute",
                app.name,
                app.reads,
                app.read_bytes / 1_000_000,
                app.file_bytes / 1_000_000,
                app.threads,
                app.foreground_threads
            );
        }
        let _ = writeln!(
            text,
            "\n{} rounds, order from seed {}, {}. Totals are of one round (each app once), medians over rounds; times in us.\n",
            self.rounds,
            self.seed,
            match self.cold {
                crate::protect::Cold::PageCacheDropped => "page cache dropped before each start",
                crate::protect::Cold::Direct => "read with O_DIRECT",
            }
        );
        let header = [
            "",
            "scheduler",
            "queue",
            "p50",
            "p99",
            "post-read",
            "p50",
            "p99",
            "items",
            "readers'",
            "completed on CPU",
            "start-up",
            "change",
            "interval",
        ];
        let units = ["", "latency", "latency", "", "", "delay", "", "", "", "latency", "0, 1, ...", "ms", "ms", "ms"];
        let mut rows = vec![header.map(String::from).to_vec(), units.map(String::from).to_vec()];
        for arm in &self.arms {
            let mut row = vec![arm.name.clone()];
            match &arm.measured {
                Some(measured) => row.extend(cells(measured)),
                None => row.push(format!("n/a ({})", arm.granted)),
            }
            rows.push(row);
        }
        // An arm that was refused has one long cell, which must not widen a column.
        let refused: Vec<(usize, String)> = rows
            .iter_mut()
            .enumerate()
            .filter(|(_, row)| row.len() == 2)
            .filter_map(|(i, row)| row.pop().map(|cell| (i, cell)))
            .collect();
        let table = align(&rows);
        for (i, line) in table.lines().enumerate() {
            let cell = refused.iter().find(|(row, _)| *row == i).map_or("", |(_, cell)| cell);
            let _ = writeln!(text, "{line}{}{cell}", if cell.is_empty() { "" } else { "  " });
        }
        let Some(measured) = self.arms.iter().find_map(|arm| arm.measured.as_ref()) else { return text };
        let _ = writeln!(
            text,
            "\nVerified in a round, read-ahead included: {} bytes, {} data blocks, {} hash blocks; {:.1} ms of CPU time.",
            grouped(measured.bytes),
            grouped(measured.data_blocks),
            grouped(measured.tree_blocks),
            measured.step_cpu_ms,
        );
        text.push_str(&disturbance(self.steal_ms, self.other_cpu_percent));
        if let Some(reference) = &self.reference {
            let _ = writeln!(
                text,
                "Changes are against `{reference}`: the median of the changes within a round (not the difference of the medians).{}",
                interval(self.arms.iter().filter_map(|arm| arm.measured.as_ref()?.start_up_change_ms))
            );
        }
        if !self.run_delay_counts {
            text.push_str("This kernel does not count run_delay, so that there is no scheduler latency.\n");
        }
        let _ = writeln!(
            text,
            "\nThe patch (Linux f959325e6ac3, Android app start-ups): total scheduler latency {} us unbound, {} us bound;\n\
             cold start about {} ms faster. Its total is of another number of starts on another machine: compare the ratio.",
            grouped(self.published.before_us as f64),
            grouped(self.published.after_us as f64),
            self.published.gain_ms
        );
        let latency = |name: &str| {
            let arm = self.arms.iter().find(|arm| arm.name == name)?;
            arm.measured.as_ref()?.scheduler_latency_us
        };
        for rank in ["nice -20", "short slice", "normal"] {
            let (unbound, bound) = (latency(&format!("unbound, {rank}")), latency(&format!("bound, {rank}")));
            if let (Some(unbound), Some(bound)) = (unbound, bound) {
                let _ = writeln!(
                    text,
                    "Scheduler latency unbound : bound at {rank}: {} : {} us, {:.1} : 1 (the patch: 29 : 1).",
                    grouped(unbound),
                    grouped(bound),
                    unbound / bound.max(1.0)
                );
            }
        }
        text.push_str(LEGEND);
        text.push_str(
            "Readers' latency: scheduler latency of the threads that read and complete bios; with inline they do the work.\n\
             Completed on CPU: bios of a round whose reads ended on CPU 0, on CPU 1, and so on.\n",
        );
        let _ = writeln!(text, "{}", limits());
        text
    }
}

impl tar::Group {
    fn title(&self) -> String {
        format!("{}, {} job{}", self.cipher.name(), self.jobs, if self.jobs == 1 { "" } else { "s" })
    }
}

impl tar::Report {
    /// The table, and how to read it.
    pub fn to_text(&self) -> String {
        let mut text = format!(
            "tar: an archive of {} files, {:.1} MB, is made of an encrypted tree through each queue policy.\n\
             {} rounds, order from seed {}, page cache dropped before each archive. Medians over rounds; times in us.\n\n",
            self.files,
            self.bytes as f64 / 1e6,
            self.rounds,
            self.seed
        );
        let header = ["", "MB/s", "over bound", "interval", "scheduler", "queue", "p50", "p99", "post-read", "items"];
        let units = ["", "", "%", "%", "latency", "latency", "", "", "delay", ""];
        let mut rows = vec![header.map(String::from).to_vec(), units.map(String::from).to_vec()];
        for group in &self.groups {
            rows.push(vec![group.title()]);
            for arm in &group.arms {
                let mut row = vec![format!("  {}", arm.name)];
                match &arm.measured {
                    None => row.push("n/a".into()),
                    Some(m) => {
                        let gain = m.gain_over_bound_percent;
                        row.extend([
                            format!("{:.0}", m.mb_per_s),
                            gain.map_or_else(String::new, |gain| format!("{:+.1}", gain.median)),
                            gain.map_or_else(String::new, |gain| format!("{:+.1} to {:+.1}", gain.low, gain.high)),
                            optional(m.scheduler_latency_us),
                            grouped(m.queue_latency_us),
                            quantile(m.queue_latency_p50_us),
                            quantile(m.queue_latency_p99_us),
                            grouped(m.post_read_delay_us),
                            grouped(m.items),
                        ]);
                    }
                }
                rows.push(row);
            }
        }
        text.push_str(&align(&rows));
        let refused = self.groups.iter().flat_map(|group| &group.arms).find(|arm| arm.measured.is_none());
        if let Some(arm) = refused {
            let _ = writeln!(text, "\nn/a: {}; the short slice needs no privilege.", arm.granted);
        }
        text.push_str("\nThe patch (fscrypt's queue from bound to unbound, both high-priority):\n");
        for group in self.groups.iter().filter(|group| group.published.is_some()) {
            let gain = |rank: &str| {
                let arm = group.arms.iter().find(|arm| arm.name == format!("unbound, {rank}"))?;
                arm.measured.as_ref()?.gain_over_bound_percent
            };
            let best = ["nice -20", "short slice"].into_iter().find_map(|rank| Some((rank, gain(rank)?)));
            let here = best.map_or_else(
                || "not measured here".into(),
                |(rank, gain)| format!("here {:+.1} % ({:+.1} to {:+.1}, {rank})", gain.median, gain.low, gain.high),
            );
            let _ = writeln!(text, "  {}: {}; {here}", group.title(), group.published.unwrap_or_default());
        }
        if !self.run_delay_counts {
            text.push_str("This kernel does not count run_delay, so that there is no scheduler latency.\n");
        }
        let gains = self
            .groups
            .iter()
            .flat_map(|group| &group.arms)
            .filter_map(|arm| arm.measured.as_ref().filter(|m| m.items > 0.0)?.gain_over_bound_percent);
        let noise = self.groups.iter().filter(|group| group.cipher == Cipher::None).flat_map(|group| &group.arms);
        let noise = noise.filter_map(|arm| arm.measured.as_ref()?.gain_over_bound_percent);
        let noise = noise
            .map(|gain| gain.median.abs())
            .fold(None, |most: Option<f64>, gain| Some(most.unwrap_or(0.0).max(gain)));
        let _ = writeln!(
            text,
            "\nOver bound: the median of the gains within a round over the bound arm of the same rank (not the ratio of the\n\
             medians).{}",
            interval(gains)
        );
        if let Some(noise) = noise {
            let _ = writeln!(
                text,
                "Without encryption no work items are queued, so those arms differ by chance alone: by up to {noise:.1} % here.\n\
                 A gain of that size in another group says nothing."
            );
        }
        text.push_str(&disturbance(self.steal_ms, self.other_cpu_percent));
        text.push_str(LEGEND);
        let _ = writeln!(text, "{}", limits());
        text
    }
}

fn cells(measured: &Measured) -> Vec<String> {
    let change = measured.start_up_change_ms;
    vec![
        optional(measured.scheduler_latency_us),
        grouped(measured.queue_latency_us),
        quantile(measured.queue_latency_p50_us),
        quantile(measured.queue_latency_p99_us),
        grouped(measured.post_read_delay_us),
        quantile(measured.post_read_delay_p50_us),
        quantile(measured.post_read_delay_p99_us),
        grouped(measured.items),
        optional(measured.completing_threads_latency_us),
        measured.completions.iter().map(u64::to_string).collect::<Vec<_>>().join(", "),
        format!("{:.1}", measured.start_up_ms),
        change.map_or_else(String::new, |change| format!("{:+.1}", change.median)),
        change.map_or_else(String::new, |change| format!("{:+.1} to {:+.1}", change.low, change.high)),
    ]
}
