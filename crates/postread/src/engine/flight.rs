//! A bio's life: read, wait for its inputs, queued, run through its steps, handed over.
//!
//! A flight counts what it still waits for (its pieces and its hash blocks, all submitted together). The one that brings
//! the count to zero queues it, or runs it, according to the policy. From then on it waits for nothing. Flights and
//! their work items are used again, so that a read allocates nothing once the engine is warm.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Waker;

use postread_io::{Bio, BioEnd, BioId, BlockStatus, Buf, Completion, Permit, Priority, Source, Statuses, current_cpu};
use postread_workqueue::Work;

use super::clock::{now_ns, thread_cpu_ns};
use super::open_count::OpenCount;
use super::{Dispatch, EngineInner};
use crate::hash_blocks::{HashBlocks, WantedBlock};
use crate::plan::{PieceAt, Plan, StepInputs};
use crate::stats::Counter;
use crate::step::{BioMut, InputSlot, Inputs, VerifiedBlock, VerifiedInputs};

/// Who gets the bio when it has ended.
#[derive(Default)]
pub(crate) enum Sink {
    /// A reader, woken through its waker.
    #[default]
    Reader,
    /// The hash blocks that it carries.
    Tree(Arc<HashBlocks>),
}

/// All that is needed to start a flight.
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

/// A piece of the bio that a source reads.
struct Part {
    /// None once it has completed.
    source: Option<Arc<dyn Source>>,
    id: Option<BioId>,
    /// What is asked of the source: aligned as it wants it.
    physical: u64,
    asked: usize,
    /// Where in that the piece begins.
    head: usize,
    /// The piece within the bio.
    range: Range<usize>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Idle,
    InFlight,
    Queued,
    Running,
    Done,
}

#[derive(Default)]
struct State {
    engine: Option<Arc<EngineInner>>,
    plan: Option<Arc<Plan>>,
    open: Option<Arc<OpenCount>>,
    sink: Sink,
    phase: Phase,
    offset: u64,
    len: usize,
    priority: Priority,
    buf: Option<Buf>,
    permit: Option<Permit>,
    statuses: Statuses,
    holes: Vec<Range<usize>>,
    parts: Vec<Part>,
    inputs: Vec<InputSlot>,
    wanted: Inputs,
    waker: Option<Waker>,
    /// Keeps the flight alive while only its work item knows it.
    keep: Option<Arc<Flight>>,
    cpu: u32,
    arrived_ns: u64,
    queued_ns: u64,
    inputs_cpu_ns: u64,
    cpu_ns: u64,
}

pub(crate) struct Flight {
    work: Work,
    state: Mutex<State>,
    pending: AtomicU32,
    cancelled: AtomicBool,
    done: AtomicBool,
}

