//! An open file: reads by range, as futures or blocking.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use postread_io::{BlockStatus, Buf, Permit, Priority};
use postread_verity::TrustedDescriptor;

use crate::block_on::block_on;
use crate::engine::flight::{Ended, Flight, Launch, Sink};
use crate::engine::{Engine, EngineInner, OpenCount};
use crate::error::ReadError;
use crate::plan::Plan;
use crate::stream::{Begun, Stream, begin, lock};

/// Most bios that one read keeps in flight.
const MAX_FLIGHTS: usize = 16;

pub(crate) struct FileInner {
    pub(crate) engine: Arc<EngineInner>,
    pub(crate) plan: Arc<Plan>,
    open: Arc<OpenCount>,
    closed: AtomicBool,
}

/// The reader's end of a flight: dropped, it cancels what has not ended.
pub(crate) struct Handle {
    flight: Option<Arc<Flight>>,
    engine: Arc<EngineInner>,
    /// The logical bytes that it reads.
    pub(crate) range: Range<u64>,
}

impl Handle {
    pub(crate) fn is_done(&self) -> bool {
        self.flight.as_ref().is_none_or(|f| f.is_done())
    }

    /// The reader has reached this bio, which was read ahead.
    pub(crate) fn raise(&self) {
        if let Some(flight) = &self.flight {
            if self.engine.core.config.measure || self.engine.core.auto().is_some() {
                flight.wanted();
            }
            flight.raise();
        }
    }

    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Ended> {
        let Some(flight) = &self.flight else { return Poll::Pending };
        let auto = self.engine.core.auto().is_some();
        loop {
            if auto {
                flight.run_here();
            }
            if flight.poll_done(cx.waker()) {
                break;
            }
            // Was it left to this reader before the waker was registered?
            if !(auto && flight.is_handed()) {
                return Poll::Pending;
            }
        }
        let ended = flight.take();
        if let Some(flight) = self.flight.take() {
            self.engine.recycle(flight);
        }
        Poll::Ready(ended)
    }

    /// The flight, where it waits for a thread to run its steps.
    pub(crate) fn to_run(&self) -> Option<Arc<Flight>> {
        self.flight.clone().filter(|flight| flight.waits_for_a_thread())
    }

    /// With the policy `auto`: runs its steps on this thread if no other has begun them, and then the steps of what
    /// `next` finds until it is done.
    pub(crate) fn help(&self, next: impl Fn() -> Option<Arc<Flight>>) {
        let Some(auto) = self.engine.core.auto() else { return };
        while auto.readers_help() && !self.is_done() && !self.flight.as_ref().is_some_and(|f| f.run_here()) {
            if !next().is_some_and(|flight| flight.run_here()) {
                return;
            }
        }
    }

    /// Waits on this thread. Inside a work item this lets another worker of the pool run: the bio may need it.
    pub(crate) fn wait(mut self) -> Ended {
        if self.is_done() {
            return block_on(std::future::poll_fn(|cx| self.poll(cx)));
        }
        if self.engine.core.auto().is_some()
            && let Some(flight) = &self.flight
        {
            flight.reader_blocks();
        }
        postread_workqueue::blocking(|| block_on(std::future::poll_fn(|cx| self.poll(cx))))
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if let Some(flight) = self.flight.take() {
            flight.cancel();
            self.engine.recycle(flight);
        }
    }
}

impl FileInner {
    pub(crate) fn len(&self) -> u64 {
        self.plan.len()
    }

    fn unit(&self) -> u64 {
        u64::from(self.plan.unit())
    }

    /// The bio that begins with the unit of `offset` and reaches for `end`: logical bytes, whole units, cut at
    /// multiples of the largest bio.
    pub(crate) fn bio_range(&self, offset: u64, end: u64) -> Range<u64> {
        let unit = self.unit();
        let max = (self.engine.core.config.max_bio as u64).max(unit);
        let start = offset - offset % unit;
        let end = end.clamp(offset.saturating_add(1), self.len().max(offset.saturating_add(1)));
        let limit = (start - start % max).saturating_add(max);
        let end = end.div_ceil(unit).saturating_mul(unit).min(limit);
        start..end
    }

