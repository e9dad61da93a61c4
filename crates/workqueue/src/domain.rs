//! `max_active`: how many items of one domain (the kernel's pwq: a queue's part on a CPU, or all of an unbound queue)
//! are active, on a list or running, and the items that wait for their turn.
//!
//! No counter is touched by both sides for every item. Queueing counts what was ever activated; finishing counts what
//! is done, per CPU, which the flush needs anyway. Queueing compares its count with the last sum of the done ones that
//! it saw, and sums anew only when that leaves no room. A sum that is old is too small, so the limit is never exceeded.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};

use crate::list::List;
use crate::node::Node;

/// Keeps neighbours out of one cache line, and out of the pair of lines that is fetched together.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Padded<T>(pub(crate) T);

#[derive(Debug, Default)]
struct Queueing {
    activated: AtomicU64,
    done_seen: AtomicU64,
}

pub(crate) struct Domain {
    queueing: Padded<Queueing>,
    /// The length of `inactive`; changed under its lock.
    nr_inactive: Padded<AtomicUsize>,
    pub(crate) inactive: Mutex<List<Node>>,
}

impl Domain {
    pub(crate) fn new() -> Domain {
        Domain { queueing: Padded::default(), nr_inactive: Padded::default(), inactive: Mutex::new(List::new()) }
    }

    /// Takes up to `wanted` of the places that `max` leaves; `done` sums what is done. Returns how many.
    pub(crate) fn reserve(&self, wanted: u64, max: u64, done: impl Fn() -> u64) -> u64 {
        let mut seen = self.queueing.0.done_seen.load(Ordering::Acquire);
        let mut activated = self.queueing.0.activated.load(Ordering::Acquire);
        loop {
            let room = max.saturating_sub(activated.saturating_sub(seen));
            if room == 0 {
                let fresh = done();
                if fresh <= seen {
                    return 0;
                }
                seen = fresh;
                self.queueing.0.done_seen.fetch_max(fresh, Ordering::AcqRel);
                continue;
            }
            let take = room.min(wanted);
            match self.queueing.0.activated.compare_exchange_weak(
                activated,
                activated + take,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return take,
                Err(now) => activated = now,
            }
        }
    }

    /// An item is done that was never active: both counts grow, this one first, so that the difference is never too
    /// small.
    pub(crate) fn count_cancelled(&self) {
        self.queueing.0.activated.fetch_add(1, Ordering::AcqRel);
    }

    /// Do items wait? By whoever queues, to go behind them; and by whoever has counted an item done.
    pub(crate) fn has_inactive(&self) -> bool {
        self.nr_inactive.0.load(Ordering::SeqCst) != 0
    }

    /// Under the lock of `inactive`. The fence orders it before the caller's look at what is done: a finishing worker
    /// counts first and looks at this number after, so one of the two sees the other.
    pub(crate) fn publish(&self, inactive: &List<Node>) {
        self.nr_inactive.0.store(inactive.len(), Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }
}
