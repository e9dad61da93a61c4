//! All operations at random, by several threads on several queues. At the end every count must balance.
//!
//! `POSTREAD_STRESS_SECS` is how long (2), `POSTREAD_SEED` repeats a choice of operations (not their interleaving). The
//! binary runs on its own, so a script can run it on few CPUs (`taskset`) or many (in the emulator).

mod common;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use common::{Rng, split_topology, within_patience_and};
use postread_workqueue::{
    AffnScope, Config, DelayedWork, Executed, Pools, Work, Workqueue, WqAttrs, WqFlags, blocking,
};

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
    ordered: bool,
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
    // An item holds its queue only if it queues a chained one.
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

/// A delayed item, on a queue for these only: nobody but the queue knows whether a timer or a list held what was cancelled.
struct Delayed {
    item: DelayedWork,
    wq: Workqueue,
    ran: Arc<AtomicU64>,
    overlaps: Arc<AtomicUsize>,
}

impl Delayed {
    fn new(wq: Workqueue) -> Delayed {
        let (ran, overlaps, inside) =
            (Arc::<AtomicU64>::default(), Arc::<AtomicUsize>::default(), AtomicBool::new(false));
        let (count, overlap) = (Arc::clone(&ran), Arc::clone(&overlaps));
        let item = DelayedWork::new(move |_| {
            if inside.swap(true, Ordering::SeqCst) {
                overlap.fetch_add(1, Ordering::SeqCst);
            }
            count.fetch_add(1, Ordering::SeqCst);
            (0..200).for_each(|_| std::hint::spin_loop());
            inside.store(false, Ordering::SeqCst);
        });
        Delayed { item, wq, ran, overlaps }
    }

    fn operate(&self, rng: &mut Rng) {
        let delay = Duration::from_micros(rng.next() % 3000);
        match rng.below(12) {
            0..3 => drop(self.wq.queue_delayed(&self.item, delay)),
            3..6 => drop(self.wq.mod_delayed(&self.item, delay)),
            6 => drop(self.wq.mod_delayed(&self.item, Duration::ZERO)),
            7 => drop(self.item.cancel()),
            8 => drop(self.item.flush().unwrap()),
            9 => {
                // Others may have disabled it as well, so a queueing may fail either way; only the count must be right.
                self.item.work().disable();
                let _ = self.wq.queue(self.item.work());
                self.item.work().enable().unwrap();
            }
            10 => {
                self.item.work().disable_sync().unwrap();
                self.wq.enable_and_queue(self.item.work()).unwrap();
            }
            _ => drop(self.wq.queue(self.item.work())),
        }
    }

    fn check(&self) {
        self.item.cancel_sync().unwrap();
        assert!(!self.item.work().is_busy() && self.item.work().disable_depth() == 0);
        assert_eq!(self.overlaps.load(Ordering::SeqCst), 0, "it ran twice at once");
        self.wq.drain().unwrap();
        let stats = self.wq.stats();
        assert_eq!((stats.executed, stats.in_flight), (self.ran.load(Ordering::SeqCst), 0), "{stats}");
        assert_eq!(stats.queued, stats.executed + stats.cancelled, "{stats}");
    }
}

