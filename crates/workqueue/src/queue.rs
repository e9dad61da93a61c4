//! The workqueue: what a flush covers, what limits count and what statistics sum. It owns no threads.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};

use postread_sys::stamp_ns;

use crate::error::{AllocError, FlushError, MaxActiveError, QueueOnError, WQ_DFL_ACTIVE, WQ_MAX_ACTIVE, WQ_NAME_MAX};
use crate::flags::WqFlags;
use crate::flush::FlushCounts;
use crate::node::{Body, Node, Once, Place, Queued};
use crate::padded::Padded;
use crate::pool::Pool;
use crate::pools::{Pools, PoolsHandle};
use crate::pwq::PoolWorkqueue;
use crate::stats::{Hists, WqStats};
use crate::sync::lock;
use crate::work::Work;
use crate::worker::{blocking, inside_queue, on_worker};

/// What a flush or drain saw.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Flushed {
    /// Items that panicked since the flush or drain before: each panic is told once. (Those that wait together are
    /// told the same.) The total is in [`WqStats::panics`].
    pub panics: u64,
}

/// After so many items that a CPU queued, and that wait, their list is put in order.
const TIDY: u64 = 64;

/// How many spare nodes a CPU keeps, about: 256 KiB, of a queue that once had so many items waiting. A producer that
/// is well ahead of the workers uses hundreds between two turns of theirs.
const SPARE: usize = 2048;

/// What a queue records on one CPU.
#[derive(Default)]
pub(crate) struct PerCpu {
    pub(crate) migrated: AtomicU64,
    /// Made by the first item that runs here.
    pub(crate) hists: OnceLock<Box<Hists>>,
}

/// Nodes of one-shot items that have run on a CPU, for the next ones. Each holds the queue, so the last handle's drop
/// empties these.
#[derive(Default)]
struct Spare {
    nodes: Mutex<Vec<Arc<Node>>>,
    /// How many, to look at without the lock.
    count: AtomicUsize,
}

impl Spare {
    /// Takes a spare node, and hands the others to another CPU if one is given.
    fn take(&self, rest_to: Option<&Spare>) -> Option<Arc<Node>> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut spare = lock(&self.nodes);
        let node = spare.pop();
        let rest = rest_to.map(|to| (to, std::mem::take(&mut *spare)));
        self.count.store(spare.len(), Ordering::Relaxed);
        drop(spare);
        if let Some((to, mut rest)) = rest {
            let mut spare = lock(&to.nodes);
            spare.append(&mut rest);
            to.count.store(spare.len(), Ordering::Relaxed);
        }
        node
    }
}

#[derive(Default)]
struct FlushState {
    running: bool,
    started: u64,
    finished: u64,
    /// What the last one saw.
    last: Flushed,
    panics_told: u64,
}

pub(crate) struct WqInner {
    pub(crate) name: String,
    pub(crate) flags: WqFlags,
    /// By pwq.
    pub(crate) pools: Vec<Arc<Pool>>,
    pwqs: Vec<PoolWorkqueue<Node>>,
    pub(crate) percpu: Vec<Padded<PerCpu>>,
    spare: Vec<Padded<Spare>>,
    max_active: AtomicU64,
    pub(crate) counts: FlushCounts,
    /// Drains in progress; stays above 0 once destroyed.
    draining: AtomicUsize,
    /// The last handle is gone: spare nodes are not kept.
    closed: AtomicBool,
    /// Keeps the worker pools running. Given up when the last handle is gone *and* the last item is done, so that it
    /// does not matter which of the two comes last, nor on which thread.
    pools_in_use: Mutex<Option<Arc<PoolsHandle>>>,
    pub(crate) panics: AtomicU64,
    pub(crate) cancelled: AtomicU64,
    flush: Mutex<FlushState>,
    flush_turn: Condvar,
}

impl WqInner {
    /// The index of the caller's CPU.
    fn here(&self) -> usize {
        self.pools[0].shared.current_index()
    }

