//! The arms of an experiment: queue policies, each with its own workers.

use std::sync::Arc;
use std::time::Duration;

use postread::{Engine, EngineConfig, EngineStats, QueuePolicy};
use postread_io::{PreadConfig, PreadPool};
use postread_sys::priority::{HighPriority, set_fifo};
use postread_sys::schedstat::{SchedStat, ThreadStat};
use postread_workqueue::{Config, HighPriorityPolicy, Pools, WqFlags};
use serde::Serialize;

use crate::error::{LabError, Tried};
use crate::ledger_pass::Collector;

/// How the workers of an arm are ranked. Never more than one of them changes between two arms that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rank {
    /// As all other threads.
    Normal,
    /// Nice -20, as the kernel's high-priority workers.
    #[serde(rename = "nice-20")]
    Nice,
    /// The shortest EEVDF slice, which needs no privilege.
    ShortSlice,
}

impl Rank {
    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Rank::Normal => "normal",
            Rank::Nice => "nice -20",
            Rank::ShortSlice => "short slice",
        }
    }
}

/// How the threads that complete reads run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Completers {
    /// Like interrupts: `SCHED_FIFO`, so that no worker preempts them.
    Interrupt,
    /// Like all other threads: workers at nice -20 preempt them.
    Thread,
}

/// Where items run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// On the completing thread.
    Inline,
    /// On the completing CPU's worker.
    Bound,
    /// On any worker.
    Unbound,
}

/// An arm before anything is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Arm {
    /// Where items run.
    pub placement: Placement,
    /// How their workers are ranked.
    pub rank: Rank,
    /// How the threads that complete reads run.
    pub completers: Completers,
    /// The second of two identical arms: what they differ by is noise.
    pub twin: bool,
}

impl Arm {
    /// An arm that is no twin.
    pub const fn new(placement: Placement, rank: Rank, completers: Completers) -> Arm {
        Arm { placement, rank, completers, twin: false }
    }

    /// Its name in tables.
    pub fn name(&self) -> String {
        let placement = match self.placement {
            Placement::Inline => "inline".to_owned(),
            Placement::Bound => format!("bound, {}", self.rank.name()),
            Placement::Unbound => format!("unbound, {}", self.rank.name()),
        };
        let completers = if self.completers == Completers::Thread { ", completers as threads" } else { "" };
        format!("{placement}{completers}{}", if self.twin { " (A/A twin)" } else { "" })
    }
}

/// What this system grants.
#[derive(Clone, Debug, Serialize)]
pub struct Granted {
    /// How completing threads run in the main arms: as interrupts where that is allowed.
    pub completers: Completers,
    /// The best rank of workers.
    pub best_rank: Rank,
    /// Why something is not granted.
    pub why: Option<String>,
}

impl Granted {
    /// Finds out by trying.
    pub fn probe() -> Granted {
        let fifo = std::thread::spawn(|| set_fifo(0)).join();
        let nice = std::thread::spawn(|| postread_sys::priority::set_nice_current(-20)).join();
        let completers = if matches!(fifo, Ok(Ok(()))) { Completers::Interrupt } else { Completers::Thread };
        let best_rank = if matches!(nice, Ok(Ok(()))) { Rank::Nice } else { Rank::ShortSlice };
        let mut missing = Vec::new();
        if completers == Completers::Thread {
            missing.push("SCHED_FIFO for completing threads needs CAP_SYS_NICE or RLIMIT_RTPRIO, so that workers may preempt them");
        }
        if best_rank != Rank::Nice {
            missing.push("nice -20 for workers needs CAP_SYS_NICE or RLIMIT_NICE");
        }
        Granted { completers, best_rank, why: (!missing.is_empty()).then(|| missing.join("; ")) }
    }
}

