//! The report as text: verdicts first.

use std::fmt::Write as _;

use postread_ledger::{Part, Totals};

use super::{Experiment, Group, Measured, Report, title};
use crate::table::{align, bar};
use crate::verdict::Verdict;

/// What this kernel lacks, printed with the figures.
pub(super) const LIMITS: &str = "\
What User-Mode Linux cannot show: its CPUs are threads of this machine's, so a guest CPU stops when the host runs something
else; interrupts are signals, all I/O completes on guest CPU 0, and the disk is this machine's page cache; there are no idle
states, no frequencies and no big and little cores; hashes and ciphers are portable C, several times slower than with the
CPU's instructions. The scheduler, the workqueues, ext4, f2fs, fs-verity and fscrypt are the kernel's own.";

impl Report {
    /// The report as text.
    pub fn to_text(&self) -> String {
        let mut text = format!(
            "kernel: the patches on Linux {} (User-Mode Linux, {} CPUs), {} boots of each arm, order from seed {}.\n\n",
            self.guest_kernel, self.cpus, self.rounds, self.seed
        );
        for verdict in &self.verdicts {
            let _ = writeln!(text, "  {}", verdict.line());
        }
        let _ = writeln!(text, "\n{}\n", self.conclusion());
        for group in &self.groups {
            text.push_str(&group.to_text());
        }
        for (file_system, why) in &self.missing {
            let _ = writeln!(text, "{file_system} was not measured: {why}");
        }
        let _ = writeln!(
            text,
            "Effects are of bound relative to unbound in the same round, with intervals of the signed-rank test at 95 % from six\n\
             rounds on; an answer holds after Holm's correction over all questions and beyond what the A/A twins differ by.\n\
             {} boots were repeated because others used this machine. Meanwhile the hypervisor took {:.0} ms, and {:.0} % of the\n\
             CPUs went to other programs.\n{LIMITS}",
            self.repeated, self.steal_ms, self.other_cpu_percent
        );
        text
    }

    fn answer(&self, group: &Group, rank: &str, figure: &str) -> Option<&Verdict> {
        let wanted = format!("{}, {}, {rank}: {figure}", title(group.experiment), group.file_system);
        self.verdicts.iter().find(|verdict| verdict.question.starts_with(&wanted))
    }

    /// Whether the patches disagreed, or their figure did.
    pub fn conclusion(&self) -> String {
        let (mut agree, mut differ, mut compared, mut open) = (0, 0, 0, 0);
        let mut lines = Vec::new();
        for group in self.groups.iter().filter(|group| group.moved) {
            for rank in ["high priority", "normal"] {
                let answer = |figure| self.answer(group, rank, figure).map(|verdict| verdict.answer.as_str());
                let (Some(figure), Some(wait)) = (answer("workers'"), answer("items'")) else { continue };
                compared += 1;
                match (decided(figure), decided(wait)) {
                    (Some(a), Some(b)) if a == b => agree += 1,
                    (Some(_), Some(_)) => differ += 1,
                    _ => open += 1,
                }
            }
            let arm = |name: &str| group.arms.iter().find(|arm| arm.name == name);
            if let (Some(unbound), Some(bound)) = (arm("unbound, high priority"), arm("bound, high priority")) {
                lines.push(moved_parts(group, unbound, bound));
            }
        }
        let verdict = match (compared, differ, agree, open) {
            (0, ..) => "Nothing could be compared.".to_owned(),
            _ => format!(
                "The patches' figure (workers' run_delay) and what items really wait point the same way in {agree} of {compared} \
                 comparisons and different ways in {differ}; {open} {} undecided.",
                if open == 1 { "is" } else { "are" }
            ),
        };
        format!("{verdict}\nFrom unbound to bound, at high priority:\n{}", lines.join("\n"))
    }
}

/// Which side an answer takes; "no difference" is a side of its own.
fn decided(answer: &str) -> Option<&str> {
    match answer.split_once(' ') {
        Some((side @ ("bound" | "unbound" | "no"), _)) => Some(side),
        _ => None,
    }
}

