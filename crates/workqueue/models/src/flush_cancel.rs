//! The item's state word: pending, running, flush, cancel.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use loom::sync::atomic::{AtomicBool, AtomicUsize};
use loom::thread;

use crate::list::{Fifo, Linked, Links};
use crate::model;
use crate::state::{Finish, Grab, Start, WorkState};

struct Item {
    links: Links<Item>,
    state: WorkState,
    /// Written before queueing, read by the function.
    input: AtomicUsize,
    /// The greatest input that a run has seen.
    seen: AtomicUsize,
    runs: AtomicUsize,
    inside: AtomicBool,
}

impl Linked for Item {
    fn links(&self) -> &Links<Item> {
        &self.links
    }
}

struct Queue {
    list: Fifo<Item>,
    item: Arc<Item>,
}

impl Queue {
    fn new() -> Arc<Queue> {
        let item = Item {
            links: Links::new(),
            state: WorkState::new(),
            input: AtomicUsize::new(0),
            seen: AtomicUsize::new(0),
            runs: AtomicUsize::new(0),
            inside: AtomicBool::new(false),
        };
        Arc::new(Queue { list: Fifo::new(), item: Arc::new(item) })
    }

    fn queue(&self) -> bool {
        let claimed = self.item.state.try_claim();
        if claimed {
            self.list.push(Arc::clone(&self.item));
        }
        claimed
    }

    /// As a worker: takes what is there and runs it, as `worker.rs` does. `again` queues the item from inside itself.
    fn work_once(&self, again: bool) -> bool {
        self.work(again, false)
    }

    /// As [`Queue::work_once`]; an item to run again belongs to another pool if `elsewhere`, and goes on a list again.
    fn work(&self, again: bool, elsewhere: bool) -> bool {
        let Some((item, ())) = self.list.pop(|_, _| ()) else { return false };
        if item.state.start() == Start::Deferred {
            return true;
        }
        loop {
            assert!(!item.inside.swap(true, Acquire), "on two workers at once");
            item.seen.store(item.input.load(Relaxed), Relaxed);
            item.runs.fetch_add(1, Relaxed);
            if again {
                self.queue();
            }
            item.inside.store(false, Release);
            if item.state.finish() == Finish::Idle {
                return true;
            }
            if elsewhere {
                item.state.hand_over();
                self.list.push(item);
                return true;
            }
            item.state.restart();
        }
    }

    /// As `Work::cancel`.
    fn cancel(&self) -> bool {
        loop {
            match self.item.state.grab() {
                Grab::Idle => return false,
                Grab::Owned => {}
                Grab::Listed => {
                    if self.list.remove(&self.item).is_none() {
                        thread::yield_now();
                        continue;
                    }
                }
            }
            self.item.state.release();
            return true;
        }
    }

    /// As `Work::cancel_sync`.
    fn cancel_sync(&self) -> bool {
        self.item.state.disable();
        let pending = self.cancel();
        self.item.state.wait_not_running();
        assert!(!self.item.state.is_pending() && !self.item.state.is_running());
        let runs = self.item.runs.load(Relaxed);
        thread::yield_now();
        assert_eq!(self.item.runs.load(Relaxed), runs, "it ran after cancel_sync");
        self.item.state.enable();
        pending
    }
}

#[test]
fn i04_what_was_written_before_queueing_is_seen_even_if_it_was_pending() {
    model(3, || {
        let q = Queue::new();
        q.queue();
        let worker = {
            let q = Arc::clone(&q);
            thread::spawn(move || q.work_once(false))
        };
        // Relaxed: only the queueing itself may order it.
        q.item.input.store(7, Relaxed);
        let queued = q.queue();
        worker.join().unwrap();
        while q.work_once(false) {}
        assert_eq!(q.item.seen.load(Relaxed), 7, "queue returned {queued}");
        assert_eq!(q.item.runs.load(Relaxed), 1 + usize::from(queued));
    });
}

