//! What the kernel's queues have beside `queue`, `flush` and `cancel`: delays, attributes, nodes, items run in place, tasks,
//! the system queues.

mod common;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use common::{BOTH, Gate, Rng, config, hog, pools, split_topology, two_cpus, within_patience};
use postread_sys::{CpuSet, affinity, current_cpu};
use postread_workqueue::{
    AffnScope, AttrsError, DelayedWork, Executed, JoinError, MaxActiveError, Pools, QueueNodeError, Work, WqAttrs,
    WqFlags, blocking, current_work,
};

fn counting() -> (DelayedWork, Arc<AtomicUsize>) {
    let runs = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&runs);
    let delayed = DelayedWork::new(move |_| {
        count.fetch_add(1, Ordering::SeqCst);
    });
    (delayed, runs)
}

const LONG: Duration = Duration::from_secs(3600);

#[test]
fn a_delayed_item_runs_once_its_time_has_come_and_not_before() {
    within_patience(|| {
        let pools = pools();
        for flags in BOTH {
            let wq = pools.alloc("delayed", flags, 0).unwrap();
            let ran_at = Arc::new(Mutex::new(Vec::new()));
            let begin = Instant::now();
            let items: Vec<DelayedWork> = [30u64, 10, 20, 0]
                .into_iter()
                .map(|ms| {
                    let ran_at = Arc::clone(&ran_at);
                    let item = DelayedWork::new(move |_| ran_at.lock().unwrap().push((ms, begin.elapsed())));
                    assert!(wq.queue_delayed(&item, Duration::from_millis(ms)));
                    item
                })
                .collect();
            assert!(!wq.queue_delayed(&items[0], Duration::ZERO), "{flags:?}: pending");
            while ran_at.lock().unwrap().len() < 4 {
                thread::sleep(Duration::from_millis(1));
            }
            let ran_at = ran_at.lock().unwrap();
            for (ms, at) in ran_at.iter() {
                assert!(*at >= Duration::from_millis(*ms), "{flags:?}: {ms} ms, ran after {at:?}");
            }
        }
    });
}

#[test]
fn a_delayed_item_runs_on_the_cpu_that_it_was_queued_to() {
    within_patience(|| {
        let pools = pools();
        let wq = pools.alloc("delayed_cpu", WqFlags::PERCPU, 0).unwrap();
        let (tell, told) = mpsc::channel();
        let tell = Mutex::new(tell);
        let item = DelayedWork::new(move |_| tell.lock().unwrap().send(current_cpu()).unwrap());
        for cpu in affinity::current().unwrap().iter() {
            assert!(wq.queue_delayed_on(cpu, &item, Duration::from_millis(1)).unwrap());
            assert_eq!(told.recv().unwrap(), cpu);
            item.flush().unwrap();
        }
        assert!(wq.queue_delayed_on(60000, &item, LONG).is_err());
        assert!(!item.work().is_pending(), "a refused CPU leaves the item free");
    });
}

#[test]
fn a_timer_can_be_cancelled_changed_and_flushed() {
    within_patience(|| {
        let pools = pools();
        for flags in BOTH {
            let wq = pools.alloc("timer", flags, 0).unwrap();
            let (item, runs) = counting();
            assert!(wq.queue_delayed(&item, LONG));
            assert!(item.work().is_pending() && item.cancel() && !item.cancel() && !item.work().is_pending());
            assert!(wq.queue_delayed(&item, LONG));
            assert!(item.cancel_sync().unwrap());
            assert!(wq.queue_delayed(&item, LONG));
            assert!(item.work().disable(), "{flags:?}: disable takes it off its timer");
            assert!(!wq.queue_delayed(&item, LONG) && !wq.mod_delayed(&item, Duration::ZERO));
            item.work().enable().unwrap();
            assert_eq!(runs.load(Ordering::SeqCst), 0);

            // flush: at once.
            assert!(wq.queue_delayed(&item, LONG));
            assert!(item.flush().unwrap());
            assert_eq!(runs.load(Ordering::SeqCst), 1, "{flags:?}");
            assert!(!item.flush().unwrap());

            // mod: idle, armed, and with no delay.
            assert!(!wq.mod_delayed(&item, LONG), "it was idle");
            assert!(wq.mod_delayed(&item, LONG + LONG));
            assert!(item.work().is_pending());
            assert!(wq.mod_delayed(&item, Duration::ZERO));
            wq.flush().unwrap();
            assert_eq!(runs.load(Ordering::SeqCst), 2, "{flags:?}");

            // mod of an item that is on a list: it goes back to a timer.
            let cpu = two_cpus().0;
            let (enter, entered) = mpsc::channel();
            let (go, may_go) = mpsc::channel::<()>();
            let one = pools.alloc("timer_one", flags, 1).unwrap();
            one.spawn_on(cpu, move || {
                enter.send(()).unwrap();
                let _ = blocking(|| may_go.recv());
            })
            .unwrap();
            entered.recv().unwrap();
            assert!(one.queue_on(cpu, item.work()).unwrap());
            assert!(one.mod_delayed(&item, LONG));
            go.send(()).unwrap();
            one.flush().unwrap();
            assert_eq!(runs.load(Ordering::SeqCst), 2, "{flags:?}: flush does not wait for a timer");
            assert!(item.cancel());
            assert_eq!(one.stats().in_flight, 0);
        }
    });
}

