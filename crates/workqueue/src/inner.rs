//! The state shared by all handles of a queue: its limits, its lists of waiting items, its counters.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use postread_sys::stamp_ns;

use crate::attrs::{Layouts, WqAttrs};
use crate::current::{blocking, inside_queue};
use crate::error::AttrsError;
use crate::flags::WqFlags;
use crate::flush::FlushCounts;
use crate::node::{Body, Node, Once, Place, Queued};
use crate::padded::Padded;
use crate::pods::{default_min_active, node_max_active};
use crate::pool::{Pool, Shared};
use crate::pools::PoolsHandle;
use crate::pwq::PoolWorkqueue;
use crate::queue::Flushed;
use crate::rescuer::Rescuer;
use crate::stats::{Counters, Hists};
use crate::sync::lock;

/// A CPU's list of waiting items is put in order after every this many items queued by the CPU.
const TIDY: u64 = 64;

/// Roughly how many spare nodes a CPU keeps: 256 KiB, for a queue that once had so many items waiting. A producer that
/// is well ahead of the workers uses hundreds between two of their turns.
const SPARE: usize = 2048;

/// What a queue records on one CPU.
#[derive(Default)]
pub(crate) struct PerCpu {
    /// CPU time of its items, in nanoseconds.
    pub(crate) cpu_time: AtomicU64,
    pub(crate) migrated: AtomicU64,
    /// Allocated by the first item that runs here.
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
    panics_reported: u64,
}

/// A pool_workqueue, the CPUs that belong to it, and its limit.
pub(crate) struct Pwq {
    list: PoolWorkqueue<Node>,
    /// As indices.
    cpus: Vec<usize>,
    /// The limit in force.
    max: AtomicU64,
}

impl Pwq {
    pub(crate) fn new(cpus: Vec<usize>) -> Pwq {
        Pwq { list: PoolWorkqueue::new(), cpus, max: AtomicU64::new(0) }
    }
}

pub(crate) struct WqInner {
    pub(crate) name: String,
    pub(crate) flags: WqFlags,
    pub(crate) ordered: bool,
    shared: Arc<Shared>,
    pub(crate) layouts: Layouts,
    /// One at a time changes the attributes or the limits.
    changing: Mutex<()>,
    pwqs: Vec<Pwq>,
    /// By CPU index: which pool_workqueue.
    pwq_by_cpu: Box<[u16]>,
    pub(crate) percpu: Vec<Padded<PerCpu>>,
    spare: Vec<Padded<Spare>>,
    max_active: AtomicU64,
    min_active: AtomicU64,
    /// The largest item that [`Workqueue::execute_or_queue`](crate::Workqueue::execute_or_queue) runs in place.
    pub(crate) inline_bytes: AtomicUsize,
    pub(crate) counts: FlushCounts,
    /// Drains in progress; stays above 0 once destroyed.
    pub(crate) draining: AtomicUsize,
    /// The last handle is gone: spare nodes are not kept.
    closed: AtomicBool,
    /// Keeps the worker pools running. Given up when the last handle is gone *and* the last item is done, so that it
    /// does not matter which of the two comes last, nor on which thread.
    pools_in_use: Mutex<Option<Arc<PoolsHandle>>>,
    rescuer: OnceLock<Arc<Rescuer>>,
    pub(crate) panics: AtomicU64,
    pub(crate) cancelled: AtomicU64,
    pub(crate) counters: Counters,
    flush: Mutex<FlushState>,
    flush_turn: Condvar,
}

/// The parameters of a new queue.
pub(crate) struct Made {
    pub(crate) name: String,
    pub(crate) flags: WqFlags,
    pub(crate) ordered: bool,
    pub(crate) layouts: Layouts,
    pub(crate) pwqs: Vec<Pwq>,
    pub(crate) max_active: u64,
}

/// The default size above which items are queued rather than run in place: dm-verity's `use_bh_bytes`.
pub(crate) const INLINE_BYTES: usize = 8192;

