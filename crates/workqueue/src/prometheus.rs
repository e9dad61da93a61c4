//! Statistics as Prometheus' text format (version 0.0.4).

use std::fmt::Write;
use std::time::Duration;

use postread_sys::hist::Hist;

use crate::stats::WqStats;

/// The upper edges of the published buckets, in nanoseconds: 1 us to 10 s.
const EDGES: [u64; 15] = [
    1_000,
    3_000,
    10_000,
    30_000,
    100_000,
    300_000,
    1_000_000,
    3_000_000,
    10_000_000,
    30_000_000,
    100_000_000,
    300_000_000,
    1_000_000_000,
    3_000_000_000,
    10_000_000_000,
];

/// A metric: its name, its help text, and where it comes from.
type Metric<T> = (&'static str, &'static str, fn(&WqStats) -> T);
type HistMetric = (&'static str, &'static str, fn(&WqStats) -> &Hist);

/// The statistics of some queues, to be served to Prometheus as `text/plain; version=0.0.4`. Snapshots since the queues
/// were made, not differences.
///
/// ```
/// use postread_workqueue::{Workqueue, WqFlags, prometheus};
///
/// let wq = Workqueue::alloc("served", WqFlags::UNBOUND, 0)?;
/// wq.spawn(|| {});
/// wq.flush()?;
/// let text = prometheus(&[wq.stats()]);
/// assert!(text.contains("workqueue_items_executed_total{queue=\"served\"} 1\n"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn prometheus(queues: &[WqStats]) -> String {
    let mut text = String::new();
    let counters: [Metric<u64>; 10] = [
        ("items_queued", "Items queued.", |s| s.queued),
        ("items_executed", "Items whose run has ended.", |s| s.executed),
        ("items_cancelled", "Items cancelled while pending.", |s| s.cancelled),
        ("panics", "Runs that panicked.", |s| s.panics),
        ("items_migrated", "Items started on another CPU than the one that queued them.", |s| s.migrated),
        ("cpu_hogs", "Items that hogged a bound pool's CPU.", |s| s.cpu_hogs),
        ("managed_wakeups", "Workers woken because an item hogged the CPU or slept.", |s| s.managed_wakeups),
        ("repatriated", "Workers brought back into their pod.", |s| s.repatriated),
        ("maydays", "Calls of the rescuer.", |s| s.maydays),
        ("items_rescued", "Items that the rescuer ran.", |s| s.rescued),
    ];
    for (name, help, value) in counters {
        head(&mut text, &format!("{name}_total"), help, "counter");
        for stats in queues {
            line(&mut text, &format!("{name}_total"), &label(stats), value(stats) as f64);
        }
    }
    head(&mut text, "cpu_seconds_total", "CPU time spent on items.", "counter");
    for stats in queues {
        line(&mut text, "cpu_seconds_total", &label(stats), stats.cpu_time.as_secs_f64());
    }
    let gauges: [Metric<u64>; 2] = [
        ("items_in_flight", "Items queued and not yet done.", |s| s.in_flight),
        ("max_active", "The limit of active items.", |s| s.max_active as u64),
    ];
    for (name, help, value) in gauges {
        head(&mut text, name, help, "gauge");
        for stats in queues {
            line(&mut text, name, &label(stats), value(stats) as f64);
        }
    }
    let histograms: [HistMetric; 4] = [
        ("queue_to_activate_seconds", "From queueing to activation.", |s| &s.queue_to_activate),
        ("activate_to_start_seconds", "From activation to start.", |s| &s.activate_to_start),
        ("queue_to_start_seconds", "From queueing to start.", |s| &s.queue_to_start),
        ("run_seconds", "From start to end.", |s| &s.run),
    ];
    for (name, help, value) in histograms {
        head(&mut text, name, help, "histogram");
        for stats in queues {
            histogram(&mut text, name, &label(stats), value(stats));
        }
    }
    text
}

fn head(text: &mut String, name: &str, help: &str, kind: &str) {
    let _ = writeln!(text, "# HELP workqueue_{name} {help}\n# TYPE workqueue_{name} {kind}");
}

fn line(text: &mut String, name: &str, labels: &str, value: f64) {
    let _ = writeln!(text, "workqueue_{name}{{{labels}}} {value}");
}

fn label(stats: &WqStats) -> String {
    let mut name = String::new();
    for c in stats.name.chars() {
        match c {
            '\\' => name.push_str("\\\\"),
            '"' => name.push_str("\\\""),
            '\n' => name.push_str("\\n"),
            c => name.push(c),
        }
    }
    format!("queue=\"{name}\"")
}

fn histogram(text: &mut String, name: &str, labels: &str, hist: &Hist) {
    for edge in EDGES {
        // Values below the bucket of the edge: each of them is at most the edge.
        let below = hist.count_to(Duration::from_nanos(edge));
        let seconds = edge as f64 / 1e9;
        line(text, &format!("{name}_bucket"), &format!("{labels},le=\"{seconds}\""), below as f64);
    }
    line(text, &format!("{name}_bucket"), &format!("{labels},le=\"+Inf\""), hist.count() as f64);
    line(text, &format!("{name}_sum"), labels, hist.sum().as_secs_f64());
    line(text, &format!("{name}_count"), labels, hist.count() as f64);
}

#[cfg(test)]
mod tests {
    use crate::{Workqueue, WqFlags};

    #[test]
    fn names_are_escaped_and_buckets_add_up() {
        let wq = Workqueue::alloc("a\"b\\c\nd", WqFlags::UNBOUND, 0).unwrap();
        for _ in 0..50 {
            wq.spawn(|| {});
        }
        wq.flush().unwrap();
        let text = super::prometheus(&[wq.stats()]);
        assert!(text.contains("workqueue_items_queued_total{queue=\"a\\\"b\\\\c\\nd\"} 50\n"), "{text}");
        let buckets: Vec<u64> = text
            .lines()
            .filter(|l| l.starts_with("workqueue_run_seconds_bucket"))
            .map(|l| l.rsplit_once(' ').unwrap().1.parse().unwrap())
            .collect();
        assert!(buckets.len() == 16 && buckets.is_sorted() && buckets[15] == 50, "{buckets:?}");
        for line in text.lines().filter(|l| !l.starts_with('#')) {
            assert!(line.rsplit_once(' ').unwrap().1.parse::<f64>().is_ok(), "{line}");
        }
    }
}