fn operate(rng: &mut Rng, pools: &Pools, queues: &[Queue], items: &[Item], delayed: &[Delayed]) {
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
        0..200 => queued_item(queues[item.queue].wq.queue(&item.work)),
        200..240 => delayed[rng.below(delayed.len())].operate(rng),
        240..280 => {
            let bytes = rng.below(12_000);
            queued_item(queues[item.queue].wq.execute_or_queue(&item.work, bytes) != Executed::No);
        }
        280..300 => {
            let node = rng.below(cpus.len()) as u32;
            if let Ok(queued) = queues[item.queue].wq.queue_node(node, &item.work) {
                queued_item(queued);
            }
        }
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
        970..980 => {
            if !queue.ordered {
                queue.wq.set_max_active(1 + rng.below(6)).unwrap();
            }
        }
        // It may be above the other's max_active.
        980..983 => drop(queue.wq.set_min_active(1 + rng.below(6))),
        983..985 => {
            if queue.wq.flags().contains(WqFlags::UNBOUND) {
                let scope = AffnScope::ALL[rng.below(6)];
                queue.wq.apply_attrs(&WqAttrs::new().affn_scope(scope).affn_strict(rng.below(2) == 0)).unwrap();
            }
        }
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
        994..997 => {
            let number = rng.next();
            let ran = Arc::clone(&queue.counts);
            let task = queue.wq.spawn_task(move || {
                ran.ran.fetch_add(1, Ordering::Relaxed);
                number
            });
            // Of a draining queue, it was never queued.
            match task.join() {
                Ok(result) => {
                    assert_eq!(result, number);
                    queue.counts.queued.fetch_add(1, Ordering::Relaxed);
                }
                Err(error) => assert!(matches!(error, postread_workqueue::JoinError::Cancelled), "{error:?}"),
            }
        }
        _ => thread::sleep(Duration::from_micros(rng.next() % 2000)),
    }
}

fn check(queues: &[Queue], items: &[Item], delayed: &[Delayed]) {
    delayed.iter().for_each(Delayed::check);
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
    for Queue { wq, counts, .. } in queues {
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
    // The threshold is short enough that the monitor takes notice of some items.
    let config = Config::new()
        .unbound_concurrency(3)
        .idle_timeout(Duration::from_millis(20))
        .cpu_intensive_thresh(Duration::from_millis(1))
        .topology(split_topology());
    let pools = Pools::new(config).unwrap();
    let kinds = [
        ("stress_bound", WqFlags::PERCPU, 0),
        ("stress_bound_1", WqFlags::PERCPU, 1),
        ("stress_bound_high", WqFlags::PERCPU | WqFlags::HIGHPRI, 3),
        ("stress_intensive", WqFlags::PERCPU | WqFlags::CPU_INTENSIVE, 2),
        ("stress_unbound", WqFlags::UNBOUND, 0),
        ("stress_unbound_1", WqFlags::UNBOUND, 1),
        ("stress_unbound_high", WqFlags::UNBOUND | WqFlags::HIGHPRI, 2),
        ("stress_reclaim", WqFlags::UNBOUND | WqFlags::MEM_RECLAIM, 2),
    ];
    let queues: Vec<Queue> = kinds
        .into_iter()
        .map(|(name, flags, max)| (pools.alloc(name, flags, max).unwrap(), false))
        .chain([(pools.alloc_ordered("stress_ordered", WqFlags::empty()).unwrap(), true)])
        .map(|(wq, ordered)| Queue { wq, ordered, counts: Arc::default() })
        .collect();
    let delayed: Vec<Delayed> = [WqFlags::PERCPU, WqFlags::UNBOUND, WqFlags::UNBOUND | WqFlags::HIGHPRI]
        .into_iter()
        .map(|flags| Delayed::new(pools.alloc("stress_delayed", flags, 1).unwrap()))
        .collect();
    let others = Arc::new(OnceLock::new());
    let items: Vec<Item> =
        (0..WORKS).map(|i| item(&queues, i % queues.len(), Arc::clone(&others), seed + 100 + i as u64)).collect();
    others.set(items.iter().map(|i| i.work.clone()).collect()).unwrap();
    let end = Instant::now() + duration;
    let mut round = 0;
    while Instant::now() < end {
        thread::scope(|s| {
            for t in 0..THREADS {
                let (pools, queues, items, delayed) = (&pools, &queues, &items, &delayed);
                s.spawn(move || {
                    let mut rng = Rng::new(seed ^ (round * THREADS + t) as u64);
                    for _ in 0..2000 {
                        operate(&mut rng, pools, queues, items, delayed);
                    }
                });
            }
        });
        check(&queues, &items, &delayed);
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
