//! The invariants of the kernel's workqueues that hold here too, by number (README of `mutations/` lists them). For each
//! there is a mutation that breaks it, and the test of that number must see it.
//!
//! Items never assert, since a worker catches their panics. They report to the test what they saw.

mod common;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use common::{BOTH, Rng, config, gated_work, hog, pools, split_topology, two_cpus, within_patience};
use postread_sys::{CpuSet, affinity, current_cpu};
use postread_workqueue::{Config, Pools, Report, Work, WqAttrs, WqFlags, blocking};

#[test]
fn i01_an_item_runs_on_one_worker_at_a_time() {
    within_patience(|| {
        let pools = pools();
        let (first, last) = two_cpus();
        for flags in BOTH {
            let wq = pools.alloc("i01", flags, 0).unwrap();
            let runs = Arc::new(AtomicUsize::new(0));
            let (work, gate) = gated_work({
                let runs = Arc::clone(&runs);
                move |_| {
                    runs.fetch_add(1, Ordering::SeqCst);
                }
            });
            assert!(wq.queue_on(first, &work).unwrap());
            gate.entered.recv().unwrap();
            // Queued while it runs, on this CPU's list or another's. The items after it there have run, so a worker has
            // come by; it waits for the run that is under way all the same.
            for cpu in [first, last] {
                assert!(wq.queue_on(cpu, &work).unwrap());
                let (tell, told) = mpsc::channel();
                wq.spawn_on(cpu, move || tell.send(()).unwrap()).unwrap();
                told.recv().unwrap();
                assert_eq!(runs.swap(0, Ordering::SeqCst), 1, "{flags:?}: it runs twice at once");
                gate.go.send(()).unwrap();
                gate.entered.recv().unwrap();
            }
            gate.go.send(()).unwrap();
            wq.flush().unwrap();
            assert_eq!(runs.load(Ordering::SeqCst), 1);
        }
    });
}

#[test]
fn i02_each_successful_queueing_gives_one_start() {
    within_patience(|| {
        let pools = pools();
        let seed = postread_tests::seed();
        for flags in BOTH {
            let wq = pools.alloc("i02", flags, 0).unwrap();
            let runs = Arc::new(AtomicUsize::new(0));
            let work = Work::new({
                let runs = Arc::clone(&runs);
                move |_| {
                    runs.fetch_add(1, Ordering::SeqCst);
                    if runs.load(Ordering::Relaxed).is_multiple_of(7) {
                        blocking(thread::yield_now);
                    }
                }
            });
            let (queued, cancelled) = (AtomicUsize::new(0), AtomicUsize::new(0));
            thread::scope(|s| {
                for t in 0..3 {
                    let (wq, work, queued, cancelled) = (&wq, &work, &queued, &cancelled);
                    s.spawn(move || {
                        let mut rng = Rng::new(seed + t);
                        for _ in 0..5000 {
                            if rng.below(8) == 0 {
                                cancelled.fetch_add(usize::from(work.cancel()), Ordering::SeqCst);
                            } else {
                                queued.fetch_add(usize::from(wq.queue(work)), Ordering::SeqCst);
                            }
                            if rng.below(4) == 0 {
                                thread::yield_now();
                            }
                        }
                    });
                }
            });
            wq.flush().unwrap();
            let (queued, cancelled) = (queued.into_inner(), cancelled.into_inner());
            assert_eq!(queued, runs.load(Ordering::SeqCst) + cancelled, "{flags:?}");
            assert!(!work.is_busy());

            // The same without chance: a queueing while it runs, seen by a worker before the run ends.
            let (work, gate) = gated_work(|_| ());
            assert!(wq.queue(&work));
            gate.entered.recv().unwrap();
            assert!(wq.queue(&work) && !wq.queue(&work));
            let (tell, told) = mpsc::channel();
            wq.spawn(move || tell.send(()).unwrap());
            told.recv().unwrap();
            gate.go.send(()).unwrap();
            gate.entered.recv().unwrap();
            gate.go.send(()).unwrap();
            wq.flush().unwrap();
            assert!(gate.entered.try_recv().is_err(), "{flags:?}: one run too many");
        }
    });
}

