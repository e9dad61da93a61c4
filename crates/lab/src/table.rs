//! Reports as text.

use std::fmt::Write as _;

use crate::app_start::{Measured, Report};
use crate::tar;

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
            "95 % interval",
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
            "\nVerified in a round: {} bytes, {} data blocks, {} hash blocks; {:.1} ms of CPU time. Stolen by the hypervisor: {:.0} ms.",
            grouped(measured.bytes),
            grouped(measured.data_blocks),
            grouped(measured.tree_blocks),
            measured.step_cpu_ms,
            self.steal_ms
        );
        if let Some(reference) = &self.reference {
            let _ = writeln!(
                text,
                "Changes are against `{reference}`, the median of the pairs of one round (not the difference of the medians); five rounds or more give an interval."
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
        text.push_str(
            "\nnice -20: the kernel's rank for its high-priority workers; short slice: the shortest EEVDF slice, which needs no\n\
             privilege; normal: as all other threads. The columns p50 and p99 are of one item, or of one bio. Items: work items\n\
             queued. Readers' latency: scheduler latency of the threads that read and complete bios; with inline they do the work.\n\
             Scheduler latency: workers runnable and not running. Queue latency: from queueing an item to its start; it\n\
             contains scheduler latency, and waiting behind other items. Post-read delay: from bytes arrived to plaintext\n\
             delivered, less the steps' own CPU time. Three different things: they are never added up.\n",
        );
        let _ = writeln!(text, "{}", limits());
        text
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
        let header =
            ["", "MB/s", "over bound", "95 % interval", "scheduler", "queue", "p50", "p99", "post-read", "items"];
        let units = ["", "", "%", "%", "latency", "latency", "", "", "delay", ""];
        let mut rows = vec![header.map(String::from).to_vec(), units.map(String::from).to_vec()];
        for group in &self.groups {
            rows.push(vec![format!(
                "{}, {} job{}",
                group.cipher.name(),
                group.jobs,
                if group.jobs == 1 { "" } else { "s" }
            )]);
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
                            optional(m.queue_latency_p50_us),
                            optional(m.queue_latency_p99_us),
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
            let _ = writeln!(
                text,
                "\nn/a: the system refuses nice -20 ({}); the short slice needs no privilege.",
                arm.granted
            );
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
            let _ = writeln!(
                text,
                "  {}, {} job{}: {}; {here}",
                group.cipher.name(),
                group.jobs,
                if group.jobs == 1 { "" } else { "s" },
                group.published.unwrap_or_default()
            );
        }
        if !self.run_delay_counts {
            text.push_str("This kernel does not count run_delay, so that there is no scheduler latency.\n");
        }
        let _ = writeln!(text, "Stolen by the hypervisor: {:.0} ms. {}", self.steal_ms, limits());
        text
    }
}

fn cells(measured: &Measured) -> Vec<String> {
    let change = measured.start_up_change_ms;
    vec![
        optional(measured.scheduler_latency_us),
        grouped(measured.queue_latency_us),
        optional(measured.queue_latency_p50_us),
        optional(measured.queue_latency_p99_us),
        grouped(measured.post_read_delay_us),
        optional(measured.post_read_delay_p50_us),
        optional(measured.post_read_delay_p99_us),
        grouped(measured.items),
        optional(measured.completing_threads_latency_us),
        measured.completions.iter().map(u64::to_string).collect::<Vec<_>>().join(", "),
        format!("{:.1}", measured.start_up_ms),
        change.map_or_else(String::new, |change| format!("{:+.1}", change.median)),
        change.map_or_else(String::new, |change| format!("{:+.1} to {:+.1}", change.low, change.high)),
    ]
}
