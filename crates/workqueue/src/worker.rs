//! What a worker thread does, and how an item's code finds out that it runs on one.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};

use postread_sys::priority::HighPriority;
use postread_sys::{CpuSet, affinity, gettid, priority, stamp_ns};

use crate::config::HighPriorityPolicy;
use crate::idle::{Sleeper, Slept};
use crate::node::{Body, Node, Queued};
use crate::pool::{Pool, Taken, WorkerInfo};
use crate::queue::WqInner;
use crate::state::{Finish, Start};
use crate::sync::lock;
use crate::work::Work;

struct Current {
    pool: RefCell<Option<Arc<Pool>>>,
    /// Addresses of the item that runs and of its queue; 0 between items.
    node: Cell<usize>,
    wq: Cell<usize>,
    /// Depth of `blocking`.
    blocked: Cell<u32>,
}

thread_local! {
    static CURRENT: Current = const {
        Current { pool: RefCell::new(None), node: Cell::new(0), wq: Cell::new(0), blocked: Cell::new(0) }
    };
}

/// Looks at the thread's state. A thread that is being torn down has none left, and is no worker any more: the
/// destructor of another thread-local may still drop or flush a queue.
fn with_current<R>(look: impl FnOnce(&Current) -> R) -> Option<R> {
    CURRENT.try_with(look).ok()
}

/// Does the caller run inside an item of this queue?
pub(crate) fn inside_queue(wq: &Arc<WqInner>) -> bool {
    with_current(|current| current.wq.get() == Arc::as_ptr(wq) as usize).unwrap_or(false)
}

/// Does the caller run inside this item?
pub(crate) fn inside_item(node: &Arc<Node>) -> bool {
    with_current(|current| current.node.get() == Arc::as_ptr(node) as usize).unwrap_or(false)
}

/// Is the caller a worker, of any set of pools?
pub(crate) fn on_worker() -> bool {
    with_current(|current| current.pool.borrow().is_some()).unwrap_or(false)
}

/// Runs `f`, which waits (for I/O, a lock, another item), and lets another worker of the pool go on meanwhile.
///
/// A bound pool runs one worker at a time, an unbound pool as many as there are CPUs; the kernel sees for itself when a
/// worker sleeps, a user-space pool has to be told. An item that waits without saying so holds up the items behind it.
/// Outside of a worker this only calls `f`. It nests. Waiting with this crate's own `flush`, `drain` and `cancel_sync`
/// needs no `blocking` around it.
///
/// ```
/// use std::sync::mpsc;
/// use postread_workqueue::{Workqueue, WqFlags, blocking};
///
/// let wq = Workqueue::alloc("doc_blocking", WqFlags::PERCPU, 0)?;
/// let (answer, question) = mpsc::channel();
/// wq.spawn_on(0, move || assert_eq!(blocking(|| question.recv()), Ok(42)))?;
/// // Behind the first item on the same CPU, and yet it runs: otherwise both would wait for ever.
/// wq.spawn_on(0, move || answer.send(42).unwrap())?;
/// assert_eq!(wq.flush()?.panics, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn blocking<R>(f: impl FnOnce() -> R) -> R {
    /// Counts the worker in again, also when `f` panics.
    struct Unblock;
    impl Drop for Unblock {
        fn drop(&mut self) {
            with_current(|current| {
                current.blocked.set(current.blocked.get() - 1);
                if current.blocked.get() == 0
                    && let Some(pool) = &*current.pool.borrow()
                {
                    pool.idle.unblock();
                }
            });
        }
    }
    let worker = with_current(|current| {
        let pool = current.pool.borrow();
        let Some(pool) = &*pool else { return false };
        current.blocked.set(current.blocked.get() + 1);
        if current.blocked.get() == 1 {
            pool.idle.block();
            if pool.has_work() {
                pool.notify();
            }
        }
        true
    })
    .unwrap_or(false);
    let _unblock = worker.then(|| Unblock);
    f()
}

/// The thread.
pub(crate) fn main(pool: &Arc<Pool>, slot: usize, info: &Arc<WorkerInfo>, ready: Option<mpsc::Sender<io::Result<()>>>) {
    // The caller of `spawn` may look for the number at once.
    let _ = info.tid.set(gettid());
    let set_up = set_up(pool);
    match (set_up, ready) {
        (Ok(()), None) => {}
        (Ok(()), Some(ready)) => drop(ready.send(Ok(()))),
        // A worker beyond the first that could not be pinned (its CPU has gone offline, say) still runs the items: an
        // item on another CPU is better than a lost one, and the kernel does the same.
        (Err(_), None) => {}
        (Err(error), Some(ready)) => {
            pool.idle.unreserve_thread();
            pool.forget_worker(slot);
            let _ = ready.send(Err(error));
            return;
        }
    }
    CURRENT.with(|current| *current.pool.borrow_mut() = Some(Arc::clone(pool)));
    Worker { pool, me: Sleeper::current(), wq: None, owed: None, now: 0, here: 0, turns: 0, row: 0, spare: Vec::new() }
        .run();
    CURRENT.with(|current| *current.pool.borrow_mut() = None);
    pool.forget_worker(slot);
}