#[test]
fn i03_pending_is_cleared_before_the_function_runs() {
    within_patience(|| {
        let pools = pools();
        for flags in BOTH {
            let wq = pools.alloc("i03", flags, 0).unwrap();
            let pending = Arc::new(AtomicUsize::new(0));
            let (work, gate) = gated_work({
                let pending = Arc::clone(&pending);
                move |work| {
                    pending.fetch_add(usize::from(work.is_pending()), Ordering::SeqCst);
                }
            });
            assert!(wq.queue(&work));
            gate.entered.recv().unwrap();
            assert_eq!(pending.load(Ordering::SeqCst), 0, "{flags:?}: pending inside the function");
            // So queueing it during a run always gives another run.
            assert!(wq.queue(&work), "{flags:?}");
            assert!(work.is_pending());
            gate.go.send(()).unwrap();
            gate.entered.recv().unwrap();
            gate.go.send(()).unwrap();
            wq.flush().unwrap();
            assert!(!work.is_pending());
        }
    });
}

/// The ordering itself is in the models (`i04_*` there), since x86 hides most of what the language allows. This is what
/// a user relies on, with real threads.
#[test]
fn i04_the_run_sees_what_was_written_before_queueing() {
    within_patience(|| {
        let pools = pools();
        for flags in BOTH {
            let wq = pools.alloc("i04", flags, 0).unwrap();
            let (written, seen) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
            let work = Work::new({
                let (written, seen) = (Arc::clone(&written), Arc::clone(&seen));
                move |_| seen.store(written.load(Ordering::Relaxed), Ordering::Relaxed)
            });
            for i in 1..=20_000 {
                // True or false, some run that starts after this call sees i; the last one is flushed for.
                written.store(i, Ordering::Relaxed);
                wq.queue(&work);
                if i % 64 == 0 {
                    work.flush().unwrap();
                    assert_eq!(seen.load(Ordering::Relaxed), i, "{flags:?}");
                }
            }
        }
    });
}

#[test]
fn i05_an_item_may_queue_itself() {
    within_patience(|| {
        let pools = pools();
        for flags in BOTH {
            let wq = pools.alloc("i05", flags, 1).unwrap();
            let (tell, told) = mpsc::channel();
            let runs = AtomicUsize::new(0);
            let work = Work::new({
                let wq = wq.clone();
                let tell = Mutex::new(tell);
                move |work| {
                    let run = runs.fetch_add(1, Ordering::Relaxed) + 1;
                    let queued = run < 1000 && wq.queue(work);
                    if run == 1000 || !queued {
                        let _ = tell.lock().unwrap().send(run);
                    }
                }
            });
            assert!(wq.queue(&work));
            assert_eq!(told.recv().unwrap(), 1000, "{flags:?}");
            wq.flush().unwrap();
            assert!(told.try_recv().is_err() && !work.is_busy());
        }
    });
}