impl WqInner {
    pub(crate) fn new(pools: &Arc<PoolsHandle>, made: Made) -> WqInner {
        let shared = pools.shared();
        let cpus = shared.cpus.len();
        let mut pwq_by_cpu = vec![0u16; cpus];
        for (index, pwq) in made.pwqs.iter().enumerate() {
            for &cpu in &pwq.cpus {
                pwq_by_cpu[cpu] = u16::try_from(index).unwrap_or(0);
            }
        }
        let inner = WqInner {
            name: made.name,
            flags: made.flags,
            ordered: made.ordered,
            shared: Arc::clone(shared),
            layouts: made.layouts,
            changing: Mutex::new(()),
            pwqs: made.pwqs,
            pwq_by_cpu: pwq_by_cpu.into_boxed_slice(),
            percpu: (0..cpus).map(|_| Padded::default()).collect(),
            spare: (0..cpus).map(|_| Padded::default()).collect(),
            max_active: AtomicU64::new(made.max_active),
            min_active: AtomicU64::new(default_min_active(made.max_active)),
            inline_bytes: AtomicUsize::new(INLINE_BYTES),
            counts: FlushCounts::new(cpus),
            draining: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            pools_in_use: Mutex::new(Some(Arc::clone(pools))),
            rescuer: OnceLock::new(),
            panics: AtomicU64::new(0),
            cancelled: AtomicU64::new(0),
            counters: Counters::default(),
            flush: Mutex::default(),
            flush_turn: Condvar::new(),
        };
        inner.apply_limits();
        inner
    }

