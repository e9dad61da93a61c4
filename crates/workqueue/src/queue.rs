//! The workqueue: the unit of flushes, limits and statistics. It owns no threads.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::attrs::{Layouts, WqAttrs};
use crate::current::{current_queue, inside_queue, on_worker};
use crate::delayed::{DelayedWork, Timed};
use crate::error::{
    AllocError, AttrsError, EnableError, FlushError, MaxActiveError, QueueNodeError, QueueOnError, WQ_DFL_ACTIVE,
    WQ_MAX_ACTIVE, WQ_NAME_MAX,
};
use crate::flags::WqFlags;
use crate::inner::{Made, Pwq};
use crate::pods;
use crate::pools::{Pools, PoolsHandle};
use crate::report::Report;
use crate::rescuer::Rescuer;
use crate::stats::WqStats;
use crate::work::Work;

pub(crate) use crate::inner::WqInner;

/// What a flush or drain saw.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Flushed {
    /// Items that panicked since the previous flush or drain: each panic is reported once. (Concurrent flushes see the
    /// same number.) The total is in [`WqStats::panics`].
    pub panics: u64,
}

/// What all handles of a queue share; its drop is the end of the last one.
struct Handle {
    inner: Arc<WqInner>,
    /// Set by a thread that must not wait here although it is not a worker.
    no_wait: bool,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.inner.draining.fetch_add(1, Ordering::SeqCst);
        // A worker never waits here: which thread drops the last handle is often unpredictable, and a worker might wait
        // for something that waits for that worker.
        if !self.no_wait && !on_worker() {
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
    /// or running): per CPU for a bound queue; in all for an unbound one, split over the NUMA nodes by their CPUs. 0 stands
    /// for [`WQ_DFL_ACTIVE`].
    ///
    /// # Errors
    /// Flags that contradict each other, a name that is empty or longer than 31 bytes, `max_active` above
    /// [`WQ_MAX_ACTIVE`]; no thread could be made.
    pub fn alloc(name: &str, flags: WqFlags, max_active: usize) -> Result<Workqueue, AllocError> {
        Pools::global()?.alloc(name, flags, max_active)
    }

    /// Makes an unbound queue that runs one item at a time, in queueing order. Its `max_active` stays 1.
    ///
    /// # Errors
    /// As [`alloc`](Workqueue::alloc).
    ///
    /// ```
    /// use std::sync::{Arc, Mutex};
    /// use postread_workqueue::{Workqueue, WqFlags};
    ///
    /// let journal = Workqueue::alloc_ordered("journal", WqFlags::empty())?;
    /// let log = Arc::new(Mutex::new(Vec::new()));
    /// for n in 0..100 {
    ///     let log = Arc::clone(&log);
    ///     journal.spawn(move || log.lock().unwrap().push(n));
    /// }
    /// journal.flush()?;
    /// assert!(log.lock().unwrap().iter().copied().eq(0..100));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn alloc_ordered(name: &str, flags: WqFlags) -> Result<Workqueue, AllocError> {
        Pools::global()?.alloc_ordered(name, flags)
    }

