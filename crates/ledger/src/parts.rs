//! The parts of a wait, and sums of them.

use serde::Serialize;
use serde::ser::SerializeMap;

/// What an item waits for: see the [crate](crate)'s table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// P0: `max_active` holds the item back.
    Throttled,
    /// P1: behind an item whose worker runs.
    BehindRunning,
    /// P1: behind an item whose worker is runnable and does not run.
    BehindPreempted,
    /// P1: behind an item whose worker sleeps.
    BehindBlocked,
    /// P2: a worker is already waking up, for an earlier item.
    WakeAbsorbed,
    /// P3: a worker is being created.
    WorkerMade,
    /// P4: the worker's wake-up is on its way, or its CPU is leaving idle.
    WakePath,
    /// P5: the worker is runnable; another worker runs on its CPU.
    BehindWorker,
    /// P5: a thread that completes I/O runs there.
    BehindCompleter,
    /// P5: a program runs there.
    BehindApp,
    /// P5: another kernel thread runs there.
    BehindKernel,
    /// P5: an interrupt is handled there.
    BehindInterrupt,
    /// P6: the queuer or the worker executes code between queueing and start: dispatch and locks.
    Dispatch,
    /// No state fits.
    Unexplained,
}

impl Part {
    /// All, in the order of the table.
    pub const ALL: [Part; 14] = [
        Part::Throttled,
        Part::BehindRunning,
        Part::BehindPreempted,
        Part::BehindBlocked,
        Part::WakeAbsorbed,
        Part::WorkerMade,
        Part::WakePath,
        Part::BehindWorker,
        Part::BehindCompleter,
        Part::BehindApp,
        Part::BehindKernel,
        Part::BehindInterrupt,
        Part::Dispatch,
        Part::Unexplained,
    ];

    /// Its key in reports.
    pub fn key(self) -> &'static str {
        match self {
            Part::Throttled => "p0_throttled",
            Part::BehindRunning => "p1_behind_running_item",
            Part::BehindPreempted => "p1_behind_preempted_item",
            Part::BehindBlocked => "p1_behind_blocked_item",
            Part::WakeAbsorbed => "p2_wake_absorbed",
            Part::WorkerMade => "p3_worker_made",
            Part::WakePath => "p4_wake_path",
            Part::BehindWorker => "p5_runnable_behind_worker",
            Part::BehindCompleter => "p5_runnable_behind_completer",
            Part::BehindApp => "p5_runnable_behind_app",
            Part::BehindKernel => "p5_runnable_behind_kernel_thread",
            Part::BehindInterrupt => "p5_runnable_behind_interrupt",
            Part::Dispatch => "p6_dispatch",
            Part::Unexplained => "unexplained",
        }
    }

    /// Its name in tables.
    pub fn label(self) -> &'static str {
        match self {
            Part::Throttled => "P0 held back by max_active",
            Part::BehindRunning => "P1 behind a running item",
            Part::BehindPreempted => "P1 behind a preempted item",
            Part::BehindBlocked => "P1 behind a blocked item",
            Part::WakeAbsorbed => "P2 for a worker already waking",
            Part::WorkerMade => "P3 for a worker being created",
            Part::WakePath => "P4 wake path",
            Part::BehindWorker => "P5 runnable behind a worker",
            Part::BehindCompleter => "P5 runnable behind a completer",
            Part::BehindApp => "P5 runnable behind a program",
            Part::BehindKernel => "P5 runnable behind a kernel thread",
            Part::BehindInterrupt => "P5 runnable behind an interrupt",
            Part::Dispatch => "P6 dispatch and locks",
            Part::Unexplained => "unexplained",
        }
    }
}

/// Nanoseconds of each part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parts([u64; Part::ALL.len()]);

impl Parts {
    /// Adds to a part.
    pub fn add(&mut self, part: Part, ns: u64) {
        self.0[part as usize] += ns;
    }

    /// A part.
    pub fn get(&self, part: Part) -> u64 {
        self.0[part as usize]
    }

    /// All parts together.
    pub fn total_ns(&self) -> u64 {
        self.0.iter().sum()
    }

    /// P1: the item waits behind another one.
    pub fn behind_item_ns(&self) -> u64 {
        [Part::BehindRunning, Part::BehindPreempted, Part::BehindBlocked].iter().map(|part| self.get(*part)).sum()
    }

    /// P5: the worker is runnable and waits for a CPU.
    pub fn runnable_ns(&self) -> u64 {
        let parts =
            [Part::BehindWorker, Part::BehindCompleter, Part::BehindApp, Part::BehindKernel, Part::BehindInterrupt];
        parts.iter().map(|part| self.get(*part)).sum()
    }

    /// The largest part; `None` if nothing waited.
    pub fn dominant(&self) -> Option<Part> {
        Part::ALL.into_iter().max_by_key(|part| self.get(*part)).filter(|part| self.get(*part) > 0)
    }

    /// Adds another account.
    pub fn merge(&mut self, other: &Parts) {
        for (sum, ns) in self.0.iter_mut().zip(other.0) {
            *sum += ns;
        }
    }
}

impl Serialize for Parts {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(Part::ALL.len()))?;
        for part in Part::ALL {
            map.serialize_entry(part.key(), &self.get(part))?;
        }
        map.end()
    }
}