    /// Queues an item whose pending instance the caller owns, from the CPU with the index `cpu`. False when the queue is
    /// draining.
    fn queue(self: &Arc<Self>, node: Arc<Node>, cpu: usize, target: Option<usize>) -> bool {
        let Some((color, count)) = self.count_queued(cpu) else { return false };
        let (pwq, shard) = if self.is_bound() {
            let target = target.unwrap_or(cpu);
            (target, target)
        } else {
            (0, target.unwrap_or(cpu))
        };
        let now = stamp_ns();
        node.set_queued(self, &Queued { at: now, active_at: now, cpu, pwq, color });
        let d = &self.pwqs[pwq];
        if d.may_pass() && self.reserve(pwq, 1) == 1 {
            self.pools[pwq].push(shard, node);
        } else {
            node.set_place(Place::Inactive);
            if d.wait(node, count.is_multiple_of(TIDY)) {
                self.activate(pwq, shard, 0);
            }
        }
        true
    }

    fn spawn(self: &Arc<Self>, f: Once, target: Option<usize>) -> bool {
        let here = self.here();
        let node = self.once(f, here);
        self.queue(node, here, target)
    }

    /// Counts an item in the current colour, unless the queue is draining and the caller is not one of its items. Returns
    /// the colour, and how many this CPU queued in it before.
    fn count_queued(self: &Arc<Self>, cpu: usize) -> Option<(usize, u64)> {
        let (color, count) = self.counts.count_queued(cpu);
        // Counted first: a drain sets its flag and looks at the counts after.
        if self.draining.load(Ordering::SeqCst) != 0 && !inside_queue(self) {
            self.counts.uncount(cpu, color);
            return None;
        }
        Some((color, count))
    }

    fn is_bound(&self) -> bool {
        self.flags.contains(WqFlags::PERCPU)
    }

    fn reserve(&self, pwq: usize, wanted: u64) -> u64 {
        self.pwqs[pwq].reserve(wanted, self.max_active.load(Ordering::SeqCst), || self.pwq_done(pwq))
    }

    /// Items of a pwq that are done. Those of a bound one all count on its own CPU.
    fn pwq_done(&self, pwq: usize) -> u64 {
        if self.is_bound() { self.counts.done_on(pwq) } else { self.counts.done() }
    }

    /// Moves items that wait to the pool's list, as far as `max_active` allows. `now` is 0 for the time of queueing.
    pub(crate) fn activate(&self, pwq: usize, cpu: usize, now: u64) {
        let each = |node: &Node| {
            if now != 0 {
                node.set_active_at(now);
            }
        };
        self.pwqs[pwq].activate(
            |wanted| self.reserve(pwq, wanted),
            |inactive, most| self.pools[pwq].append_from(cpu, inactive, most as usize, each) as u64,
        );
    }

    pub(crate) fn has_inactive(&self, pwq: usize) -> bool {
        self.pwqs[pwq].has_inactive()
    }

    /// Are so many finished items worth taking the lock for?
    pub(crate) fn is_batch(&self, count: u64) -> bool {
        count >= (self.max_active.load(Ordering::Relaxed) / 8).min(64)
    }

    /// Counts an item as done. True if items of its pwq wait for a place.
    pub(crate) fn count_done(&self, queued: &Queued, cpu: usize) -> bool {
        let cpu = if self.is_bound() { queued.pwq } else { cpu };
        self.counts.count_done(cpu, queued.color);
        if self.counts.is_over() {
            self.let_go_of_pools();
        }
        self.pwqs[queued.pwq].has_inactive()
    }

    /// The last handle is gone: nothing is queued any more.
    fn close(&self) {
        self.closed.store(true, Ordering::Release);
        for spare in &self.spare {
            let nodes = std::mem::take(&mut *lock(&spare.0.nodes));
            drop(nodes);
        }
        if self.counts.close() {
            self.let_go_of_pools();
        }
    }

    #[cold]
    fn let_go_of_pools(&self) {
        let pools = lock(&self.pools_in_use).take();
        drop(pools);
    }

    pub(crate) fn pool(&self, pwq: usize) -> &Arc<Pool> {
        &self.pools[pwq]
    }

    /// Puts an active item, whose pending instance the caller owns, on its pool's list once more.
    pub(crate) fn requeue(&self, node: &Arc<Node>) {
        let queued = node.queued();
        let shard = if self.is_bound() { queued.pwq } else { queued.cpu };
        self.pools[queued.pwq].push(shard, Arc::clone(node));
    }

