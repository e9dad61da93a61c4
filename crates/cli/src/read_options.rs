//! The options of everything that reads: where the steps run, how much memory is in flight, what is reported afterwards.

use std::cmp::Ordering;
use std::fmt::Write as _;
use std::ops::Range;

use clap::{Args, ValueEnum};
use postread::{Engine, EngineConfig, EngineStats, QueuePolicy};
use postread_io::Budget;
use serde::Serialize;

use crate::exit::Failure;

/// The smallest budget taken: less would read block by block.
const MIN_MEMORY: u64 = 1 << 20;

/// The most that a queue's `max_active` may be, as in the kernel.
const WQ_MAX_ACTIVE: usize = 2048;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Queue {
    /// On the thread that completed the read
    #[default]
    Inline,
    /// On a queue of the CPU that completed the read
    Bound,
    /// On a queue that any CPU serves
    Unbound,
    /// Chosen for each bio from measured costs: local first, spread when that pays
    Auto,
}

/// `--queue`, `--high-priority`, `--max-active`, `--memory`, `--stats`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ReadOptions {
    /// Where blocks are decrypted and verified
    #[arg(long, value_enum, default_value_t, value_name = "POLICY")]
    queue: Queue,
    /// Queue to high-priority workers (with bound or unbound)
    #[arg(long)]
    high_priority: bool,
    /// Maximum number of active work items (with bound: per CPU) [default: the number of online CPUs]
    #[arg(long, value_name = "N")]
    max_active: Option<usize>,
    /// Maximum number of bytes in flight; K, M and G may follow
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, default_value = "64M")]
    memory: u64,
    /// Print the engine's statistics on standard error
    #[arg(long)]
    pub(crate) stats: bool,
}

impl ReadOptions {
    pub(crate) fn policy(&self) -> Result<QueuePolicy, Failure> {
        if let Some(n) = self.max_active
            && !(1..=WQ_MAX_ACTIVE).contains(&n)
        {
            return Err(Failure::usage(format!("--max-active takes 1 to {WQ_MAX_ACTIVE}")));
        }
        let policy = match self.queue {
            Queue::Inline | Queue::Auto => {
                let (name, why, policy) = match self.queue {
                    Queue::Auto => ("auto", "it chooses by itself", QueuePolicy::Auto),
                    _ => ("inline", "there is no queue", QueuePolicy::Inline),
                };
                let what = if self.high_priority {
                    "--high-priority"
                } else if self.max_active.is_some() {
                    "--max-active"
                } else {
                    return Ok(policy);
                };
                return Err(Failure::usage(format!("{what} means nothing with --queue {name}: {why}")));
            }
            Queue::Bound => QueuePolicy::BOUND,
            Queue::Unbound => QueuePolicy::UNBOUND,
        };
        let policy = match self.max_active {
            Some(n) => policy.max_active(n),
            None => policy,
        };
        Ok(if self.high_priority { policy.high_priority() } else { policy })
    }

    /// An engine as the options say. Sets the process's budget.
    pub(crate) fn engine(&self) -> Result<Engine, Failure> {
        let policy = self.policy()?;
        if self.memory < MIN_MEMORY {
            return Err(Failure::usage(format!("--memory takes at least {MIN_MEMORY} bytes")));
        }
        Budget::global().set_limit(self.memory);
        Engine::new(EngineConfig::new().policy(policy).measure(self.stats)).map_err(|error| {
            let cause = std::error::Error::source(&error).map(|c| format!(": {c}")).unwrap_or_default();
            Failure::environment(format!("{error}{cause}"))
        })
    }
}

/// Bytes, with K, M or G for powers of 1024.
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'K' | b'k') => (&text[..text.len() - 1], 10),
        Some(b'M' | b'm') => (&text[..text.len() - 1], 20),
        Some(b'G' | b'g') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let n: u64 = digits.parse().map_err(|_| format!("{text:?} is not a number of bytes"))?;
    n.checked_mul(1 << shift).ok_or_else(|| format!("{text:?} is too large"))
}

/// The most threads that work on files at once.
const MAX_JOBS: usize = 1024;