    pub(crate) fn alloc_on(
        pools: &Arc<PoolsHandle>,
        name: &str,
        flags: WqFlags,
        max_active: usize,
        ordered: bool,
    ) -> Result<Workqueue, AllocError> {
        let kind = flags & (WqFlags::PERCPU | WqFlags::UNBOUND);
        let one_kind = kind.bits().count_ones() == 1 && WqFlags::from_bits(flags.bits()).is_some();
        if !one_kind || ordered && kind != WqFlags::UNBOUND {
            return Err(AllocError::Flags { flags });
        }
        if name.is_empty() || name.len() > WQ_NAME_MAX || name.contains('\0') {
            return Err(AllocError::Name { name: name.into() });
        }
        let max_active = check_max_active(max_active)?;
        let shared = pools.shared();
        let high = flags.contains(WqFlags::HIGHPRI);
        let all: Vec<usize> = (0..shared.cpus.len()).collect();
        let (layout, pwqs) = if kind == WqFlags::PERCPU {
            (pools.bound(high)?, all.iter().map(|&cpu| Pwq::new(vec![cpu])).collect())
        } else {
            let layout = pools.unbound(high, &WqAttrs::new())?;
            let pwqs = match &shared.topology {
                Some(topology) if !ordered => {
                    let index = |cpu| shared.index_of(cpu);
                    let nodes = pods::nodes(topology, &shared.cpus);
                    nodes.iter().map(|(_, cpus)| Pwq::new(cpus.iter().filter_map(index).collect())).collect()
                }
                _ => vec![Pwq::new(all)],
            };
            (layout, pwqs)
        };
        let made = Made { name: name.into(), flags, ordered, layouts: Layouts::new(layout), pwqs, max_active };
        let inner = Arc::new(WqInner::new(pools, made));
        let wq = Workqueue { handle: Arc::new(Handle { inner, no_wait: false }) };
        if flags.contains(WqFlags::MEM_RECLAIM) {
            let rescuer = Rescuer::new(name, Arc::downgrade(wq.inner()));
            rescuer
                .start(shared)
                .map_err(|source| AllocError::Worker { worker: format!("rescuer of {name}"), source })?;
            wq.inner().set_rescuer(rescuer);
        }
        Ok(wq)
    }

    pub(crate) fn inner(&self) -> &Arc<WqInner> {
        &self.handle.inner
    }

    /// Drops the handle without waiting, even if it is the last one.
    pub(crate) fn let_go(self) {
        if let Some(mut handle) = Arc::into_inner(self.handle) {
            handle.no_wait = true;
        }
    }

    pub(crate) fn index_of(&self, cpu: u32) -> Result<usize, QueueOnError> {
        self.inner().shared().index_of(cpu).ok_or(QueueOnError { cpu })
    }

    /// Queues an item: on the caller's CPU for a bound queue. False if it was pending already (then the run to come is
    /// also this call's), if it is disabled or a `cancel_sync` of it is under way, or if the queue is draining and the
    /// caller is not one of its items.
    ///
    /// Nothing is allocated. When it returns true or the item was pending, all that the caller wrote before is visible
    /// to the run that follows. An item that is queued while it runs will run again, never on two workers at once.
    pub fn queue(&self, work: &Work) -> bool {
        self.queue_work(work, None)
    }

    /// As [`queue`](Workqueue::queue), on the given CPU: a bound item runs there; an unbound one goes to that CPU's
    /// pod, and runs wherever a worker is free first.
    ///
    /// # Errors
    /// The CPU is not one of the pools' CPUs (those of the affinity mask when they were made). If it has gone offline
    /// since, items run elsewhere.
    pub fn queue_on(&self, cpu: u32, work: &Work) -> Result<bool, QueueOnError> {
        let index = self.index_of(cpu)?;
        Ok(self.queue_work(work, Some(index)))
    }

    /// As [`queue`](Workqueue::queue), on a CPU of the given NUMA node: the caller's, if it belongs to the node.
    ///
    /// # Errors
    /// The queue is bound, or none of the pools' CPUs is on that node.
    pub fn queue_node(&self, node: u32, work: &Work) -> Result<bool, QueueNodeError> {
        let inner = self.inner();
        if inner.is_bound() {
            return Err(QueueNodeError::Bound);
        }
        let shared = inner.shared();
        let nodes = match &shared.topology {
            Some(topology) => pods::nodes(topology, &shared.cpus),
            None => vec![(0, shared.cpus.clone())],
        };
        let cpus = nodes.iter().find(|(id, _)| *id == node).map(|(_, cpus)| cpus);
        let here = postread_sys::current_cpu();
        let cpu = cpus.and_then(|cpus| if cpus.contains(here) { Some(here) } else { cpus.first() });
        let target = cpu.and_then(|cpu| shared.index_of(cpu)).ok_or(QueueNodeError::NoSuchNode { node })?;
        Ok(self.queue_work(work, Some(target)))
    }

    fn queue_work(&self, work: &Work, target: Option<usize>) -> bool {
        work.body().state.try_claim() && self.queue_claimed(work, target)
    }

