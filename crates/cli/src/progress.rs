//! A progress bar on standard error: only on a terminal, and only for work of more than a second.

use std::io::{IsTerminal, stderr};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

const QUIET_TIME: Duration = Duration::from_secs(1);

/// Counts bytes and files from any thread, and shows them.
#[derive(Debug)]
pub(crate) struct Progress {
    enabled: bool,
    start: Instant,
    bytes: AtomicU64,
    files: AtomicU64,
    total: AtomicU64,
    bar: OnceLock<ProgressBar>,
}

impl Progress {
    /// A bar, unless `quiet`, or standard error is no terminal.
    pub(crate) fn new(quiet: bool) -> Self {
        Self {
            enabled: !quiet && stderr().is_terminal(),
            start: Instant::now(),
            bytes: AtomicU64::new(0),
            files: AtomicU64::new(0),
            total: AtomicU64::new(0),
            bar: OnceLock::new(),
        }
    }

    /// Says how many bytes there will be, where that is known: for one file.
    pub(crate) fn set_total(&self, bytes: u64) {
        self.total.store(bytes, Ordering::Relaxed);
    }

    fn make_bar(&self) -> ProgressBar {
        let colour = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let (bar, spinner) = if colour { ("{bar:30.cyan}", "{spinner:.cyan}") } else { ("{bar:30}", "{spinner}") };
        let total = self.total.load(Ordering::Relaxed);
        let template = if total > 0 {
            format!("{bar} {{binary_bytes}}/{{binary_total_bytes}} {{binary_bytes_per_sec}} {{eta}}")
        } else {
            format!("{spinner} {{binary_bytes}} {{binary_bytes_per_sec}} {{msg}}")
        };
        let style = ProgressStyle::with_template(&template).unwrap_or_else(|_| ProgressStyle::default_spinner());
        let made = if total > 0 { ProgressBar::new(total) } else { ProgressBar::no_length() };
        made.set_style(style);
        made.set_draw_target(ProgressDrawTarget::stderr());
        made
    }

    /// Takes the bar away.
    pub(crate) fn finish(&self) {
        if let Some(bar) = self.bar.get() {
            bar.finish_and_clear();
        }
    }
}

impl postread::Progress for Progress {
    fn advance(&self, bytes: u64) {
        if !self.enabled {
            return;
        }
        let bytes = self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if self.start.elapsed() < QUIET_TIME {
            return;
        }
        let bar = self.bar.get_or_init(|| self.make_bar());
        bar.set_position(bytes);
        let files = self.files.load(Ordering::Relaxed);
        if files > 0 {
            bar.set_message(format!("{files} files"));
        }
    }

    fn file_done(&self) {
        self.files.fetch_add(1, Ordering::Relaxed);
    }
}
