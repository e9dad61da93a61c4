//! The rescuer's protocol: whatever is on the list is run once, by the pool's own worker or by the rescuer.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use loom::sync::atomic::AtomicUsize;
use loom::thread;

use crate::list::{Fifo, Linked, Links};
use crate::mayday::Mayday;
use crate::model;

struct Item {
    links: Links<Item>,
    /// Of the rescuer's queue.
    ours: bool,
}

impl Linked for Item {
    fn links(&self) -> &Links<Item> {
        &self.links
    }
}

struct Pool {
    list: Fifo<Item>,
    ours: AtomicUsize,
    others: AtomicUsize,
}

impl Pool {
    fn push(&self, ours: bool) {
        self.list.push(Arc::new(Item { links: Links::new(), ours }));
    }

    fn run(&self, item: &Item) {
        let count = if item.ours { &self.ours } else { &self.others };
        count.fetch_add(1, Relaxed);
    }

    fn call(self: &Arc<Pool>, mayday: &Mayday<Arc<Pool>>) {
        if self.list.any(|item| item.ours) {
            mayday.call(self, Arc::ptr_eq);
        }
    }
}

/// As `Rescuer::run`. Counts the items of other queues that it took: none.
fn rescue(mayday: &Mayday<Arc<Pool>>) {
    while let Some(pool) = mayday.wait() {
        while let Some(item) = pool.list.remove_first(|item| item.ours) {
            assert!(item.ours);
            pool.run(&item);
        }
        pool.call(mayday);
    }
}

#[test]
fn i17_items_of_the_queue_are_run_although_no_worker_comes() {
    model(2, || {
        let pool = Arc::new(Pool { list: Fifo::new(), ours: AtomicUsize::new(0), others: AtomicUsize::new(0) });
        let mayday = Arc::new(Mayday::new());
        pool.push(false);
        pool.push(true);
        let rescuer = {
            let mayday = Arc::clone(&mayday);
            thread::spawn(move || rescue(&mayday))
        };
        pool.call(&mayday);
        pool.push(true);
        // The manager calls again for as long as items wait.
        pool.call(&mayday);
        mayday.stop();
        rescuer.join().unwrap();
        assert_eq!((pool.ours.load(Relaxed), pool.others.load(Relaxed)), (2, 0));
        assert!(pool.list.pop(|_, _| ()).is_some_and(|(item, ())| !item.ours));
    });
}

#[test]
fn a_worker_that_comes_after_all_and_the_rescuer_share_the_items() {
    model(2, || {
        let pool = Arc::new(Pool { list: Fifo::new(), ours: AtomicUsize::new(0), others: AtomicUsize::new(0) });
        let mayday = Arc::new(Mayday::new());
        pool.push(true);
        pool.push(false);
        pool.push(true);
        let rescuer = {
            let mayday = Arc::clone(&mayday);
            thread::spawn(move || rescue(&mayday))
        };
        pool.call(&mayday);
        while let Some((item, ())) = pool.list.pop(|_, _| ()) {
            pool.run(&item);
        }
        mayday.stop();
        rescuer.join().unwrap();
        assert_eq!((pool.ours.load(Relaxed), pool.others.load(Relaxed)), (2, 1));
    });
}