    /// Starts a demand bio that begins with the unit of `offset` and reaches for `end`, if the budget has room for it.
    pub(crate) fn try_start(self: &Arc<Self>, offset: u64, end: u64, tree_ahead: u64) -> Option<Handle> {
        let range = self.bio_range(offset, end);
        let permit = self.engine.core.budget.demand(range.end - range.start)?;
        Some(self.launch(range, permit, Priority::Demand, tree_ahead))
    }

    /// The same, but one block if there is no room for more: that much is always admitted, so every reader makes
    /// progress.
    pub(crate) fn start(self: &Arc<Self>, offset: u64, end: u64, tree_ahead: u64) -> Handle {
        if let Some(handle) = self.try_start(offset, end, tree_ahead) {
            return handle;
        }
        let one = self.bio_range(offset, offset.saturating_add(1));
        let range = if self.unit() < 4096 { self.bio_range(offset, end.min(offset.saturating_add(4096))) } else { one };
        let permit = self.engine.core.budget.always(range.end - range.start);
        self.launch(range, permit, Priority::Demand, tree_ahead)
    }

    /// Starts a read-ahead bio, if the budget has room for it.
    pub(crate) fn start_ahead(self: &Arc<Self>, offset: u64, tree_ahead: u64) -> Option<Handle> {
        let range = self.bio_range(offset, u64::MAX);
        let permit = self.engine.core.budget.read_ahead(range.end - range.start)?;
        Some(self.launch(range, permit, Priority::ReadAhead, tree_ahead))
    }

    fn launch(self: &Arc<Self>, range: Range<u64>, permit: Permit, priority: Priority, tree_ahead: u64) -> Handle {
        let flight = self.engine.launch(Launch {
            plan: self.plan.clone(),
            open: self.open.clone(),
            sink: Sink::Reader,
            offset: range.start,
            len: (range.end - range.start) as usize,
            priority,
            permit,
            tree_ahead,
        });
        Handle { flight: Some(flight), engine: self.engine.clone(), range }
    }

    pub(crate) fn check_open(&self, offset: u64) -> Result<(), ReadError> {
        if self.closed.load(Ordering::Acquire) {
            return Err(ReadError { offset, status: BlockStatus::Cancelled });
        }
        Ok(())
    }

    /// The good part of an ended bio from `offset` on, before `end` and the end of the file, and the error that cut it
    /// short.
    pub(crate) fn good_part(
        &self,
        ended: Ended,
        offset: u64,
        end: u64,
    ) -> Result<(Chunk, Option<ReadError>), ReadError> {
        let Ended { offset: start, mut buf, statuses } = ended;
        let from = (offset - start) as usize;
        let until = buf.len().min(usize::try_from(end.min(self.len()) - start).unwrap_or(usize::MAX));
        let (until, stopped) = match statuses.first_bad(from..until.max(from + 1)) {
            None => (until, None),
            Some(bad) if bad.range.start <= from => {
                return Err(ReadError { offset, status: bad.status.clone() });
            }
            Some(bad) => {
                let error = ReadError { offset: start + bad.range.start as u64, status: bad.status.clone() };
                (bad.range.start, Some(error))
            }
        };
        buf.narrow(from, until.saturating_sub(from));
        Ok((Chunk { offset, buf }, stopped))
    }
}

/// Bytes of a file that went through all steps, in the buffer in which they were checked. The buffer goes back to the
/// pool when this is dropped.
pub struct Chunk {
    offset: u64,
    buf: Buf,
}

impl Chunk {
    /// Where in the file they begin.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    pub(crate) fn advance(&mut self, n: usize) {
        let n = n.min(self.buf.len());
        self.buf.narrow(n, self.buf.len() - n);
        self.offset += n as u64;
    }

    /// Takes the first `n` bytes off, as a copy: a buffer has one owner.
    pub(crate) fn split_to(&mut self, n: usize) -> Self {
        let n = n.min(self.buf.len());
        let mut buf = Buf::new(n);
        buf.copy_from_slice(&self.buf[..n]);
        let head = Self { offset: self.offset, buf };
        self.advance(n);
        head
    }
}

