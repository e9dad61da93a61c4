//! One more run of an arm, not for its times but for its ledger: what items waited for.
//!
//! The engine's record of each bio is merged with the scheduler's events where tracefs is available (root); else the
//! split comes from the records and the workers' counters, and the report names what they cannot separate.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use postread::{BioKind, BioObserver, BioRecord};
use postread_io::Priority;
use postread_ledger::stamps::{Coarse, Counted, Stamp};
use postread_ledger::{Event, Kind, Totals, account, stamps, text};
use postread_sys::tracefs::{Instance, Tracefs};
use serde::Serialize;

use crate::arm::{Placement, Runner};
use crate::error::LabError;

/// Keeps the records of an engine's bios while it is switched on.
#[derive(Default)]
pub(crate) struct Collector {
    on: AtomicBool,
    records: Mutex<Vec<BioRecord>>,
}

impl fmt::Debug for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Collector").field("on", &self.on).finish_non_exhaustive()
    }
}

impl BioObserver for Collector {
    fn bio(&self, record: &BioRecord) {
        if self.on.load(Ordering::Relaxed) {
            self.records.lock().unwrap_or_else(PoisonError::into_inner).push(*record);
        }
    }
}

/// The ledger of an arm.
#[derive(Clone, Debug, Serialize)]
pub struct ArmLedger {
    /// From scheduler events; null where tracefs is not available.
    pub traced: Option<Totals>,
    /// Why not.
    pub not_traced: Option<String>,
    /// From stamps and counters.
    pub stamped: Coarse,
    /// Where the time of one bio went: the demand read whose latency is the median.
    pub one_bio: Option<OneBio>,
}

/// The stations of one bio, in nanoseconds from its submission.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct OneBio {
    /// A source began to read it.
    pub read_begun_ns: u64,
    /// Its bytes arrived.
    pub arrived_ns: u64,
    /// Its hash blocks were there.
    pub ready_ns: u64,
    /// Its steps began.
    pub started_ns: u64,
    /// Its steps ended.
    pub ended_ns: u64,
    /// Its reader ran.
    pub delivered_ns: u64,
    /// Its length.
    pub bytes: usize,
}

const EVENTS: [&str; 5] = ["sched_switch", "sched_waking", "sched_wakeup", "sched_wakeup_new", "sched_migrate_task"];
/// Of each CPU: some hundred thousand events.
const BUFFER_KB: u32 = 16 << 10;

fn tracing() -> std::io::Result<Instance> {
    let instance = Tracefs::find()?.create_instance(&format!("postread-lab-{}", std::process::id()))?;
    instance.set_clock("mono")?;
    instance.set_buffer_kb(BUFFER_KB)?;
    for event in EVENTS {
        instance.enable(&format!("sched/{event}"))?;
    }
    instance.start()?;
    Ok(instance)
}

/// Runs `run`, an arm's workload, and accounts for its items.
pub(crate) fn run(runner: &Runner, run: impl FnOnce() -> Result<(), LabError>) -> Result<ArmLedger, LabError> {
    let instance = tracing();
    let before = runner.snapshot();
    runner.collector.on.store(true, Ordering::Relaxed);
    let ended = run();
    runner.collector.on.store(false, Ordering::Relaxed);
    let counted = runner.snapshot().since(&before);
    let records = std::mem::take(&mut *runner.collector.records.lock().unwrap_or_else(PoisonError::into_inner));
    ended?;
    let traced = instance.and_then(|instance| {
        instance.stop()?;
        let text = instance.text()?;
        for cpu in postread_sys::online_cpus()?.iter() {
            let lost = instance.stats(cpu)?;
            if lost.overrun + lost.dropped > 0 {
                return Err(std::io::Error::other(format!("the trace lost {} events", lost.overrun + lost.dropped)));
            }
        }
        Ok(text)
    });
    let (traced, not_traced) = match traced {
        Ok(text) => (Some(with_events(&text, &records, runner.arm.placement)), None),
        Err(error) => (None, Some(error.to_string())),
    };
    let queued: Vec<Stamp> = records.iter().filter(|record| record.queued).map(stamp).collect();
    let workers = Counted { run_delay_ns: counted.workers.run_delay_ns, run_time_ns: counted.workers.run_time_ns };
    let stamped = stamps::account(&queued, workers);
    Ok(ArmLedger { traced, not_traced, stamped, one_bio: one_bio(&records) })
}

