//! Reports of the monitor, the watchdog and the rescuers: the kernel prints such things to its log.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::current::drop_payload;
use crate::sync::lock;

/// What a worker runs at the time of a report.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Running {
    /// The worker's name.
    pub worker: String,
    /// The name of the function's type; a closure's shows where it was defined.
    pub function: &'static str,
    /// The queue of the item.
    pub queue: String,
    /// For how long.
    pub elapsed: Duration,
}

/// Something that a program's author should look at.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Report {
    /// An item of a bound queue has run for longer than [`Config::cpu_intensive_thresh`] without sleeping, and held up
    /// the items after it; another worker was woken. Reported from the fourth time on, and then each time that the number
    /// has doubled.
    ///
    /// [`Config::cpu_intensive_thresh`]: crate::Config::cpu_intensive_thresh
    CpuHog {
        /// Which item, on which worker.
        running: Running,
        /// How often this function has hogged the CPU.
        times: u64,
    },
    /// The first item of a pool has not moved for longer than [`Config::watchdog_thresh`].
    ///
    /// [`Config::watchdog_thresh`]: crate::Config::watchdog_thresh
    Stall {
        /// The pool's name.
        pool: String,
        /// For how long.
        stalled: Duration,
        /// What its workers run.
        running: Vec<Running>,
    },
    /// No thread could be made for a pool, and a rescuer was called.
    Mayday {
        /// The pool's name.
        pool: String,
        /// The queue whose rescuer was called.
        queue: String,
    },
    /// An item of a `MEM_RECLAIM` queue waits for a queue that is not: it can make progress only if threads can be
    /// created.
    FlushDependency {
        /// The queue of the item that waits.
        queue: String,
        /// The queue that it waits for.
        target: String,
    },
}

impl std::fmt::Display for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} runs {} of {} for {:.0?}", self.worker, self.function, self.queue, self.elapsed)
    }
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Report::CpuHog { running, times } => {
                write!(f, "{running}: hogged the CPU {times} times, consider UNBOUND or CPU_INTENSIVE")
            }
            Report::Stall { pool, stalled, running } => {
                write!(f, "pool {pool}: stalled for {stalled:.0?}")?;
                running.iter().try_for_each(|r| write!(f, "; {r}"))
            }
            Report::Mayday { pool, queue } => write!(f, "pool {pool}: no thread, called the rescuer of {queue}"),
            Report::FlushDependency { queue, target } => {
                write!(f, "an item of {queue} (MEM_RECLAIM) flushes {target}, which is not MEM_RECLAIM")
            }
        }
    }
}

/// The callback of [`Config::on_report`](crate::Config::on_report).
pub(crate) type OnReport = Arc<dyn Fn(&Report) + Send + Sync>;

const KEPT: usize = 64;

pub(crate) struct Reporter {
    on_report: Option<OnReport>,
    latest: Mutex<VecDeque<Report>>,
}

impl Reporter {
    pub(crate) fn new(on_report: Option<OnReport>) -> Reporter {
        Reporter { on_report, latest: Mutex::default() }
    }

    pub(crate) fn report(&self, report: Report) {
        // Both are foreign code.
        let shown = catch_unwind(AssertUnwindSafe(|| {
            #[cfg(feature = "tracing")]
            tracing::warn!(target: "postread_workqueue", "{report}");
            if let Some(on_report) = &self.on_report {
                on_report(&report);
            }
        }));
        if let Err(payload) = shown {
            drop_payload(payload);
        }
        let mut latest = lock(&self.latest);
        if latest.len() == KEPT {
            latest.pop_front();
        }
        latest.push_back(report);
    }

    pub(crate) fn latest(&self) -> Vec<Report> {
        lock(&self.latest).iter().cloned().collect()
    }
}

impl std::fmt::Debug for Reporter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reporter").finish_non_exhaustive()
    }
}
