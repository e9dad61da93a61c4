//! Foreign code: closures, destructors, last handles that go anywhere. Nothing that a caller's code does on a worker
//! may cost a worker, and no item's run may depend on which thread drops something last.

mod common;

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use common::{BOTH, Rng, config, pools, two_cpus, within_patience};
use postread_sys::CpuSet;
use postread_workqueue::{Config, Pools, Work, Workqueue, WqFlags, blocking};

/// Panics when it is dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        if !thread::panicking() {
            std::panic::panic_any(Intended);
        }
    }
}

/// A panic that belongs to a test.
struct Intended;

fn quiet() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if info.payload().downcast_ref::<Intended>().is_none() {
                hook(info);
            }
        }));
    });
}

fn spin(turns: usize) {
    (0..turns).for_each(|_| std::hint::spin_loop());
}

/// Until `count` is `expected`; the caller runs under [`within_patience`].
fn wait_for(count: &AtomicUsize, expected: usize) {
    while count.load(Ordering::SeqCst) < expected {
        thread::sleep(Duration::from_micros(100));
    }
}

#[test]
fn a_queue_whose_last_handle_an_item_holds_runs_all_its_items() {
    within_patience(|| {
        let pools = pools();
        let mut rng = Rng::new(postread_tests::seed());
        for round in 0..3000 {
            let wq = pools.alloc("captured", BOTH[round % 2], 1).unwrap();
            let (ran, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
            let work = Work::new({
                let (held, ran) = (wq.clone(), Arc::clone(&ran));
                move |_| {
                    let _ = &held;
                    spin(500);
                    ran.store(true, Ordering::Release);
                }
            });
            wq.queue(&work);
            for _ in 0..3 {
                let count = Arc::clone(&count);
                wq.spawn(move || {
                    count.fetch_add(1, Ordering::SeqCst);
                });
            }
            drop(wq);
            // The worker and this thread drop the item at about the same time; with it goes the last handle.
            while !ran.load(Ordering::Acquire) {
                std::hint::spin_loop();
            }
            spin(rng.below(400));
            drop(work);
            wait_for(&count, 3);
        }
        // And certainly by the worker.
        for flags in BOTH {
            let wq = pools.alloc("captured", flags, 1).unwrap();
            let count = Arc::new(AtomicUsize::new(0));
            let (go, may_go) = mpsc::channel::<()>();
            let work = Work::new({
                let (held, may_go) = (wq.clone(), Mutex::new(may_go));
                move |_| {
                    let _ = &held;
                    let _ = may_go.lock().unwrap().recv();
                }
            });
            wq.queue(&work);
            for _ in 0..3 {
                let count = Arc::clone(&count);
                wq.spawn(move || {
                    count.fetch_add(1, Ordering::SeqCst);
                });
            }
            drop((work, wq));
            go.send(()).unwrap();
            wait_for(&count, 3);
        }
    });
}

#[test]
fn dropping_the_last_handle_of_another_queue_on_a_worker_does_not_wait() {
    within_patience(|| {
        for flags in BOTH {
            // One thread in all: whoever waits on it for the other queue waits for ever.
            let cpu = two_cpus().0;
            let pools =
                Pools::new(Config::new().cpus(CpuSet::from_iter([cpu])).unbound_concurrency(1).max_threads(1)).unwrap();
            let (upper, lower) = (pools.alloc("upper", flags, 0).unwrap(), pools.alloc("lower", flags, 0).unwrap());
            let (ran, behind) = (Arc::new(AtomicUsize::new(0)), Arc::<AtomicUsize>::default());
            let (count, after) = (Arc::clone(&ran), Arc::clone(&behind));
            upper.spawn(move || {
                for _ in 0..10 {
                    let count = Arc::clone(&count);
                    lower.spawn(move || {
                        count.fetch_add(1, Ordering::SeqCst);
                    });
                }
                drop(lower);
                after.store(count.load(Ordering::SeqCst) + 1, Ordering::SeqCst);
            });
            upper.flush().unwrap();
            wait_for(&ran, 10);
            assert_eq!(behind.load(Ordering::SeqCst), 1, "{flags:?}: the drop waited");
        }
    });
}

#[test]
fn a_destructor_that_panics_costs_no_worker() {
    quiet();
    within_patience(|| {
        for flags in BOTH {
            let cpu = two_cpus().0;
            let pools = Pools::new(config().cpus(CpuSet::from_iter([cpu])).unbound_concurrency(1)).unwrap();
            let wq = pools.alloc("bombs", flags, 0).unwrap();
            let before: Vec<i32> = pools.stats()[0].workers.iter().map(|w| w.tid).collect();
            let mut rng = Rng::new(postread_tests::seed());
            for _ in 0..3000 {
                let ran = Arc::new(AtomicBool::new(false));
                let work = Work::new({
                    let (bomb, ran) = (Bomb, Arc::clone(&ran));
                    move |_| {
                        let _ = &bomb;
                        ran.store(true, Ordering::Release);
                    }
                });
                wq.queue_on(cpu, &work).unwrap();
                while !ran.load(Ordering::Acquire) {
                    thread::yield_now();
                }
                spin(rng.below(300));
                let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(work)));
            }
            // And certainly by the worker, since the other handles are gone before the function returns.
            for _ in 0..100 {
                let (go, may_go) = mpsc::channel::<()>();
                let may_go = Mutex::new(may_go);
                let bomb = Bomb;
                let work = Work::new(move |_| {
                    let _ = &bomb;
                    let _ = may_go.lock().unwrap().recv();
                });
                wq.queue_on(cpu, &work).unwrap();
                drop(work);
                go.send(()).unwrap();
            }
            wq.flush().unwrap();
            // The last one is destroyed after it has been counted done.
            while wq.stats().panics < 100 {
                thread::sleep(Duration::from_micros(100));
            }
            // Of one-shot items: captured values, payloads, payloads of payloads.
            let bomb = Bomb;
            wq.spawn_on(cpu, move || drop(bomb)).unwrap();
            wq.spawn_on(cpu, || std::panic::panic_any(Bomb)).unwrap();
            wq.flush().unwrap();
            let after: Vec<i32> = pools.stats()[0].workers.iter().map(|w| w.tid).collect();
            assert_eq!(before, after, "{flags:?}: a worker is gone");
            assert_eq!(wq.stats().in_flight, 0);
        }
    });
}