#[test]
fn i06_the_function_may_free_its_own_item() {
    struct CountDrop(Arc<AtomicUsize>);
    impl Drop for CountDrop {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    within_patience(|| {
        let pools = pools();
        for flags in BOTH {
            let wq = pools.alloc("i06", flags, 0).unwrap();
            for _ in 0..100 {
                let drops = Arc::new(AtomicUsize::new(0));
                // The only handle of the item, once it is queued, is inside it.
                let own = Arc::new(Mutex::new(None));
                let (tell, told) = mpsc::channel();
                let work = Work::new({
                    let (own, drops, content) = (Arc::clone(&own), Arc::clone(&drops), CountDrop(Arc::clone(&drops)));
                    let tell = Mutex::new(tell);
                    move |_| {
                        let mine: Option<Work> = own.lock().unwrap().take();
                        drop(mine);
                        // The captured values are still there until the function returns.
                        let early = content.0.load(Ordering::SeqCst) + drops.load(Ordering::SeqCst);
                        let _ = tell.lock().unwrap().send(early);
                    }
                });
                let mut slot = own.lock().unwrap();
                assert!(wq.queue(&work));
                *slot = Some(work);
                drop(slot);
                assert_eq!(told.recv().unwrap(), 0, "{flags:?}: freed before the function returned");
                wq.flush().unwrap();
                // Done, and then freed: by the worker, which may be a moment later.
                while drops.load(Ordering::SeqCst) == 0 {
                    thread::sleep(Duration::from_micros(50));
                }
                assert_eq!(drops.load(Ordering::SeqCst), 1, "{flags:?}");
            }
        }
    });
}

#[test]
fn i07_no_more_than_max_active_are_active() {
    within_patience(|| {
        let pools = pools();
        let (first, last) = two_cpus();
        for flags in BOTH {
            for max in [1, 2, 5] {
                let wq = pools.alloc("i07", flags, max).unwrap();
                let running: Arc<[(AtomicUsize, AtomicUsize); 2]> = Arc::default();
                for i in 0..40 * max {
                    // Each CPU is a domain of a bound queue; an unbound queue is one.
                    let cpu = if i % 2 == 0 { first } else { last };
                    let domain = usize::from(flags == WqFlags::PERCPU && cpu == last);
                    let running = Arc::clone(&running);
                    wq.spawn_on(cpu, move || {
                        let (now, peak) = &running[domain];
                        peak.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        blocking(|| thread::sleep(Duration::from_micros(200)));
                        now.fetch_sub(1, Ordering::SeqCst);
                    })
                    .unwrap();
                }
                wq.flush().unwrap();
                for (_, peak) in running.iter() {
                    let peak = peak.load(Ordering::SeqCst);
                    assert!(peak <= max, "{flags:?}: {peak} at once, and max_active is {max}");
                }
            }
        }
    });
}

#[test]
fn i08_an_ordered_queue_runs_one_item_at_a_time_in_queueing_order() {
    within_patience(|| {
        // Two nodes and two pods where there are two CPUs: neither splits an ordered queue.
        let pools = Pools::new(config().unbound_concurrency(4).topology(split_topology())).unwrap();
        let (first, last) = two_cpus();
        let wq = pools.alloc_ordered("i08", WqFlags::empty()).unwrap();
        let (order, inside) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicUsize::new(0)));
        for i in 0..2000 {
            let (order, inside) = (Arc::clone(&order), Arc::clone(&inside));
            let cpu = if i % 3 == 0 { first } else { last };
            wq.spawn_on(cpu, move || {
                let overlap = inside.fetch_add(1, Ordering::SeqCst);
                if i % 100 == 0 {
                    blocking(|| thread::sleep(Duration::from_micros(100)));
                }
                order.lock().unwrap().push((i, overlap));
                inside.fetch_sub(1, Ordering::SeqCst);
            })
            .unwrap();
            // New attributes move later items to other pools; they stay in order.
            if i % 500 == 499 {
                wq.apply_attrs(&WqAttrs::new().affn_strict(i % 1000 == 499)).unwrap();
            }
        }
        wq.flush().unwrap();
        let order = order.lock().unwrap();
        let wrong = order.iter().zip(0..).find(|&(&found, expected)| found != (expected, 0));
        assert_eq!((order.len(), wrong), (2000, None), "(item, items that ran at the same time)");
        assert!(wq.set_max_active(2).is_err());
        assert!(pools.alloc_ordered("i08", WqFlags::PERCPU).is_err());
    });
}