/// The records have no stamp of activation: what `max_active` holds back waits behind other items, in P1.
fn stamp(record: &BioRecord) -> Stamp {
    let times = &record.times;
    let started_ns = times.started_ns.max(times.dispatched_ns);
    Stamp {
        queued_ns: times.dispatched_ns,
        activated_ns: times.dispatched_ns,
        started_ns,
        ended_ns: times.ended_ns.max(started_ns),
        worker: record.running_thread as u64,
    }
}

/// Merges records and scheduler events, both by `CLOCK_MONOTONIC`.
fn with_events(trace: &str, records: &[BioRecord], placement: Placement) -> Totals {
    let mut trace = text::parse(trace);
    let (function, queue) = (trace.name("postread"), trace.name("postread"));
    for (work, record) in records.iter().filter(|record| record.queued && record.times.started_ns > 0).enumerate() {
        let (work, stamp) = (work as u64, stamp(record));
        let cpu = (placement == Placement::Bound).then_some(record.completion_cpu);
        let at = |time_ns, cpu, thread: i32, kind| Event { time_ns, cpu, pid: thread as u32, interrupt: false, kind };
        let queued = |kind| at(stamp.queued_ns, record.completion_cpu, record.completing_thread, kind);
        trace.events.push(queued(Kind::Queue { work, function, queue, cpu }));
        trace.events.push(queued(Kind::Activate { work }));
        let ran = |time, kind| at(time, record.run_cpu, record.running_thread, kind);
        trace.events.push(ran(stamp.started_ns, Kind::Start { work, function }));
        trace.events.push(ran(stamp.ended_ns, Kind::End { work }));
    }
    trace.events.sort_by_key(|event| event.time_ns);
    account(&trace, |name| name == "postread").totals()
}

fn one_bio(records: &[BioRecord]) -> Option<OneBio> {
    let wanted = |record: &&BioRecord| {
        record.kind == BioKind::Data && record.submitted_as == Priority::Demand && record.times.delivered_ns > 0
    };
    let mut found: Vec<&BioRecord> = records.iter().filter(wanted).collect();
    found.sort_by_key(|record| record.times.delivered_ns.saturating_sub(record.times.submitted_ns));
    let record = found.get(found.len() / 2)?;
    let times = &record.times;
    let since = |at: u64| at.saturating_sub(times.submitted_ns);
    Some(OneBio {
        read_begun_ns: since(times.read_begun_ns),
        arrived_ns: since(times.arrived_ns),
        ready_ns: since(times.ready_ns()),
        started_ns: since(times.started_ns),
        ended_ns: since(times.ended_ns),
        delivered_ns: since(times.delivered_ns),
        bytes: record.len,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two items on one worker: the first waits for a CPU behind a program, the second behind the first.
    #[test]
    fn records_and_events_make_one_ledger() {
        let line = |at: u64, text: &str| format!(" x-9 [000] d..2. 1.{at:06}: {text}\n");
        let switch = |at, prev: &str, state: &str, next: &str| {
            line(
                at,
                &format!(
                    "sched_switch: prev_comm={prev} prev_prio=120 prev_state={state} ==> next_comm={next} next_prio=120"
                ),
            )
        };
        let trace = [
            switch(0, "swapper prev_pid=0", "R", "app next_pid=9"),
            line(11, "sched_waking: comm=pr/0:1 pid=5 prio=120 target_cpu=000"),
            line(12, "sched_wakeup: comm=pr/0:1 pid=5 prio=120 target_cpu=000"),
            switch(500, "app prev_pid=9", "R", "pr/0:1 next_pid=5"),
        ]
        .concat();
        let record = |queued: u64, started: u64, ended: u64| {
            let mut record = BioRecord::default();
            let ns = |us: u64| 1_000_000_000 + us * 1000;
            record.times.dispatched_ns = ns(queued);
            record.times.started_ns = ns(started);
            record.times.ended_ns = ns(ended);
            (record.queued, record.completing_thread, record.running_thread) = (true, 7, 5);
            record
        };
        let records = [record(10, 510, 900), record(510, 900, 950)];
        let totals = with_events(&trace, &records, Placement::Bound);
        assert_eq!((totals.items, totals.wait_ns), (2, 890_000));
        assert_eq!(totals.parts.get(postread_ledger::Part::BehindApp), 488_000);
        assert_eq!(totals.parts.get(postread_ledger::Part::BehindRunning), 390_000);
        assert_eq!(totals.parts.get(postread_ledger::Part::Unexplained), 0);
    }
}
