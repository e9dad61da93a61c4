//! A bio's life cycle: read, wait for its inputs, queued, run through its steps, delivered.
//!
//! A flight counts what it still waits for (its pieces and its hash blocks, all submitted together). The one that
//! brings the count to zero queues it, or runs it, according to the policy. From then on it never waits. Flights and
//! their work items are reused, so that a read allocates nothing once the engine is warm.
//!
//! Sources, mappings, steps, wakers and observers are foreign code: if they panic, their own bio ends, never a thread
//! that has other bios to complete, and their destructors never run under a lock.

mod state;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Waker;

use postread_io::{Bio, BioEnd, BlockStatus, Buf, Completion, Permit, Priority, Statuses, current_cpu};
use postread_sys::contain;
use postread_workqueue::Work;

use super::dispatch::Dispatch;
use super::{Core, OpenCount};
use crate::auto::{Ready, Way};
use crate::inputs::{InputBlocks, InputTimes, InputValue, LaunchesHashBios, WaitsForInputs, WantedBlock};
use crate::plan::Plan;
use crate::stamps::BioFate;
use crate::stats::Counter;
use crate::step::{BioMut, VerifiedInputs};
use postread_sys::thread_cpu_ns;
use state::{Phase, State};

/// Who gets the bio when it has ended.
#[derive(Default)]
pub(crate) enum Sink {
    /// A reader, woken through its waker.
    #[default]
    Reader,
    /// The hash blocks that it carries.
    Tree(Arc<dyn InputBlocks>),
}

/// The parameters of a new flight.
pub(crate) struct Launch {
    pub(crate) plan: Arc<Plan>,
    pub(crate) open: Arc<OpenCount>,
    pub(crate) sink: Sink,
    /// Logical bytes; a multiple of the plan's unit, as is `len`.
    pub(crate) offset: u64,
    pub(crate) len: usize,
    pub(crate) priority: Priority,
    pub(crate) permit: Permit,
    /// How many more tree blocks to read ahead when one is missing.
    pub(crate) tree_ahead: u64,
}

pub(crate) struct Flight {
    work: Work,
    state: Mutex<State>,
    pending: AtomicU32,
    cancelled: AtomicBool,
    done: AtomicBool,
}

/// The result of a flight, for its reader.
pub(crate) struct Ended {
    pub(crate) offset: u64,
    pub(crate) buf: Buf,
    pub(crate) statuses: Statuses,
}

