//! What a worker thread does.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};

use postread_sys::priority::HighPriority;
use postread_sys::{affinity, current_cpu, gettid, priority, stamp_ns, thread_cpu_ns};

use crate::config::HighPriorityPolicy;
use crate::current::{Blocked, Inside, drop_payload, set_worker};
use crate::flags::WqFlags;
use crate::idle::{Sleeper, Slept};
use crate::node::{Body, Node, Queued};
use crate::pool::{Pool, Rank, Taken, WorkerInfo};
use crate::queue::WqInner;
use crate::state::{Finish, Start};
use crate::sync::lock;
use crate::work::Work;

/// The thread.
pub(crate) fn main(pool: &Arc<Pool>, slot: usize, info: &Arc<WorkerInfo>, ready: Option<mpsc::Sender<io::Result<()>>>) {
    // The caller of `spawn` may look for the number at once.
    let _ = info.tid.set(gettid());
    let set_up = set_up(pool);
    match (set_up, ready) {
        (Ok(()), None) => {}
        (Ok(()), Some(ready)) => drop(ready.send(Ok(()))),
        // A worker beyond the first that could not be pinned (say, because its CPU went offline) still runs the items:
        // an item on the wrong CPU is better than a lost one, and the kernel does the same.
        (Err(_), None) => {}
        (Err(error), Some(ready)) => {
            pool.idle.unreserve_thread();
            pool.forget_worker(slot);
            let _ = ready.send(Err(error));
            return;
        }
    }
    set_worker(Some((pool, info)));
    Worker::new(pool, info).run();
    set_worker(None);
    pool.forget_worker(slot);
}

/// Runs the items that `next` gives, on a rescuer's thread and in the place of the pool's own workers.
pub(crate) fn rescue(pool: &Arc<Pool>, info: &Arc<WorkerInfo>, mut next: impl FnMut() -> Option<Arc<Node>>) {
    set_worker(Some((pool, info)));
    let mut worker = Worker::new(pool, info);
    worker.here = worker.cpu();
    while let Some(node) = next() {
        worker.process(Taken { node, same_next: false, more: false });
        worker.settle();
    }
    worker.leave_queue();
    set_worker(None);
}

fn set_up(pool: &Pool) -> io::Result<()> {
    let pinned = affinity::set_current(&pool.allowed);
    let (shared, current) = (&pool.shared, priority::current_nice());
    let wanted = match pool.rank {
        Rank::Nice(nice) => nice,
        Rank::Normal | Rank::High => shared.nice,
    };
    // The thread inherits from whichever thread made it.
    if current.is_ok_and(|nice| nice != wanted) {
        // A lower nice value may not be permitted; the worker then keeps its creator's.
        let _ = priority::set_nice_current(wanted);
    }
    if pool.rank == Rank::High {
        let took = match shared.high_priority {
            HighPriorityPolicy::Best => priority::raise_current(shared.slice),
            HighPriorityPolicy::Slice => {
                priority::set_slice_current(shared.slice).map_or(HighPriority::None, HighPriority::Slice)
            }
        };
        let _ = pool.priority.set(took);
    }
    match pinned {
        // The CPU went offline after the set was made. The worker returns to it once it is back.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
        pinned => pinned,
    }
}

/// After this many items a worker first looks at another CPU's list, so that no item waits forever because another list
/// is never empty; and a bound worker checks whether it is on its CPU.
const TURN: usize = 32;

struct Worker<'a> {
    pool: &'a Arc<Pool>,
    info: &'a Arc<WorkerInfo>,
    me: Arc<Sleeper>,
    /// The queue of the last item: its count is not touched while items of the same queue follow.
    wq: Option<Arc<WqInner>>,
    /// The function of the last item.
    function: &'static str,
    /// The thread's CPU time when it last turned to a queue.
    cpu_mark: u64,
    /// A pool_workqueue of `wq` whose waiting items this worker has yet to activate, and for how many done items.
    owed: Option<(usize, u64)>,
    /// The current time if the last item ended just now; else 0.
    now: u64,
    /// The index of the CPU where the last item started, or where it woke.
    here: usize,
    turns: usize,
    items: u64,
    /// Items run since it last found none.
    row: u32,
    /// It was brought back into its pod, and no queue has been charged for that yet.
    repatriated: bool,
    /// Nodes of one-shot items of `wq` that have run.
    spare: Vec<Arc<Node>>,
}

/// A worker that ran this many items since it last found none polls for a few microseconds before it sleeps.
const LONG_ROW: u32 = 16;
const LOOKS: u32 = 32;
const PAUSES: u32 = 4;

/// How many are given back at a time.
const SPARE_ROW: usize = 32;

