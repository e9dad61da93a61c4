//! `auto` in an engine: its measurements, its counters and its epochs.

use std::cell::Cell;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use postread_workqueue::{Pools, Workqueue};

use super::control::{Control, ControlStats, EPOCH, Epoch};
use super::cost::{Average, StepCost};
use super::decide::{Situation, Way};

/// Until it is measured: a wake-up on a quiet machine, in nanoseconds.
const FIRST_HANDOFF_NS: u64 = 5_000;
/// A completing thread that paused for this long begins a new run of inline steps.
const PAUSE_NS: u64 = 100_000;
/// The least that a demand read is cut into.
const LEAST_CUT: u64 = 64 << 10;

thread_local! {
    /// When this thread last ended steps inline, and how long it has run them in a row.
    static INLINE_RUN: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
    /// This thread is a reader that is submitting a bio.
    static SUBMITTING: Cell<bool> = const { Cell::new(false) };
}

/// Marks this thread as a reader that submits, until it is dropped.
pub(crate) struct Submitting(bool);

impl Submitting {
    pub(crate) fn begin() -> Self {
        Self(SUBMITTING.replace(true))
    }
}

impl Drop for Submitting {
    fn drop(&mut self) {
        SUBMITTING.set(self.0);
    }
}

/// A bio that is ready.
pub(crate) struct Ready<'a> {
    pub(crate) cpu: u32,
    pub(crate) bytes: usize,
    pub(crate) cost: &'a StepCost,
    pub(crate) now_ns: u64,
    /// It carries a file's bytes, not hash blocks.
    pub(crate) data: bool,
    /// A demand read whose reader sleeps.
    pub(crate) reader_sleeps: bool,
}

/// The decision for a bio, until it has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Decided {
    pub(crate) way: Way,
    /// Predicted, from ready to ended.
    predicted_ns: u64,
    steps_ns: u64,
    cpu: u32,
    ready_ns: u64,
    /// An idle worker was woken for it.
    woke: bool,
    /// By a control epoch's policy.
    pub(crate) control: bool,
    /// A reader took it back from its queue.
    pub(crate) taken_back: bool,
}

#[derive(Debug, Default)]
struct WayCounts {
    bios: AtomicU64,
    predicted_ns: AtomicU64,
    measured_ns: AtomicU64,
    error_ns: AtomicU64,
}

#[derive(Default)]
#[repr(align(128))]
struct Backlog(AtomicU64);

impl Backlog {
    fn add(&self, ns: u64) {
        self.0.fetch_add(ns, Ordering::Relaxed);
    }

    fn sub(&self, ns: u64) {
        self.0.fetch_sub(ns, Ordering::Relaxed);
    }
}

/// The cost of an epoch to readers so far.
#[derive(Debug, Default)]
struct EpochCost {
    bios: AtomicU64,
    bytes: AtomicU64,
    stall_ns: AtomicU64,
}

/// The state of the policy in one engine.
pub(crate) struct Auto {
    bound: Workqueue,
    unbound: Workqueue,
    cpus: usize,
    backlog: Vec<Backlog>,
    unbound_backlog: Backlog,
    unbound_active: AtomicUsize,
    handoff: Average,
    /// What this epoch runs: 0 for auto, else the way's number plus 1.
    mode: AtomicU8,
    epoch: EpochCost,
    control: Mutex<Control>,
    ways: [WayCounts; 4],
    taken_back: AtomicU64,
}

fn index(way: Way) -> usize {
    Way::ALL.iter().position(|&w| w == way).unwrap_or(0)
}

impl Auto {
    pub(crate) fn new<E>(
        pools: Option<&Pools>,
        alloc: impl Fn(bool, usize) -> Result<Workqueue, E>,
    ) -> Result<Self, E> {
        let online = || postread_sys::online_cpus().map_or(1, |set| set.len().max(1));
        let cpus = pools.map_or_else(
            || postread_sys::affinity::current().map_or_else(|_| online(), |set| set.len().max(1)),
            |pools| pools.cpus().len().max(1),
        );
        let last = postread_sys::online_cpus().ok().and_then(|set| set.iter().last()).unwrap_or(0) as usize;
        Ok(Self {
            bound: alloc(true, cpus)?,
            // The thread that fills the queue already has a CPU.
            unbound: alloc(false, cpus.saturating_sub(1).max(1))?,
            cpus,
            backlog: (0..=last.max(cpus)).map(|_| Backlog::default()).collect(),
            unbound_backlog: Backlog::default(),
            unbound_active: AtomicUsize::new(0),
            handoff: Average::new(FIRST_HANDOFF_NS),
            mode: AtomicU8::new(0),
            epoch: EpochCost::default(),
            control: Mutex::default(),
            ways: Default::default(),
            taken_back: AtomicU64::new(0),
        })
    }

