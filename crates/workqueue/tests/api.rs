//! The calls one by one: return values, errors, limits.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::time::Duration;

use postread_sys::CpuSet;
use postread_workqueue::{
    AllocError, Config, ConfigError, FlushError, MaxActiveError, Pools, WQ_DFL_ACTIVE, WQ_MAX_ACTIVE, Work, Workqueue,
    WqFlags, blocking,
};

const BOTH: [WqFlags; 2] = [WqFlags::PERCPU, WqFlags::UNBOUND];

fn first_cpu() -> u32 {
    postread_sys::affinity::current().unwrap().first().unwrap()
}

/// An item that has started and waits until the test releases it.
struct Gate {
    entered: mpsc::Receiver<()>,
    release: mpsc::SyncSender<()>,
}

fn gate(wq: &Workqueue) -> Gate {
    let (enter, entered) = mpsc::sync_channel(1);
    let (release, released) = mpsc::sync_channel(1);
    let cpu = first_cpu();
    let queued = wq.spawn_on(cpu, move || {
        enter.send(()).unwrap();
        // An undeclared wait: the worker stays busy.
        released.recv().unwrap();
    });
    assert!(queued.unwrap());
    let gate = Gate { entered, release };
    gate.entered.recv().unwrap();
    gate
}

#[test]
fn bad_arguments_are_errors() {
    for flags in [WqFlags::empty(), WqFlags::PERCPU | WqFlags::UNBOUND, WqFlags::HIGHPRI] {
        assert!(matches!(Workqueue::alloc("x", flags, 0), Err(AllocError::Flags { .. })), "{flags:?}");
    }
    let unknown = WqFlags::from_bits_retain(1 << 20 | WqFlags::UNBOUND.bits());
    assert!(matches!(Workqueue::alloc("x", unknown, 0), Err(AllocError::Flags { .. })));
    for name in ["", "a\0b", "12345678901234567890123456789012"] {
        assert!(matches!(Workqueue::alloc(name, WqFlags::UNBOUND, 0), Err(AllocError::Name { .. })), "{name:?}");
    }
    let longest = "1234567890123456789012345678901";
    assert_eq!(Workqueue::alloc(longest, WqFlags::UNBOUND, 0).unwrap().name(), longest);
    assert!(matches!(Workqueue::alloc("x", WqFlags::UNBOUND, WQ_MAX_ACTIVE + 1), Err(AllocError::MaxActive(_))));
    let wq = Workqueue::alloc("x", WqFlags::UNBOUND, WQ_MAX_ACTIVE).unwrap();
    assert_eq!(wq.max_active(), WQ_MAX_ACTIVE);
    assert_eq!(wq.set_max_active(WQ_MAX_ACTIVE + 1), Err(MaxActiveError::TooMany { max_active: WQ_MAX_ACTIVE + 1 }));
    wq.set_max_active(0).unwrap();
    assert_eq!(wq.max_active(), WQ_DFL_ACTIVE);
    let work = Work::new(|_| {});
    assert_eq!(wq.queue_on(60000, &work).unwrap_err().cpu, 60000);
    assert!(wq.spawn_on(60000, || {}).is_err());
    assert!(wq.queue(&work), "a refused CPU leaves the item free");
}

#[test]
fn cpus_outside_the_mask_are_errors() {
    let outside = Config::new().cpus(CpuSet::from_iter([60000]));
    assert!(matches!(Pools::new(outside), Err(ConfigError::Cpus { .. })));
    assert!(matches!(Pools::new(Config::new().cpus(CpuSet::new())), Err(ConfigError::Cpus { .. })));
    let one = Pools::new(Config::new().cpus(CpuSet::from_iter([first_cpu()]))).unwrap();
    assert_eq!(one.unbound_concurrency(), 1);
    for flags in BOTH {
        let wq = one.alloc("one", flags, 0).unwrap();
        let ran = Arc::new(AtomicUsize::new(0));
        for _ in 0..100 {
            let ran = Arc::clone(&ran);
            assert!(wq.spawn(move || {
                ran.fetch_add(1, Ordering::Relaxed);
            }));
        }
        wq.flush().unwrap();
        assert_eq!(ran.load(Ordering::Relaxed), 100);
        let other = postread_sys::affinity::current().unwrap().iter().find(|&c| c != first_cpu());
        if let Some(other) = other {
            assert_eq!(wq.spawn_on(other, || {}).unwrap_err().cpu, other);
        }
    }
}