/// An arm of a report.
#[derive(Clone, Debug, Serialize)]
pub struct ArmReport<M> {
    /// Its name.
    pub name: String,
    /// What it is.
    #[serde(flatten)]
    pub arm: Arm,
    /// The priority that its workers had, or why it could not be measured.
    pub granted: String,
    /// The figures; null where it could not be measured.
    pub measured: Option<M>,
}

/// Every arm, as far as the system grants it.
#[derive(Debug)]
pub(crate) struct Arms {
    wanted: Vec<Arm>,
    /// Those that can be measured, in the order of `wanted`.
    pub(crate) runners: Vec<Runner>,
    /// The others, and why.
    refused: Vec<(Arm, String)>,
    as_threads: PreadPool,
    as_interrupts: Option<PreadPool>,
}

impl Arms {
    pub(crate) fn set_up(wanted: Vec<Arm>) -> Result<Arms, LabError> {
        let pool = || PreadPool::new(PreadConfig::new()).tried(|| "starting the reading threads".into());
        let as_threads = pool()?;
        let interrupts = wanted.iter().any(|arm| arm.completers == Completers::Interrupt).then(pool).transpose()?;
        let raised = interrupts.map(|pool| {
            let all = pool.threads().into_iter().try_for_each(|tid| set_fifo(tid as i32));
            all.map(|()| pool)
        });
        let (as_interrupts, why) = match raised {
            Some(Ok(pool)) => (Some(pool), String::new()),
            Some(Err(error)) => (None, format!("SCHED_FIFO for completing threads: {error}")),
            None => (None, String::new()),
        };
        let mut arms =
            Arms { wanted: wanted.clone(), runners: Vec::new(), refused: Vec::new(), as_threads, as_interrupts };
        for arm in wanted {
            if arm.completers == Completers::Interrupt && arms.as_interrupts.is_none() {
                arms.refused.push((arm, why.clone()));
                continue;
            }
            let completers = arms.pool(arm.completers).threads();
            match Runner::new(arm, &completers, 0)? {
                Ok(runner) => arms.runners.push(runner),
                Err(why) => arms.refused.push((arm, why)),
            }
        }
        Ok(arms)
    }

    /// The threads that read, and complete, for an arm.
    pub(crate) fn pool(&self, completers: Completers) -> &PreadPool {
        match (completers, &self.as_interrupts) {
            (Completers::Interrupt, Some(pool)) => pool,
            _ => &self.as_threads,
        }
    }

    /// The place of an arm among the runners.
    pub(crate) fn place(&self, arm: Arm) -> Option<usize> {
        self.runners.iter().position(|runner| runner.arm == arm)
    }

    /// All arms in order; `measured` returns the figures of a runner, by its place among the runners.
    pub(crate) fn report<M>(&self, measured: impl Fn(usize, &Runner) -> M) -> Vec<ArmReport<M>> {
        let one = |arm: &Arm| {
            let found = self.runners.iter().enumerate().find(|(_, runner)| runner.arm == *arm);
            let granted = match found {
                Some((_, runner)) => runner.granted.clone(),
                None => self.refused.iter().find(|(refused, _)| refused == arm).map(|(_, why)| why.clone())?,
            };
            let measured = found.map(|(at, runner)| measured(at, runner));
            Some(ArmReport { name: arm.name(), arm: *arm, granted, measured })
        };
        self.wanted.iter().filter_map(one).collect()
    }
}

/// An arm at work: an engine and its own worker pools.
#[derive(Debug)]
pub(crate) struct Runner {
    pub(crate) arm: Arm,
    pub(crate) engine: Engine,
    pub(crate) collector: Arc<Collector>,
    pools: Pools,
    completers: Vec<ThreadStat>,
    /// What took effect.
    pub(crate) granted: String,
}

/// An arm's counters at a moment.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    pub(crate) stats: EngineStats,
    pub(crate) workers: SchedStat,
    pub(crate) completers: SchedStat,
}

impl Snapshot {
    pub(crate) fn since(&self, earlier: &Snapshot) -> Snapshot {
        Snapshot {
            stats: self.stats.since(&earlier.stats),
            workers: self.workers.since(&earlier.workers),
            completers: self.completers.since(&earlier.completers),
        }
    }
}