impl std::ops::Deref for Chunk {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buf
    }
}

impl fmt::Debug for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Chunk({} bytes at {})", self.buf.len(), self.offset)
    }
}

/// The result of a read by range: the good prefix, in one buffer per bio.
#[derive(Debug, Default)]
pub struct ReadBytes {
    parts: Parts,
    stopped: Option<ReadError>,
}

#[derive(Debug, Default)]
enum Parts {
    #[default]
    None,
    One(Chunk),
    Many(Vec<Chunk>),
}

impl ReadBytes {
    fn push(&mut self, chunk: Chunk) {
        self.parts = match std::mem::take(&mut self.parts) {
            Parts::None => Parts::One(chunk),
            Parts::One(first) => Parts::Many(vec![first, chunk]),
            Parts::Many(mut all) => {
                all.push(chunk);
                Parts::Many(all)
            }
        };
    }

    /// The buffers in order; each begins in the file where the one before it ends.
    pub fn parts(&self) -> &[Chunk] {
        match &self.parts {
            Parts::None => &[],
            Parts::One(one) => std::slice::from_ref(one),
            Parts::Many(all) => all,
        }
    }

    /// The buffers, owned.
    pub fn into_parts(self) -> Vec<Chunk> {
        match self.parts {
            Parts::None => Vec::new(),
            Parts::One(one) => vec![one],
            Parts::Many(all) => all,
        }
    }

    /// Bytes in all buffers.
    pub fn len(&self) -> usize {
        self.parts().iter().map(|p| p.len()).sum()
    }

    /// True at the end of the file and past it.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A copy in one piece.
    pub fn to_vec(&self) -> Vec<u8> {
        self.parts().iter().flat_map(|p| p.iter().copied()).collect()
    }

    /// Why the read stopped early; `None` if its range is complete, or ends with the file.
    pub fn stopped(&self) -> Option<&ReadError> {
        self.stopped.as_ref()
    }
}

/// A read by range. It needs no particular runtime; dropping it cancels queued bios and returns at once.
#[must_use = "a read that is not polled reads nothing"]
pub struct ReadFuture {
    file: Arc<FileInner>,
    at: u64,
    end: u64,
    /// Where the next bio to start begins.
    next: u64,
    flights: VecDeque<Handle>,
    bytes: ReadBytes,
    /// The reader whose read-ahead it uses and feeds.
    stream: Option<Arc<Mutex<Stream>>>,
}

impl ReadFuture {
    /// A read that is part of a reader's stream.
    pub(crate) fn of_stream(file: &Arc<FileInner>, stream: &Arc<Mutex<Stream>>, offset: u64, len: u64) -> Self {
        let mut read = OpenFile::from_inner(file.clone()).read(offset, len);
        read.stream = Some(stream.clone());
        read
    }

    /// Accepts the requested part of `chunk`; the rest goes back to the stream.
    fn accept(&mut self, mut chunk: Chunk) {
        let want = usize::try_from(self.end - self.at).unwrap_or(usize::MAX);
        if let Some(stream) = &self.stream {
            let mut stream = lock(stream);
            if want < chunk.len() {
                let head = chunk.split_to(want);
                stream.keep(chunk);
                chunk = head;
            }
            stream.read_to(self.at + chunk.len() as u64);
        }
        self.at += chunk.len() as u64;
        self.bytes.push(chunk);
    }

    fn pump(&mut self) {
        if let Some(stream) = self.stream.clone() {
            // The stream's own read-ahead is what keeps more than one bio in flight.
            while self.flights.is_empty() && self.next < self.end {
                match begin(&self.file, &stream, self.next, self.end - self.next) {
                    Begun::Rest(chunk) => {
                        self.accept(chunk);
                        self.next = self.at;
                    }
                    Begun::Bio { handle, .. } => {
                        self.next = handle.range.end;
                        self.flights.push_back(handle);
                    }
                }
            }
            return;
        }
        while self.next < self.end && self.flights.len() < MAX_FLIGHTS {
            let ahead = if self.end - self.next > self.file.engine.core.config.max_bio as u64 {
                self.file.engine.core.config.tree_read_ahead
            } else {
                0
            };
            let end = self.file.engine.core.auto().map_or(self.end, |auto| auto.cut(self.next, self.end));
            let handle = if self.flights.is_empty() {
                self.file.start(self.next, end, ahead)
            } else {
                // A larger read waits for its earlier bios, not for other readers.
                let Some(handle) = self.file.try_start(self.next, end, ahead) else { return };
                handle
            };
            self.next = handle.range.end;
            self.flights.push_back(handle);
        }
    }
}