#[test]
fn an_item_runs_on_one_worker_at_a_time_and_once_a_queueing() {
    model(2, || {
        let q = Queue::new();
        q.queue();
        let workers: Vec<_> = (0..2)
            .map(|_| {
                let q = Arc::clone(&q);
                thread::spawn(move || q.work_once(false))
            })
            .collect();
        let queued = q.queue();
        for worker in workers {
            worker.join().unwrap();
        }
        while q.work_once(false) {}
        assert_eq!(q.item.runs.load(Relaxed), 1 + usize::from(queued));
        assert!(!q.item.state.is_pending() && !q.item.state.is_running());
    });
}

#[test]
fn flush_returns_after_the_run() {
    model(3, || {
        let q = Queue::new();
        q.item.input.store(3, Relaxed);
        q.queue();
        let worker = {
            let q = Arc::clone(&q);
            // Queues itself once more; the flush need not wait for that run.
            thread::spawn(move || q.work_once(true))
        };
        q.item.state.flush();
        assert_eq!(q.item.seen.load(Relaxed), 3);
        assert!(q.item.runs.load(Relaxed) >= 1);
        worker.join().unwrap();
    });
}

#[test]
fn flush_ends_when_the_item_is_cancelled_instead() {
    model(3, || {
        let q = Queue::new();
        q.queue();
        let flusher = {
            let q = Arc::clone(&q);
            thread::spawn(move || q.item.state.flush())
        };
        assert!(q.cancel());
        flusher.join().unwrap();
        assert!(!q.item.state.is_pending());
        assert_eq!(q.item.runs.load(Relaxed), 0);
    });
}

#[test]
fn cancel_sync_leaves_it_idle_although_it_queues_itself() {
    model(2, || {
        let q = Queue::new();
        q.queue();
        let worker = {
            let q = Arc::clone(&q);
            thread::spawn(move || {
                q.work_once(true);
                q.work_once(true);
            })
        };
        q.cancel_sync();
        worker.join().unwrap();
        assert_eq!(Arc::strong_count(&q.item), 1 + usize::from(q.item.state.is_pending()));
    });
}

#[test]
fn of_a_cancel_and_a_worker_one_gets_the_item() {
    model(3, || {
        let q = Queue::new();
        q.queue();
        let worker = {
            let q = Arc::clone(&q);
            thread::spawn(move || q.work_once(false))
        };
        let cancelled = q.cancel();
        worker.join().unwrap();
        assert_eq!(q.item.runs.load(Relaxed), usize::from(!cancelled));
        assert!(!q.item.state.is_pending() && !q.item.state.is_running());
    });
}

#[test]
fn an_item_that_was_deferred_can_be_cancelled() {
    model(2, || {
        let q = Queue::new();
        q.queue();
        let first = {
            let q = Arc::clone(&q);
            // Queues itself: the second worker may meet it while it runs.
            thread::spawn(move || q.work_once(true))
        };
        let second = {
            let q = Arc::clone(&q);
            thread::spawn(move || q.work_once(false))
        };
        q.cancel_sync();
        first.join().unwrap();
        second.join().unwrap();
        while q.work_once(false) {}
        assert!(!q.item.state.is_pending() && !q.item.state.is_running());
    });
}

#[test]
fn an_item_that_is_handed_over_runs_once_a_queueing() {
    model(2, || {
        let q = Queue::new();
        q.queue();
        let workers: Vec<_> = (0..2)
            .map(|_| {
                let q = Arc::clone(&q);
                thread::spawn(move || q.work(false, true))
            })
            .collect();
        let queued = q.queue();
        for worker in workers {
            worker.join().unwrap();
        }
        while q.work(false, true) {}
        assert_eq!(q.item.runs.load(Relaxed), 1 + usize::from(queued));
        assert!(!q.item.state.is_pending() && !q.item.state.is_running());
    });
}

#[test]
fn an_item_that_is_handed_over_can_be_cancelled() {
    model(2, || {
        let q = Queue::new();
        q.queue();
        let first = {
            let q = Arc::clone(&q);
            thread::spawn(move || q.work(true, true))
        };
        let second = {
            let q = Arc::clone(&q);
            thread::spawn(move || q.work(false, true))
        };
        q.cancel_sync();
        first.join().unwrap();
        second.join().unwrap();
        while q.work(false, true) {}
        assert!(!q.item.state.is_pending() && !q.item.state.is_running());
    });
}