#[test]
fn i09_items_of_a_list_start_in_queueing_order() {
    within_patience(|| {
        let pools = Pools::new(config().unbound_concurrency(1)).unwrap();
        let (_, cpu) = two_cpus();
        // An unbound pool has a list for each CPU, and an item beyond max_active may go on another one when its turn comes:
        // the items of one list are in order.
        for (flags, limits) in [(WqFlags::PERCPU, &[0, 1, 3][..]), (WqFlags::UNBOUND, &[0, 1])] {
            for &max in limits {
                let wq = pools.alloc("i09", flags, max).unwrap();
                let order = Arc::new(Mutex::new(Vec::new()));
                let hold = hog(&wq, cpu);
                for i in 0..1000 {
                    let order = Arc::clone(&order);
                    wq.spawn_on(cpu, move || order.lock().unwrap().push(i)).unwrap();
                }
                hold.go.send(()).unwrap();
                wq.flush().unwrap();
                let order = order.lock().unwrap();
                let wrong = order.iter().zip(0..).find(|&(&found, wanted)| found != wanted);
                assert_eq!((order.len(), wrong), (1000, None), "{flags:?}, max_active {max}");
            }
        }
    });
}

#[test]
fn i10_bound_items_run_on_the_cpu_that_queued_them() {
    within_patience(|| {
        let pools = pools();
        let wq = pools.alloc("i10", WqFlags::PERCPU, 0).unwrap();
        let all = affinity::current().unwrap();
        for round in 0..20 {
            for cpu in all.iter() {
                affinity::set_current(&CpuSet::from_iter([cpu])).unwrap();
                let (tell, told) = mpsc::channel();
                if round % 2 == 0 {
                    assert!(wq.spawn(move || tell.send(current_cpu()).unwrap()));
                } else {
                    // From anywhere, where the caller says so.
                    affinity::set_current(&all).unwrap();
                    assert!(wq.spawn_on(cpu, move || tell.send(current_cpu()).unwrap()).unwrap());
                }
                assert_eq!(told.recv().unwrap(), cpu);
            }
        }
        wq.flush().unwrap();
        let stats = wq.stats();
        assert_eq!(stats.cpus.iter().map(|c| c.started).sum::<u64>(), 20 * all.len() as u64);
    });
}

#[test]
fn i11_work_without_a_runnable_worker_wakes_one() {
    within_patience(|| {
        let pools = pools();
        let mut rng = Rng::new(postread_tests::seed());
        for flags in BOTH {
            let wq = pools.alloc("i11", flags, 0).unwrap();
            let (tell, told) = mpsc::channel();
            let work = Work::new({
                let tell = Mutex::new(tell);
                move |_| tell.lock().unwrap().send(()).unwrap()
            });
            // At every moment of a worker's going idle: at once, after a while, and when all sleep.
            for i in 0..3000 {
                assert!(wq.queue(&work));
                told.recv().unwrap();
                work.flush().unwrap();
                match i % 100 {
                    0 => thread::sleep(Duration::from_millis(1)),
                    _ => (0..rng.below(2000)).for_each(|_| std::hint::spin_loop()),
                }
            }
            // The running worker waits, with an item after it.
            let cpu = two_cpus().0;
            for _ in 0..100 {
                let (answer, question) = mpsc::channel();
                let (tell, told) = mpsc::channel();
                wq.spawn_on(cpu, move || tell.send(blocking(|| question.recv()).is_ok()).unwrap()).unwrap();
                wq.spawn_on(cpu, move || answer.send(()).unwrap()).unwrap();
                assert!(told.recv().unwrap());
            }
        }
    });
}

#[test]
fn i12_high_priority_and_normal_pools_do_not_wait_for_each_other() {
    within_patience(|| {
        let pools = Pools::new(config().unbound_concurrency(1)).unwrap();
        let cpu = two_cpus().0;
        for kind in BOTH {
            let normal = pools.alloc("i12", kind, 0).unwrap();
            let high = pools.alloc("i12_high", kind | WqFlags::HIGHPRI, 0).unwrap();
            for (busy, free) in [(&normal, &high), (&high, &normal)] {
                let hold = hog(busy, cpu);
                let (tell, told) = mpsc::channel();
                free.spawn_on(cpu, move || tell.send(()).unwrap()).unwrap();
                told.recv().unwrap();
                free.flush().unwrap();
                hold.go.send(()).unwrap();
                busy.flush().unwrap();
            }
        }
    });
}

