//! All operations at random, by several threads on several queues; at the end every count must balance.
//!
//! `POSTREAD_STRESS_SECS` is how long (2), `POSTREAD_SEED` repeats a choice of operations (not their interleaving). The
//! binary runs alone, so a script can run it under few CPUs (`taskset`) or many (in the emulator).

mod common;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use common::{Rng, within_patience_and};
use postread_workqueue::{Config, Pools, Work, Workqueue, WqFlags, blocking};

const THREADS: usize = 4;
const WORKS: usize = 12;

/// What the test counted itself, of one queue. One-shot items and reusable ones alike.
#[derive(Default)]
struct Counts {
    queued: AtomicU64,
    ran: AtomicU64,
    cancelled: AtomicU64,
    panicked: AtomicU64,
}

struct Queue {
    wq: Workqueue,
    counts: Arc<Counts>,
}

/// A reusable item that only ever goes on one queue, so that its counts are that queue's.
struct Item {
    work: Work,
    queue: usize,
    state: Arc<ItemState>,
}

#[derive(Default)]
struct ItemState {
    inside: AtomicBool,
    overlaps: AtomicUsize,
    queued: AtomicU64,
    ran: AtomicU64,
    cancelled: AtomicU64,
}

/// An item's panic that belongs to the test.
struct Intended;

fn one_shot(counts: &Arc<Counts>, wq: &Workqueue, kind: usize, rng: u64) -> impl FnOnce() + Send + 'static {
    // Weak in effect: an item holds its queue only while it may queue a chained one.
    let (counts, wq) = (Arc::clone(counts), (kind == 3).then(|| wq.clone()));
    move || {
        counts.ran.fetch_add(1, Ordering::Relaxed);
        match kind {
            0 => (0..rng % 2000).for_each(|_| std::hint::spin_loop()),
            1 => blocking(|| thread::sleep(Duration::from_micros(rng % 200))),
            2 => {
                counts.panicked.fetch_add(1, Ordering::Relaxed);
                std::panic::panic_any(Intended);
            }
            3 => {
                if let Some(wq) = wq {
                    let inner = Arc::clone(&counts);
                    // Chained: accepted even while the queue drains.
                    let queued = wq.spawn(move || {
                        inner.ran.fetch_add(1, Ordering::Relaxed);
                    });
                    assert!(queued, "a chained item was turned away");
                    counts.queued.fetch_add(1, Ordering::Relaxed);
                }
            }
            _ => {}
        }
    }
}

fn item(queues: &[Queue], queue: usize, others: Arc<OnceLock<Vec<Work>>>, seed: u64) -> Item {
    let state = Arc::new(ItemState::default());
    let (counts, wq) = (Arc::clone(&queues[queue].counts), queues[queue].wq.clone());
    let rng = Mutex::new(Rng::new(seed));
    let work = Work::new({
        let state = Arc::clone(&state);
        move |me| {
            if state.inside.swap(true, Ordering::SeqCst) {
                state.overlaps.fetch_add(1, Ordering::SeqCst);
            }
            counts.ran.fetch_add(1, Ordering::Relaxed);
            state.ran.fetch_add(1, Ordering::Relaxed);
            let (kind, length) = {
                let mut rng = rng.lock().unwrap();
                (rng.below(12), rng.next())
            };
            match kind {
                0 => blocking(|| thread::sleep(Duration::from_micros(length % 300))),
                // Itself.
                1 => {
                    if wq.queue(me) {
                        counts.queued.fetch_add(1, Ordering::Relaxed);
                        state.queued.fetch_add(1, Ordering::Relaxed);
                    }
                }
                // Another one, off its queue: without a wait.
                2 => {
                    if let Some(others) = others.get() {
                        let _ = others[length as usize % others.len()].is_busy();
                    }
                }
                3 => {
                    counts.panicked.fetch_add(1, Ordering::Relaxed);
                    state.inside.store(false, Ordering::SeqCst);
                    std::panic::panic_any(Intended);
                }
                _ => (0..length % 500).for_each(|_| std::hint::spin_loop()),
            }
            state.inside.store(false, Ordering::SeqCst);
        }
    });
    Item { work, queue, state }
}