#[test]
fn a_timer_that_fires_during_a_drain_gives_a_run_and_a_drained_queue_takes_no_new_one() {
    within_patience(|| {
        let pools = pools();
        for flags in BOTH {
            let wq = pools.alloc("timer_drain", flags, 0).unwrap();
            let (item, runs) = counting();
            let (other, _) = counting();
            let ((mut armed, mut armed_runs), (mut second, mut second_runs)) = (counting(), counting());
            assert!(wq.queue_delayed(&armed, LONG) && wq.queue_delayed(&second, LONG));
            let (enter, entered) = mpsc::channel();
            let (go, may_go) = mpsc::channel::<()>();
            wq.spawn(move || {
                enter.send(()).unwrap();
                let _ = blocking(|| may_go.recv());
            });
            entered.recv().unwrap();
            assert!(wq.queue_delayed(&item, Duration::from_millis(5)));
            thread::scope(|s| {
                let drain = s.spawn(|| wq.drain().unwrap());
                while wq.spawn(|| ()) {
                    thread::yield_now();
                }
                assert!(!wq.queue_delayed(&other, LONG), "{flags:?}: armed during a drain");
                assert!(!wq.mod_delayed(&other, LONG) && !other.work().is_pending());
                // What was armed before keeps its run, whatever its new delay.
                for delay in [Duration::ZERO, Duration::from_millis(1)] {
                    assert!(wq.mod_delayed(&armed, delay), "{flags:?}");
                    while armed_runs.load(Ordering::SeqCst) == 0 {
                        thread::sleep(Duration::from_millis(1));
                    }
                    armed_runs.store(0, Ordering::SeqCst);
                    if delay.is_zero() {
                        std::mem::swap(&mut armed, &mut second);
                        std::mem::swap(&mut armed_runs, &mut second_runs);
                    }
                }
                while runs.load(Ordering::SeqCst) == 0 {
                    thread::sleep(Duration::from_millis(1));
                }
                go.send(()).unwrap();
                drain.join().unwrap();
            });
        }
    });
}

#[test]
fn an_armed_timer_keeps_its_queue_and_its_pools() {
    within_patience(|| {
        for flags in BOTH {
            let (item, runs) = counting();
            {
                let pools = pools();
                let wq = pools.alloc("timer_kept", flags, 0).unwrap();
                assert!(wq.queue_delayed(&item, Duration::from_millis(20)));
            }
            while runs.load(Ordering::SeqCst) == 0 {
                thread::sleep(Duration::from_millis(1));
            }
            while item.work().is_busy() {
                thread::yield_now();
            }
        }
    });
}