    pub(crate) fn set_rescuer(&self, rescuer: Arc<Rescuer>) {
        let _ = self.rescuer.set(rescuer);
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The index of the caller's CPU.
    pub(crate) fn here(&self) -> usize {
        self.shared.current_index()
    }

    /// Queues an item whose pending instance the caller owns, from the CPU with the index `cpu`. False when the queue is
    /// draining.
    pub(crate) fn queue(self: &Arc<Self>, node: Arc<Node>, cpu: usize, target: Option<usize>) -> bool {
        let Some((color, count)) = self.count_queued(cpu) else { return false };
        self.insert(node, cpu, target, color, count);
        true
    }

    /// As [`WqInner::queue`], for an item that was accepted earlier.
    pub(crate) fn queue_promised(self: &Arc<Self>, node: Arc<Node>, cpu: usize, target: Option<usize>) {
        let (color, count) = self.counts.count_queued(cpu);
        self.insert(node, cpu, target, color, count);
    }

    fn insert(self: &Arc<Self>, node: Arc<Node>, cpu: usize, target: Option<usize>, color: usize, count: u64) {
        let target = target.unwrap_or(cpu);
        let pwq = self.pwq_of(target);
        let now = stamp_ns();
        node.set_queued(self, &Queued { at: now, active_at: now, cpu, pwq, color });
        let list = &self.pwqs[pwq].list;
        if list.may_pass() && self.reserve(pwq, 1) == 1 {
            self.layouts.current().pool_of(target).push(target, node);
        } else {
            node.set_place(Place::Inactive);
            if list.wait(node, count.is_multiple_of(TIDY)) {
                self.activate(pwq, target, 0);
            }
        }
    }

    /// Reserves a place for an item that its caller runs at once. Returns how it counts; `None` if it must be queued
    /// instead.
    pub(crate) fn reserve_here(self: &Arc<Self>, node: &Node, cpu: usize) -> Option<Queued> {
        let pwq = self.pwq_of(cpu);
        let (color, _) = self.count_queued(cpu)?;
        if !self.pwqs[pwq].list.may_pass() || self.reserve(pwq, 1) == 0 {
            self.counts.uncount(cpu, color);
            return None;
        }
        let now = stamp_ns();
        let queued = Queued { at: now, active_at: now, cpu, pwq, color };
        node.set_queued(self, &queued);
        Some(queued)
    }

    fn pwq_of(&self, cpu: usize) -> usize {
        usize::from(self.pwq_by_cpu[cpu])
    }

    pub(crate) fn spawn(self: &Arc<Self>, f: Once, target: Option<usize>) -> bool {
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

    pub(crate) fn is_bound(&self) -> bool {
        self.flags.contains(WqFlags::PERCPU)
    }

    fn reserve(&self, pwq: usize, wanted: u64) -> u64 {
        let Pwq { list, max, .. } = &self.pwqs[pwq];
        list.reserve(wanted, max.load(Ordering::SeqCst), || self.pwq_done(pwq))
    }

    /// Items of a pool_workqueue that are done.
    fn pwq_done(&self, pwq: usize) -> u64 {
        if self.pwqs.len() == 1 {
            return self.counts.done();
        }
        self.pwqs[pwq].cpus.iter().map(|&cpu| self.counts.done_on(cpu)).sum()
    }

    /// The CPU on which an item of this pool_workqueue counts as done: the given one if it belongs to it.
    fn cpu_within(&self, pwq: usize, cpu: usize) -> usize {
        if self.pwq_of(cpu) == pwq { cpu } else { self.pwqs[pwq].cpus[0] }
    }

    /// Moves items that wait to a pool's list, as far as their limit allows. `now` is 0 for the time of queueing.
    pub(crate) fn activate(&self, pwq: usize, cpu: usize, now: u64) {
        let each = |node: &Node| {
            if now != 0 {
                node.set_active_at(now);
            }
        };
        let cpu = self.cpu_within(pwq, cpu);
        let pool = self.layouts.current().pool_of(cpu);
        self.pwqs[pwq].list.activate(
            |wanted| self.reserve(pwq, wanted),
            |inactive, most| pool.append_from(cpu, inactive, most as usize, each) as u64,
        );
    }

    pub(crate) fn has_inactive(&self, pwq: usize) -> bool {
        self.pwqs[pwq].list.has_inactive()
    }

    /// Are this many finished items worth taking the lock for?
    pub(crate) fn is_batch(&self, count: u64) -> bool {
        count >= (self.max_active.load(Ordering::Relaxed) / 8).min(64)
    }

    /// Counts an item as done. True if items of its pool_workqueue wait for a place.
    pub(crate) fn count_done(&self, queued: &Queued, cpu: usize) -> bool {
        self.counts.count_done(self.cpu_within(queued.pwq, cpu), queued.color);
        if self.counts.is_over() {
            self.let_go_of_pools();
        }
        self.pwqs[queued.pwq].list.has_inactive()
    }

    /// The last handle is gone: nothing is queued any more.
    pub(crate) fn close(&self) {
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
        if let Some(rescuer) = self.rescuer.get() {
            rescuer.stop();
        }
        let pools = lock(&self.pools_in_use).take();
        drop(pools);
    }

    /// Is the list that this item was last put on one of this pool's? For the owner.
    pub(crate) fn is_on_pool(&self, node: &Node, pool: &Pool) -> bool {
        let same = matches!(node.place(), Place::Shard { pool: id, .. } if id == pool.id);
        same && Arc::ptr_eq(&self.shared, &pool.shared)
    }

    fn pool(&self, id: u16) -> Option<&Arc<Pool>> {
        self.layouts.pools().find(|pool| pool.id == id)
    }

    /// Puts an active item, whose pending instance the caller owns, on its list once more.
    pub(crate) fn requeue(&self, node: &Arc<Node>) {
        let queued = node.queued();
        let listed = match node.place() {
            Place::Shard { pool, shard } => self.pool(pool).map(|pool| (pool, shard)),
            Place::Inactive | Place::Timer => None,
        };
        match listed {
            Some((pool, shard)) => pool.push_on(shard, Arc::clone(node)),
            None => self.layouts.current().pool_of(queued.cpu).push(queued.cpu, Arc::clone(node)),
        }
    }

    /// Counts an item as done by a thread that is no worker of its pool, and activates what waits.
    pub(crate) fn complete_here(&self, queued: &Queued, cpu: usize) {
        if self.count_done(queued, cpu) {
            self.activate(queued.pwq, cpu, stamp_ns());
        }
    }

    /// Waits for all items queued before. Flushes run one at a time; those that arrive during one share the next one.
    pub(crate) fn flush(&self) -> Flushed {
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
        state.last = Flushed { panics: panics.saturating_sub(state.panics_reported) };
        state.panics_reported = panics;
        let seen = state.last;
        drop(state);
        self.flush_turn.notify_all();
        seen
    }

    /// A node for a one-shot item: a spare one, if there is one here or on the next CPU.
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

    /// Recycles nodes of one-shot items that have run.
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
    pub(crate) fn wait_empty(&self) {
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

    /// Takes the pending instance of an item off the list it is on. `None` if it is not found: it may be moving between
    /// lists.
    pub(crate) fn take_out(&self, node: &Node) -> Option<Arc<Node>> {
        // A hint that may be stale; whether the item is on the list is checked under the list's lock.
        match node.place() {
            Place::Inactive => self.pwqs.get(node.queued().pwq)?.list.remove(node),
            Place::Timer => None,
            Place::Shard { pool, shard } => self.pool(pool)?.remove(shard, node),
        }
    }

    /// Counts a cancelled item as done.
    pub(crate) fn complete_cancelled(&self, queued: &Queued) {
        self.cancelled.fetch_add(1, Ordering::Relaxed);
        self.complete_here(queued, self.here());
    }

    /// Changes the limits, and activates items for which there is now room.
    pub(crate) fn set_limits(&self, max_active: Option<u64>, min_active: Option<u64>) {
        let _one_at_a_time = lock(&self.changing);
        if let Some(max) = max_active {
            self.max_active.store(max, Ordering::SeqCst);
        }
        if let Some(min) = min_active {
            self.min_active.store(min, Ordering::SeqCst);
        }
        self.apply_limits();
        for (index, pwq) in self.pwqs.iter().enumerate() {
            let here = self.here();
            let cpu = if self.pwq_of(here) == index { here } else { pwq.cpus[0] };
            self.activate(index, cpu, stamp_ns());
        }
    }

    fn apply_limits(&self) {
        let (max, min) = (self.max_active.load(Ordering::SeqCst), self.min_active.load(Ordering::SeqCst));
        for pwq in &self.pwqs {
            let limit =
                if self.is_bound() { max } else { node_max_active(max, min, pwq.cpus.len(), self.percpu.len()) };
            pwq.max.store(limit, Ordering::SeqCst);
        }
    }

    /// Changes the attributes; items already on lists stay there.
    pub(crate) fn apply_attrs(&self, attrs: &WqAttrs) -> Result<(), AttrsError> {
        if self.is_bound() {
            return Err(AttrsError::Bound);
        }
        if attrs.nice.is_some_and(|nice| !(-20..=19).contains(&nice)) {
            return Err(AttrsError::Nice { nice: attrs.nice.unwrap_or(0) });
        }
        if let Some(cpus) = &attrs.cpumask
            && (cpus.is_empty() || !cpus.is_subset(&self.shared.cpus))
        {
            return Err(AttrsError::Cpus { wanted: cpus.clone(), allowed: self.shared.cpus.clone() });
        }
        let _one_at_a_time = lock(&self.changing);
        let Some(pools) = lock(&self.pools_in_use).clone() else { return Ok(()) };
        let high = self.flags.contains(WqFlags::HIGHPRI);
        self.layouts.switch(attrs, || pools.unbound(high, attrs)).map_err(|source| AttrsError::Pool(Box::new(source)))
    }

    pub(crate) fn max_active(&self) -> usize {
        self.max_active.load(Ordering::Relaxed) as usize
    }

    pub(crate) fn min_active(&self) -> usize {
        self.min_active.load(Ordering::Relaxed) as usize
    }

    pub(crate) fn count_hog(&self) {
        self.counters.cpu_hogs.fetch_add(1, Ordering::Relaxed);
        self.count_managed_wakeup();
    }

    pub(crate) fn count_managed_wakeup(&self) {
        self.counters.managed_wakeups.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_repatriated(&self) {
        self.counters.repatriated.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_mayday(&self) {
        self.counters.maydays.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_rescued(&self) {
        self.counters.rescued.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_cpu_time(&self, cpu: usize, ns: u64) {
        self.percpu[cpu].0.cpu_time.fetch_add(ns, Ordering::Relaxed);
    }

    pub(crate) fn cpu_time(&self) -> Duration {
        Duration::from_nanos(self.percpu.iter().map(|p| p.0.cpu_time.load(Ordering::Relaxed)).sum())
    }
}