    /// Waits for all items queued before. Flushes go one at a time; those that come while one is under way share the
    /// next one.
    fn flush(&self) -> Flushed {
        let mut state = lock(&self.flush);
        let mine = state.started + 1;
        loop {
            if state.finished >= mine {
                return state.last;
            }
            if !state.running {
                break;
            }
            drop(state);
            state = blocking(|| {
                let mut state = lock(&self.flush);
                while state.running && state.finished < mine {
                    state = self.flush_turn.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
                state
            });
        }
        state.running = true;
        state.started += 1;
        drop(state);
        let old = self.counts.turn();
        self.counts.wait_idle(&[old], |sleep| blocking(sleep));
        let mut state = lock(&self.flush);
        state.running = false;
        state.finished = state.started;
        let panics = self.panics.load(Ordering::Acquire);
        state.last = Flushed { panics: panics.saturating_sub(state.panics_told) };
        state.panics_told = panics;
        let seen = state.last;
        drop(state);
        self.flush_turn.notify_all();
        seen
    }

    /// A node for a one-shot item: one that has run before, if there is one here or on the next CPU.
    fn once(&self, f: Once, here: usize) -> Arc<Node> {
        let next = if here + 1 == self.spare.len() { 0 } else { here + 1 };
        let spare = &self.spare[here].0;
        let Some(node) = spare.take(None).or_else(|| self.spare[next].0.take(Some(spare))) else {
            return Node::new(Body::Once(Mutex::new(Some(f))));
        };
        if let Body::Once(place) = &node.body {
            *lock(place) = Some(f);
        }
        node
    }

    /// Gives nodes of one-shot items that have run for the next ones.
    pub(crate) fn give_spare(&self, cpu: usize, nodes: &mut Vec<Arc<Node>>) {
        if nodes.is_empty() {
            return;
        }
        let spare = &self.spare[cpu].0;
        let mut there = lock(&spare.nodes);
        if there.len() < SPARE && !self.closed.load(Ordering::Acquire) {
            there.append(nodes);
            spare.count.store(there.len(), Ordering::Relaxed);
        }
        drop(there);
        nodes.clear();
    }

    /// Waits until nothing is left; items may still queue others.
    fn wait_empty(&self) {
        self.counts.wait_idle(&[0, 1], |sleep| blocking(sleep));
    }

    pub(crate) fn count_panic(&self) {
        self.panics.fetch_add(1, Ordering::Release);
    }

    pub(crate) fn record(&self, cpu: usize, queued: &Queued, start: u64, end: u64) {
        let percpu = &self.percpu[cpu].0;
        if queued.cpu != cpu {
            percpu.migrated.fetch_add(1, Ordering::Relaxed);
        }
        percpu.hists.get_or_init(Box::default).record(queued.at, queued.active_at, start, end);
    }

    /// Takes the pending instance of an item off whatever list it is on. `None` when it is not found: it may be on its
    /// way.
    pub(crate) fn take_out(&self, node: &Node) -> Option<Arc<Node>> {
        // A hint that may be stale; that the item really is on the list is checked under the list's lock.
        let pwq = node.queued().pwq;
        match node.place() {
            Place::Inactive => self.pwqs.get(pwq)?.remove(node),
            Place::Shard(shard) => self.pools.get(pwq)?.remove(shard, node),
        }
    }

    /// Counts an item as done that was cancelled.
    pub(crate) fn complete_cancelled(&self, queued: &Queued) {
        let cpu = self.here();
        self.cancelled.fetch_add(1, Ordering::Relaxed);
        if self.count_done(queued, cpu) {
            let target = if self.is_bound() { queued.pwq } else { cpu };
            self.activate(queued.pwq, target, stamp_ns());
        }
    }

    pub(crate) fn max_active(&self) -> usize {
        self.max_active.load(Ordering::Relaxed) as usize
    }
}

/// What all handles of a queue share; its drop is the end of the last one.
struct Handle {
    inner: Arc<WqInner>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.inner.draining.fetch_add(1, Ordering::SeqCst);
        // A worker never waits here: which thread drops the last handle is often a matter of luck, and what a worker
        // waits for may be waiting for that worker.
        if !on_worker() {
            self.inner.wait_empty();
        }
        self.inner.close();
    }
}