fn set_up(pool: &Pool) -> io::Result<()> {
    match pool.cpu {
        Some((cpu, _)) => affinity::set_current(&CpuSet::from_iter([cpu]))?,
        None => affinity::set_current(&pool.shared.cpus)?,
    }
    // The thread inherits from whichever thread made it.
    if priority::current_nice().is_ok_and(|nice| nice != pool.shared.nice) {
        // Going back to a lower nice value may not be allowed; the worker then keeps its maker's.
        let _ = priority::set_nice_current(pool.shared.nice);
    }
    if pool.high {
        let took = match pool.shared.high_priority {
            HighPriorityPolicy::Best => priority::raise_current(pool.shared.slice),
            HighPriorityPolicy::Slice => {
                priority::set_slice_current(pool.shared.slice).map_or(HighPriority::None, HighPriority::Slice)
            }
        };
        let _ = pool.priority.set(took);
    }
    Ok(())
}

/// After this many items a worker looks first at another CPU's list, so that none waits for ever behind a list that is
/// never empty.
const TURN: usize = 32;

/// Drops what a panic carried, whose own destructor may panic too.
pub(crate) fn drop_payload(payload: Box<dyn Any + Send>) {
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(again);
    }
}

struct Worker<'a> {
    pool: &'a Arc<Pool>,
    me: Arc<Sleeper>,
    /// The queue of the last item: its count is not touched while items of the same queue follow.
    wq: Option<Arc<WqInner>>,
    /// A pwq of `wq` whose waiting items this worker has yet to activate, and for how many done items.
    owed: Option<(usize, u64)>,
    /// The time, when the last item ended just now; else 0.
    now: u64,
    /// The index of the CPU where the last item started, or where it woke.
    here: usize,
    turns: usize,
    /// Items since it last found none.
    row: u32,
    /// Nodes of one-shot items of `wq` that have run.
    spare: Vec<Arc<Node>>,
}

/// A worker that ran so many items since it last found none looks about before it sleeps: some microseconds.
const LONG_ROW: u32 = 16;
const LOOKS: u32 = 32;
const PAUSES: u32 = 4;

/// So many at a time are given back.
const SPARE_ROW: usize = 32;