#[test]
fn i13_flush_covers_what_came_before_and_ends_under_load() {
    within_patience(|| {
        let pools = pools();
        for flags in BOTH {
            let wq = pools.alloc("i13", flags, 0).unwrap();
            // Under load that never ends: an item that queues itself, and two threads that queue.
            let stop = Arc::new(AtomicBool::new(false));
            let forever = Work::new({
                let (wq, stop) = (wq.clone(), Arc::clone(&stop));
                move |work| {
                    if !stop.load(Ordering::Relaxed) {
                        wq.queue(work);
                    }
                }
            });
            assert!(wq.queue(&forever));
            thread::scope(|s| {
                for _ in 0..2 {
                    s.spawn(|| {
                        while !stop.load(Ordering::Relaxed) {
                            wq.spawn(|| ());
                            thread::yield_now();
                        }
                    });
                }
                for round in 0..30 {
                    let done = Arc::new(AtomicUsize::new(0));
                    for i in 0..20 {
                        let done = Arc::clone(&done);
                        let item = move || {
                            if i % 5 == round % 5 {
                                blocking(|| thread::sleep(Duration::from_micros(300)));
                            }
                            done.fetch_add(1, Ordering::SeqCst);
                        };
                        assert!(wq.spawn(item));
                    }
                    wq.flush().unwrap();
                    assert_eq!(done.load(Ordering::SeqCst), 20, "{flags:?}: flush came back too early");
                }
                stop.store(true, Ordering::Relaxed);
            });
            wq.drain().unwrap();
        }
    });
}

#[test]
fn i14_cancel_sync_leaves_the_item_idle() {
    within_patience(|| {
        let pools = pools();
        for flags in BOTH {
            let wq = pools.alloc("i14", flags, 0).unwrap();
            let (runs, inside) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
            let work = Work::new({
                let (wq, runs, inside) = (wq.clone(), Arc::clone(&runs), Arc::clone(&inside));
                move |work| {
                    inside.store(true, Ordering::SeqCst);
                    wq.queue(work);
                    runs.fetch_add(1, Ordering::SeqCst);
                    (0..50).for_each(|_| std::hint::spin_loop());
                    inside.store(false, Ordering::SeqCst);
                }
            });
            for round in 0..300 {
                assert!(wq.queue(&work), "{flags:?}, round {round}: still pending after cancel_sync");
                let before = runs.load(Ordering::SeqCst);
                while round % 3 != 0 && runs.load(Ordering::SeqCst) < before + round % 7 {
                    thread::yield_now();
                }
                work.cancel_sync().unwrap();
                let after = (work.is_busy(), inside.load(Ordering::SeqCst));
                assert_eq!(after, (false, false), "{flags:?}, round {round}: (busy, inside the function)");
            }
            let end = runs.load(Ordering::SeqCst);
            wq.flush().unwrap();
            assert_eq!(runs.load(Ordering::SeqCst), end);
        }
    });
}