#[test]
fn queue_is_false_only_while_pending() {
    for flags in BOTH {
        let wq = Workqueue::alloc("pending", flags, 1).unwrap();
        let runs = Arc::new(AtomicU64::new(0));
        let work = Work::new({
            let runs = Arc::clone(&runs);
            move |_| {
                runs.fetch_add(1, Ordering::Relaxed);
            }
        });
        let gate = gate(&wq);
        assert!(wq.queue_on(first_cpu(), &work).unwrap());
        assert!(work.is_pending());
        assert!(!wq.queue(&work));
        assert!(!wq.queue_on(first_cpu(), &work).unwrap());
        assert!(work.cancel());
        assert!(!work.cancel(), "nothing is pending now");
        assert!(wq.queue_on(first_cpu(), &work).unwrap());
        gate.release.send(()).unwrap();
        wq.flush().unwrap();
        assert_eq!(runs.load(Ordering::Relaxed), 1);
        assert!(!work.flush().unwrap() && !work.cancel_sync().unwrap());
        let stats = wq.stats();
        assert_eq!((stats.queued, stats.executed, stats.cancelled, stats.in_flight), (3, 2, 1, 0));
    }
}

#[test]
fn cancel_sync_ends_an_item_that_queues_itself() {
    for flags in BOTH {
        let wq = Workqueue::alloc("self", flags, 0).unwrap();
        let runs = Arc::new(AtomicU64::new(0));
        let own_cancel_refused = Arc::new(AtomicBool::new(false));
        let work = Work::new({
            let (wq, runs, refused) = (wq.clone(), Arc::clone(&runs), Arc::clone(&own_cancel_refused));
            move |work| {
                refused
                    .store(work.cancel_sync().is_err() && work.flush() == Err(FlushError::OwnItem), Ordering::Relaxed);
                runs.fetch_add(1, Ordering::Relaxed);
                wq.queue(work);
            }
        });
        assert!(wq.queue(&work));
        while runs.load(Ordering::Relaxed) < 100 {
            work.flush().unwrap();
        }
        work.cancel_sync().unwrap();
        let after = runs.load(Ordering::Relaxed);
        assert!(!work.is_busy() && !work.flush().unwrap());
        assert_eq!(runs.load(Ordering::Relaxed), after);
        assert!(own_cancel_refused.load(Ordering::Relaxed));
        assert!(wq.queue(&work), "queueing works again");
        work.cancel_sync().unwrap();
    }
}

#[test]
fn a_panic_is_counted_once_and_the_worker_lives_on() {
    for flags in BOTH {
        let pools = Pools::new(Config::new().cpus(CpuSet::from_iter([first_cpu()]))).unwrap();
        let wq = pools.alloc("panics", flags, 0).unwrap();
        let before: Vec<i32> = pools.stats()[0].workers.iter().map(|w| w.tid).collect();
        let work = Work::new(|_| std::panic::panic_any(7));
        for _ in 0..3 {
            wq.queue(&work);
            work.flush().unwrap();
        }
        /// Panics when it is dropped as a panic's payload.
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("in the payload's destructor");
            }
        }
        wq.spawn(|| std::panic::panic_any(Bomb));
        assert_eq!(wq.flush().unwrap().panics, 4);
        assert_eq!(wq.flush().unwrap().panics, 0);
        assert_eq!(work.panics(), 3);
        assert_eq!(wq.stats().panics, 4);
        let after: Vec<i32> = pools.stats()[0].workers.iter().map(|w| w.tid).collect();
        assert_eq!(before, after, "the same worker");
    }
}