/// A number of files at once.
pub(crate) fn parse_jobs(text: &str) -> Result<usize, String> {
    let jobs = text.parse().ok().filter(|jobs| (1..=MAX_JOBS).contains(jobs));
    jobs.ok_or_else(|| format!("{text:?} is not a number from 1 to {MAX_JOBS}"))
}

/// A range of bytes, `START..END` with the end exclusive; either may be left out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ByteRange {
    pub(crate) start: u64,
    end: u64,
}

pub(crate) fn parse_range(text: &str) -> Result<ByteRange, String> {
    let (start, end) = text.split_once("..").ok_or("a range is START..END, in bytes, with the end exclusive")?;
    let start = if start.is_empty() { 0 } else { parse_bytes(start)? };
    let end = if end.is_empty() { u64::MAX } else { parse_bytes(end)? };
    match start.cmp(&end) {
        Ordering::Greater => Err("the range ends before it begins".to_owned()),
        Ordering::Equal => Err("the range is empty: its end is exclusive".to_owned()),
        Ordering::Less => Ok(ByteRange { start, end }),
    }
}

impl ByteRange {
    /// The part within a file of `len` bytes. A range that begins at or past its end is an error.
    pub(crate) fn within(range: Option<Self>, len: u64) -> Result<Range<u64>, Failure> {
        let (start, end) = range.map_or((0, u64::MAX), |r| (r.start, r.end));
        if start >= len && start > 0 {
            return Err(Failure::usage(format!("the range begins at byte {start}, and the file has {len} bytes")));
        }
        Ok(start..end.min(len))
    }
}

/// What the engine did, for people and for reports.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct StatsReport {
    queue: String,
    bios: u64,
    hash_bios: u64,
    items_queued: u64,
    bytes: u64,
    data_blocks_verified: u64,
    tree_blocks_verified: u64,
    completions_by_cpu: Vec<u64>,
    step_cpu_us: u64,
    queue_latency_us: Times,
    post_read_delay_us: Times,
    peak_bytes_in_flight: u64,
    /// With `--queue auto` alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    auto: Option<AutoReport>,
}

/// What the policy `auto` decided, predicted and measured.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct AutoReport {
    handoff_us: f64,
    taken_back_by_readers: u64,
    epochs: u64,
    control_epochs: u64,
    /// The fixed policy that took over, where a control won.
    #[serde(skip_serializing_if = "Option::is_none")]
    turned_off_for: Option<&'static str>,
    ways: Vec<WayReport>,
}

/// One way; times are means in microseconds, from when a bio was ready until its steps had ended.
#[derive(Clone, Copy, Debug, Serialize)]
struct WayReport {
    way: &'static str,
    bios: u64,
    predicted_us: f64,
    measured_us: f64,
    off_by_us: f64,
}

impl From<&postread::auto::AutoStats> for AutoReport {
    fn from(stats: &postread::auto::AutoStats) -> Self {
        let way = |w: &postread::auto::WayStats| {
            let mean = |sum: u64| sum as f64 / 1000.0 / w.bios.max(1) as f64;
            let (predicted_us, measured_us, off_by_us) = (mean(w.predicted_ns), mean(w.measured_ns), mean(w.error_ns));
            WayReport { way: w.way.name(), bios: w.bios, predicted_us, measured_us, off_by_us }
        };
        Self {
            handoff_us: stats.handoff_ns as f64 / 1000.0,
            taken_back_by_readers: stats.taken_back,
            epochs: stats.control.epochs,
            control_epochs: stats.control.controls,
            turned_off_for: stats.control.off.map(|off| off.to.name()),
            ways: stats.ways.iter().map(way).collect(),
        }
    }
}