#[test]
fn i15_disable_nests() {
    within_patience(|| {
        let pools = pools();
        for flags in BOTH {
            let wq = pools.alloc("i15", flags, 0).unwrap();
            let runs = Arc::new(AtomicUsize::new(0));
            let (work, gate) = gated_work({
                let runs = Arc::clone(&runs);
                move |_| {
                    runs.fetch_add(1, Ordering::SeqCst);
                }
            });
            assert!(work.enable().is_err(), "it is not disabled");
            assert!(!work.disable(), "nothing was pending");
            assert!(!wq.queue(&work), "{flags:?}: queued though disabled once");
            assert!(work.enable().unwrap());
            assert!(wq.queue(&work));
            gate.entered.recv().unwrap();
            assert!(wq.queue(&work), "pending while it runs");
            assert!(work.disable(), "{flags:?}: takes the pending instance off");
            assert!(!work.disable() && work.disable_depth() == 2);
            for depth in [2, 1] {
                assert!(!wq.queue(&work) && !work.is_pending(), "{flags:?}: queued at depth {depth}");
                // A cancel under way disables too, and is another's business.
                thread::scope(|s| {
                    let cancel = s.spawn(|| work.cancel_sync().unwrap());
                    gate.go.send(()).unwrap();
                    assert!(!cancel.join().unwrap());
                });
                assert_eq!(work.enable().unwrap(), depth == 1, "{flags:?}");
            }
            assert!(work.enable().is_err());
            wq.flush().unwrap();
            assert_eq!(runs.load(Ordering::SeqCst), 1, "{flags:?}: a disabled item ran");
            // disable_sync waits for the run; enable_and_queue queues at the last enable only.
            while gate.entered.try_recv().is_ok() {}
            assert!(wq.queue(&work), "{flags:?}: enabled again");
            gate.entered.recv().unwrap();
            gate.go.send(()).unwrap();
            work.disable_sync().unwrap();
            assert!(!work.is_busy());
            work.disable();
            assert!(!wq.enable_and_queue(&work).unwrap() && wq.enable_and_queue(&work).unwrap());
            gate.entered.recv().unwrap();
            gate.go.send(()).unwrap();
            wq.flush().unwrap();
        }
    });
}

#[test]
fn i16_drain_takes_only_chained_items() {
    within_patience(|| {
        let pools = pools();
        for flags in BOTH {
            let wq = pools.alloc("i16", flags, 0).unwrap();
            let chained = Arc::new(AtomicUsize::new(0));
            let (enter, entered) = mpsc::channel();
            let (go, may_go) = mpsc::channel::<()>();
            let item = {
                let (wq, chained) = (wq.clone(), Arc::clone(&chained));
                move || {
                    enter.send(()).unwrap();
                    blocking(|| may_go.recv()).unwrap();
                    let inner = Arc::clone(&chained);
                    let queue = wq.clone();
                    let first = wq.spawn(move || {
                        let innermost = Arc::clone(&inner);
                        let second = queue.spawn(move || {
                            innermost.fetch_add(1, Ordering::SeqCst);
                        });
                        inner.fetch_add(usize::from(second), Ordering::SeqCst);
                    });
                    chained.fetch_add(usize::from(first), Ordering::SeqCst);
                }
            };
            assert!(wq.spawn(item));
            entered.recv().unwrap();
            thread::scope(|s| {
                let drain = s.spawn(|| wq.drain().unwrap());
                // Once the drain has begun, outsiders are turned away, and stay so until it ends.
                while wq.spawn(|| ()) {
                    thread::yield_now();
                }
                let work = Work::new(|_| ());
                assert!(!wq.queue(&work) && !work.is_pending(), "{flags:?}: an outsider got in");
                assert!(!drain.is_finished());
                go.send(()).unwrap();
                drain.join().unwrap();
            });
            assert_eq!(chained.load(Ordering::SeqCst), 3, "{flags:?}: the chain was accepted and waited for");
            assert!(wq.spawn(|| ()), "open again");
            wq.flush().unwrap();
        }
    });
}