    pub(crate) fn queue(&self, way: Way) -> &Workqueue {
        if way == Way::Bound { &self.bound } else { &self.unbound }
    }

    /// What a control epoch prescribes.
    fn prescribed(&self) -> Option<Way> {
        let mode = self.mode.load(Ordering::Relaxed);
        usize::from(mode).checked_sub(1).and_then(|at| Way::ALL.get(at)).copied()
    }

    /// Whether readers take bios back and help: not while a fixed policy runs.
    pub(crate) fn readers_help(&self) -> bool {
        self.prescribed().is_none()
    }

    fn backlog(&self, cpu: u32) -> &Backlog {
        &self.backlog[cpu as usize % self.backlog.len()]
    }

    /// Decides where the steps of a bio run, and adds them to the waiting work.
    pub(crate) fn decide(&self, ready: &Ready<'_>) -> Decided {
        let steps_ns = ready.cost.predict_ns(ready.bytes);
        let reader_completes = ready.data && SUBMITTING.get();
        let active = self.unbound_active.load(Ordering::Relaxed);
        let workers = self.cpus.saturating_sub(usize::from(reader_completes));
        let (ended_ns, run_ns) = INLINE_RUN.get();
        let situation = Situation {
            steps_ns,
            backlog_ns: self.backlog(ready.cpu).0.load(Ordering::Relaxed),
            unbound_backlog_ns: self.unbound_backlog.0.load(Ordering::Relaxed) / workers.max(1) as u64,
            handoff_ns: self.handoff.get(),
            inline_run_ns: if ready.now_ns.saturating_sub(ended_ns) > PAUSE_NS { 0 } else { run_ns },
            idle_worker: active < workers && self.unbound.has_idle_worker(),
            other_cpus: self.cpus > 1,
            reader_sleeps: ready.reader_sleeps,
            reader_completes,
        };
        let prescribed = self.prescribed();
        let way = prescribed.unwrap_or_else(|| situation.decide());
        match way {
            Way::Inline | Way::Bound => self.backlog(ready.cpu).add(steps_ns),
            Way::Unbound => {
                self.unbound_backlog.add(steps_ns);
                self.unbound_active.fetch_add(1, Ordering::Relaxed);
            }
            Way::Reader => {}
        }
        Decided {
            way,
            predicted_ns: situation.costs().of(way),
            steps_ns,
            cpu: ready.cpu,
            ready_ns: ready.now_ns,
            woke: way == Way::Unbound && situation.idle_worker,
            control: prescribed.is_some(),
            taken_back: false,
        }
    }

    /// The steps of a bio have ended, or it was cancelled before they ran (`ran` is false).
    pub(crate) fn ended(&self, decided: &Decided, started_ns: u64, ended_ns: u64, ran: bool) {
        match decided.way {
            Way::Inline | Way::Bound => self.backlog(decided.cpu).sub(decided.steps_ns),
            Way::Unbound => {
                self.unbound_backlog.sub(decided.steps_ns);
                self.unbound_active.fetch_sub(1, Ordering::Relaxed);
            }
            Way::Reader => {}
        }
        if !ran {
            return;
        }
        if decided.way == Way::Inline {
            let (last, run) = INLINE_RUN.get();
            let run = if started_ns.saturating_sub(last) > PAUSE_NS { 0 } else { run };
            INLINE_RUN.set((ended_ns, run.saturating_add(ended_ns.saturating_sub(started_ns))));
        }
        if decided.taken_back {
            self.taken_back.fetch_add(1, Ordering::Relaxed);
            return;
        }
        if decided.woke {
            self.handoff.add(started_ns.saturating_sub(decided.ready_ns));
        }
        if decided.control {
            return;
        }
        let measured = ended_ns.saturating_sub(decided.ready_ns);
        let counts = &self.ways[index(decided.way)];
        counts.bios.fetch_add(1, Ordering::Relaxed);
        counts.predicted_ns.fetch_add(decided.predicted_ns, Ordering::Relaxed);
        counts.measured_ns.fetch_add(measured, Ordering::Relaxed);
        counts.error_ns.fetch_add(measured.abs_diff(decided.predicted_ns), Ordering::Relaxed);
    }

