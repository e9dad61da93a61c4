//! The kernel's pool_workqueue: a queue's part on one CPU, or of an unbound queue on one NUMA node. It limits how many
//! of its items are active (on a list or running) to `max_active`, and keeps those that wait for a place.
//!
//! No counter is touched by both sides for every item. Queueing counts what was ever activated; finishing counts what
//! is done, per CPU, which the flush needs anyway. Queueing compares its count with the last sum of the done ones that
//! it saw, and sums again only when that leaves no room. An old sum is too small, so the limit is never exceeded.

use std::sync::Arc;

use crate::list::{Fifo, Linked};
use crate::padded::Padded;
use crate::sync::modelled::{AtomicBool, AtomicU64, Mutex, Ordering, between_seq_cst, fence, lock};

#[derive(Debug)]
struct Queueing {
    activated: AtomicU64,
    done_seen: AtomicU64,
}

pub(crate) struct PoolWorkqueue<T: Linked> {
    queueing: Padded<Queueing>,
    /// The items that wait for a place, in order.
    inactive: Padded<Fifo<T>>,
    /// Held while moving items from `inactive` to a pool's list.
    activation: Mutex<()>,
    /// Items wait, or may be between the two lists. It rarely changes, so reading it for every item is cheap; reading the list
    /// itself would not be, while others queue.
    waiting: Padded<AtomicBool>,
}

impl<T: Linked> PoolWorkqueue<T> {
    pub(crate) fn new() -> PoolWorkqueue<T> {
        PoolWorkqueue {
            queueing: Padded(Queueing { activated: AtomicU64::new(0), done_seen: AtomicU64::new(0) }),
            inactive: Padded(Fifo::new()),
            activation: Mutex::new(()),
            waiting: Padded(AtomicBool::new(false)),
        }
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

    /// Returns places that were taken but not used.
    fn unreserve(&self, places: u64) {
        self.queueing.0.activated.fetch_sub(places, Ordering::AcqRel);
    }

    /// Is every earlier item on a pool's list by now? Only then may a new one go there at once; otherwise it goes after
    /// those that wait. (In this order: an item that has left `inactive` is seen either on its way or on the list.)
    pub(crate) fn may_pass(&self) -> bool {
        self.inactive.0.is_empty() && !self.waiting.0.load(Ordering::SeqCst)
    }

    /// Do items wait? By a worker that has counted an item done, with a sequentially consistent operation: it sees the
    /// item, or the item's queueing sees the count.
    pub(crate) fn has_inactive(&self) -> bool {
        between_seq_cst();
        self.waiting.0.load(Ordering::SeqCst)
    }

    /// Lets an item wait. True if the caller has to call [`PoolWorkqueue::activate`]: no other thread may notice that
    /// there is room. (Of a row of items, the first one's queueing does it. Room that comes later comes from an item
    /// that ends, and its worker looks here.) `tidy` should be true now and then.
    pub(crate) fn wait(&self, node: Arc<T>, tidy: bool) -> bool {
        let first = self.inactive.0.push(node);
        if tidy {
            self.inactive.0.tidy();
        }
        between_seq_cst();
        if !self.waiting.0.load(Ordering::SeqCst) {
            self.waiting.0.store(true, Ordering::SeqCst);
        }
        first
    }

    /// Moves what waits to a pool's list, as far as there is room. `reserve` calls [`PoolWorkqueue::reserve`] for so many places;
    /// `deliver` moves up to so many items from the list it is given, and returns how many there were.
    pub(crate) fn activate(&self, reserve: impl Fn(u64) -> u64, deliver: impl Fn(&Fifo<T>, u64) -> u64) {
        let _one_at_a_time = lock(&self.activation);
        fence(Ordering::SeqCst);
        loop {
            if self.inactive.0.is_empty() {
                self.waiting.0.store(false, Ordering::SeqCst);
                fence(Ordering::SeqCst);
                if self.inactive.0.is_empty() {
                    return;
                }
            }
            // Before anything leaves the list.
            self.waiting.0.store(true, Ordering::SeqCst);
            let places = reserve(ROW);
            if places == 0 {
                return;
            }
            let moved = deliver(&self.inactive.0, places);
            if moved < places {
                // A thread that found no place meanwhile waits now; if its item was the first one, it is waiting for
                // the lock.
                self.unreserve(places - moved);
                fence(Ordering::SeqCst);
            }
        }
    }

    /// Removes an item that waits, if it is here.
    pub(crate) fn remove(&self, node: &T) -> Option<Arc<T>> {
        let taken = self.inactive.0.remove(node)?;
        // It is about to be counted done, and was never active: both counts grow, this one first, so that the
        // difference is never too small.
        self.queueing.0.activated.fetch_add(1, Ordering::AcqRel);
        Some(taken)
    }
}

/// How many places are taken at once.
const ROW: u64 = 128;