#[test]
fn i17_a_reclaim_queue_makes_progress_when_no_thread_can_be_made() {
    within_patience(|| {
        let cpu = two_cpus().0;
        for kind in BOTH {
            // One worker in all, and it waits for an item after it.
            let pools = Pools::new(config().cpus(CpuSet::from_iter([cpu])).max_threads(1)).unwrap();
            let plain = pools.alloc("i17_plain", kind, 0).unwrap();
            let reclaim = pools.alloc("i17", kind | WqFlags::MEM_RECLAIM, 1).unwrap();
            let (answer, question) = mpsc::channel();
            plain.spawn(move || {
                let _ = blocking(|| question.recv());
            });
            let foreign = Arc::new(AtomicUsize::new(0));
            let other = Arc::clone(&foreign);
            plain.spawn(move || {
                other.fetch_add(1, Ordering::SeqCst);
            });
            let names = Arc::new(Mutex::new(Vec::new()));
            for _ in 0..40 {
                let names = Arc::clone(&names);
                assert!(reclaim.spawn(move || names.lock().unwrap().push(thread::current().name().map(str::to_owned))));
            }
            reclaim.flush().unwrap();
            let names = std::mem::take(&mut *names.lock().unwrap());
            assert_eq!(names.len(), 40);
            assert!(names.iter().all(|name| name.as_deref() == Some("pr/R-i17")), "{kind:?}: {names:?}");
            assert_eq!(foreign.load(Ordering::SeqCst), 0, "{kind:?}: the rescuer ran another queue's item");
            let stats = reclaim.stats();
            assert_eq!(stats.rescued, 40, "{kind:?}");
            assert!(stats.maydays >= 1);
            assert!(pools.reports().iter().any(|r| matches!(r, Report::Mayday { queue, .. } if queue == "i17")));
            answer.send(()).unwrap();
            plain.flush().unwrap();
            assert_eq!(foreign.load(Ordering::SeqCst), 1);
        }
    });
}

#[test]
fn i18_an_item_that_sleeps_or_hogs_without_saying_so_does_not_hold_up_its_pool() {
    within_patience(|| {
        let cpu = two_cpus().0;
        let pools = Pools::new(Config::new().unbound_concurrency(1)).unwrap();
        for kind in BOTH {
            let wq = pools.alloc("i18_sleeps", kind, 0).unwrap();
            let hold = hog(&wq, cpu);
            let (enter, entered) = mpsc::channel();
            wq.spawn_on(cpu, move || enter.send(()).unwrap()).unwrap();
            entered.recv().unwrap();
            assert!(wq.stats().managed_wakeups >= 1, "{kind:?}");
            hold.go.send(()).unwrap();
            wq.flush().unwrap();
        }
        // Of a bound pool, whose one worker computes.
        let wq = pools.alloc("i18_hogs", WqFlags::PERCPU, 0).unwrap();
        let (stop, started) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (stopped, starts) = (Arc::clone(&stop), Arc::clone(&started));
        wq.spawn_on(cpu, move || {
            starts.store(true, Ordering::SeqCst);
            while !stopped.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        })
        .unwrap();
        while !started.load(Ordering::SeqCst) {
            thread::yield_now();
        }
        let (enter, entered) = mpsc::channel();
        wq.spawn_on(cpu, move || enter.send(()).unwrap()).unwrap();
        entered.recv().unwrap();
        assert!(wq.stats().cpu_hogs >= 1);
        stop.store(true, Ordering::Relaxed);
        wq.flush().unwrap();
        // Afterwards the pool is as before: one at a time again.
        while pools.stats().iter().any(|p| p.running > 0) {
            thread::sleep(Duration::from_millis(1));
        }
    });
}

#[test]
fn i18_an_item_that_says_it_waits_does_not_hold_up_its_pool() {
    within_patience(|| {
        let pools = pools();
        let cpu = two_cpus().0;
        let wq = pools.alloc("i18", WqFlags::PERCPU, 0).unwrap();
        let waiting: Vec<_> = (0..5)
            .map(|_| {
                let (enter, entered) = mpsc::channel();
                let (go, may_go) = mpsc::channel::<()>();
                wq.spawn_on(cpu, move || {
                    enter.send(()).unwrap();
                    blocking(|| may_go.recv()).unwrap();
                })
                .unwrap();
                entered.recv().unwrap();
                go
            })
            .collect();
        let (tell, told) = mpsc::channel();
        wq.spawn_on(cpu, move || tell.send(()).unwrap()).unwrap();
        told.recv().unwrap();
        waiting.iter().for_each(|go| go.send(()).unwrap());
        wq.flush().unwrap();

        // And only then: a bound pool otherwise runs one item at a time.
        let hold = hog(&wq, cpu);
        let started = Arc::new(AtomicBool::new(false));
        let sees = Arc::clone(&started);
        wq.spawn_on(cpu, move || sees.store(true, Ordering::SeqCst)).unwrap();
        thread::sleep(Duration::from_millis(10));
        assert!(!started.load(Ordering::SeqCst));
        hold.go.send(()).unwrap();
        wq.flush().unwrap();
        assert!(started.load(Ordering::SeqCst));
    });
}