impl AutoReport {
    /// As lines of text.
    pub(crate) fn to_text(&self) -> String {
        let mut text = format!(
            "auto: handing over costs {:.1} us; {} bios taken back by readers; {} epochs, {} of them controls\n",
            self.handoff_us, self.taken_back_by_readers, self.epochs, self.control_epochs
        );
        for way in self.ways.iter().filter(|way| way.bios > 0) {
            let _ = writeln!(
                text,
                "  {:<7} {:>8} bios: predicted {:.1} us each, measured {:.1} us, off by {:.1} us on average",
                way.way, way.bios, way.predicted_us, way.measured_us, way.off_by_us
            );
        }
        if let Some(way) = self.turned_off_for {
            let _ = writeln!(text, "  turned off: the control epochs showed that {way} is better here");
        }
        text
    }
}

/// Times in microseconds; none where nothing was queued or measured.
#[derive(Clone, Copy, Debug, Serialize)]
struct Times {
    count: u64,
    total: u64,
    p50: Option<f64>,
    p99: Option<f64>,
}

impl From<&postread::Latency> for Times {
    fn from(h: &postread::Latency) -> Self {
        let us = |q| h.quantile_ns(q).map(|ns| ns as f64 / 1000.0);
        Self { count: h.count(), total: h.total_ns() / 1000, p50: us(0.5), p99: us(0.99) }
    }
}

impl StatsReport {
    pub(crate) fn of(engine: &Engine) -> Self {
        let stats: EngineStats = engine.stats();
        Self {
            queue: engine.policy().to_string(),
            bios: stats.bios,
            hash_bios: stats.hash_bios,
            items_queued: stats.items_queued,
            bytes: stats.bytes,
            data_blocks_verified: stats.data_blocks_verified,
            tree_blocks_verified: stats.tree_blocks_verified,
            completions_by_cpu: stats.completions.clone(),
            step_cpu_us: stats.step_cpu_ns / 1000,
            queue_latency_us: Times::from(&stats.queue_latency),
            post_read_delay_us: Times::from(&stats.post_read_delay),
            peak_bytes_in_flight: Budget::global().peak(),
            auto: stats.auto.as_ref().map(AutoReport::from),
        }
    }

    /// Prints it on standard error.
    pub(crate) fn tell(&self) {
        let mut text = format!(
            "queue {}: {} bios of data ({} bytes), {} of hash blocks, {} work items\n\
             verified: {} data blocks, {} tree blocks; the steps used {} us of CPU time\n\
             completed on CPUs: {:?}; at most {} bytes in flight\n",
            self.queue,
            self.bios,
            self.bytes,
            self.hash_bios,
            self.items_queued,
            self.data_blocks_verified,
            self.tree_blocks_verified,
            self.step_cpu_us,
            self.completions_by_cpu,
            self.peak_bytes_in_flight,
        );
        for (name, t) in [("queue latency", &self.queue_latency_us), ("post-read delay", &self.post_read_delay_us)] {
            if let (Some(p50), Some(p99)) = (t.p50, t.p99) {
                let _ = writeln!(text, "{name}: total {} us, p50 {p50:.1} us, p99 {p99:.1} us of {}", t.total, t.count);
            }
        }
        if let Some(auto) = &self.auto {
            text.push_str(&auto.to_text());
        }
        // Statistics that can't be printed are not worth a failure.
        let _ = std::io::Write::write_all(&mut std::io::stderr(), text.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_ranges() {
        assert_eq!(parse_bytes("12"), Ok(12));
        assert_eq!(parse_bytes("3k"), Ok(3072));
        assert_eq!(parse_bytes("1G"), Ok(1 << 30));
        for bad in ["", "K", "-1", "1T", "99999999999G", "1.5M"] {
            assert!(parse_bytes(bad).is_err(), "{bad}");
        }
        let within = |text: &str| ByteRange::within(Some(parse_range(text).unwrap()), 100).unwrap();
        assert_eq!(within("10..20"), 10..20);
        assert_eq!(within(".."), 0..100);
        assert_eq!(within("90.."), 90..100);
        assert_eq!(within("99..300"), 99..100);
        assert!(ByteRange::within(Some(parse_range("100..300").unwrap()), 100).is_err());
        assert_eq!(ByteRange::within(Some(parse_range("..").unwrap()), 0).unwrap(), 0..0);
        assert!(parse_range("20..10").is_err());
        assert!(parse_range("20..20").is_err());
        assert!(parse_range("20").is_err());
    }
}