/// What the wait of an arm consists of, in four parts, in milliseconds.
fn four(totals: &Totals) -> [(&'static str, f64); 4] {
    let ms = |ns: u64| ns as f64 / 1e6;
    let parts = &totals.parts;
    let queue = parts.get(Part::Throttled) + parts.behind_item_ns();
    let run_queue = parts.runnable_ns() + totals.absorbed_runnable_ns;
    let rest = totals.wait_ns.saturating_sub(queue + run_queue + parts.get(Part::Unexplained));
    [
        ("behind items of the same queue (P0, P1)", ms(queue)),
        ("in a run queue (P5, and P2 while runnable)", ms(run_queue)),
        ("waking and dispatch (P2, P3, P4, P6)", ms(rest)),
        ("unexplained", ms(parts.get(Part::Unexplained))),
    ]
}

fn moved_parts(group: &Group, unbound: &Measured, bound: &Measured) -> String {
    let mut line = format!("  {}, {}:", title(group.experiment), group.file_system);
    for ((name, before), (_, after)) in four(&unbound.ledger).into_iter().zip(four(&bound.ledger)).take(3) {
        let _ = write!(line, "\n    {name}: {before:.0} to {after:.0} ms");
    }
    let _ = write!(
        line,
        "\n    and the patches' figure, workers' run_delay: {:.0} to {:.0} ms",
        unbound.workers_latency_ms, bound.workers_latency_ms
    );
    line
}

impl Group {
    /// What it measures.
    pub fn title(&self) -> String {
        format!("{}, {}", title(self.experiment), self.file_system)
    }

    fn to_text(&self) -> String {
        let what = match self.experiment {
            Experiment::AppStart => "every app started once",
            Experiment::Tar => "the tree archived, four times",
        };
        let mut text = format!(
            "{} on {}: {what}, each time cold. Medians over boots, in ms.\n",
            title(self.experiment),
            self.file_system
        );
        if !self.moved {
            text.push_str("  f2fs decrypts on a queue of its own, which no parameter of this kernel moves: all arms are the same, a control.\n");
        }
        let header = [
            "",
            "time",
            "workers'",
            "programs'",
            "other",
            "all",
            "workers'",
            "items",
            "items'",
            "p50",
            "p99",
            "readers after",
        ];
        let units = ["", "", "latency", "latency", "kernel", "threads", "CPU", "", "wait", "", "", "the item's end"];
        let mut rows = vec![header.map(String::from).to_vec(), units.map(String::from).to_vec()];
        for arm in &self.arms {
            let ms = |ns: u64| format!("{:.2}", ns as f64 / 1e6);
            rows.push(vec![
                format!("  {}", arm.name),
                format!("{:.0}", arm.wall_ms),
                format!("{:.1}", arm.workers_latency_ms),
                format!("{:.1}", arm.apps_latency_ms),
                format!("{:.1}", arm.kernel_threads_latency_ms),
                format!("{:.1}", arm.all_threads_latency_ms),
                format!("{:.0}", arm.workers_cpu_ms),
                format!("{:.0}", arm.items),
                format!("{:.1}", arm.items_wait_ms),
                ms(arm.ledger.wait_p50_ns),
                ms(arm.ledger.wait_p99_ns),
                format!("{:.1}", arm.ledger.delivery.wait_ns as f64 / 1e6),
            ]);
        }
        text.push_str(&align(&rows));
        text.push_str("  What the items' wait consists of, in ms:\n");
        let mut rows = vec![[vec![String::new()], self.arms.iter().map(|arm| arm.name.clone()).collect()].concat()];
        for part in Part::ALL {
            if self.arms.iter().all(|arm| arm.ledger.parts.get(part) < 50_000) {
                continue;
            }
            let cell = |arm: &Measured| format!("{:.1}", arm.ledger.parts.get(part) as f64 / 1e6);
            rows.push([vec![format!("  {}", part.label())], self.arms.iter().map(cell).collect()].concat());
        }
        let cell = |arm: &Measured| format!("{:.2} %", arm.unexplained_percent);
        rows.push([vec!["  unexplained, at most".to_owned()], self.arms.iter().map(cell).collect()].concat());
        text.push_str(&align(&rows));
        let most = self.arms.iter().map(|arm| arm.ledger.wait_ns).max().unwrap_or(0).max(1);
        for arm in &self.arms {
            let segments: Vec<(char, f64)> = four(&arm.ledger)
                .into_iter()
                .zip(['#', 'r', 'w', '?'])
                .map(|((_, ms), mark)| (mark, ms * 1e6 / most as f64))
                .collect();
            let _ = writeln!(text, "  {} {}", bar(&segments, 60), arm.name);
        }
        text.push_str("  # behind items of the same queue, r in a run queue, w waking and dispatch\n\n");
        text
    }
}
