//! Idle and wake, over the real lists: whatever is queued runs, whoever sleeps when.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use loom::sync::atomic::AtomicUsize;
use loom::thread;

use crate::idle::{Idle, Sleeper, Slept, Wake};
use crate::list::{Fifo, Linked, Links};
use crate::model;

struct Item {
    links: Links<Item>,
    /// It waits inside `blocking` until the other item has run.
    waits: bool,
}

impl Linked for Item {
    fn links(&self) -> &Links<Item> {
        &self.links
    }
}

fn item(waits: bool) -> Arc<Item> {
    Arc::new(Item { links: Links::new(), waits })
}

struct Pool {
    list: Fifo<Item>,
    idle: Idle,
    ran: AtomicUsize,
    items: usize,
}

impl Pool {
    fn new(limit: usize, workers: usize, items: usize) -> Arc<Pool> {
        let idle = Idle::new(limit);
        // All workers begin as woken ones do; the pool makes the first so, and the manager the others.
        (0..workers).for_each(|_| idle.reserve_first());
        Arc::new(Pool { list: Fifo::new(), idle, ran: AtomicUsize::new(0), items })
    }

    fn notify(&self) {
        // In the pools a manager makes a thread then; the models have all the threads from the start, so each of them
        // is running, idle, blocked or has left.
        let _ = self.idle.notify() == Wake::NoneIdle;
    }

    fn queue(&self, item: Arc<Item>) {
        self.list.push(item);
        self.notify();
    }

    fn done(&self) -> bool {
        self.ran.load(Relaxed) == self.items
    }

    fn take(&self) -> Option<Arc<Item>> {
        self.list.pop(|_, _| ()).map(|(item, ())| item)
    }

    /// The worker's loop, as in `worker.rs`. It ends when all items have run, and sends the others home then: a model
    /// has to end. A lost wake-up shows as a deadlock.
    fn work(&self) {
        let me = Sleeper::current();
        let mut woken = true;
        loop {
            if std::mem::take(&mut woken) {
                self.idle.woke();
                if let Some(item) = self.take() {
                    if !self.list.is_empty() {
                        self.notify();
                    }
                    self.run(&item);
                }
            }
            while !self.idle.too_many()
                && let Some(item) = self.take()
            {
                self.run(&item);
            }
            if self.done() {
                self.idle.leave();
                return;
            }
            match self.idle.sleep(&me, || !self.list.is_empty() || self.done()) {
                Slept::Stayed => {}
                Slept::Woken => woken = true,
                Slept::Exit => return,
            }
        }
    }

    fn run(&self, item: &Item) {
        if item.waits {
            self.idle.block();
            if !self.list.is_empty() {
                self.notify();
            }
            while self.ran.load(Relaxed) + 1 < self.items {
                thread::yield_now();
            }
            self.idle.unblock();
        }
        self.ran.fetch_add(1, Relaxed);
    }
}

/// Queues from two threads (the model's own is one) to `workers` workers of which `limit` may run.
fn scene(limit: usize, workers: usize, first: bool, second: Option<bool>, third: Option<bool>) {
    let items = 1 + usize::from(second.is_some()) + usize::from(third.is_some());
    let pool = Pool::new(limit, workers, items);
    let mut threads: Vec<_> = (0..workers)
        .map(|_| {
            let pool = Arc::clone(&pool);
            thread::spawn(move || pool.work())
        })
        .collect();
    if let Some(waits) = third {
        let pool = Arc::clone(&pool);
        threads.push(thread::spawn(move || pool.queue(item(waits))));
    }
    pool.queue(item(first));
    if let Some(waits) = second {
        pool.queue(item(waits));
    }
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(pool.ran.load(Relaxed), items);
    assert!(pool.list.is_empty());
}

#[test]
fn nothing_is_forgotten_by_one_worker() {
    model(3, || scene(1, 1, false, Some(false), None));
}

#[test]
fn nothing_is_forgotten_by_one_worker_and_two_queuers() {
    model(2, || scene(1, 1, false, None, Some(false)));
}

#[test]
fn nothing_is_forgotten_by_two_workers() {
    model(2, || scene(2, 2, false, Some(false), None));
}

#[test]
fn of_two_workers_one_runs_at_a_time() {
    model(2, || scene(1, 2, false, Some(false), None));
}

#[test]
fn a_worker_that_blocks_is_replaced() {
    // The first item waits for the second, which only the other worker can run.
    model(2, || scene(1, 2, true, Some(false), None));
}

#[test]
fn the_list_keeps_the_order_of_its_pushes_and_gives_each_item_once() {
    model(3, || {
        let list = Arc::new(Fifo::new());
        let (a, b, c) = (item(false), item(false), item(false));
        let pusher = {
            let list = Arc::clone(&list);
            let (a, b) = (Arc::clone(&a), Arc::clone(&b));
            thread::spawn(move || {
                list.push(a);
                list.push(b);
            })
        };
        list.push(Arc::clone(&c));
        let removed = list.remove(&a);
        let mut order = Vec::new();
        while let Some((item, ())) = list.pop(|_, _| ()) {
            order.push(item);
        }
        pusher.join().unwrap();
        while let Some((item, ())) = list.pop(|_, _| ()) {
            order.push(item);
        }
        let place = |wanted: &Arc<Item>| order.iter().position(|i| Arc::ptr_eq(i, wanted));
        assert!(place(&c).is_some());
        assert_eq!(place(&a).is_none(), removed.is_some());
        if let (Some(a), Some(b)) = (place(&a), place(&b)) {
            assert!(a < b, "two items of one thread changed places");
        }
        assert_eq!(order.len() + usize::from(removed.is_some()), 3);
        drop((removed, order));
        assert_eq!(Arc::strong_count(&a) + Arc::strong_count(&b) + Arc::strong_count(&c), 3, "no count is lost");
    });
}
