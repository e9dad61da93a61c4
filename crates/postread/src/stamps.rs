//! Where a bio's time goes: a stamp at each stage, and one record of all of them when the bio has ended.
//!
//! ```text
//! submitted -> read_begun -> arrived -> ready -> dispatched -> started -> ended -> delivered
//!    source's queue    reading   hash blocks         queue       steps    reader runs
//! ```

use std::fmt;

use postread_io::Priority;

/// When a bio passed each stage, in nanoseconds of [`postread_sys::stamp_ns`]: `CLOCK_MONOTONIC` to within a
/// microsecond, so that they compare with the kernel's trace events. 0 means that it did not pass the stage.
///
/// Stamps of different threads may be off by that microsecond, so use saturating subtraction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BioTimes {
    /// The engine submitted it to its sources.
    pub submitted_ns: u64,
    /// A source began to read it (the first one, if it has several pieces). Before that it was in the source's own queue.
    pub read_begun_ns: u64,
    /// Its last piece arrived: the completing thread has it.
    pub arrived_ns: u64,
    /// The last hash block that it waited for arrived and was checked; 0 where it waited for none.
    pub inputs_ns: u64,
    /// It was handed to the queue policy: put on a workqueue, or its steps were begun at once.
    pub dispatched_ns: u64,
    /// Its steps began.
    pub started_ns: u64,
    /// Its steps ended, and its reader was woken.
    pub ended_ns: u64,
    /// A reader wanted it: when it was submitted, or for a bio that was read ahead, when a reader came to it.
    pub wanted_ns: u64,
    /// Its reader runs with it; 0 where none ever took it.
    pub delivered_ns: u64,
    /// CPU time of its steps.
    pub step_cpu_ns: u64,
    /// CPU time of the steps of the hash blocks that it waited for: of the one that took longest, with all above it.
    pub inputs_cpu_ns: u64,
}

impl BioTimes {
    /// When everything that its steps need had arrived.
    pub fn ready_ns(&self) -> u64 {
        self.arrived_ns.max(self.inputs_ns)
    }

    /// The wait in the source's own queue.
    pub fn source_queue_ns(&self) -> Option<u64> {
        span(self.submitted_ns, self.read_begun_ns)
    }

    /// From the begin of reading to arrival.
    pub fn source_ns(&self) -> Option<u64> {
        span(self.read_begun_ns.max(self.submitted_ns), self.arrived_ns)
    }

    /// The wait for hash blocks after its own bytes had arrived.
    pub fn inputs_wait_ns(&self) -> Option<u64> {
        span(self.arrived_ns, self.ready_ns())
    }

    /// Queue latency: from queueing to start.
    pub fn queue_ns(&self) -> Option<u64> {
        span(self.dispatched_ns, self.started_ns)
    }

    /// How long its steps took, preemption included; [`BioTimes::step_cpu_ns`] is their CPU time.
    pub fn steps_ns(&self) -> Option<u64> {
        span(self.started_ns, self.ended_ns)
    }

    /// From when it was both done and wanted until its reader ran with it.
    pub fn wakeup_ns(&self) -> Option<u64> {
        span(self.ended_ns.max(self.wanted_ns), self.delivered_ns)
    }

    /// Post-read delay: from when its bytes were there and wanted until its reader ran with them, minus the CPU time of
    /// the steps in that time. A bio that was read ahead and finished before its reader needed it causes only the delay
    /// [`BioTimes::wakeup_ns`]: the reader's think time does not count.
    pub fn post_read_delay_ns(&self) -> Option<u64> {
        let from = self.arrived_ns.max(self.wanted_ns);
        let wall = span(from, self.delivered_ns)?;
        // Of the steps' time, what came after `from`.
        let steps = self.step_cpu_ns.min(self.ended_ns.saturating_sub(self.started_ns.max(from)));
        let inputs = self.inputs_cpu_ns.min(self.inputs_ns.saturating_sub(from));
        Some(wall.saturating_sub(steps.saturating_add(inputs)))
    }
}