/// What a flight leaves to its reader.
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
    pub(crate) fn start(self: &Arc<Self>, engine: &Arc<EngineInner>, launch: Launch) {
        launch.open.enter();
        let tree_ahead = launch.tree_ahead;
        let (parts, missing) = {
            let mut state = self.lock();
            state.prepare(engine, launch);
            let missing = state.inputs.iter().any(|s| s.value.is_none());
            let waits = state.inputs.iter().filter(|s| s.value.is_none()).count() + state.parts.len();
            self.pending.store(1 + u32::try_from(waits).unwrap_or(u32::MAX - 1), Ordering::Release);
            (state.parts.len(), missing)
        };
        if missing {
            self.request_inputs(engine, tree_ahead);
        }
        for part in 0..parts {
            self.submit_part(part);
        }
        self.arrived();
    }

    fn request_inputs(self: &Arc<Self>, engine: &Arc<EngineInner>, tree_ahead: u64) {
        let mut wanted: Vec<(Arc<HashBlocks>, Vec<WantedBlock>)> = Vec::new();
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
        for (blocks, list) in wanted {
            blocks.request(engine, &open, self, &list, tree_ahead);
        }
    }

    fn submit_part(self: &Arc<Self>, at: usize) {
        let (source, bio) = {
            let mut state = self.lock();
            let single = state.parts.len() == 1 && state.parts[0].range.len() == state.len;
            let unit = state.plan.as_ref().map_or(4096, |p| p.unit().max(512));
            let priority = state.priority;
            let part = &state.parts[at];
            let Some(source) = part.source.clone() else { return };
            let (physical, asked) = (part.physical, part.asked);
            let mut buf = Buf::new(asked);
            if single && let Some(permit) = state.permit.take() {
                buf.charge(permit);
            }
            (source, Bio::new(physical, buf).with_unit(unit).with_priority(priority))
        };
        let id = source.submit(bio, Completion::new(self.clone(), at as u32));
        if self.pending.load(Ordering::Acquire) == 1 {
            // All has arrived, this part as well: there is nothing left to cancel by its id.
            return;
        }
        let mut state = self.lock();
        if let Some(part) = state.parts.get_mut(at).filter(|p| p.source.is_some()) {
            part.id = Some(id);
        }
        drop(state);
        // A reader that left between the submission and this point could not have named the bio.
        if self.cancelled.load(Ordering::Acquire) {
            source.cancel(id);
        }
    }

    /// One of the inputs is there.
    pub(crate) fn input_arrived(
        self: &Arc<Self>,
        slot: u32,
        value: Result<Arc<VerifiedBlock>, BlockStatus>,
        arrived_ns: u64,
        cpu_ns: u64,
    ) {
        {
            let mut state = self.lock();
            state.arrived_ns = state.arrived_ns.max(arrived_ns);
            state.inputs_cpu_ns = state.inputs_cpu_ns.max(cpu_ns);
            if let Some(slot) = state.inputs.get_mut(slot as usize) {
                slot.value = Some(value);
            }
        }
        self.arrived();
    }

    /// Counts one arrival; the last one makes the bio ready.
    fn arrived(self: &Arc<Self>) {
        if self.pending.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        let mut state = self.lock();
        let Some(engine) = state.engine.clone() else { return };
        let steps = state.plan.as_ref().is_some_and(|p| !p.steps.is_empty());
        if !steps || self.cancelled.load(Ordering::Acquire) || matches!(engine.dispatch, Dispatch::Inline) {
            return self.run_locked(state);
        }
        state.phase = Phase::Queued;
        state.keep = Some(self.clone());
        state.queued_ns = if engine.config.measure { now_ns() } else { 0 };
        let cpu = state.cpu;
        drop(state);
        engine.stats.add(cpu, Counter::Queued, 1);
        if !engine.dispatch.queue(cpu, &self.work) {
            self.run();
        }
    }

    /// All steps, in one go. Nothing here waits.
    fn run(self: &Arc<Self>) {
        self.run_locked(self.lock());
    }

    fn run_locked(self: &Arc<Self>, mut state: MutexGuard<'_, State>) {
        let keep = state.keep.take();
        let (Some(engine), Some(plan)) = (state.engine.clone(), state.plan.clone()) else { return };
        // Run once, whoever comes first: the worker, or the reader that took it back.
        if !matches!(state.phase, Phase::InFlight | Phase::Queued) {
            return;
        }
        state.phase = Phase::Running;
        let measure = engine.config.measure;
        let queued_ns = std::mem::take(&mut state.queued_ns);
        if self.cancelled.load(Ordering::Acquire) {
            let len = state.len;
            state.statuses.fail(0..len, &BlockStatus::Cancelled);
            return self.finish(state, &engine);
        }
        let mut buf = state.take_buf();
        let mut statuses = std::mem::take(&mut state.statuses);
        let holes = std::mem::take(&mut state.holes);
        let inputs = std::mem::take(&mut state.inputs);
        let offset = state.offset;
        let tree = matches!(state.sink, Sink::Tree(_));
        drop(state);

        let here = if measure { current_cpu() } else { 0 };
        if queued_ns > 0 {
            engine.stats.queue_latency(here, now_ns().saturating_sub(queued_ns));
        }
        let began = if measure { thread_cpu_ns() } else { 0 };
        let len = buf.len();
        let mut bio = BioMut { offset, data: &mut buf, statuses: &mut statuses, holes: &holes, checked_blocks: 0 };
        for (n, planned) in plan.steps.iter().enumerate() {
            let verified = VerifiedInputs::of_step(&inputs, n as u32);
            if catch_unwind(AssertUnwindSafe(|| planned.step.run(&mut bio, &verified))).is_err() {
                // What it left in the buffer is anybody's guess.
                bio.fail(0..len, &BlockStatus::Step { message: "the step panicked".into() });
            }
        }
        let checked = bio.checked_blocks;
        let cpu_ns = if measure { thread_cpu_ns().saturating_sub(began) } else { 0 };

        let counter = if tree { Counter::TreeBlocks } else { Counter::DataBlocks };
        let mut state = self.lock();
        engine.stats.add(state.cpu, counter, checked);
        if measure {
            engine.stats.add(state.cpu, Counter::StepCpuNs, cpu_ns);
        }
        state.cpu_ns = cpu_ns.saturating_add(state.inputs_cpu_ns);
        state.buf = Some(buf);
        state.statuses = statuses;
        state.holes = holes;
        state.inputs = inputs;
        self.finish(state, &engine);
        drop(keep);
    }

    fn finish(&self, mut state: MutexGuard<'_, State>, engine: &Arc<EngineInner>) {
        state.phase = Phase::Done;
        // The inputs have served; holding them would keep evicted blocks alive.
        state.inputs.clear();
        let cpu = state.cpu;
        let failed = !state.statuses.is_good();
        let open = state.open.take();
        match std::mem::take(&mut state.sink) {
            Sink::Reader => {
                engine.stats.add(cpu, Counter::Bios, 1);
                engine.stats.add(cpu, Counter::Bytes, state.len as u64);
                if self.cancelled.load(Ordering::Acquire) {
                    engine.stats.add(cpu, Counter::Cancelled, 1);
                    // Nobody will fetch it.
                    state.buf = None;
                } else if failed {
                    engine.stats.add(cpu, Counter::Failed, 1);
                }
                if state.priority == Priority::ReadAhead {
                    engine.stats.add(cpu, Counter::ReadAheadBios, 1);
                }
                let waker = state.waker.take();
                drop(state);
                self.done.store(true, Ordering::Release);
                if let Some(waker) = waker {
                    waker.wake();
                }
            }
            Sink::Tree(blocks) => {
                engine.stats.add(cpu, Counter::HashBios, 1);
                if failed {
                    engine.stats.add(cpu, Counter::Failed, 1);
                }
                let buf = state.take_buf();
                let statuses = std::mem::take(&mut state.statuses);
                let first = state.offset / u64::from(blocks.block_size().max(1));
                let (arrived_ns, cpu_ns) = (state.arrived_ns, state.cpu_ns);
                drop(state);
                self.done.store(true, Ordering::Release);
                blocks.ended(first, buf, &statuses, arrived_ns, cpu_ns);
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
        if state.waker.as_ref().is_none_or(|w| !w.will_wake(waker)) {
            state.waker = Some(waker.clone());
        }
        false
    }

    /// Takes the result, once it has ended.
    pub(crate) fn take(&self) -> Ended {
        let mut state = self.lock();
        let ended =
            Ended { offset: state.offset, buf: state.take_buf(), statuses: std::mem::take(&mut state.statuses) };
        if state.arrived_ns > 0
            && let Some(engine) = &state.engine
        {
            let since = now_ns().saturating_sub(state.arrived_ns);
            engine.stats.post_read_delay(current_cpu(), since.saturating_sub(state.cpu_ns));
        }
        ended
    }

    /// The reader has gone: what is queued is taken back; what runs ends alone, with its own buffer.
    pub(crate) fn cancel(self: &Arc<Self>) {
        self.cancelled.store(true, Ordering::Release);
        let (queued, submitted) = {
            let mut state = self.lock();
            state.waker = None;
            let submitted: Vec<_> = state.parts.iter().filter_map(|p| Some((p.source.clone()?, p.id?))).collect();
            (state.phase == Phase::Queued, submitted)
        };
        for (source, id) in submitted {
            source.cancel(id);
        }
        if queued && self.work.cancel() {
            self.run();
        }
    }

    /// Makes a read-ahead bio a demand one where its source still has it queued.
    pub(crate) fn raise(&self) {
        let submitted: Vec<_> = {
            let mut state = self.lock();
            if state.priority == Priority::Demand || self.is_done() {
                return;
            }
            state.priority = Priority::Demand;
            state.parts.iter().filter_map(|p| Some((p.source.clone()?, p.id?))).collect()
        };
        for (source, id) in submitted {
            source.raise(id);
        }
    }

    /// Makes an ended flight ready for its next use.
    pub(crate) fn reset(&self) {
        let mut state = self.lock();
        state.engine = None;
        state.plan = None;
        state.open = None;
        state.buf = None;
        state.permit = None;
        state.waker = None;
        state.phase = Phase::Idle;
        self.cancelled.store(false, Ordering::Relaxed);
        self.done.store(false, Ordering::Relaxed);
    }
}

impl BioEnd for Flight {
    fn end(self: Arc<Self>, slot: u32, bio: Option<Bio>, cpu: u32) {
        {
            let mut state = self.lock();
            state.cpu = cpu;
            if let Some(engine) = &state.engine {
                engine.stats.add(cpu, Counter::Completions, 1);
                if engine.config.measure {
                    state.arrived_ns = state.arrived_ns.max(now_ns());
                }
            }
            state.part_ended(slot as usize, bio);
        }
        self.arrived();
    }
}

impl State {
    /// Lays the bio out: its pieces, its holes, the inputs that its steps want and those that are there already.
    fn prepare(&mut self, engine: &Arc<EngineInner>, launch: Launch) {
        let Launch { plan, open, sink, offset, len, priority, permit, tree_ahead: _ } = launch;
        self.phase = Phase::InFlight;
        self.offset = offset;
        self.len = len;
        self.priority = priority;
        self.sink = sink;
        self.open = Some(open);
        self.engine = Some(engine.clone());
        self.buf = None;
        self.permit = Some(permit);
        self.statuses.clear();
        self.holes.clear();
        self.parts.clear();
        self.inputs.clear();
        (self.arrived_ns, self.queued_ns, self.inputs_cpu_ns, self.cpu_ns) = (0, 0, 0, 0);
        self.cpu = current_cpu();

        let mut at = 0;
        while at < len {
            let piece = plan.map.piece(offset.saturating_add(at as u64), (len - at) as u64);
            let n = usize::try_from(piece.len).unwrap_or(len).clamp(1, len - at);
            match piece.at {
                PieceAt::Hole => match self.holes.last_mut() {
                    Some(last) if last.end == at => last.end += n,
                    _ => self.holes.push(at..at + n),
                },
                PieceAt::Source { source, offset } => {
                    let align = u64::from(source.align().max(1));
                    let head = (offset % align) as usize;
                    let asked = (head + n).next_multiple_of(align as usize);
                    let (source, physical) = (Some(source.clone()), offset - head as u64);
                    self.parts.push(Part { source, id: None, physical, asked, head, range: at..at + n });
                }
            }
            at += n;
        }
        if !self.is_single_part() {
            let mut buf = Buf::zeroed(len);
            if let Some(permit) = self.permit.take() {
                buf.charge(permit);
            }
            self.buf = Some(buf);
        }
        self.want_inputs(&plan);
        self.plan = Some(plan);
    }

    fn is_single_part(&self) -> bool {
        self.parts.len() == 1 && self.parts[0].range.len() == self.len
    }

    fn blocks_of<'a>(&'a self, plan: &'a Plan, step: u32) -> Option<&'a Arc<HashBlocks>> {
        match (&plan.steps.get(step as usize)?.inputs, &self.sink) {
            (StepInputs::Blocks(blocks), _) | (StepInputs::Own, Sink::Tree(blocks)) => Some(blocks),
            _ => None,
        }
    }

    fn want_inputs(&mut self, plan: &Plan) {
        let mut wanted = std::mem::take(&mut self.wanted);
        let mut inputs = std::mem::take(&mut self.inputs);
        for (n, planned) in plan.steps.iter().enumerate() {
            let Some(blocks) = self.blocks_of(plan, n as u32) else { continue };
            let size = u64::from(planned.step.block_size().max(1));
            let end = self.offset.saturating_add(self.len as u64);
            wanted.ranges.clear();
            planned.step.inputs(self.offset / size..end.div_ceil(size), &mut wanted);
            let own = matches!(planned.inputs, StepInputs::Own);
            let own_run = self.offset / size..end.div_ceil(size);
            for index in wanted.ranges.iter().flat_map(|r| r.start..r.end.min(blocks.len().saturating_add(1))) {
                let value = if index >= blocks.len() || own && own_run.contains(&index) {
                    // Never from a sound step: a bio that waits for itself would wait for ever.
                    Some(Err(BlockStatus::Step { message: "a step wants a hash block that is not there".into() }))
                } else {
                    blocks.cached(index).map(Ok)
                };
                inputs.push(InputSlot { step: n as u32, index, value });
            }
        }
        self.wanted = wanted;
        self.inputs = inputs;
    }

    fn take_buf(&mut self) -> Buf {
        // None only where the source lost it: then every byte is marked as failed.
        self.buf.take().unwrap_or_else(|| Buf::zeroed(self.len))
    }

    fn part_ended(&mut self, at: usize, bio: Option<Bio>) {
        let single = self.is_single_part();
        let Some(part) = self.parts.get_mut(at) else { return };
        part.source = None;
        let (range, head) = (part.range.clone(), part.head);
        let bio = bio.filter(|bio| bio.len() == part.asked && bio.offset() == part.physical);
        let Some(bio) = bio else {
            self.statuses.fail(range, &BlockStatus::Lost);
            return;
        };
        let (mut buf, statuses) = bio.into_parts();
        for bad in statuses.window(head..head + range.len()).bad() {
            let shifted = range.start + bad.range.start..range.start + bad.range.end;
            self.statuses.fail(shifted, &bad.status);
        }
        if single {
            buf.narrow(head, range.len());
            self.buf = Some(buf);
        } else if let Some(whole) = &mut self.buf {
            whole[range.clone()].copy_from_slice(&buf[head..head + range.len()]);
        }
    }
}
