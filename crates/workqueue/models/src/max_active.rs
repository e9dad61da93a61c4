//! The limit on active items: never exceeded, no item forgotten, none passes another.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use loom::sync::Mutex;
use loom::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use loom::thread;

use crate::list::{Fifo, Linked, Links};
use crate::model;
use crate::pwq::PoolWorkqueue;
use crate::sync::modelled::between_seq_cst;

struct Item {
    links: Links<Item>,
    number: usize,
}

impl Linked for Item {
    fn links(&self) -> &Links<Item> {
        &self.links
    }
}

struct Queue {
    pwq: PoolWorkqueue<Item>,
    pool: Fifo<Item>,
    max: u64,
    done: AtomicU64,
    active: AtomicUsize,
    order: Mutex<Vec<usize>>,
}

impl Queue {
    fn new(max: u64) -> Arc<Queue> {
        Arc::new(Queue {
            pwq: PoolWorkqueue::new(),
            pool: Fifo::new(),
            max,
            done: AtomicU64::new(0),
            active: AtomicUsize::new(0),
            order: Mutex::new(Vec::new()),
        })
    }

    fn reserve(&self, wanted: u64) -> u64 {
        let got = self.pwq.reserve(wanted, self.max, || self.done.load(Ordering::SeqCst));
        let active = self.active.fetch_add(got as usize, Relaxed) + got as usize;
        assert!(active <= self.max as usize, "{active} active");
        got
    }

    fn activate(&self) {
        self.pwq.activate(
            |wanted| self.reserve(wanted),
            |inactive, most| {
                let moved = inactive.move_to(&self.pool, most as usize, |_| ()) as u64;
                self.active.fetch_sub((most - moved) as usize, Relaxed);
                moved
            },
        );
    }

    /// As `WqInner::queue`.
    fn queue(&self, number: usize) {
        let item = Arc::new(Item { links: Links::new(), number });
        if self.pwq.may_pass() && self.reserve(1) == 1 {
            self.pool.push(item);
        } else if self.pwq.wait(item, number % 2 == 1) {
            self.activate();
        }
    }

    /// As a worker: runs what is active, until nothing is.
    fn work(&self) {
        while let Some((item, ())) = self.pool.pop(|_, _| ()) {
            self.order.lock().unwrap().push(item.number);
            self.active.fetch_sub(1, Relaxed);
            self.done.fetch_add(1, Ordering::SeqCst);
            between_seq_cst();
            if self.pwq.has_inactive() {
                self.activate();
            }
        }
    }
}

/// Items 0.. by the model's own thread, items 10.. by another, while a worker runs them.
fn scene(max: u64, own: usize, others: usize) {
    let q = Queue::new(max);
    let worker = {
        let q = Arc::clone(&q);
        thread::spawn(move || q.work())
    };
    let other = (others > 0).then(|| {
        let q = Arc::clone(&q);
        thread::spawn(move || (10..10 + others).for_each(|number| q.queue(number)))
    });
    (0..own).for_each(|number| q.queue(number));
    worker.join().unwrap();
    if let Some(other) = other {
        other.join().unwrap();
    }
    // A worker would have been woken for what is active. What only waits, nobody would come for.
    q.work();
    let order = q.order.lock().unwrap();
    assert_eq!(order.len(), own + others, "an item was forgotten: {order:?}");
    for row in [0..own, 10..10 + others] {
        let seen: Vec<usize> = order.iter().copied().filter(|n| row.contains(n)).collect();
        assert!(seen.is_sorted(), "items changed places: {order:?}");
    }
}

#[test]
fn one_at_a_time_in_order() {
    model(2, || scene(1, 3, 0));
}

#[test]
fn one_at_a_time_from_two_threads() {
    model(2, || scene(1, 2, 1));
}

#[test]
fn two_at_a_time() {
    model(2, || scene(2, 3, 0));
}