impl<'a> Worker<'a> {
    fn new(pool: &'a Arc<Pool>, info: &'a Arc<WorkerInfo>) -> Worker<'a> {
        Worker {
            pool,
            info,
            me: Sleeper::current(),
            wq: None,
            function: "",
            cpu_mark: 0,
            owed: None,
            now: 0,
            here: 0,
            turns: 0,
            items: 0,
            row: 0,
            repatriated: false,
            spare: Vec::new(),
        }
    }

    fn run(mut self) {
        let mut woken = true;
        loop {
            if std::mem::take(&mut woken) {
                self.pool.idle.woke();
                self.come_home();
                self.here = self.cpu();
                if let Some(taken) = self.take() {
                    // Threads that queued while this worker was waking left the rest to it.
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
            self.leave_queue();
            if self.info.occupancy.rest() {
                self.pool.idle.unblock();
            }
            let shutdown = &self.pool.shared.shutdown;
            let pool = self.pool;
            match pool.idle.sleep(&self.me, || pool.has_work_anywhere() || shutdown.load(Ordering::Acquire)) {
                Slept::Stayed if shutdown.load(Ordering::Acquire) && !pool.has_work() => {
                    pool.idle.leave();
                    return;
                }
                Slept::Stayed => {}
                Slept::Woken => woken = true,
                Slept::Exit => return,
            }
            self.info.occupancy.wake();
        }
    }

    /// Back to the pod, if the scheduler has moved this thread out of it, or to the CPU of a bound pool, if that was gone
    /// and is back.
    fn come_home(&mut self) {
        let pool = self.pool;
        if pool.pod.contains(current_cpu()) {
            return;
        }
        if affinity::set_current(&pool.pod).is_ok() {
            self.repatriated = true;
        }
        if pool.allowed != pool.pod {
            let _ = affinity::set_current(&pool.allowed);
        }
    }

    /// After a run of items more are likely to follow at once, and sleeping and waking up costs as much as many of
    /// them, so the worker polls for a moment. After only a few items it does not, so sparse items cost no extra CPU
    /// time.
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
        self.turns = self.turns.wrapping_add(1);
        let mut cpu = self.here;
        if self.turns.is_multiple_of(TURN) {
            match self.pool.cpu {
                Some(_) => self.come_home(),
                None => cpu = (self.here + self.turns / TURN) % self.pool.shared.cpus.len(),
            }
        }
        self.pool.take(cpu).or_else(|| self.pool.take_from_siblings(cpu))
    }

    fn process(&mut self, taken: Taken) {
        self.row = self.row.saturating_add(1);
        let queued = taken.node.queued();
        self.turn_to(&taken.node);
        match &taken.node.body {
            Body::Once(f) => {
                self.settle_before(&queued, taken.same_next);
                let f = lock(f).take();
                if let Some(f) = &f {
                    self.show(f.name());
                }
                self.run_one(&taken.node, None, &queued, || {
                    if let Some(f) = f {
                        f.run();
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
                // Exactly one of the threads that drop a handle gets the item itself, however the drops race.
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
        // An item that still runs elsewhere is left to that worker, which may take long, so nothing may be deferred.
        self.settle_before(&queued, same_next && !body.state.is_running());
        if body.state.start() == Start::Deferred {
            return;
        }
        self.show(body.name);
        loop {
            if self.run_one(work.node(), Some(work), &queued, || (body.f)(work)) {
                body.panics.fetch_add(1, Ordering::Relaxed);
            }
            if body.state.finish() == Finish::Idle {
                self.complete(&queued);
                return;
            }
            self.complete(&queued);
            self.settle();
            queued = work.node().queued();
            let wq = work.node().wq().expect("a queued item has a queue");
            if !wq.is_on_pool(work.node(), self.pool) {
                // Queued meanwhile for another pool: another CPU, another priority, or another set of pools, whose CPUs
                // have other indices. That queue does not become this worker's, which would charge its CPU time to it.
                body.state.hand_over();
                wq.requeue(work.node());
                return;
            }
            self.turn_to(work.node());
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
            self.charge();
            self.wq = node.wq();
            lock(&self.info.doing).wq = self.wq.clone();
        }
        if std::mem::take(&mut self.repatriated) {
            self.wq().count_repatriated();
        }
    }

    /// Makes no queue the current one.
    fn leave_queue(&mut self) {
        self.give_spare();
        self.charge();
        self.wq = None;
        lock(&self.info.doing).wq = None;
        self.now = 0;
    }

    /// Charges the current queue for the CPU time since this worker turned to it.
    fn charge(&mut self) {
        let now = thread_cpu_ns();
        if let Some(wq) = &self.wq {
            wq.count_cpu_time(self.here, now.saturating_sub(self.cpu_mark));
        }
        self.cpu_mark = now;
    }

    /// Shows others which function runs.
    fn show(&mut self, function: &'static str) {
        if self.function.as_ptr() != function.as_ptr() {
            self.function = function;
            lock(&self.info.doing).function = function;
        }
    }

    /// True if it panicked.
    fn run_one(&mut self, node: &Arc<Node>, work: Option<&Work>, queued: &Queued, f: impl FnOnce()) -> bool {
        let start = if self.now != 0 { self.now } else { stamp_ns() };
        let cpu = self.cpu();
        self.here = cpu;
        self.items += 1;
        self.info.items.store(self.items, Ordering::Relaxed);
        self.info.started.store(start.max(1), Ordering::Release);
        // In its CPU's pool it must not hold up other items.
        let intensive = self.pool.cpu.is_some() && self.wq().flags.contains(WqFlags::CPU_INTENSIVE);
        let out = intensive.then(Blocked::enter);
        let inside = Inside::enter(node, self.wq(), work);
        let outcome = catch_unwind(AssertUnwindSafe(f));
        let panicked = outcome.is_err();
        if let Err(payload) = outcome {
            self.wq().count_panic();
            drop_payload(payload);
        }
        drop(inside);
        drop(out);
        self.info.started.store(0, Ordering::Release);
        if self.info.occupancy.item_ended() {
            self.pool.idle.unblock();
        }
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

    /// Before an item runs: activates waiting items, or defers that so that one lock serves many items.
    ///
    /// It may be deferred only while the next item on the same list is of the same pool_workqueue: the worker that
    /// takes that one passes through here too, and the last of a run never defers, so no place is held back by a worker
    /// inside a long item.
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

    /// Activates waiting items of the owed pwq. True if there was one.
    fn settle(&mut self) -> bool {
        let Some((pwq, _)) = self.owed.take() else { return false };
        let now = if self.now != 0 { self.now } else { stamp_ns() };
        self.wq().activate(pwq, self.here, now);
        true
    }
}