impl Worker<'_> {
    fn run(mut self) {
        let mut woken = true;
        loop {
            if std::mem::take(&mut woken) {
                self.here = self.cpu();
                self.pool.idle.woke();
                if let Some(taken) = self.take() {
                    // Whoever queued while this worker was waking left the rest to it.
                    if self.pool.has_work() {
                        self.pool.notify();
                    }
                    self.process(taken);
                }
            }
            while !self.pool.idle.too_many()
                && let Some(taken) = self.take()
            {
                if taken.more && self.pool.idle.may_want() && !self.pool.asked.load(Ordering::Relaxed) {
                    self.pool.notify();
                }
                self.process(taken);
            }
            if self.settle() || self.linger() {
                continue;
            }
            self.give_spare();
            self.wq = None;
            self.now = 0;
            let shutdown = &self.pool.shared.shutdown;
            let pool = self.pool;
            match pool.idle.sleep(&self.me, || pool.has_work() || shutdown.load(Ordering::Acquire)) {
                Slept::Stayed if shutdown.load(Ordering::Acquire) && !pool.has_work() => {
                    pool.idle.leave();
                    return;
                }
                Slept::Stayed => {}
                Slept::Woken => woken = true,
                Slept::Exit => return,
            }
        }
    }

    /// After a row of items more are likely to come at once, and a sleep and a wake-up cost as much as many of them: the
    /// worker looks about for a moment. After a few items it does not, so sparse items cost no CPU time beside their own.
    fn linger(&mut self) -> bool {
        if std::mem::take(&mut self.row) < LONG_ROW || self.pool.idle.too_many() {
            return false;
        }
        (0..LOOKS).any(|_| {
            for _ in 0..PAUSES {
                std::hint::spin_loop();
            }
            self.pool.has_work()
        })
    }

    fn take(&mut self) -> Option<Taken> {
        let cpu = match self.pool.cpu {
            Some(_) => 0,
            None => {
                self.turns = self.turns.wrapping_add(1);
                if self.turns.is_multiple_of(TURN) { self.here + self.turns / TURN } else { self.here }
            }
        };
        self.pool.take(cpu)
    }

    fn process(&mut self, taken: Taken) {
        self.row = self.row.saturating_add(1);
        let queued = taken.node.queued();
        self.turn_to(&taken.node);
        match &taken.node.body {
            Body::Once(f) => {
                self.settle_before(&queued, taken.same_next);
                let f = lock(f).take();
                self.run_one(&taken.node, &queued, || {
                    if let Some(f) = f {
                        f();
                    }
                });
                self.complete(&queued);
                self.spare.push(taken.node);
                if self.spare.len() >= SPARE_ROW {
                    self.give_spare();
                }
            }
            Body::Work(_) => {
                let work = Work::from_node(taken.node);
                self.process_work(&work, queued, taken.same_next);
                // Exactly one of those who drop a handle gets the item itself, however the drops race.
                if let Some(node) = Arc::into_inner(work.into_node()) {
                    self.destroy(node);
                }
            }
        }
    }

    /// Drops an item and with it what its function captured: foreign code, which may panic, and which may drop the last
    /// handle of a queue. Nothing is owed meanwhile, so no other item depends on when this returns.
    fn destroy(&mut self, node: Node) {
        self.settle();
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(node))) {
            self.wq().count_panic();
            drop_payload(payload);
        }
        self.now = 0;
    }

    fn process_work(&mut self, work: &Work, mut queued: Queued, same_next: bool) {
        let body = work.body();
        // An item that still runs elsewhere is left to that worker, which may be long about it: nothing is put off.
        self.settle_before(&queued, same_next && !body.state.is_running());
        if body.state.start() == Start::Deferred {
            return;
        }
        loop {
            if self.run_one(work.node(), &queued, || (body.f)(work)) {
                body.panics.fetch_add(1, Ordering::Relaxed);
            }
            if body.state.finish() == Finish::Idle {
                self.complete(&queued);
                return;
            }
            self.complete(&queued);
            self.settle();
            queued = work.node().queued();
            self.turn_to(work.node());
            if !Arc::ptr_eq(self.wq().pool(queued.pwq), self.pool) {
                // Queued meanwhile for another pool: another CPU, another priority, or another set of pools, whose CPUs
                // have other indices.
                body.state.hand_over();
                self.wq().requeue(work.node());
                return;
            }
            body.state.restart();
        }
    }

    fn give_spare(&mut self) {
        if let Some(wq) = &self.wq {
            wq.give_spare(self.here, &mut self.spare);
        }
    }

    fn wq(&self) -> &Arc<WqInner> {
        // `turn_to` comes before every use.
        self.wq.as_ref().expect("a queued item has a queue")
    }

    /// Makes the item's queue the current one.
    fn turn_to(&mut self, node: &Node) {
        if !self.wq.as_ref().is_some_and(|wq| node.is_on(wq)) {
            self.settle();
            self.give_spare();
            self.wq = node.wq();
        }
    }

    /// True if it panicked.
    fn run_one(&mut self, node: &Arc<Node>, queued: &Queued, f: impl FnOnce()) -> bool {
        let start = if self.now != 0 { self.now } else { stamp_ns() };
        let cpu = self.cpu();
        self.here = cpu;
        let wq = Arc::as_ptr(self.wq()) as usize;
        let address = Arc::as_ptr(node) as usize;
        CURRENT.with(|current| {
            current.node.set(address);
            current.wq.set(wq);
        });
        let outcome = catch_unwind(AssertUnwindSafe(f));
        let panicked = outcome.is_err();
        if let Err(payload) = outcome {
            self.wq().count_panic();
            drop_payload(payload);
        }
        CURRENT.with(|current| {
            current.node.set(0);
            current.wq.set(0);
        });
        self.now = stamp_ns();
        self.wq().record(cpu, queued, start, self.now);
        panicked
    }

    /// The index of the CPU that this worker is on.
    fn cpu(&self) -> usize {
        match self.pool.cpu {
            Some((_, index)) => index,
            None => self.pool.shared.current_index(),
        }
    }

    fn complete(&mut self, queued: &Queued) {
        if self.wq().count_done(queued, self.here) {
            self.owed = Some((queued.pwq, self.owed.map_or(1, |(_, count)| count + 1)));
        }
    }

    /// Before an item runs: activates what waits, or puts it off so that one lock serves many items.
    ///
    /// It may be put off only while the next item on the same list is of the same pwq: whoever takes that one comes
    /// by here in turn, and the last of a row never puts it off, so no place is held back by a worker inside a long
    /// item.
    fn settle_before(&mut self, queued: &Queued, same_next: bool) {
        let pwq = queued.pwq;
        match self.owed {
            Some((owed, count)) if same_next && owed == pwq && !self.wq().is_batch(count) => {}
            Some(_) => {
                self.settle();
            }
            None if !same_next && self.wq().has_inactive(pwq) => {
                self.owed = Some((pwq, 0));
                self.settle();
            }
            None => {}
        }
    }

    /// Activates what waits in the owed pwq. True if there was one.
    fn settle(&mut self) -> bool {
        let Some((pwq, _)) = self.owed.take() else { return false };
        let now = if self.now != 0 { self.now } else { stamp_ns() };
        self.wq().activate(pwq, self.here, now);
        true
    }
}