/// A workqueue.
///
/// A handle: clones are the same queue. Dropping the last one drains and destroys the queue, so the drop waits for all
/// its items. On a worker thread (inside an item, or where an item's captured values are dropped) the drop returns at
/// once instead, and the remaining items run after it. Either way every item runs.
#[derive(Clone)]
pub struct Workqueue {
    handle: Arc<Handle>,
}

impl Workqueue {
    /// Makes a queue on the process-wide worker pools, and the first worker of each pool that it needs.
    ///
    /// `flags` has exactly one of `PERCPU` and `UNBOUND`. `max_active` limits the active items (those on a pool's list
    /// or running): per CPU for a bound queue, in all for an unbound one; 0 stands for [`WQ_DFL_ACTIVE`].
    ///
    /// # Errors
    /// Flags that contradict each other, a name that is empty or above 31 bytes, `max_active` above
    /// [`WQ_MAX_ACTIVE`]; no thread could be made.
    pub fn alloc(name: &str, flags: WqFlags, max_active: usize) -> Result<Workqueue, AllocError> {
        Pools::global()?.alloc(name, flags, max_active)
    }

    pub(crate) fn alloc_on(
        pools: &Arc<PoolsHandle>,
        name: &str,
        flags: WqFlags,
        max_active: usize,
    ) -> Result<Workqueue, AllocError> {
        let kind = flags & (WqFlags::PERCPU | WqFlags::UNBOUND);
        if kind.bits().count_ones() != 1 || WqFlags::from_bits(flags.bits()).is_none() {
            return Err(AllocError::Flags { flags });
        }
        if name.is_empty() || name.len() > WQ_NAME_MAX || name.contains('\0') {
            return Err(AllocError::Name { name: name.into() });
        }
        let max_active = check_max_active(max_active)?;
        let pool_list = pools.pools_for(kind == WqFlags::PERCPU, flags.contains(WqFlags::HIGHPRI))?;
        let cpus = pools.shared().cpus.len();
        let inner = WqInner {
            name: name.into(),
            flags,
            pwqs: pool_list.iter().map(|_| PoolWorkqueue::new()).collect(),
            pools: pool_list,
            percpu: (0..cpus).map(|_| Padded::default()).collect(),
            spare: (0..cpus).map(|_| Padded::default()).collect(),
            max_active: AtomicU64::new(max_active),
            counts: FlushCounts::new(cpus),
            draining: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            pools_in_use: Mutex::new(Some(Arc::clone(pools))),
            panics: AtomicU64::new(0),
            cancelled: AtomicU64::new(0),
            flush: Mutex::default(),
            flush_turn: Condvar::new(),
        };
        Ok(Workqueue { handle: Arc::new(Handle { inner: Arc::new(inner) }) })
    }

    fn inner(&self) -> &Arc<WqInner> {
        &self.handle.inner
    }

    fn index_of(&self, cpu: u32) -> Result<usize, QueueOnError> {
        self.inner().pools[0].shared.index_of(cpu).ok_or(QueueOnError { cpu })
    }

    /// Queues an item: on the caller's CPU for a bound queue. False if it was pending already (then the run to come is
    /// also this call's), while a `cancel_sync` of it is under way, or if the queue is draining and the caller is not
    /// one of its items.
    ///
    /// Nothing is allocated. When it returns true or the item was pending, all that the caller wrote before is visible
    /// to the run that follows. An item that is queued while it runs will run again, never on two workers at once.
    pub fn queue(&self, work: &Work) -> bool {
        self.queue_work(work, None)
    }

    /// As [`queue`](Workqueue::queue), on the given CPU: a bound item runs there; an unbound one goes on that CPU's
    /// list, and runs wherever a worker is free first.
    ///
    /// # Errors
    /// The CPU is offline or outside the pools' CPUs (those of the affinity mask when they were made).
    pub fn queue_on(&self, cpu: u32, work: &Work) -> Result<bool, QueueOnError> {
        let index = self.index_of(cpu)?;
        Ok(self.queue_work(work, Some(index)))
    }