#[test]
fn a_function_that_panics_when_it_is_dropped_leaves_the_worker_alive() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            if !std::thread::panicking() {
                panic!("in the function's destructor");
            }
        }
    }
    let config = Config::new().cpu_intensive_thresh(Duration::ZERO);
    let pools = Pools::new(config.unbound_concurrency(1)).unwrap();
    let wq = pools.alloc("bomb", WqFlags::UNBOUND, 0).unwrap();
    let hold = gate(&wq);
    let bomb = Bomb;
    let work = Work::new(move |_| {
        let _ = &bomb;
    });
    wq.queue(&work);
    drop(work);
    wq.spawn(|| {});
    hold.release.send(()).unwrap();
    wq.flush().unwrap();
    assert_eq!((wq.stats().executed, wq.stats().panics), (3, 1));
    assert_eq!(pools.stats()[0].workers.len(), 1);
}

#[test]
fn an_item_may_flush_another_queue_on_its_own_cpu() {
    for flags in BOTH {
        let pools = Pools::new(Config::new().cpus(CpuSet::from_iter([first_cpu()]))).unwrap();
        let (upper, lower) = (pools.alloc("upper", flags, 1).unwrap(), pools.alloc("lower", flags, 1).unwrap());
        let ran = Arc::new(AtomicUsize::new(0));
        let (queue, count) = (lower.clone(), Arc::clone(&ran));
        upper.spawn(move || {
            for wait in [Workqueue::flush, Workqueue::drain] {
                let inner = Arc::clone(&count);
                assert!(queue.spawn(move || {
                    inner.fetch_add(1, Ordering::Relaxed);
                }));
                wait(&queue).unwrap();
            }
            let inner = Arc::clone(&count);
            let work = Work::new(move |_| {
                inner.fetch_add(1, Ordering::Relaxed);
            });
            queue.queue(&work);
            work.flush().unwrap();
        });
        assert_eq!(upper.flush().unwrap().panics, 0);
        assert_eq!(ran.load(Ordering::Relaxed), 3);
    }
}

#[test]
fn waiting_for_the_own_queue_is_an_error() {
    for flags in BOTH {
        let wq = Workqueue::alloc("own", flags, 0).unwrap();
        let other = Work::new(|_| {});
        wq.queue(&other);
        other.flush().unwrap();
        let (tell, told) = mpsc::channel();
        let inside = wq.clone();
        wq.spawn(move || tell.send((inside.flush(), inside.drain(), other.flush())).unwrap());
        let expected = Err(FlushError::SameQueue);
        assert_eq!(told.recv().unwrap(), (expected, expected, Err(FlushError::SameQueue)));
    }
}

#[test]
fn draining_takes_only_chained_items() {
    for flags in BOTH {
        let wq = Workqueue::alloc("drain", flags, 0).unwrap();
        let gate = gate(&wq);
        let chained = Arc::new(Mutex::new(Vec::new()));
        let (inner, results) = (wq.clone(), Arc::clone(&chained));
        wq.spawn_on(first_cpu(), move || {
            let (again, more) = (inner.clone(), Arc::clone(&results));
            let taken = inner.spawn(move || {
                let taken = again.spawn(|| {});
                more.lock().unwrap().push(taken);
            });
            results.lock().unwrap().push(taken);
        })
        .unwrap();
        let drainer = std::thread::spawn({
            let wq = wq.clone();
            move || wq.drain().unwrap()
        });
        // Until the drain has begun; every item taken before is harmless.
        while wq.spawn(|| {}) {
            std::thread::yield_now();
        }
        let work = Work::new(|_| {});
        assert!(!wq.queue(&work) && !work.is_pending());
        gate.release.send(()).unwrap();
        drainer.join().unwrap();
        assert_eq!(*chained.lock().unwrap(), [true, true]);
        assert_eq!(wq.stats().in_flight, 0);
        assert!(wq.queue(&work), "open again");
    }
}

