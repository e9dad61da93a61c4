//! A flight's state: where the bio's pieces are, which inputs it needs, and what has arrived.

use std::ops::Range;
use std::sync::Arc;
use std::task::Waker;

use postread_io::{Bio, BioId, BlockStatus, Buf, Permit, Priority, Source, Statuses, current_cpu};
use postread_sys::contain;

use super::{Flight, Launch, Sink};
use crate::auto::Decided;
use crate::engine::{Core, OpenCount};
use crate::inputs::InputBlocks;
use crate::plan::{PieceAt, Plan, StepInputs};
use crate::stamps::{BioFate, BioKind, BioRecord};
use crate::step::{InputSlot, Inputs};

/// A piece of the bio that a source reads.
pub(super) struct SourcePiece {
    /// None once it has completed.
    pub(super) source: Option<Arc<dyn Source>>,
    pub(super) id: Option<BioId>,
    /// What is asked of the source, aligned as the source needs it.
    pub(super) physical: u64,
    pub(super) asked: usize,
    /// Where the piece begins in that.
    head: usize,
    /// The piece within the bio.
    pub(super) range: Range<usize>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Phase {
    #[default]
    Idle,
    InFlight,
    Queued,
    /// Ready, and left to its reader.
    Handed,
    Running,
    Done,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) core: Option<Arc<Core>>,
    pub(super) plan: Option<Arc<Plan>>,
    pub(super) open: Option<Arc<OpenCount>>,
    pub(super) sink: Sink,
    pub(super) phase: Phase,
    pub(super) offset: u64,
    pub(super) len: usize,
    pub(super) priority: Priority,
    pub(super) buf: Option<Buf>,
    pub(super) permit: Option<Permit>,
    pub(super) statuses: Statuses,
    pub(super) holes: Vec<Range<usize>>,
    pub(super) pieces: Vec<SourcePiece>,
    pub(super) inputs: Vec<InputSlot>,
    wanted: Inputs,
    pub(super) waker: Option<Waker>,
    /// Keeps the flight alive while only its work item knows it.
    pub(super) keep: Option<Arc<Flight>>,
    /// A thread sleeps until this flight is done, and will run its steps if they are left to it.
    pub(super) reader_blocks: bool,
    /// What the policy `auto` decided.
    pub(super) decided: Option<Decided>,
    /// The CPU of the last completion.
    pub(super) cpu: u32,
    /// The record, filled in along the way if the engine measures.
    pub(super) record: BioRecord,
    /// The record was passed on.
    recorded: bool,
}

/// Foreign objects that a flight holds when it has ended. Dropped outside of the lock.
pub(super) struct Foreign {
    _core: Option<Arc<Core>>,
    _plan: Option<Arc<Plan>>,
    _sink: Sink,
    _waker: Option<Waker>,
}

impl State {
    /// Lays the bio out: its pieces, its holes, the inputs that its steps want and those that are at hand.
    pub(super) fn prepare(&mut self, core: &Arc<Core>, launch: Launch) {
        let Launch { plan, open, sink, offset, len, priority, permit, tree_ahead: _ } = launch;
        self.phase = Phase::InFlight;
        self.offset = offset;
        self.len = len;
        self.priority = priority;
        self.sink = sink;
        self.open = Some(open);
        self.core = Some(core.clone());
        self.buf = None;
        self.permit = Some(permit);
        self.statuses.clear();
        self.holes.clear();
        self.pieces.clear();
        self.inputs.clear();
        self.cpu = current_cpu();
        let kind = if matches!(self.sink, Sink::Tree(_)) { BioKind::Tree } else { BioKind::Data };
        self.record = BioRecord { offset, len, kind, submitted_as: priority, ..BioRecord::default() };
        self.record.times.submitted_ns = core.stamp();
        if priority == Priority::Demand {
            self.record.times.wanted_ns = self.record.times.submitted_ns;
        }
        self.recorded = false;
        self.decided = None;
        self.reader_blocks = false;

        // Mappings, sources and steps are foreign code.
        let laid_out = contain(|| {
            self.lay_out(&plan);
            self.want_inputs(&plan);
        });
        if laid_out.is_none() {
            self.pieces.clear();
            self.holes.clear();
            self.inputs.clear();
            self.fail_all(&BlockStatus::Step { message: "the plan panicked".into() });
        }
        if !self.is_single_piece() {
            let mut buf = Buf::zeroed(len);
            if let Some(permit) = self.permit.take() {
                buf.charge(permit);
            }
            self.buf = Some(buf);
        }
        self.plan = Some(plan);
    }

    fn lay_out(&mut self, plan: &Plan) {
        let (offset, len) = (self.offset, self.len);
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
                    self.pieces.push(SourcePiece { source, id: None, physical, asked, head, range: at..at + n });
                }
            }
            at += n;
        }
    }

    pub(super) fn is_single_piece(&self) -> bool {
        self.pieces.len() == 1 && self.pieces[0].range.len() == self.len
    }

    pub(super) fn blocks_of<'a>(&'a self, plan: &'a Plan, step: u32) -> Option<&'a Arc<dyn InputBlocks>> {
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
                    // Never from a correct step: a bio that waits for itself would wait forever.
                    Some(Err(BlockStatus::Step { message: "a step wants a hash block that does not exist".into() }))
                } else {
                    blocks.cached(index).map(Ok)
                };
                inputs.push(InputSlot { step: n as u32, index, value });
            }
        }
        self.wanted = wanted;
        self.inputs = inputs;
    }

    pub(super) fn fail_all(&mut self, status: &BlockStatus) {
        let len = self.len;
        self.statuses.fail(0..len, status);
    }

    pub(super) fn take_buf(&mut self) -> Buf {
        // None only where the source lost it: then every byte is marked as failed.
        self.buf.take().unwrap_or_else(|| Buf::zeroed(self.len))
    }

    /// Takes in what a source has read. Returns the source's handle, to be dropped outside of the lock.
    pub(super) fn piece_ended(&mut self, at: usize, bio: Option<Bio>) -> Option<Arc<dyn Source>> {
        let single = self.is_single_piece();
        let piece = self.pieces.get_mut(at)?;
        let source = piece.source.take();
        let (range, head) = (piece.range.clone(), piece.head);
        let bio = bio.filter(|bio| bio.len() == piece.asked && bio.offset() == piece.physical);
        let Some(bio) = bio else {
            self.statuses.fail(range, &BlockStatus::Lost);
            return source;
        };
        let times = &mut self.record.times;
        if bio.begun_ns() > 0 && times.submitted_ns > 0 {
            let begun = bio.begun_ns().max(times.submitted_ns);
            times.read_begun_ns = if times.read_begun_ns == 0 { begun } else { times.read_begun_ns.min(begun) };
        }
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
        source
    }

    /// The record of this bio, once: none where it was passed on before, or nothing is measured.
    pub(super) fn close_record(&mut self, fate: BioFate) -> Option<BioRecord> {
        if self.recorded || self.record.times.submitted_ns == 0 {
            return None;
        }
        self.recorded = true;
        self.record.fate = fate;
        self.record.completion_cpu = self.cpu;
        Some(self.record)
    }

    /// Makes it ready for its next use. The caller drops what it returns outside of the lock.
    pub(super) fn reset(&mut self) -> Foreign {
        self.open = None;
        self.buf = None;
        self.permit = None;
        self.phase = Phase::Idle;
        Foreign {
            _core: self.core.take(),
            _plan: self.plan.take(),
            _sink: std::mem::take(&mut self.sink),
            _waker: self.waker.take(),
        }
    }
}
