//! The arms of an experiment: queue policies, each with its own workers.

use std::time::Duration;

use postread::{Engine, EngineConfig, QueuePolicy};
use postread_sys::priority::HighPriority;
use postread_workqueue::{Config, HighPriorityPolicy, Pools, WqFlags};
use serde::Serialize;

use crate::error::LabError;

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
}

impl Arm {
    /// All arms, the one that others are compared with first: unbound at high priority, what fs-verity had before the
    /// patch and fscrypt has after its own.
    pub const ALL: [Arm; 7] = [
        Arm { placement: Placement::Unbound, rank: Rank::Nice },
        Arm { placement: Placement::Bound, rank: Rank::Nice },
        Arm { placement: Placement::Unbound, rank: Rank::ShortSlice },
        Arm { placement: Placement::Bound, rank: Rank::ShortSlice },
        Arm { placement: Placement::Unbound, rank: Rank::Normal },
        Arm { placement: Placement::Bound, rank: Rank::Normal },
        Arm { placement: Placement::Inline, rank: Rank::Normal },
    ];

    /// Its name in tables.
    pub fn name(&self) -> String {
        let placement = match self.placement {
            Placement::Inline => return "inline".into(),
            Placement::Bound => "bound",
            Placement::Unbound => "unbound",
        };
        let rank = match self.rank {
            Rank::Normal => "normal",
            Rank::Nice => "nice -20",
            Rank::ShortSlice => "short slice",
        };
        format!("{placement}, {rank}")
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
    /// Those that can be measured, in the order of [`Arm::ALL`].
    pub(crate) runners: Vec<Runner>,
    /// The others, and why.
    refused: Vec<(Arm, String)>,
}

impl Arms {
    pub(crate) fn set_up() -> Result<Arms, LabError> {
        let mut arms = Arms { runners: Vec::new(), refused: Vec::new() };
        for arm in Arm::ALL {
            match Runner::new(arm)? {
                Ok(runner) => arms.runners.push(runner),
                Err(why) => arms.refused.push((arm, why)),
            }
        }
        Ok(arms)
    }

    /// All arms in order; `measured` tells the figures of a runner, by its place among the runners.
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
        Arm::ALL.iter().filter_map(one).collect()
    }
}

/// An arm at work: an engine and its own worker pools.
#[derive(Debug)]
pub(crate) struct Runner {
    pub(crate) arm: Arm,
    pub(crate) engine: Engine,
    pools: Pools,
    /// What took effect.
    pub(crate) granted: String,
}

impl Runner {
    /// Sets an arm up; the reason where the system refuses what makes it this arm.
    pub(crate) fn new(arm: Arm) -> Result<Result<Runner, String>, LabError> {
        let engine = |error: &dyn std::fmt::Display| LabError::Engine(error.to_string());
        let rank = if arm.rank == Rank::ShortSlice { HighPriorityPolicy::Slice } else { HighPriorityPolicy::Best };
        let pools = Pools::new(Config::new().high_priority(rank)).map_err(|e| engine(&e))?;
        let high_priority = arm.rank != Rank::Normal;
        let max_active = 0;
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
        let config = EngineConfig::new().policy(policy).measure(true).pools(pools.clone());
        let engine = Engine::new(config).map_err(|e| engine(&e))?;
        Ok(Ok(Runner { arm, engine, pools, granted }))
    }

    /// The workers' scheduler latency so far: time runnable and not running, in nanoseconds.
    pub(crate) fn run_delay_ns(&self) -> u64 {
        self.pools.stats().iter().map(|pool| pool.sched.run_delay_ns).sum()
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