#[test]
fn an_item_may_be_queued_to_another_set_of_pools_while_it_runs() {
    within_patience(|| {
        for flags in BOTH {
            let (first, last) = two_cpus();
            let big = Pools::new(Config::new()).unwrap();
            let small = Pools::new(Config::new().cpus(CpuSet::from_iter([first]))).unwrap();
            let (one, two) = (big.alloc("one", flags, 0).unwrap(), small.alloc("two", WqFlags::UNBOUND, 0).unwrap());
            let (enter, entered) = mpsc::channel();
            let (go, may_go) = mpsc::channel::<()>();
            let (enter, may_go) = (Mutex::new(enter), Mutex::new(may_go));
            let inside = AtomicUsize::new(0);
            let work = Work::new(move |_| {
                let overlap = inside.fetch_add(1, Ordering::SeqCst);
                enter.lock().unwrap().send((overlap, thread::current().name().map(str::to_owned))).unwrap();
                blocking(|| may_go.lock().unwrap().recv()).unwrap();
                inside.fetch_sub(1, Ordering::SeqCst);
            });
            one.queue_on(last, &work).unwrap();
            entered.recv().unwrap();
            assert!(two.queue(&work));
            // A worker of the other set has met it and left it to the one that runs it.
            let (tell, told) = mpsc::channel();
            two.spawn(move || tell.send(()).unwrap());
            told.recv().unwrap();
            assert!(entered.try_recv().is_err(), "{flags:?}: it runs twice at once");
            go.send(()).unwrap();
            let (overlap, worker) = entered.recv().unwrap();
            assert_eq!(
                (overlap, worker.as_deref()),
                (0, Some("pr/u0:0")),
                "{flags:?}: run by the set it was queued to"
            );
            go.send(()).unwrap();
            two.flush().unwrap();
            one.flush().unwrap();
            assert!(!work.is_busy());
            assert_eq!((one.stats().executed, two.stats().executed), (1, 2), "{flags:?}");
            // The worker that gave it away has nothing left of the other set's queue, where its CPU has another index.
            one.spawn_on(last, || ()).unwrap();
            one.flush().unwrap();
            assert_eq!((one.stats().executed, one.stats().panics), (2, 0), "{flags:?}");
        }
    });
}