#[test]
fn i19_changing_max_active_does_not_reorder() {
    within_patience(|| {
        let pools = pools();
        let seed = postread_tests::seed();
        let (_, cpu) = two_cpus();
        // Of a bound pool one item runs at a time, so the order of starts is the order of the numbers.
        let wq = pools.alloc("i19", WqFlags::PERCPU, 1).unwrap();
        let order = Arc::new(Mutex::new(Vec::new()));
        let stop = AtomicBool::new(false);
        thread::scope(|s| {
            s.spawn(|| {
                let mut rng = Rng::new(seed);
                while !stop.load(Ordering::Relaxed) {
                    wq.set_max_active(1 + rng.below(20)).unwrap();
                    (0..rng.below(500)).for_each(|_| std::hint::spin_loop());
                    thread::yield_now();
                }
            });
            let mut rng = Rng::new(seed + 1);
            for i in 0..30_000 {
                let order = Arc::clone(&order);
                assert!(wq.spawn_on(cpu, move || order.lock().unwrap().push(i)).unwrap());
                if rng.below(50) == 0 {
                    wq.set_max_active(1 + rng.below(20)).unwrap();
                }
                if rng.below(100) == 0 {
                    thread::yield_now();
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
        wq.flush().unwrap();
        let order = order.lock().unwrap();
        let wrong = order.iter().zip(0..).find(|&(&found, wanted)| found != wanted);
        assert_eq!((order.len(), wrong), (30_000, None));
    });
}

#[test]
fn i20_items_that_wait_for_each_other_are_safe_on_queues_of_their_own() {
    within_patience(|| {
        let pools = pools();
        let cpu = two_cpus().0;
        for flags in BOTH {
            for max in [1, 6] {
                let asking = pools.alloc("i20_asking", flags, max).unwrap();
                let answering = pools.alloc("i20_answering", flags, max).unwrap();
                let answers = Arc::new(AtomicUsize::new(0));
                for _ in 0..20 {
                    let (answer, question) = mpsc::channel();
                    let answers = Arc::clone(&answers);
                    asking
                        .spawn_on(cpu, move || {
                            answers.fetch_add(usize::from(blocking(|| question.recv()).is_ok()), Ordering::SeqCst);
                        })
                        .unwrap();
                    answering.spawn_on(cpu, move || answer.send(()).unwrap()).unwrap();
                }
                asking.flush().unwrap();
                assert_eq!(answers.load(Ordering::SeqCst), 20, "{flags:?}");
            }
            // On one queue as many as max_active may wait; the one that they wait for must not be the next.
            let wq = pools.alloc("i20_one", flags, 2).unwrap();
            let (answer, question) = mpsc::channel();
            let question = Arc::new(Mutex::new(question));
            let started = Arc::new(AtomicUsize::new(0));
            let entered = mpsc::channel();
            for _ in 0..2 {
                let (question, enter) = (Arc::clone(&question), entered.0.clone());
                wq.spawn_on(cpu, move || {
                    enter.send(()).unwrap();
                    blocking(|| question.lock().unwrap().recv()).unwrap();
                })
                .unwrap();
            }
            (0..2).for_each(|_| entered.1.recv().unwrap());
            let sees = Arc::clone(&started);
            wq.spawn_on(cpu, move || {
                sees.fetch_add(1, Ordering::SeqCst);
            })
            .unwrap();
            thread::sleep(Duration::from_millis(5));
            assert_eq!(started.load(Ordering::SeqCst), 0, "{flags:?}: beyond max_active");
            (0..2).for_each(|_| answer.send(()).unwrap());
            wq.flush().unwrap();
            assert_eq!(started.load(Ordering::SeqCst), 1);
        }
    });
}