/// None where either end is missing.
fn span(from: u64, to: u64) -> Option<u64> {
    (from > 0 && to > 0).then(|| to.saturating_sub(from))
}

/// What a bio carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BioKind {
    /// Bytes of a file.
    #[default]
    Data,
    /// Hash blocks of its tree.
    Tree,
}

/// The fate of a bio.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BioFate {
    /// A reader took it (hash blocks: they were checked and passed on).
    #[default]
    Delivered,
    /// It ended, and no reader took it: useless read-ahead.
    Unused,
    /// Its reader left before its steps ran.
    Cancelled,
}

/// One bio from submission to its end. An engine that measures emits exactly one per bio, including cancelled ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BioRecord {
    /// The stamps.
    pub times: BioTimes,
    /// Logical byte offset in its file or tree.
    pub offset: u64,
    /// Length in bytes.
    pub len: usize,
    /// Data or hash blocks.
    pub kind: BioKind,
    /// Why it was submitted: a read-ahead bio stays one even if a reader needed it while it was in flight.
    pub submitted_as: Priority,
    /// Its fate.
    pub fate: BioFate,
    /// Whether its steps were queued, rather than run on the completing thread.
    pub queued: bool,
    /// The CPU on which its last piece or input arrived.
    pub completion_cpu: u32,
    /// The CPU on which its steps began.
    pub run_cpu: u32,
    /// The kernel's id of the thread on which its last piece or input arrived. Ids are 0 without an observer.
    pub completing_thread: i32,
    /// The kernel's id of the thread that ran its steps.
    pub running_thread: i32,
    /// The kernel's id of the thread that took it.
    pub reading_thread: i32,
}

/// Receives the record of each bio of an engine: see [`EngineConfig::observer`](crate::EngineConfig::observer).
pub trait BioObserver: Send + Sync {
    /// A bio is over. Called on whichever thread ended it: a reader, a worker or a completing thread. It should be
    /// quick, and must not read through the same engine. A panic in here is contained.
    fn bio(&self, record: &BioRecord);
}

impl fmt::Debug for dyn BioObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BioObserver")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEMAND: BioTimes = BioTimes {
        submitted_ns: 100,
        read_begun_ns: 150,
        arrived_ns: 200,
        inputs_ns: 230,
        dispatched_ns: 240,
        started_ns: 300,
        ended_ns: 400,
        wanted_ns: 100,
        delivered_ns: 450,
        step_cpu_ns: 80,
        inputs_cpu_ns: 20,
    };

    #[test]
    fn spans_add_up() {
        let t = DEMAND;
        let parts = [t.source_queue_ns(), t.source_ns(), t.inputs_wait_ns(), t.queue_ns(), t.steps_ns(), t.wakeup_ns()];
        assert_eq!(parts, [Some(50), Some(50), Some(30), Some(60), Some(100), Some(50)]);
        // All but the dispatch itself.
        let sum: u64 = parts.iter().flatten().sum();
        assert_eq!(sum + (t.dispatched_ns - t.ready_ns()), t.delivered_ns - t.submitted_ns);
        assert_eq!(t.post_read_delay_ns(), Some(250 - 80 - 20));
    }

    #[test]
    fn think_time_is_nobodys_delay() {
        // Read ahead, done at 400, and the reader comes at 10,000.
        let late = BioTimes { wanted_ns: 10_000, delivered_ns: 10_030, ..DEMAND };
        assert_eq!((late.post_read_delay_ns(), late.wakeup_ns()), (Some(30), Some(30)));
        // The reader comes while the steps run: only what is left of them counts.
        let during = BioTimes { wanted_ns: 380, ..DEMAND };
        assert_eq!(during.post_read_delay_ns(), Some(450 - 380 - 20));
        let never = BioTimes { delivered_ns: 0, ..DEMAND };
        assert_eq!((never.post_read_delay_ns(), never.wakeup_ns()), (None, None));
        assert_eq!(never.queue_ns(), Some(60));
    }
}
