//! Running small items in place: the counterpart of the kernel's BH workqueues, and of how dm-verity uses them.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use postread_sys::stamp_ns;

use crate::current::{Inside, drop_payload, inside_any_item};
use crate::queue::Workqueue;
use crate::state::{Finish, Start};
use crate::work::Work;

/// How much one thread may run in place per period: time, and number of items. The kernel's softirq handler yields
/// after 2 ms or 10 rounds.
const TIME: Duration = Duration::from_millis(2);
const ITEMS: u32 = 10;
const PERIOD: Duration = Duration::from_millis(10);

#[derive(Clone, Copy)]
struct Turn {
    /// When it began, in nanoseconds.
    began: u64,
    spent: u64,
    items: u32,
}

thread_local! {
    static TURN: Cell<Turn> = const { Cell::new(Turn { began: 0, spent: 0, items: 0 }) };
}

/// What happened to an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Executed {
    /// It has run, on the calling thread.
    Here,
    /// It was queued.
    Queued,
    /// Neither: [`Workqueue::queue`] would return false.
    No,
}

impl Workqueue {
    /// Runs an item on the calling thread if it is small, and queues it otherwise. For items whose work (`bytes` to
    /// hash or decrypt, say) may cost less than handing them over.
    ///
    /// It is queued when `bytes` is above the queue's limit ([`set_inline_bytes`](Workqueue::set_inline_bytes)); when
    /// the caller runs inside an item already; when this thread has run items in place for 2 ms, or 10 of them, within
    /// the last 10 ms; when it still runs elsewhere; and when `max_active` is reached, so that it overtakes no waiting
    /// item. In every case it is one item to `flush`, `cancel` and the statistics.
    ///
    /// ```
    /// use postread_workqueue::{Executed, Work, Workqueue, WqFlags};
    ///
    /// let wq = Workqueue::alloc("doc_inline", WqFlags::UNBOUND, 0)?;
    /// let work = Work::new(|_| println!("on {:?}", std::thread::current().name()));
    /// assert_eq!(wq.execute_or_queue(&work, 4096), Executed::Here);
    /// assert_eq!(wq.execute_or_queue(&work, 1 << 20), Executed::Queued);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn execute_or_queue(&self, work: &Work, bytes: usize) -> Executed {
        let inner = self.inner();
        let state = &work.body().state;
        if bytes > inner.inline_bytes.load(Ordering::Relaxed) || inside_any_item() || !has_turn() {
            return queued(self.queue(work));
        }
        if !state.try_claim() {
            return Executed::No;
        }
        let here = inner.here();
        let Some(counted) = inner.reserve_here(work.node(), here) else {
            return queued(self.queue_claimed(work, None));
        };
        if state.start() == Start::Deferred {
            // The worker that still runs it must run it again, so it has to find it on one of its pool's lists.
            return Executed::Queued;
        }
        let start = stamp_ns();
        let outcome = {
            let _inside = Inside::enter(work.node(), inner, Some(work));
            let outcome = catch_unwind(AssertUnwindSafe(|| (work.body().f)(work)));
            outcome.map_err(|payload| {
                inner.count_panic();
                work.body().panics.fetch_add(1, Ordering::Relaxed);
                drop_payload(payload);
            })
        };
        let end = stamp_ns();
        let _ = outcome;
        inner.record(here, &counted, start, end);
        spend(end - start);
        let finished = state.finish();
        inner.complete_here(&counted, here);
        if finished == Finish::Again {
            // Queued meanwhile, and found by a worker that left it to this thread. Put it back on its list.
            let node = Arc::clone(work.node());
            let wq = node.wq();
            state.hand_over();
            if let Some(wq) = wq {
                wq.requeue(&node);
            }
        }
        Executed::Here
    }
}

fn queued(queued: bool) -> Executed {
    if queued { Executed::Queued } else { Executed::No }
}

fn has_turn() -> bool {
    let now = stamp_ns();
    TURN.try_with(|turn| {
        let seen = turn.get();
        if now.saturating_sub(seen.began) >= PERIOD.as_nanos() as u64 {
            turn.set(Turn { began: now, spent: 0, items: 0 });
            return true;
        }
        seen.spent < TIME.as_nanos() as u64 && seen.items < ITEMS
    })
    .unwrap_or(false)
}

fn spend(ns: u64) {
    let _ = TURN.try_with(|turn| {
        let seen = turn.get();
        turn.set(Turn { spent: seen.spent + ns, items: seen.items + 1, ..seen });
    });
}
