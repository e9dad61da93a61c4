//! The monitor's part in the count of running workers: it never runs below what is true, and nothing is forgotten.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

use crate::idle::{Idle, Sleeper, Slept};
use crate::model;
use crate::occupancy::Occupancy;

/// A pool of limit 1 with two workers; items are numbers on a counter.
struct Pool {
    idle: Idle,
    waiting: AtomicUsize,
    ran: AtomicUsize,
    items: usize,
    /// Of the first worker.
    occupancy: Occupancy,
    started: AtomicUsize,
}

impl Pool {
    fn has_work(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) != 0
    }

    fn take(&self) -> bool {
        let mut waiting = self.waiting.load(Acquire);
        while waiting > 0 {
            match self.waiting.compare_exchange(waiting, waiting - 1, Ordering::SeqCst, Acquire) {
                Ok(_) => return true,
                Err(now) => waiting = now,
            }
        }
        false
    }

    fn done(&self) -> bool {
        self.ran.load(Acquire) == self.items
    }

    fn work(&self, managed: bool) {
        let me = Sleeper::current();
        self.idle.woke();
        loop {
            while !self.idle.too_many() && self.take() {
                if managed {
                    self.started.fetch_add(1, Release);
                    // The item waits for the other one, and does not say so.
                    while self.ran.load(Acquire) + 1 < self.items {
                        thread::yield_now();
                    }
                    self.started.fetch_add(1, Release);
                    if self.occupancy.item_ended() {
                        self.idle.unblock();
                    }
                }
                self.ran.fetch_add(1, Release);
            }
            if managed && self.occupancy.rest() {
                self.idle.unblock();
            }
            if self.done() {
                self.idle.leave();
                return;
            }
            match self.idle.sleep(&me, || self.has_work() || self.done()) {
                Slept::Stayed => {}
                Slept::Woken => {
                    self.idle.woke();
                }
                Slept::Exit => return,
            }
            if managed {
                self.occupancy.wake();
            }
        }
    }

    /// As `monitor::manage`.
    fn look(&self) -> bool {
        let started = self.started.load(Acquire);
        if started % 2 == 0 || !self.occupancy.manage() {
            return false;
        }
        self.idle.block();
        let current = self.started.load(Acquire) == started;
        if !current && self.occupancy.unmanage() {
            self.idle.unblock();
        }
        if self.has_work() {
            let _ = self.idle.notify();
        }
        current
    }
}

#[test]
fn i18_an_item_that_waits_without_saying_so_is_found() {
    model(2, || {
        let pool = Arc::new(Pool {
            idle: Idle::new(1),
            waiting: AtomicUsize::new(1),
            ran: AtomicUsize::new(0),
            items: 2,
            occupancy: Occupancy::new(true),
            started: AtomicUsize::new(0),
        });
        pool.idle.reserve_first();
        let first = {
            let pool = Arc::clone(&pool);
            thread::spawn(move || pool.work(true))
        };
        while pool.started.load(Acquire) == 0 {
            thread::yield_now();
        }
        // The second item comes when the first one runs; its worker is made when it is wanted.
        pool.waiting.fetch_add(1, Ordering::SeqCst);
        let _ = pool.idle.notify();
        pool.look();
        let second = pool.idle.reserve_thread().then(|| {
            let pool = Arc::clone(&pool);
            thread::spawn(move || pool.work(false))
        });
        assert!(second.is_some(), "nobody comes for the second item");
        first.join().unwrap();
        second.unwrap().join().unwrap();
        assert_eq!(pool.ran.load(Relaxed), 2);
        assert_eq!(pool.idle.counts(), (0, 0), "every worker is counted out as often as in");
    });
}

#[test]
fn the_count_is_right_however_late_the_monitor_is() {
    model(3, || {
        let (idle, occupancy) = (Arc::new(Idle::new(1)), Arc::new(Occupancy::new(true)));
        idle.reserve_first();
        idle.woke();
        let monitor = {
            let (idle, occupancy) = (Arc::clone(&idle), Arc::clone(&occupancy));
            thread::spawn(move || {
                if occupancy.manage() {
                    idle.block();
                    if occupancy.unmanage() {
                        idle.unblock();
                    }
                }
            })
        };
        // The worker ends one item, says in the next that it waits, and leaves.
        if occupancy.item_ended() {
            idle.unblock();
        }
        if occupancy.block() {
            idle.block();
            if occupancy.unblock() {
                idle.unblock();
            }
        }
        if occupancy.item_ended() {
            idle.unblock();
        }
        if occupancy.rest() {
            idle.unblock();
        }
        idle.leave();
        monitor.join().unwrap();
        assert_eq!(idle.counts(), (0, 0));
    });
}