impl Flight {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new_cyclic(|me: &Weak<Self>| {
            let me = me.clone();
            let work = Work::new(move |_: &Work| {
                if let Some(flight) = me.upgrade() {
                    flight.run();
                }
            });
            Self {
                work,
                state: Mutex::default(),
                pending: AtomicU32::new(0),
                cancelled: AtomicBool::new(false),
                done: AtomicBool::new(false),
            }
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Submits all that the bio needs. It may have ended when this returns.
    pub(crate) fn start<L>(self: &Arc<Self>, core: &Arc<Core>, launcher: &Arc<L>, launch: Launch)
    where
        L: LaunchesHashBios + 'static,
    {
        launch.open.enter();
        let tree_ahead = launch.tree_ahead;
        let (pieces, missing) = {
            let mut state = self.lock();
            state.prepare(core, launch);
            let missing = state.inputs.iter().any(|s| s.value.is_none());
            let waits = state.inputs.iter().filter(|s| s.value.is_none()).count() + state.pieces.len();
            self.pending.store(1 + u32::try_from(waits).unwrap_or(u32::MAX - 1), Ordering::Release);
            (state.pieces.len(), missing)
        };
        if missing {
            let launcher: Arc<dyn LaunchesHashBios> = launcher.clone();
            self.request_inputs(&launcher, tree_ahead);
        }
        for piece in 0..pieces {
            self.submit_piece(piece);
        }
        self.arrived();
    }

    fn request_inputs(self: &Arc<Self>, launcher: &Arc<dyn LaunchesHashBios>, tree_ahead: u64) {
        let mut wanted: Vec<(Arc<dyn InputBlocks>, Vec<WantedBlock>)> = Vec::new();
        let open = {
            let state = self.lock();
            let (Some(plan), Some(open)) = (&state.plan, &state.open) else { return };
            let mut step = None;
            for (slot, input) in state.inputs.iter().enumerate().filter(|(_, s)| s.value.is_none()) {
                if step != Some(input.step) {
                    step = Some(input.step);
                    let Some(blocks) = state.blocks_of(plan, input.step) else { continue };
                    wanted.push((blocks.clone(), Vec::new()));
                }
                if let Some((_, list)) = wanted.last_mut() {
                    list.push((input.index, slot as u32));
                }
            }
            open.clone()
        };
        let waiter: Arc<dyn WaitsForInputs> = self.clone();
        for (blocks, list) in wanted {
            blocks.request(launcher, &open, &waiter, &list, tree_ahead);
        }
    }

    fn submit_piece(self: &Arc<Self>, at: usize) {
        let (source, bio) = {
            let mut state = self.lock();
            let single = state.is_single_piece();
            let unit = state.plan.as_ref().map_or(4096, |p| p.unit().max(512));
            let priority = state.priority;
            let piece = &state.pieces[at];
            let Some(source) = piece.source.clone() else { return };
            let (physical, asked) = (piece.physical, piece.asked);
            let mut buf = Buf::new(asked);
            if single && let Some(permit) = state.permit.take() {
                buf.charge(permit);
            }
            (source, Bio::new(physical, buf).with_unit(unit).with_priority(priority))
        };
        let done = Completion::new(self.clone(), at as u32);
        // A source that panics drops the completion, and the bio counts as lost.
        let submitted = contain(|| source.submit(bio, done));
        let Some(id) = submitted else { return };
        if self.pending.load(Ordering::Acquire) == 1 {
            // Everything has arrived, including this piece: there is nothing left to cancel by its id.
            return;
        }
        let mut state = self.lock();
        if let Some(piece) = state.pieces.get_mut(at).filter(|p| p.source.is_some()) {
            piece.id = Some(id);
        }
        drop(state);
        // A reader that left between the submission and this point did not know the bio's id.
        if self.cancelled.load(Ordering::Acquire) {
            let _ = contain(|| source.cancel(id));
        }
    }

    /// Counts one arrival; the last one makes the bio ready.
    fn arrived(self: &Arc<Self>) {
        if self.pending.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        let mut state = self.lock();
        let Some(core) = state.core.clone() else { return };
        let now = core.stamp();
        state.record.times.dispatched_ns = now;
        if state.record.times.arrived_ns == 0 {
            // Nothing but holes.
            state.record.times.arrived_ns = now;
        }
        state.record.completing_thread = core.thread_id();
        let steps = state.plan.as_ref().is_some_and(|p| !p.steps.is_empty());
        if !steps || self.cancelled.load(Ordering::Acquire) || matches!(core.dispatch, Dispatch::Inline) {
            return self.run_locked(state);
        }
        if let (Some(auto), Some(plan)) = (core.auto(), &state.plan) {
            let data = matches!(state.sink, Sink::Reader);
            let decided = auto.decide(&Ready {
                cpu: state.cpu,
                bytes: state.len,
                cost: &plan.cost,
                now_ns: now,
                data,
                reader_sleeps: data && state.reader_blocks,
            });
            state.decided = Some(decided);
            match decided.way {
                Way::Inline => return self.run_locked(state),
                Way::Reader => {
                    state.phase = Phase::Handed;
                    let waker = state.waker.take();
                    drop(state);
                    if let Some(waker) = waker {
                        let _ = contain(|| waker.wake());
                    }
                    return;
                }
                Way::Bound | Way::Unbound => {}
            }
        }
        state.phase = Phase::Queued;
        state.keep = Some(self.clone());
        state.record.queued = true;
        let (cpu, way) = (state.cpu, state.decided.map(|decided| decided.way));
        drop(state);
        core.stats.add(cpu, Counter::Queued, 1);
        if !core.dispatch.queue(cpu, &self.work, way) {
            self.run();
        }
    }

    /// Runs the steps on this thread, a reader's, if they are left to it or no worker has begun them. False if there is
    /// nothing to run.
    pub(crate) fn run_here(self: &Arc<Self>) -> bool {
        let mut state = self.lock();
        match state.phase {
            Phase::Handed => self.run_locked(state),
            // A control epoch runs its policy as it is.
            Phase::Queued if state.decided.is_some_and(|decided| !decided.control) => {
                drop(state);
                if !self.work.cancel() {
                    return false;
                }
                state = self.lock();
                if let Some(decided) = &mut state.decided {
                    decided.taken_back = true;
                }
                self.run_locked(state);
            }
            _ => return false,
        }
        true
    }

    /// This thread is about to sleep until the flight is done.
    pub(crate) fn reader_blocks(&self) {
        self.lock().reader_blocks = true;
    }

    /// Whether its steps are left to the reader.
    pub(crate) fn is_handed(&self) -> bool {
        self.lock().phase == Phase::Handed
    }

    /// Whether [`Flight::run_here`] would find something to run.
    pub(crate) fn waits_for_a_thread(&self) -> bool {
        matches!(self.lock().phase, Phase::Handed | Phase::Queued)
    }

    /// All steps, in one go. Nothing here waits.
    fn run(self: &Arc<Self>) {
        self.run_locked(self.lock());
    }

    fn run_locked(self: &Arc<Self>, mut state: MutexGuard<'_, State>) {
        let keep = state.keep.take();
        let (Some(core), Some(plan)) = (state.core.clone(), state.plan.clone()) else { return };
        // Run once, by the first to arrive: the worker, or the reader that took it back.
        if !matches!(state.phase, Phase::InFlight | Phase::Queued | Phase::Handed) {
            return;
        }
        state.phase = Phase::Running;
        let measure = core.config.measure;
        let started_ns = core.stamp();
        state.record.times.started_ns = started_ns;
        if measure {
            state.record.run_cpu = current_cpu();
            state.record.running_thread = core.thread_id();
        }
        if self.cancelled.load(Ordering::Acquire) {
            state.fail_all(&BlockStatus::Cancelled);
            return self.finish(state, &core);
        }
        let mut buf = state.take_buf();
        let mut statuses = std::mem::take(&mut state.statuses);
        let holes = std::mem::take(&mut state.holes);
        let inputs = std::mem::take(&mut state.inputs);
        let offset = state.offset;
        let tree = matches!(state.sink, Sink::Tree(_));
        drop(state);

        let began = if measure { thread_cpu_ns() } else { 0 };
        let len = buf.len();
        let mut bio = BioMut { offset, data: &mut buf, statuses: &mut statuses, holes: &holes, checked_blocks: 0 };
        for (n, planned) in plan.steps.iter().enumerate() {
            let verified = VerifiedInputs::of_step(&inputs, n as u32);
            if contain(|| planned.step.run(&mut bio, &verified)).is_none() {
                // The contents of the buffer are unknown now.
                bio.fail(0..len, &BlockStatus::Step { message: "the step panicked".into() });
            }
        }
        let checked = bio.checked_blocks;
        if core.auto().is_some() {
            plan.cost.measured(len, core.stamp().saturating_sub(started_ns));
        }
        let cpu_ns = if measure { thread_cpu_ns().saturating_sub(began) } else { 0 };

        let counter = if tree { Counter::TreeBlocks } else { Counter::DataBlocks };
        let mut state = self.lock();
        core.stats.add(state.cpu, counter, checked);
        if measure {
            core.stats.add(state.cpu, Counter::StepCpuNs, cpu_ns);
        }
        state.record.times.step_cpu_ns = cpu_ns;
        state.buf = Some(buf);
        state.statuses = statuses;
        state.holes = holes;
        state.inputs = inputs;
        self.finish(state, &core);
        drop(keep);
    }

    fn finish(&self, mut state: MutexGuard<'_, State>, core: &Arc<Core>) {
        let ran = state.phase == Phase::Running && !self.cancelled.load(Ordering::Acquire);
        state.phase = Phase::Done;
        // The inputs are no longer needed; holding them would keep evicted blocks alive.
        state.inputs.clear();
        state.record.times.ended_ns = core.stamp();
        if let (Some(decided), Some(auto)) = (state.decided.take(), core.auto()) {
            auto.ended(&decided, state.record.times.started_ns, state.record.times.ended_ns, ran);
        }
        let cpu = state.cpu;
        let failed = !state.statuses.is_good();
        let open = state.open.take();
        match std::mem::take(&mut state.sink) {
            Sink::Reader => {
                core.stats.add(cpu, Counter::Bios, 1);
                core.stats.add(cpu, Counter::Bytes, state.len as u64);
                let mut record = None;
                if self.cancelled.load(Ordering::Acquire) {
                    core.stats.add(cpu, Counter::Cancelled, 1);
                    // Nobody will fetch it.
                    state.buf = None;
                    record = state.close_record(BioFate::Cancelled);
                } else if failed {
                    core.stats.add(cpu, Counter::Failed, 1);
                }
                if state.record.submitted_as == Priority::ReadAhead {
                    core.stats.add(cpu, Counter::ReadAheadBios, 1);
                }
                let waker = state.waker.take();
                drop(state);
                self.done.store(true, Ordering::Release);
                if let Some(waker) = waker {
                    let _ = contain(|| waker.wake());
                }
                if let Some(record) = record {
                    core.record(&record);
                }
            }
            Sink::Tree(blocks) => {
                core.stats.add(cpu, Counter::HashBios, 1);
                if failed {
                    core.stats.add(cpu, Counter::Failed, 1);
                }
                let buf = state.take_buf();
                let statuses = std::mem::take(&mut state.statuses);
                let first = state.offset / u64::from(blocks.block_size().max(1));
                state.record.times.delivered_ns = state.record.times.ended_ns;
                let times = state.record.times;
                let cpu_ns = times.step_cpu_ns.saturating_add(times.inputs_cpu_ns);
                let record = state.close_record(BioFate::Delivered);
                drop(state);
                self.done.store(true, Ordering::Release);
                blocks.ended(first, buf, &statuses, InputTimes { checked_ns: times.ended_ns, cpu_ns });
                if let Some(record) = record {
                    core.record(&record);
                }
            }
        }
        if let Some(open) = open {
            open.leave();
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    /// True when it has ended; else `waker` is woken when it does.
    pub(crate) fn poll_done(&self, waker: &Waker) -> bool {
        if self.is_done() {
            return true;
        }
        let mut state = self.lock();
        if state.phase == Phase::Done {
            // `done` follows at once, and nothing else is missing.
            return true;
        }
        let mut before = None;
        if state.waker.as_ref().is_none_or(|w| !w.will_wake(waker)) {
            before = state.waker.replace(waker.clone());
        }
        drop(state);
        drop(before);
        false
    }

    /// A reader has reached a bio that was read ahead.
    pub(crate) fn wanted(&self) {
        let mut state = self.lock();
        if state.record.times.wanted_ns == 0
            && let Some(core) = &state.core
        {
            state.record.times.wanted_ns = core.stamp();
        }
    }

    /// Takes the result, once it has ended.
    pub(crate) fn take(&self) -> Ended {
        let mut state = self.lock();
        let ended =
            Ended { offset: state.offset, buf: state.take_buf(), statuses: std::mem::take(&mut state.statuses) };
        let core = state.core.clone().filter(|core| core.config.measure || core.auto().is_some());
        if let Some(core) = core {
            state.record.times.delivered_ns = core.stamp();
            if let Some(auto) = core.auto() {
                let times = &state.record.times;
                auto.delivered(state.len, times.delivered_ns.saturating_sub(times.wanted_ns));
            }
            state.record.reading_thread = core.thread_id();
            let record = state.close_record(BioFate::Delivered);
            drop(state);
            if let Some(record) = record {
                core.record(&record);
            }
        }
        ended
    }

    /// The reader is gone: queued bios are taken back; running ones end on their own, with their own buffers.
    pub(crate) fn cancel(self: &Arc<Self>) {
        self.cancelled.store(true, Ordering::Release);
        let (phase, submitted, waker, over) = {
            let mut state = self.lock();
            let submitted: Vec<_> = state.pieces.iter().filter_map(|p| Some((p.source.clone()?, p.id?))).collect();
            // One that is not over is recorded as cancelled when it is.
            let record = if state.phase == Phase::Done { state.close_record(BioFate::Unused) } else { None };
            let over = record.and_then(|record| Some((state.core.clone()?, record)));
            (state.phase, submitted, state.waker.take(), over)
        };
        if let Some((core, record)) = over {
            core.record(&record);
        }
        for (source, id) in submitted {
            let _ = contain(|| {
                source.cancel(id);
                drop(source);
            });
        }
        if phase == Phase::Handed || phase == Phase::Queued && self.work.cancel() {
            self.run();
        }
        // This may be the last handle of a task, whose destructor is foreign code.
        let _ = contain(|| drop(waker));
    }

    /// Makes a read-ahead bio a demand one where its source still has it queued.
    pub(crate) fn raise(&self) {
        let submitted: Vec<_> = {
            let mut state = self.lock();
            if state.priority == Priority::Demand || self.is_done() {
                return;
            }
            state.priority = Priority::Demand;
            state.pieces.iter().filter_map(|p| Some((p.source.clone()?, p.id?))).collect()
        };
        for (source, id) in submitted {
            let _ = contain(|| {
                source.raise(id);
                drop(source);
            });
        }
    }

    /// Makes an ended flight ready for its next use.
    pub(crate) fn reset(&self) {
        let foreign = self.lock().reset();
        self.cancelled.store(false, Ordering::Relaxed);
        self.done.store(false, Ordering::Relaxed);
        let _ = contain(|| drop(foreign));
    }
}

impl WaitsForInputs for Flight {
    fn input_arrived(self: Arc<Self>, slot: u32, value: InputValue, times: InputTimes) {
        {
            let mut state = self.lock();
            let own = &mut state.record.times;
            own.inputs_ns = own.inputs_ns.max(times.checked_ns);
            own.inputs_cpu_ns = own.inputs_cpu_ns.max(times.cpu_ns);
            if let Some(slot) = state.inputs.get_mut(slot as usize) {
                slot.value = Some(value);
            }
        }
        self.arrived();
    }
}

impl BioEnd for Flight {
    fn end(self: Arc<Self>, slot: u32, bio: Option<Bio>, cpu: u32) {
        let source = {
            let mut state = self.lock();
            state.cpu = cpu;
            let mut now = 0;
            if let Some(core) = &state.core {
                core.stats.add(cpu, Counter::Completions, 1);
                now = core.stamp();
            }
            state.record.times.arrived_ns = state.record.times.arrived_ns.max(now);
            state.piece_ended(slot as usize, bio)
        };
        let _ = contain(|| drop(source));
        self.arrived();
    }
}