#[test]
fn an_item_queued_for_another_cpu_while_it_runs_runs_there() {
    within_patience(|| {
        let pools = pools();
        let (first, last) = two_cpus();
        let wq = pools.alloc("there", WqFlags::PERCPU, 0).unwrap();
        let (enter, entered) = mpsc::channel();
        let (go, may_go) = mpsc::channel::<()>();
        let (enter, may_go) = (Mutex::new(enter), Mutex::new(may_go));
        let work = Work::new(move |_| {
            enter.lock().unwrap().send(postread_sys::current_cpu()).unwrap();
            let _ = blocking(|| may_go.lock().unwrap().recv());
        });
        wq.queue_on(first, &work).unwrap();
        assert_eq!(entered.recv().unwrap(), first);
        for cpu in [last, first, last] {
            assert!(wq.queue_on(cpu, &work).unwrap());
            let (tell, told) = mpsc::channel();
            wq.spawn_on(cpu, move || tell.send(()).unwrap()).unwrap();
            told.recv().unwrap();
            go.send(()).unwrap();
            assert_eq!(entered.recv().unwrap(), cpu);
        }
        go.send(()).unwrap();
        wq.flush().unwrap();
    });
}

#[test]
fn items_run_although_all_handles_are_gone() {
    within_patience(|| {
        for flags in BOTH {
            for drop_pools_first in [false, true] {
                let pools = Pools::new(Config::new().unbound_concurrency(1)).unwrap();
                let cpu = two_cpus().0;
                let wq = pools.alloc("gone", flags, 0).unwrap();
                let (answer, question) = mpsc::channel::<u32>();
                let (go, may_go) = mpsc::channel::<()>();
                let (done, is_done) = mpsc::channel();
                let (own_wq, own_pools) = (wq.clone(), pools.clone());
                wq.spawn_on(cpu, move || {
                    may_go.recv().unwrap();
                    drop(own_wq);
                    drop(own_pools);
                    // Long enough for a manager and for idle workers to leave, if they do.
                    thread::sleep(Duration::from_millis(20));
                    done.send(blocking(|| question.recv())).unwrap();
                })
                .unwrap();
                wq.spawn_on(cpu, move || answer.send(42).unwrap()).unwrap();
                let dropper = thread::spawn(move || {
                    // These wait on an ordinary thread, unless the item drops the last handles.
                    if drop_pools_first {
                        drop(pools);
                        drop(wq);
                    } else {
                        drop(wq);
                        drop(pools);
                    }
                });
                go.send(()).unwrap();
                assert_eq!(is_done.recv().unwrap(), Ok(42), "{flags:?}");
                dropper.join().unwrap();
            }
        }
    });
}

#[test]
fn the_threads_end_when_the_last_item_of_a_dropped_set_is_done() {
    within_patience(|| {
        let pools = Pools::new(Config::new().unbound_concurrency(2)).unwrap();
        let wq = pools.alloc("ends", WqFlags::UNBOUND, 0).unwrap();
        let tids: Vec<i32> = pools.stats()[0].workers.iter().map(|w| w.tid).collect();
        let inner = wq.clone();
        wq.spawn(move || drop(inner));
        drop((wq, pools));
        let alive = |tid: &i32| std::path::Path::new(&format!("/proc/self/task/{tid}")).exists();
        let begin = Instant::now();
        while tids.iter().any(alive) {
            assert!(begin.elapsed() < Duration::from_secs(60), "the workers never leave");
            thread::sleep(Duration::from_millis(1));
        }
    });
}

#[test]
fn a_queue_may_be_dropped_by_a_thread_local_destructor() {
    thread_local! {
        static HELD: RefCell<Option<(Workqueue, Work)>> = const { RefCell::new(None) };
    }
    within_patience(|| {
        for flags in BOTH {
            let pools = pools();
            let wq = pools.alloc("tls", flags, 0).unwrap();
            let ran = Arc::new(AtomicUsize::new(0));
            let thread = thread::spawn({
                let ran = Arc::clone(&ran);
                move || {
                    let work = Work::new(move |_| {
                        thread::sleep(Duration::from_millis(2));
                        ran.fetch_add(1, Ordering::SeqCst);
                    });
                    // Registered first, so destroyed after what the crate registers for this thread.
                    HELD.with(|held| {
                        let wq = held.borrow_mut().insert((wq, work)).0.clone();
                        wq.flush().unwrap();
                        blocking(|| ());
                    });
                    HELD.with(|held| {
                        let held = held.borrow();
                        let (wq, work) = held.as_ref().unwrap();
                        assert!(wq.queue(work));
                    });
                }
            });
            thread.join().unwrap();
            assert_eq!(ran.load(Ordering::SeqCst), 1, "{flags:?}: the drop waited, as on any other thread");
        }
    });
}