/// Adds counters.
pub(crate) fn add(sum: &mut SchedStat, stat: &SchedStat) {
    sum.run_time_ns += stat.run_time_ns;
    sum.run_delay_ns += stat.run_delay_ns;
    sum.slices += stat.slices;
}

impl Runner {
    /// Sets an arm up; the reason where the system refuses what makes it this arm.
    pub(crate) fn new(arm: Arm, completers: &[u32], max_active: usize) -> Result<Result<Runner, String>, LabError> {
        let engine = |error: &dyn std::fmt::Display| LabError::Engine(error.to_string());
        let rank = if arm.rank == Rank::ShortSlice { HighPriorityPolicy::Slice } else { HighPriorityPolicy::Best };
        let pools = Pools::new(Config::new().high_priority(rank)).map_err(|e| engine(&e))?;
        let high_priority = arm.rank != Rank::Normal;
        let (policy, flag) = match arm.placement {
            Placement::Inline => (QueuePolicy::Inline, None),
            Placement::Bound => (QueuePolicy::Bound { high_priority, max_active }, Some(WqFlags::PERCPU)),
            Placement::Unbound => (QueuePolicy::Unbound { high_priority, max_active }, Some(WqFlags::UNBOUND)),
        };
        let mut granted = String::from("none");
        if let Some(flag) = flag.filter(|_| high_priority) {
            match granted_priority(&pools, flag)? {
                HighPriority::Nice(-20) if arm.rank == Rank::Nice => granted = "nice -20".into(),
                HighPriority::Slice(slice) if arm.rank == Rank::ShortSlice => granted = slice_name(slice),
                other if arm.rank == Rank::Nice => {
                    return Ok(Err(format!("nice -20 needs CAP_SYS_NICE; the system grants {other}")));
                }
                other => return Ok(Err(format!("a slice of one's own needs Linux 6.12; the system grants {other}"))),
            }
        }
        let collector = Arc::new(Collector::default());
        let config = EngineConfig::new().policy(policy).observer(collector.clone()).pools(pools.clone());
        let engine = Engine::new(config).map_err(|e| engine(&e))?;
        let completers = completers.iter().filter_map(|tid| ThreadStat::open(*tid as i32).ok()).collect();
        Ok(Ok(Runner { arm, engine, collector, pools, completers, granted }))
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let (mut workers, mut completers) = (SchedStat::default(), SchedStat::default());
        self.pools.stats().iter().for_each(|pool| add(&mut workers, &pool.sched));
        self.completers.iter().filter_map(|stat| stat.read().ok()).for_each(|stat| add(&mut completers, &stat));
        Snapshot { stats: self.engine.stats(), workers, completers }
    }
}

fn slice_name(slice: Duration) -> String {
    format!("slice of {} us", slice.as_micros())
}

/// What the workers of a high-priority queue really have: found by running one item.
fn granted_priority(pools: &Pools, flag: WqFlags) -> Result<HighPriority, LabError> {
    let error = |error: &dyn std::fmt::Display| LabError::Engine(error.to_string());
    let queue = pools.alloc("lab-probe", flag | WqFlags::HIGHPRI, 0).map_err(|e| error(&e))?;
    for cpu in pools.cpus().iter() {
        // One on each CPU, so that every bound pool has a worker before anything is timed.
        let queued = if flag == WqFlags::PERCPU { queue.spawn_on(cpu, || {}).is_ok() } else { queue.spawn(|| {}) };
        if !queued {
            return Err(LabError::Engine("a work item was refused".into()));
        }
    }
    queue.flush().map_err(|e| error(&e))?;
    let found = pools.stats().iter().filter(|pool| !pool.workers.is_empty()).find_map(|pool| pool.priority);
    Ok(found.unwrap_or(HighPriority::None))
}