    /// Queues an item whose pending instance the caller owns.
    pub(crate) fn queue_claimed(&self, work: &Work, target: Option<usize>) -> bool {
        let queued = self.inner().queue(Arc::clone(work.node()), self.inner().here(), target);
        if !queued {
            work.body().state.release();
        }
        queued
    }

    /// Takes one disable back, and queues the item if it can be queued again. True if it was queued.
    ///
    /// # Errors
    /// [`EnableError`] if it is not disabled.
    pub fn enable_and_queue(&self, work: &Work) -> Result<bool, EnableError> {
        Ok(work.enable()? && self.queue(work))
    }

    /// Queues an item once `delay` has passed; at once for no delay. False as [`queue`](Workqueue::queue). It counts as
    /// pending from now on. A bound item runs on the CPU that the caller is on now.
    pub fn queue_delayed(&self, delayed: &DelayedWork, delay: Duration) -> bool {
        self.queue_delayed_at(delayed, delay, None)
    }

    /// As [`queue_delayed`](Workqueue::queue_delayed), on the given CPU.
    ///
    /// # Errors
    /// As [`queue_on`](Workqueue::queue_on).
    pub fn queue_delayed_on(&self, cpu: u32, delayed: &DelayedWork, delay: Duration) -> Result<bool, QueueOnError> {
        let index = self.index_of(cpu)?;
        Ok(self.queue_delayed_at(delayed, delay, Some(index)))
    }

    fn queue_delayed_at(&self, delayed: &DelayedWork, delay: Duration, target: Option<usize>) -> bool {
        delayed.work().body().state.try_claim() && self.delay_claimed(delayed.work(), delay, target)
    }

    fn delay_claimed(&self, work: &Work, delay: Duration, target: Option<usize>) -> bool {
        let inner = self.inner();
        if delay.is_zero() {
            return self.queue_claimed(work, target);
        }
        if inner.draining.load(Ordering::SeqCst) != 0 && !inside_queue(inner) {
            work.body().state.release();
            return false;
        }
        Timed::arm(self, work, delay, target);
        true
    }