#[test]
fn dropping_the_queue_runs_what_is_queued() {
    for flags in BOTH {
        let ran = Arc::new(AtomicUsize::new(0));
        let wq = Workqueue::alloc("drop", flags, 2).unwrap();
        for _ in 0..1000 {
            let ran = Arc::clone(&ran);
            wq.spawn(move || {
                ran.fetch_add(1, Ordering::Relaxed);
            });
        }
        drop(wq);
        assert_eq!(ran.load(Ordering::Relaxed), 1000);
        // By its own items, which cannot wait for themselves.
        let wq = Workqueue::alloc("drop", flags, 1).unwrap();
        let (tell, told) = mpsc::channel();
        for _ in 0..10 {
            let (wq, tell) = (wq.clone(), tell.clone());
            assert!(wq.clone().spawn(move || {
                drop(wq);
                tell.send(()).unwrap();
            }));
        }
        drop(wq);
        for _ in 0..10 {
            told.recv_timeout(Duration::from_secs(60)).unwrap();
        }
    }
}

#[test]
fn an_item_may_drop_its_last_handle_and_with_it_the_queue() {
    for flags in BOTH {
        let wq = Workqueue::alloc("free", flags, 1).unwrap();
        let (tell, told) = mpsc::channel();
        let slot: Arc<Mutex<Option<Work>>> = Arc::default();
        let work = Work::new({
            let (wq, slot) = (wq.clone(), Arc::clone(&slot));
            move |_| {
                drop(slot.lock().unwrap().take());
                tell.send(wq.name().to_owned()).unwrap();
            }
        });
        *slot.lock().unwrap() = Some(work.clone());
        let behind = Arc::new(AtomicUsize::new(0));
        let gate = gate(&wq);
        assert!(wq.queue_on(first_cpu(), &work).unwrap());
        for _ in 0..20 {
            let behind = Arc::clone(&behind);
            wq.spawn_on(first_cpu(), move || {
                behind.fetch_add(1, Ordering::Relaxed);
            })
            .unwrap();
        }
        drop((work, wq));
        gate.release.send(()).unwrap();
        assert_eq!(told.recv_timeout(Duration::from_secs(60)).unwrap(), "free");
        while behind.load(Ordering::Relaxed) < 20 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn as_many_items_as_max_active_may_wait_for_each_other() {
    let cpu = first_cpu();
    for flags in BOTH {
        for n in [2, 7, 64] {
            let wq = Workqueue::alloc("rendezvous", flags, n).unwrap();
            for _ in 0..5 {
                let barrier = Arc::new(Barrier::new(n));
                // Short items before and between, so that places are given back in batches.
                for i in 0..n {
                    for _ in 0..i % 5 {
                        wq.spawn_on(cpu, || {}).unwrap();
                    }
                    let barrier = Arc::clone(&barrier);
                    wq.spawn_on(cpu, move || {
                        blocking(|| barrier.wait());
                    })
                    .unwrap();
                }
                wq.flush().unwrap();
            }
        }
    }
}

#[test]
fn workers_leave_when_they_have_long_been_idle() {
    let config = Config::new().idle_timeout(Duration::from_millis(5)).unbound_concurrency(1);
    let pools = Pools::new(config).unwrap();
    let wq = pools.alloc("cull", WqFlags::UNBOUND, 0).unwrap();
    let barrier = Arc::new(Barrier::new(8));
    for _ in 0..8 {
        let barrier = Arc::clone(&barrier);
        wq.spawn(move || {
            blocking(|| barrier.wait());
        });
    }
    wq.flush().unwrap();
    let most = pools.stats()[0].workers.len();
    assert!(most >= 8, "{most}");
    while pools.stats()[0].workers.len() > 1 {
        std::thread::sleep(Duration::from_millis(5));
    }
    wq.spawn(|| {});
    assert_eq!(wq.flush().unwrap().panics, 0);
    let stats = wq.stats();
    assert!(stats.pools[0].sched.run_time_ns > stats.pools[0].workers[0].sched.run_time_ns, "the others still count");
}

#[test]
fn a_thread_that_cannot_be_made_loses_no_item() {
    let pools = Pools::new(Config::new().max_threads(1).unbound_concurrency(4)).unwrap();
    let wq = pools.alloc("threads", WqFlags::UNBOUND, 0).unwrap();
    assert!(matches!(pools.alloc("more", WqFlags::PERCPU, 0), Err(AllocError::Worker { .. })));
    let ran = Arc::new(AtomicUsize::new(0));
    for _ in 0..100 {
        let ran = Arc::clone(&ran);
        wq.spawn(move || {
            blocking(|| std::thread::sleep(Duration::from_micros(300)));
            ran.fetch_add(1, Ordering::Relaxed);
        });
    }
    wq.flush().unwrap();
    assert_eq!(ran.load(Ordering::Relaxed), 100);
    assert!(pools.stats()[0].thread_failures > 0);
    assert_eq!(pools.stats()[0].workers.len(), 1);
}

#[test]
fn threads_have_names_and_pools_show_their_priority() {
    let pools = Pools::new(Config::new().cpus(CpuSet::from_iter([first_cpu()]))).unwrap();
    let cpu = first_cpu();
    let cases = [
        (WqFlags::PERCPU, format!("pr/{cpu}:0")),
        (WqFlags::PERCPU | WqFlags::HIGHPRI, format!("pr/{cpu}:0H")),
        (WqFlags::UNBOUND, "pr/u0:0".into()),
        (WqFlags::UNBOUND | WqFlags::HIGHPRI, "pr/u1:0H".into()),
    ];
    for (flags, name) in cases {
        let wq = pools.alloc("names", flags, 0).unwrap();
        let (tell, told) = mpsc::channel();
        wq.spawn(move || {
            let comm = std::fs::read_to_string("/proc/thread-self/comm").unwrap();
            let nice = postread_sys::priority::current_nice().unwrap();
            let affinity = postread_sys::affinity::current().unwrap();
            tell.send((comm.trim().to_owned(), nice, affinity, postread_sys::gettid())).unwrap();
        });
        let (comm, nice, affinity, tid) = told.recv().unwrap();
        assert_eq!(comm, name);
        assert_eq!(affinity, CpuSet::from_iter([cpu]));
        let stats = wq.stats();
        let worker = &stats.pools[0].workers[0];
        assert_eq!((worker.name.as_str(), worker.tid), (name.as_str(), tid));
        assert!(worker.sched.run_time_ns > 0);
        assert_eq!(stats.pools[0].priority.is_some(), flags.contains(WqFlags::HIGHPRI));
        match stats.pools[0].priority {
            Some(postread_sys::priority::HighPriority::Nice(granted)) => assert_eq!(granted, nice),
            _ => assert_eq!(nice, postread_sys::priority::current_nice().unwrap()),
        }
        assert!(stats.group.is_some());
    }
}

#[test]
fn stats_show_where_an_item_waited() {
    let wq = Workqueue::alloc("waits", WqFlags::PERCPU, 1).unwrap();
    let first = wq.stats();
    let hold = gate(&wq);
    // The second waits for its place, not for a worker.
    wq.spawn_on(first_cpu(), || {}).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    hold.release.send(()).unwrap();
    wq.flush().unwrap();
    let stats = &wq.stats() - &first;
    assert_eq!((stats.queued, stats.executed, stats.in_flight), (2, 2, 0));
    assert_eq!(stats.queue_to_start.count(), 2);
    assert_eq!(stats.queue_to_activate.count(), 2);
    assert_eq!(stats.run.count(), 2);
    let long = Duration::from_millis(19);
    assert!(stats.queue_to_activate.max().unwrap() >= long, "{stats:?}");
    assert!(stats.run.max().unwrap() >= long, "{stats:?}");
    assert_eq!(stats.cpus.iter().map(|c| c.started).sum::<u64>(), 2);
    assert_eq!(stats.cpus.iter().map(|c| c.queued).sum::<u64>(), 2);
}