#[test]
fn each_queueing_with_a_delay_gives_one_run_however_calls_race() {
    within_patience(|| {
        let pools = pools();
        let seed = postread_tests::seed();
        for flags in BOTH {
            let wq = pools.alloc("timer_race", flags, 0).unwrap();
            let (item, runs) = counting();
            let (queued, cancelled) = (AtomicUsize::new(0), AtomicUsize::new(0));
            thread::scope(|s| {
                for t in 0..3 {
                    let (wq, item, queued, cancelled) = (&wq, &item, &queued, &cancelled);
                    s.spawn(move || {
                        let mut rng = Rng::new(seed + t);
                        for _ in 0..3000 {
                            let delay = Duration::from_micros(rng.below(60) as u64);
                            let count = |to: &AtomicUsize, n: bool| {
                                to.fetch_add(usize::from(n), Ordering::SeqCst);
                            };
                            match rng.below(6) {
                                0 => count(cancelled, item.cancel()),
                                1 => count(queued, wq.queue(item.work())),
                                // A pending instance is replaced by one. Of an idle item one is made.
                                2 => count(queued, !wq.mod_delayed(item, delay)),
                                3 => {
                                    item.flush().unwrap();
                                }
                                _ => count(queued, wq.queue_delayed(item, delay)),
                            }
                        }
                    });
                }
            });
            while item.work().is_pending() {
                thread::yield_now();
            }
            wq.flush().unwrap();
            let (queued, cancelled) = (queued.into_inner(), cancelled.into_inner());
            assert_eq!(queued, runs.load(Ordering::SeqCst) + cancelled, "{flags:?}");
        }
    });
}

#[test]
fn attributes_take_effect_on_a_queue_in_use() {
    within_patience(|| {
        let pools = Pools::new(config().unbound_concurrency(4).topology(split_topology())).unwrap();
        let wq = pools.alloc("attrs", WqFlags::UNBOUND, 0).unwrap();
        let all = affinity::current().unwrap();
        let (first, last) = two_cpus();
        let seen_from = |cpu: u32| {
            let (tell, told) = mpsc::channel();
            wq.spawn_on(cpu, move || {
                let nice = postread_sys::priority::current_nice().unwrap();
                tell.send((affinity::current().unwrap(), current_cpu(), nice)).unwrap();
            })
            .unwrap();
            let seen = told.recv().unwrap();
            wq.flush().unwrap();
            seen
        };
        assert_eq!(wq.stats().pools.len(), all.len(), "a pod for each CPU here");
        assert_eq!(seen_from(last).0, all, "non-strict");
        let nice = postread_sys::priority::current_nice().unwrap();
        for scope in AffnScope::ALL {
            wq.apply_attrs(&WqAttrs::new().affn_scope(scope).affn_strict(true)).unwrap();
            assert_eq!(wq.attrs().affn_scope, scope);
            let pod = if scope == AffnScope::System { all.clone() } else { CpuSet::from_iter([last]) };
            let (affinity, cpu, same_nice) = seen_from(last);
            assert_eq!((affinity, same_nice), (pod.clone(), nice), "{scope}");
            assert!(pod.contains(cpu));
        }
        wq.apply_attrs(&WqAttrs::new().cpumask(CpuSet::from_iter([first])).nice((nice + 1).min(19))).unwrap();
        assert_eq!(seen_from(last), (CpuSet::from_iter([first]), first, (nice + 1).min(19)));
        wq.apply_attrs(&WqAttrs::new()).unwrap();
        assert_eq!(seen_from(first).0, all, "and back");

        assert!(matches!(wq.apply_attrs(&WqAttrs::new().nice(20)), Err(AttrsError::Nice { nice: 20 })));
        let outside = WqAttrs::new().cpumask(CpuSet::from_iter([60000]));
        assert!(matches!(wq.apply_attrs(&outside), Err(AttrsError::Cpus { .. })));
        assert!(matches!(wq.apply_attrs(&WqAttrs::new().cpumask(CpuSet::new())), Err(AttrsError::Cpus { .. })));
        let bound = pools.alloc("attrs_bound", WqFlags::PERCPU, 0).unwrap();
        assert!(matches!(bound.apply_attrs(&WqAttrs::new()), Err(AttrsError::Bound)));
        assert_eq!(wq.attrs(), WqAttrs::new(), "a failure changes nothing");
    });
}

#[test]
fn no_item_is_lost_while_attributes_change() {
    within_patience(|| {
        let pools = Pools::new(config().unbound_concurrency(4).topology(split_topology())).unwrap();
        for max in [0, 3] {
            let wq = pools.alloc("attrs_live", WqFlags::UNBOUND, max).unwrap();
            let runs = Arc::new(AtomicUsize::new(0));
            let stop = AtomicBool::new(false);
            let cancelled = AtomicUsize::new(0);
            let queued = thread::scope(|s| {
                let changer = s.spawn(|| {
                    let mut changes = 0;
                    while !stop.load(Ordering::Relaxed) {
                        let scope = AffnScope::ALL[changes % 6];
                        wq.apply_attrs(&WqAttrs::new().affn_scope(scope).affn_strict(changes % 4 == 0)).unwrap();
                        changes += 1;
                    }
                });
                let mut queued = 0;
                for i in 0..20_000 {
                    let count = Arc::clone(&runs);
                    let work = Work::new(move |_| {
                        count.fetch_add(1, Ordering::SeqCst);
                    });
                    queued += usize::from(wq.queue(&work));
                    if i % 7 == 0 {
                        cancelled.fetch_add(usize::from(work.cancel()), Ordering::SeqCst);
                    }
                }
                stop.store(true, Ordering::Relaxed);
                changer.join().unwrap();
                queued
            });
            wq.flush().unwrap();
            assert_eq!(queued, runs.load(Ordering::SeqCst) + cancelled.into_inner());
        }
    });
}