impl Future for ReadFuture {
    type Output = Result<ReadBytes, ReadError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if let Err(error) = this.file.check_open(this.at) {
            this.flights.clear();
            return Poll::Ready(Err(error));
        }
        loop {
            this.pump();
            let Some(front) = this.flights.front_mut() else {
                return Poll::Ready(Ok(std::mem::take(&mut this.bytes)));
            };
            let Poll::Ready(ended) = front.poll(cx) else { return Poll::Pending };
            let bio_end = front.range.end;
            this.flights.pop_front();
            let reach = if this.stream.is_some() { u64::MAX } else { this.end };
            let part = this.file.good_part(ended, this.at, reach);
            let wanted = bio_end.min(this.end);
            match part {
                Ok((chunk, stopped)) => {
                    this.accept(chunk);
                    if this.at >= wanted {
                        continue;
                    }
                    // A good prefix with something bad after it.
                    this.flights.clear();
                    this.bytes.stopped = stopped;
                    return Poll::Ready(Ok(std::mem::take(&mut this.bytes)));
                }
                Err(error) if this.bytes.is_empty() => return Poll::Ready(Err(error)),
                Err(error) => {
                    this.flights.clear();
                    this.bytes.stopped = Some(error);
                    return Poll::Ready(Ok(std::mem::take(&mut this.bytes)));
                }
            }
        }
    }
}

impl fmt::Debug for ReadFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadFuture").field("at", &self.at).field("end", &self.end).finish_non_exhaustive()
    }
}

impl Engine {
    /// Opens a file that is read as `plan` says.
    pub fn open(&self, plan: Plan) -> OpenFile {
        OpenFile::new(self.0.clone(), plan)
    }
}

/// An open file. Clones share it.
#[derive(Clone)]
pub struct OpenFile(pub(crate) Arc<FileInner>);

impl OpenFile {
    pub(crate) fn from_inner(inner: Arc<FileInner>) -> Self {
        Self(inner)
    }

    pub(crate) fn new(engine: Arc<EngineInner>, plan: Plan) -> Self {
        let (plan, open) = (Arc::new(plan), Arc::new(OpenCount::default()));
        Self(Arc::new(FileInner { engine, plan, open, closed: AtomicBool::new(false) }))
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.0.len()
    }

    /// True for a file of no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The descriptor that every byte read is verified against, and why it is trusted; `None` for a file that is not
    /// verified.
    pub fn trusted(&self) -> Option<&TrustedDescriptor> {
        self.0.plan.trusted()
    }

    /// Reads at most `len` bytes at `offset`: fewer at the end of the file, or where a block after a good prefix is bad
    /// ([`ReadBytes::stopped`] says which).
    ///
    /// The future returns an error where the very first block is bad, with its offset and status.
    pub fn read(&self, offset: u64, len: u64) -> ReadFuture {
        let end = offset.saturating_add(len).min(self.len());
        let bytes = ReadBytes::default();
        let file = self.0.clone();
        ReadFuture { file, at: offset, end, next: offset, flights: VecDeque::new(), bytes, stream: None }
    }

    /// Refuses further reads and waits until no bio of this file is in flight. Inside a work item it lets another
    /// worker of the pool run meanwhile.
    pub fn close(&self) {
        self.0.closed.store(true, Ordering::Release);
        self.0.open.wait_until_none();
    }

    /// Bios in flight now, those of hash blocks included.
    pub fn in_flight(&self) -> usize {
        self.0.open.in_flight()
    }
}

impl fmt::Debug for OpenFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenFile").field("plan", &self.0.plan).finish_non_exhaustive()
    }
}