    fn queue_work(&self, work: &Work, target: Option<usize>) -> bool {
        let node = work.node();
        let state = &work.body().state;
        if !state.try_claim() {
            return false;
        }
        let queued = self.inner().queue(Arc::clone(node), self.inner().here(), target);
        if !queued {
            state.release();
        }
        queued
    }

    /// Queues a function to run once. False (and it is dropped) if the queue is draining and the caller is not one of
    /// its items.
    pub fn spawn(&self, f: impl FnOnce() + Send + 'static) -> bool {
        self.inner().spawn(Box::new(f), None)
    }

    /// As [`spawn`](Workqueue::spawn), on the given CPU as [`queue_on`](Workqueue::queue_on).
    ///
    /// # Errors
    /// As `queue_on`.
    pub fn spawn_on(&self, cpu: u32, f: impl FnOnce() + Send + 'static) -> Result<bool, QueueOnError> {
        let index = self.index_of(cpu)?;
        Ok(self.inner().spawn(Box::new(f), Some(index)))
    }

    /// Waits until every item that was queued before this call is done. Items queued meanwhile do not prolong it.
    ///
    /// Called from an item of another queue it counts as [`blocking`]. Two queues whose items flush each other's queue
    /// wait for each other for ever: see the crate's documentation on cycles.
    ///
    /// # Errors
    /// [`FlushError::SameQueue`] from inside an item of this queue.
    pub fn flush(&self) -> Result<Flushed, FlushError> {
        if inside_queue(self.inner()) {
            return Err(FlushError::SameQueue);
        }
        Ok(self.inner().flush())
    }

    /// Waits until the queue is empty. Meanwhile only the queue's own items may queue more; for everybody else `queue`
    /// and `spawn` return false until this returns.
    ///
    /// # Errors
    /// [`FlushError::SameQueue`] from inside an item of this queue.
    pub fn drain(&self) -> Result<Flushed, FlushError> {
        let inner = self.inner();
        if inside_queue(inner) {
            return Err(FlushError::SameQueue);
        }
        inner.draining.fetch_add(1, Ordering::SeqCst);
        inner.wait_empty();
        let flushed = inner.flush();
        inner.draining.fetch_sub(1, Ordering::SeqCst);
        Ok(flushed)
    }

    /// Changes `max_active`, 0 for the default. More room is used at once; less takes effect as active items end. The
    /// order of items does not change.
    ///
    /// # Errors
    /// Above [`WQ_MAX_ACTIVE`].
    pub fn set_max_active(&self, max_active: usize) -> Result<(), MaxActiveError> {
        let inner = self.inner();
        inner.max_active.store(check_max_active(max_active)?, Ordering::SeqCst);
        let here = inner.here();
        for pwq in 0..inner.pwqs.len() {
            inner.activate(pwq, if inner.is_bound() { pwq } else { here }, stamp_ns());
        }
        Ok(())
    }

    /// The limit in force.
    pub fn max_active(&self) -> usize {
        self.inner().max_active()
    }

    /// The queue's name.
    pub fn name(&self) -> &str {
        &self.inner().name
    }

    /// The queue's flags.
    pub fn flags(&self) -> WqFlags {
        self.inner().flags
    }

    /// Totals, latency histograms, and the state of the pools that the queue's items run on. Counters only grow, and a
    /// later snapshot minus an earlier one gives the interval. It costs some microseconds a worker; recording costs
    /// some nanoseconds an item and is always on.
    pub fn stats(&self) -> WqStats {
        WqStats::of(self.inner())
    }
}

impl std::fmt::Debug for Workqueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let inner = self.inner();
        f.debug_struct("Workqueue")
            .field("name", &inner.name)
            .field("flags", &inner.flags)
            .field("max_active", &inner.max_active())
            .finish_non_exhaustive()
    }
}

fn check_max_active(max_active: usize) -> Result<u64, MaxActiveError> {
    match max_active {
        0 => Ok(WQ_DFL_ACTIVE as u64),
        1..=WQ_MAX_ACTIVE => Ok(max_active as u64),
        _ => Err(MaxActiveError { max_active }),
    }
}