    /// Queues an item after `delay`, replacing any earlier delay: a pending item, armed or already on a list, is taken
    /// off and queued again, even while the queue drains. True if it was pending; false if it was idle, and is queued
    /// now unless it is disabled or the queue is draining. With no delay it is queued at once in every state.
    pub fn mod_delayed(&self, delayed: &DelayedWork, delay: Duration) -> bool {
        let state = &delayed.work().body().state;
        loop {
            if state.is_disabled() {
                return false;
            }
            if state.try_claim() {
                self.delay_claimed(delayed.work(), delay, None);
                return false;
            }
            if delayed.work().take_pending() {
                if state.is_disabled() {
                    // A concurrent disable finds nothing pending.
                    state.release();
                } else if delay.is_zero() {
                    // It was already promised a run, so a drain does not refuse it.
                    let inner = self.inner();
                    inner.queue_promised(Arc::clone(delayed.work().node()), inner.here(), None);
                } else {
                    Timed::arm(self, delayed.work(), delay, None);
                }
                return true;
            }
        }
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
    /// Called from an item of another queue it counts as [`blocking`](crate::blocking). Two queues whose items flush
    /// each other's queue wait for each other forever: see the crate's documentation on cycles.
    ///
    /// # Errors
    /// [`FlushError::SameQueue`] from inside an item of this queue.
    pub fn flush(&self) -> Result<Flushed, FlushError> {
        self.check_wait()?;
        Ok(self.inner().flush())
    }

    /// Waits until the queue is empty. Meanwhile only the queue's own items may queue more; for all other callers
    /// `queue` and `spawn` return false until this returns.
    ///
    /// # Errors
    /// [`FlushError::SameQueue`] from inside an item of this queue.
    pub fn drain(&self) -> Result<Flushed, FlushError> {
        self.check_wait()?;
        let inner = self.inner();
        inner.draining.fetch_add(1, Ordering::SeqCst);
        inner.wait_empty();
        let flushed = inner.flush();
        inner.draining.fetch_sub(1, Ordering::SeqCst);
        Ok(flushed)
    }

    fn check_wait(&self) -> Result<(), FlushError> {
        let inner = self.inner();
        if inside_queue(inner) {
            return Err(FlushError::SameQueue);
        }
        if !inner.flags.contains(WqFlags::MEM_RECLAIM)
            && let Some(from) = current_queue().filter(|from| from.flags.contains(WqFlags::MEM_RECLAIM))
        {
            let (queue, target) = (from.name.clone(), inner.name.clone());
            inner.shared().reporter.report(Report::FlushDependency { queue, target });
        }
        Ok(())
    }

    /// Changes `max_active`, 0 for the default. A higher limit takes effect at once, a lower one as active items end.
    /// The order of items does not change. `min_active` is reset to its default: `max_active`, but at most 8.
    ///
    /// # Errors
    /// Above [`WQ_MAX_ACTIVE`]; anything but 1 for an ordered queue.
    pub fn set_max_active(&self, max_active: usize) -> Result<(), MaxActiveError> {
        let max = check_max_active(max_active)?;
        if self.inner().ordered && max_active != 1 {
            return Err(MaxActiveError::Ordered { max_active });
        }
        self.inner().set_limits(Some(max), Some(pods::default_min_active(max)));
        Ok(())
    }

    /// Changes how many items of each NUMA node may always be active, however few CPUs it has. Set it to the number of
    /// items that depend on each other, at most `max_active`. Has no effect on a bound queue.
    ///
    /// # Errors
    /// Above `max_active`, or 0.
    pub fn set_min_active(&self, min_active: usize) -> Result<(), MaxActiveError> {
        let max_active = self.max_active();
        if min_active == 0 || min_active > max_active {
            return Err(MaxActiveError::Min { min_active, max_active });
        }
        self.inner().set_limits(None, Some(min_active as u64));
        Ok(())
    }

    /// The limit in force.
    pub fn max_active(&self) -> usize {
        self.inner().max_active()
    }

    /// The minimum part of a NUMA node.
    pub fn min_active(&self) -> usize {
        self.inner().min_active()
    }

    /// Changes the attributes of an unbound queue while it is in use. Items that are on a pool's list already stay there;
    /// those that wait for `max_active`, and later ones, go to the new pools. An ordered queue stays ordered.
    ///
    /// # Errors
    /// The queue is bound; a nice value or CPUs that are out of range; a pool could not be made. Nothing has changed then.
    pub fn apply_attrs(&self, attrs: &WqAttrs) -> Result<(), AttrsError> {
        self.inner().apply_attrs(attrs)
    }

    /// The attributes in force; of a bound queue the defaults.
    pub fn attrs(&self) -> WqAttrs {
        self.inner().layouts.current().attrs.clone()
    }

    /// Sets the largest item, in bytes, that [`execute_or_queue`](Workqueue::execute_or_queue) runs in place: 8192 by
    /// default, 0 for none.
    pub fn set_inline_bytes(&self, bytes: usize) {
        self.inner().inline_bytes.store(bytes, Ordering::Relaxed);
    }

    /// The queue's name.
    pub fn name(&self) -> &str {
        &self.inner().name
    }

    /// The queue's flags.
    pub fn flags(&self) -> WqFlags {
        self.inner().flags
    }

    /// Whether a worker of the pool that serves the caller's CPU is idle, none is already waking, and one more may run: whether an item
    /// queued now would wake it. A hint, for policies that choose where to run something.
    pub fn has_idle_worker(&self) -> bool {
        let inner = self.inner();
        inner.layouts.current().pool_of(inner.here()).idle.has_ready()
    }

    /// Totals, latency histograms, and the state of the pools that the queue's items run on. Counters only grow, and a
    /// later snapshot minus an earlier one gives the interval. Costs a few microseconds per worker; recording costs a
    /// few nanoseconds per item and is always on.
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
        _ => Err(MaxActiveError::TooMany { max_active }),
    }
}