#[test]
fn pods_help_each_other_unless_they_are_strict() {
    within_patience(|| {
        let (first, last) = two_cpus();
        if first == last {
            return;
        }
        let pools = Pools::new(config().unbound_concurrency(2).topology(split_topology())).unwrap();
        for strict in [false, true] {
            let wq = pools.alloc("help", WqFlags::UNBOUND, 0).unwrap();
            wq.apply_attrs(&WqAttrs::new().affn_strict(strict)).unwrap();
            let both = Arc::new(AtomicUsize::new(0));
            let met = Arc::new(AtomicUsize::new(0));
            // Two items of one pod that wait for each other, without saying so.
            let limit = if strict { Duration::from_millis(50) } else { LONG };
            for _ in 0..2 {
                let (both, met) = (Arc::clone(&both), Arc::clone(&met));
                wq.spawn_on(last, move || {
                    both.fetch_add(1, Ordering::SeqCst);
                    let begin = Instant::now();
                    while both.load(Ordering::SeqCst) < 2 && begin.elapsed() < limit {
                        thread::yield_now();
                    }
                    met.fetch_add(usize::from(begin.elapsed() < limit), Ordering::SeqCst);
                })
                .unwrap();
            }
            wq.flush().unwrap();
            assert_eq!(met.load(Ordering::SeqCst), if strict { 1 } else { 2 }, "strict: {strict}");
        }
    });
}

#[test]
fn items_go_to_the_node_and_limits_are_split_over_nodes() {
    within_patience(|| {
        let pools = Pools::new(config().unbound_concurrency(8).topology(split_topology())).unwrap();
        let nodes = pools.cpus().len();
        let wq = pools.alloc("nodes", WqFlags::UNBOUND, 0).unwrap();
        wq.apply_attrs(&WqAttrs::new().affn_strict(true)).unwrap();
        for (node, cpu) in pools.cpus().iter().enumerate() {
            let (tell, told) = mpsc::channel();
            let tell = Mutex::new(tell);
            let work = Work::new(move |_| tell.lock().unwrap().send(current_cpu()).unwrap());
            assert!(wq.queue_node(node as u32, &work).unwrap());
            assert_eq!(told.recv().unwrap(), cpu, "node {node}");
            wq.flush().unwrap();
        }
        let work = Work::new(|_| ());
        assert_eq!(wq.queue_node(1000, &work), Err(QueueNodeError::NoSuchNode { node: 1000 }));
        let bound = pools.alloc("nodes_bound", WqFlags::PERCPU, 0).unwrap();
        assert_eq!(bound.queue_node(0, &work), Err(QueueNodeError::Bound));

        // The most that are active on one node: its part of max_active, and at least min_active.
        let peak = |max: usize, min: Option<usize>| {
            let wq = pools.alloc("parts", WqFlags::UNBOUND, max).unwrap();
            assert_eq!(wq.min_active(), max.min(8));
            if let Some(min) = min {
                wq.set_min_active(min).unwrap();
            }
            let (now, peak) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
            for _ in 0..4 * max {
                let (now, peak) = (Arc::clone(&now), Arc::clone(&peak));
                wq.spawn_on(two_cpus().0, move || {
                    peak.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    blocking(|| thread::sleep(Duration::from_millis(2)));
                    now.fetch_sub(1, Ordering::SeqCst);
                })
                .unwrap();
            }
            wq.flush().unwrap();
            peak.load(Ordering::SeqCst)
        };
        assert_eq!(peak(24, None), (24 / nodes).max(8));
        assert_eq!(peak(10, Some(1)), 10usize.div_ceil(nodes));
        assert_eq!(peak(3, None), 3);
        let wq = pools.alloc("min", WqFlags::UNBOUND, 10).unwrap();
        for min in [0, 11] {
            assert_eq!(wq.set_min_active(min), Err(MaxActiveError::Min { min_active: min, max_active: 10 }));
        }
    });
}