fn operate(rng: &mut Rng, pools: &Pools, queues: &[Queue], items: &[Item]) {
    let item = &items[rng.below(items.len())];
    let queue = &queues[rng.below(queues.len())];
    let cpus: Vec<u32> = pools.cpus().iter().collect();
    let cpu = cpus[rng.below(cpus.len())];
    let queued_item = |queued: bool| {
        queues[item.queue].counts.queued.fetch_add(u64::from(queued), Ordering::Relaxed);
        item.state.queued.fetch_add(u64::from(queued), Ordering::Relaxed);
    };
    let cancelled_item = |cancelled: bool| {
        queues[item.queue].counts.cancelled.fetch_add(u64::from(cancelled), Ordering::Relaxed);
        item.state.cancelled.fetch_add(u64::from(cancelled), Ordering::Relaxed);
    };
    match rng.below(1000) {
        0..300 => queued_item(queues[item.queue].wq.queue(&item.work)),
        300..450 => queued_item(queues[item.queue].wq.queue_on(cpu, &item.work).unwrap()),
        450..700 => {
            let item = one_shot(&queue.counts, &queue.wq, rng.below(8), rng.next());
            queue.counts.queued.fetch_add(u64::from(queue.wq.spawn(item)), Ordering::Relaxed);
        }
        700..800 => {
            let item = one_shot(&queue.counts, &queue.wq, rng.below(8), rng.next());
            queue.counts.queued.fetch_add(u64::from(queue.wq.spawn_on(cpu, item).unwrap()), Ordering::Relaxed);
        }
        800..880 => cancelled_item(item.work.cancel()),
        880..920 => cancelled_item(item.work.cancel_sync().unwrap()),
        920..950 => drop(item.work.flush().unwrap()),
        950..965 => drop(queue.wq.flush().unwrap()),
        965..970 => drop(queue.wq.drain().unwrap()),
        970..985 => queue.wq.set_max_active(1 + rng.below(6)).unwrap(),
        985..990 => {
            let stats = queue.wq.stats();
            assert!(stats.executed + stats.cancelled <= stats.queued, "{stats:?}");
        }
        990..994 => {
            // A queue of its own, whose last handle goes with items still on it.
            let flags = if rng.below(2) == 0 { WqFlags::PERCPU } else { WqFlags::UNBOUND };
            let wq = pools.alloc("stress_short", flags, rng.below(3)).unwrap();
            let ran = Arc::new(AtomicUsize::new(0));
            for _ in 0..5 {
                let ran = Arc::clone(&ran);
                let queued = wq.spawn(move || {
                    ran.fetch_add(1, Ordering::SeqCst);
                });
                assert!(queued);
            }
            drop(wq);
            assert_eq!(ran.load(Ordering::SeqCst), 5, "dropping a queue runs what is on it");
        }
        _ => thread::sleep(Duration::from_micros(rng.next() % 2000)),
    }
}

fn check(queues: &[Queue], items: &[Item]) {
    for queue in queues {
        queue.wq.drain().unwrap();
    }
    for (i, item) in items.iter().enumerate() {
        assert!(!item.work.is_busy(), "item {i}");
        let count = |n: &AtomicU64| n.load(Ordering::SeqCst);
        let (queued, ran, cancelled) =
            (count(&item.state.queued), count(&item.state.ran), count(&item.state.cancelled));
        assert_eq!(queued, ran + cancelled, "item {i}: queued, ran + cancelled ({ran} + {cancelled})");
        assert_eq!(item.state.overlaps.load(Ordering::SeqCst), 0, "item {i} ran twice at once");
    }
    for Queue { wq, counts } in queues {
        let count = |n: &AtomicU64| n.load(Ordering::SeqCst);
        let (queued, ran, cancelled) = (count(&counts.queued), count(&counts.ran), count(&counts.cancelled));
        assert_eq!(queued, ran + cancelled, "{}: ran {ran}, cancelled {cancelled}", wq.name());
        let stats = wq.stats();
        assert_eq!(
            (stats.queued, stats.executed, stats.cancelled, stats.in_flight, stats.panics),
            (queued, ran, cancelled, 0, count(&counts.panicked)),
            "{}: what the queue counted, and the test",
            wq.name()
        );
        assert_eq!(stats.queue_to_start.count(), ran);
        assert_eq!(stats.cpus.iter().map(|c| c.queued).sum::<u64>(), queued);
        assert_eq!(stats.cpus.iter().map(|c| c.started).sum::<u64>(), ran);
    }
}

fn stress(duration: Duration, seed: u64) {
    let pools = Pools::new(Config::new().unbound_concurrency(3).idle_timeout(Duration::from_millis(20))).unwrap();
    let kinds = [
        ("stress_bound", WqFlags::PERCPU, 0),
        ("stress_bound_1", WqFlags::PERCPU, 1),
        ("stress_bound_high", WqFlags::PERCPU | WqFlags::HIGHPRI, 3),
        ("stress_unbound", WqFlags::UNBOUND, 0),
        ("stress_unbound_1", WqFlags::UNBOUND, 1),
        ("stress_unbound_high", WqFlags::UNBOUND | WqFlags::HIGHPRI, 2),
    ];
    let queues =
        kinds.map(|(name, flags, max)| Queue { wq: pools.alloc(name, flags, max).unwrap(), counts: Arc::default() });
    let others = Arc::new(OnceLock::new());
    let items: Vec<Item> =
        (0..WORKS).map(|i| item(&queues, i % queues.len(), Arc::clone(&others), seed + 100 + i as u64)).collect();
    others.set(items.iter().map(|i| i.work.clone()).collect()).unwrap();
    let end = Instant::now() + duration;
    let mut round = 0;
    while Instant::now() < end {
        thread::scope(|s| {
            for t in 0..THREADS {
                let (pools, queues, items) = (&pools, &queues, &items);
                s.spawn(move || {
                    let mut rng = Rng::new(seed ^ (round * THREADS + t) as u64);
                    for _ in 0..2000 {
                        operate(&mut rng, pools, queues, items);
                    }
                });
            }
        });
        check(&queues, &items);
        round += 1;
    }
    let total: u64 = queues.iter().map(|q| q.counts.ran.load(Ordering::Relaxed)).sum();
    println!("{round} rounds, {total} items on {} CPUs", pools.cpus().len());
}

#[test]
fn all_operations_at_random() {
    let seed = postread_tests::seed();
    let secs = std::env::var("POSTREAD_STRESS_SECS").ok().map_or(2, |s| s.parse().expect("a number of seconds"));
    let duration = Duration::from_secs(secs);
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if info.payload().downcast_ref::<Intended>().is_none() {
            hook(info);
        }
    }));
    within_patience_and(duration, move || stress(duration, seed));
}
