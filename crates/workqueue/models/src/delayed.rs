//! Delayed items, disable and enable: whoever takes the pending instance, it runs once or was cancelled.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use loom::sync::Mutex;
use loom::sync::atomic::AtomicUsize;
use loom::thread;

use crate::list::{Fifo, Linked, Links};
use crate::model;
use crate::state::{Finish, Grab, Start, WorkState};
use crate::timer::{Key, Timers};

struct Item {
    links: Links<Item>,
    state: WorkState,
    timer: Mutex<Option<Key>>,
    runs: AtomicUsize,
}

impl Linked for Item {
    fn links(&self) -> &Links<Item> {
        &self.links
    }
}

struct Queue {
    list: Fifo<Item>,
    timers: Timers<Arc<Item>>,
    item: Arc<Item>,
}

impl Queue {
    fn new() -> Arc<Queue> {
        let item =
            Item { links: Links::new(), state: WorkState::new(), timer: Mutex::new(None), runs: AtomicUsize::new(0) };
        Arc::new(Queue { list: Fifo::new(), timers: Timers::new(), item: Arc::new(item) })
    }

    fn arm(&self) {
        self.timers.arm(5, Arc::clone(&self.item), |key| *self.item.timer.lock().unwrap() = Some(key));
    }

    fn queue(&self) -> bool {
        let claimed = self.item.state.try_claim();
        if claimed {
            self.list.push(Arc::clone(&self.item));
        }
        claimed
    }

    fn queue_delayed(&self) -> bool {
        let claimed = self.item.state.try_claim();
        if claimed {
            self.arm();
        }
        claimed
    }

    /// As the manager.
    fn fire(&self) {
        while let Some(item) = self.timers.pop_due(10) {
            self.list.push(item);
        }
    }

    fn disarm(&self) -> Option<Arc<Item>> {
        let key = (*self.item.timer.lock().unwrap())?;
        self.timers.disarm(key, |item| Arc::ptr_eq(item, &self.item))
    }

    /// As `Work::grab_pending`.
    fn grab_pending(&self) -> bool {
        loop {
            match self.item.state.grab() {
                Grab::Idle => return false,
                Grab::Owned => return true,
                Grab::Listed => {
                    if self.disarm().is_some() || self.list.remove(&self.item).is_some() {
                        return true;
                    }
                }
            }
            thread::yield_now();
        }
    }

    fn cancel(&self) -> bool {
        let pending = self.grab_pending();
        if pending {
            self.item.state.release();
        }
        pending
    }

    /// As `Workqueue::mod_delayed`. True if it made an instance.
    fn mod_delayed(&self) -> bool {
        loop {
            if self.item.state.is_disabled() {
                return false;
            }
            if self.item.state.try_claim() {
                self.arm();
                return true;
            }
            if self.grab_pending() {
                if self.item.state.is_disabled() {
                    self.item.state.release();
                } else {
                    self.arm();
                }
                return false;
            }
        }
    }

    fn work(&self) {
        while let Some((item, ())) = self.list.pop(|_, _| ()) {
            if item.state.start() == Start::Deferred {
                continue;
            }
            loop {
                item.runs.fetch_add(1, Relaxed);
                if item.state.finish() == Finish::Idle {
                    break;
                }
                item.state.restart();
            }
        }
    }

    fn runs(&self) -> usize {
        self.item.runs.load(Relaxed)
    }
}

#[test]
fn a_timer_fires_or_is_cancelled() {
    model(3, || {
        let q = Queue::new();
        assert!(q.queue_delayed());
        let manager = {
            let q = Arc::clone(&q);
            thread::spawn(move || {
                q.fire();
                q.work();
            })
        };
        let cancelled = q.cancel();
        manager.join().unwrap();
        q.work();
        assert_eq!(q.runs(), usize::from(!cancelled));
        assert!(!q.item.state.is_pending());
    });
}

#[test]
fn a_timer_that_is_changed_while_it_fires_gives_one_run() {
    model(3, || {
        let q = Queue::new();
        assert!(q.queue_delayed());
        let manager = {
            let q = Arc::clone(&q);
            thread::spawn(move || {
                q.fire();
                q.work();
            })
        };
        let made = q.mod_delayed();
        manager.join().unwrap();
        q.fire();
        q.work();
        assert_eq!(q.runs(), 1 + usize::from(made));
        assert!(!q.item.state.is_pending());
    });
}

#[test]
fn two_changes_and_a_firing_leave_one_instance() {
    model(2, || {
        let q = Queue::new();
        assert!(q.queue_delayed());
        let threads: Vec<_> = [false, true]
            .map(|fires| {
                let q = Arc::clone(&q);
                thread::spawn(move || {
                    if fires {
                        q.fire();
                        0
                    } else {
                        usize::from(q.mod_delayed())
                    }
                })
            })
            .into();
        let mut made = 1 + usize::from(q.mod_delayed());
        for thread in threads {
            made += thread.join().unwrap();
        }
        q.fire();
        q.work();
        assert_eq!(q.runs(), made);
    });
}

#[test]
fn i15_a_disabled_item_is_not_queued_and_does_not_start() {
    model(2, || {
        let q = Queue::new();
        let queuer = {
            let q = Arc::clone(&q);
            thread::spawn(move || {
                let queued = q.queue();
                q.work();
                queued
            })
        };
        // As `Work::disable_sync`, nested once.
        q.item.state.user_disable();
        q.item.state.user_disable();
        let cancelled = q.cancel();
        q.item.state.wait_not_running();
        let runs = q.runs();
        assert_eq!(q.item.state.user_enable(), Some(false));
        assert!(!q.queue(), "queued although one disable is left");
        let queued = queuer.join().unwrap();
        q.work();
        assert_eq!(q.runs(), runs, "it ran while it was disabled");
        assert_eq!(usize::from(queued), runs + usize::from(cancelled));
        assert_eq!(q.item.state.user_enable(), Some(true));
        assert_eq!(q.item.state.user_enable(), None);
        assert!(q.queue());
        q.work();
        assert_eq!(q.runs(), runs + 1);
    });
}

#[test]
fn an_enable_too_many_does_not_help_a_queueing_past_a_cancel() {
    model(2, || {
        let q = Queue::new();
        q.queue();
        let enabler = {
            let q = Arc::clone(&q);
            thread::spawn(move || {
                let enabled = q.item.state.user_enable();
                q.queue();
                q.work();
                enabled
            })
        };
        q.item.state.disable();
        q.cancel();
        q.item.state.wait_not_running();
        assert!(!q.item.state.is_pending() && !q.item.state.is_running());
        q.item.state.enable();
        assert_eq!(enabler.join().unwrap(), None);
        q.work();
    });
}