#[test]
fn small_items_run_in_place_and_count_as_any_other() {
    within_patience(|| {
        let pools = pools();
        for flags in BOTH {
            let wq = pools.alloc("inline", flags, 0).unwrap();
            let threads = Arc::new(Mutex::new(Vec::new()));
            let seen = Arc::clone(&threads);
            let work = Work::new(move |work| {
                let same = current_work()
                    .is_some_and(|current| !current.is_pending() && current.function() == work.function());
                seen.lock().unwrap().push((thread::current().id(), same));
            });
            let me = thread::current().id();
            // A fresh turn.
            thread::sleep(Duration::from_millis(15));
            assert_eq!(wq.execute_or_queue(&work, 8192), Executed::Here, "{flags:?}");
            assert_eq!(*threads.lock().unwrap(), [(me, true)]);
            assert!(current_work().is_none());
            assert_eq!(wq.execute_or_queue(&work, 8193), Executed::Queued);
            work.flush().unwrap();
            assert_ne!(threads.lock().unwrap()[1].0, me);
            wq.set_inline_bytes(0);
            assert_eq!(wq.execute_or_queue(&work, 1), Executed::Queued);
            work.flush().unwrap();
            wq.set_inline_bytes(8192);

            // No more than 10 in a row.
            thread::sleep(Duration::from_millis(15));
            let here = (0..30).filter(|_| {
                let executed = wq.execute_or_queue(&work, 1);
                work.flush().unwrap();
                executed == Executed::Here
            });
            assert!(here.count() <= 20, "{flags:?}");
            wq.flush().unwrap();
            let stats = wq.stats();
            assert_eq!((stats.queued, stats.executed, stats.in_flight), (33, 33, 0));
            assert_eq!(stats.run.count(), 33);

            // A panic is counted, and a disabled item does not run.
            thread::sleep(Duration::from_millis(15));
            let panics = Work::new(|_| std::panic::resume_unwind(Box::new("intended")));
            assert_eq!(wq.execute_or_queue(&panics, 1), Executed::Here);
            assert_eq!((panics.panics(), wq.flush().unwrap().panics), (1, 1));
            work.disable();
            assert_eq!(wq.execute_or_queue(&work, 1), Executed::No);
            // From inside an item: queued, so that stacks stay shallow.
            let inner = Work::new(|_| ());
            let (wq2, inner2) = (wq.clone(), inner.clone());
            let result = Arc::new(Mutex::new(None));
            let tell = Arc::clone(&result);
            let outer = Work::new(move |_| *tell.lock().unwrap() = Some(wq2.execute_or_queue(&inner2, 1)));
            thread::sleep(Duration::from_millis(15));
            assert_eq!(wq.execute_or_queue(&outer, 1), Executed::Here);
            assert_eq!(*result.lock().unwrap(), Some(Executed::Queued));
            wq.flush().unwrap();
        }
    });
}

#[test]
fn an_item_that_runs_in_place_is_queued_and_flushed_as_usual() {
    within_patience(|| {
        let pools = pools();
        for flags in BOTH {
            let wq = pools.alloc("inline_run", flags, 1).unwrap();
            let runs = Arc::new(AtomicUsize::new(0));
            let (enter, entered) = mpsc::channel();
            let (go, may_go) = mpsc::channel::<()>();
            let (enter, may_go) = (Mutex::new(enter), Mutex::new(may_go));
            let count = Arc::clone(&runs);
            let inside = AtomicUsize::new(0);
            let work = Work::new(move |_| {
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "twice at once");
                enter.lock().unwrap().send(()).unwrap();
                let _ = may_go.lock().unwrap().recv();
                count.fetch_add(1, Ordering::SeqCst);
                inside.fetch_sub(1, Ordering::SeqCst);
            });
            thread::scope(|s| {
                let here = s.spawn(|| wq.execute_or_queue(&work, 1));
                entered.recv().unwrap();
                // It has the queue's one place, and it is not run a second time by a worker.
                assert!(wq.queue(&work));
                let flush = s.spawn(|| wq.flush().unwrap());
                thread::sleep(Duration::from_millis(5));
                assert!(!flush.is_finished() && entered.try_recv().is_err(), "{flags:?}");
                go.send(()).unwrap();
                assert_eq!(here.join().unwrap(), Executed::Here);
                entered.recv().unwrap();
                go.send(()).unwrap();
                assert_eq!(flush.join().unwrap().panics, 0);
            });
            assert_eq!(runs.load(Ordering::SeqCst), 2);
            assert_eq!(wq.stats().in_flight, 0);
        }
    });
}