    /// A reader has taken a bio, after waiting for it or running its steps for `stall_ns`.
    pub(crate) fn delivered(&self, bytes: usize, stall_ns: u64) {
        self.epoch.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.epoch.stall_ns.fetch_add(stall_ns, Ordering::Relaxed);
        if self.epoch.bios.fetch_add(1, Ordering::AcqRel) + 1 == EPOCH {
            self.next_epoch();
        }
    }

    #[cold]
    fn next_epoch(&self) {
        let bytes = self.epoch.bytes.swap(0, Ordering::Relaxed);
        let stall = self.epoch.stall_ns.swap(0, Ordering::Relaxed);
        let now = self.prescribed().map_or(Epoch::Auto, Epoch::Control);
        let next = {
            let mut control = self.control.lock().unwrap_or_else(PoisonError::into_inner);
            control.ended(now, stall.saturating_mul(1000) / bytes.max(1))
        };
        let mode = match next {
            Epoch::Auto => 0,
            Epoch::Control(way) => u8::try_from(index(way) + 1).unwrap_or(0),
        };
        self.mode.store(mode, Ordering::Relaxed);
        // Last: no other thread ends an epoch before this one is over.
        self.epoch.bios.store(0, Ordering::Release);
    }

    /// The end of the bio that a demand read of `offset..end` begins with: large reads are cut into one bio for each CPU.
    pub(crate) fn cut(&self, offset: u64, end: u64) -> u64 {
        let share = (end.saturating_sub(offset) / self.cpus as u64).max(LEAST_CUT).next_power_of_two();
        end.min((offset - offset % share).saturating_add(share))
    }

    pub(crate) fn stats(&self) -> AutoStats {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        AutoStats {
            ways: Way::ALL
                .iter()
                .zip(&self.ways)
                .map(|(&way, counts)| WayStats {
                    way,
                    bios: load(&counts.bios),
                    predicted_ns: load(&counts.predicted_ns),
                    measured_ns: load(&counts.measured_ns),
                    error_ns: load(&counts.error_ns),
                })
                .collect(),
            taken_back: load(&self.taken_back),
            handoff_ns: self.handoff.get(),
            control: self.control.lock().unwrap_or_else(PoisonError::into_inner).stats(),
        }
    }
}

/// Predictions and measurements of one way: from when a bio was ready until its steps had ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WayStats {
    /// The way.
    pub way: Way,
    /// Bios that went this way, not counting control epochs.
    pub bios: u64,
    /// The sum of the predictions for them, in nanoseconds.
    pub predicted_ns: u64,
    /// The sum of the measured times, in nanoseconds.
    pub measured_ns: u64,
    /// The sum of the absolute errors of the predictions, in nanoseconds.
    pub error_ns: u64,
}

/// Statistics of the policy `auto` in an engine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AutoStats {
    /// By way.
    pub ways: Vec<WayStats>,
    /// Bios that a reader took back from a queue and ran itself.
    pub taken_back: u64,
    /// `w`: the current estimate of the cost of handing an item to an idle worker, in nanoseconds.
    pub handoff_ns: u64,
    /// The comparison with fixed policies.
    pub control: ControlStats,
}

impl AutoStats {
    /// The difference since `earlier`; estimates and the comparison are the current ones.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut now = self.clone();
        for (way, then) in now.ways.iter_mut().zip(&earlier.ways) {
            way.bios = way.bios.saturating_sub(then.bios);
            way.predicted_ns = way.predicted_ns.saturating_sub(then.predicted_ns);
            way.measured_ns = way.measured_ns.saturating_sub(then.measured_ns);
            way.error_ns = way.error_ns.saturating_sub(then.error_ns);
        }
        now.taken_back = now.taken_back.saturating_sub(earlier.taken_back);
        now
    }
}