#[test]
fn tasks_give_results_and_panics_and_can_be_cancelled() {
    within_patience(|| {
        let pools = pools();
        for flags in BOTH {
            let wq = pools.alloc("tasks", flags, 1).unwrap();
            assert_eq!(wq.spawn_task(|| 7).join().unwrap(), 7);
            let panics = wq.spawn_task(|| -> u8 { std::panic::resume_unwind(Box::new(42u64)) });
            let Err(JoinError::Panicked(payload)) = panics.join() else { panic!("it did not panic") };
            assert_eq!(payload.downcast_ref(), Some(&42u64));
            assert_eq!(wq.flush().unwrap().panics, 1);

            let (enter, entered) = mpsc::channel();
            let (go, may_go) = mpsc::channel::<()>();
            let running = wq.spawn_task(move || {
                enter.send(()).unwrap();
                blocking(|| may_go.recv()).unwrap();
                "done"
            });
            entered.recv().unwrap();
            let behind = wq.spawn_task(|| 8);
            assert!(!running.cancel(), "it runs");
            assert!(behind.cancel() && behind.is_finished() && !behind.cancel());
            assert!(matches!(behind.join(), Err(JoinError::Cancelled)));
            go.send(()).unwrap();
            assert_eq!(running.join().unwrap(), "done");

            // From inside the queue: an error, not a deadlock.
            let inner = wq.clone();
            let outer = wq.spawn_task(move || matches!(inner.spawn_task(|| ()).join(), Err(JoinError::SameQueue)));
            assert!(outer.join().unwrap());
            wq.flush().unwrap();
        }
    });
}

#[test]
fn the_system_queues_are_what_they_are_called() {
    use postread_workqueue as q;
    let kinds = [
        (q::system_percpu_wq().unwrap(), WqFlags::PERCPU),
        (q::system_dfl_wq().unwrap(), WqFlags::UNBOUND),
        (q::system_highpri_wq().unwrap(), WqFlags::PERCPU | WqFlags::HIGHPRI),
        (q::system_long_wq().unwrap(), WqFlags::PERCPU),
        (q::system_dfl_long_wq().unwrap(), WqFlags::UNBOUND),
    ];
    for (wq, flags) in kinds {
        assert_eq!(wq.flags(), flags);
        assert_eq!(wq.spawn_task(|| 1).join().unwrap(), 1);
    }
    assert!(std::ptr::eq(q::system_dfl_wq().unwrap(), q::system_dfl_wq().unwrap()));
}

#[test]
fn statistics_print_as_one_line() {
    let pools = pools();
    let wq = pools.alloc("shown", WqFlags::UNBOUND, 0).unwrap();
    wq.spawn(|| thread::sleep(Duration::from_millis(1)));
    wq.flush().unwrap();
    let line = wq.stats().to_string();
    assert!(
        line.starts_with("shown: 1 done, 0 in flight, 0 cancelled, 0 panics, CPU ") && line.lines().count() == 1,
        "{line}"
    );
    assert!(format!("{:#}", wq.stats()).contains("\n  pool u0 on CPUs "));
    assert!(wq.stats().run.max().unwrap() >= Duration::from_millis(1));
}

#[test]
fn i18_cpu_intensive_items_do_not_hold_up_their_pool() {
    within_patience(|| {
        let pools = pools();
        let cpu = two_cpus().0;
        let wq = pools.alloc("i18_intensive", WqFlags::PERCPU | WqFlags::CPU_INTENSIVE, 0).unwrap();
        let holds: Vec<Gate> = (0..3).map(|_| hog(&wq, cpu)).collect();
        let (tell, told) = mpsc::channel();
        let short = pools.alloc("i18_short", WqFlags::PERCPU, 0).unwrap();
        short.spawn_on(cpu, move || tell.send(()).unwrap()).unwrap();
        told.recv().unwrap();
        holds.iter().for_each(|hold| hold.go.send(()).unwrap());
        wq.flush().unwrap();
    });
}
