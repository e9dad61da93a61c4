//! The monitor, the watchdog, and CPUs that go away.

mod common;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use common::{BOTH, two_cpus, within_patience};
use postread_sys::{CpuSet, affinity};
use postread_workqueue::{Config, Pools, Report, WqFlags, blocking};

fn spin_for(time: Duration) {
    let begin = std::time::Instant::now();
    while begin.elapsed() < time {
        std::hint::spin_loop();
    }
}

#[test]
fn a_function_that_hogs_a_cpu_is_reported_from_the_fourth_time_on_and_less_and_less_often() {
    within_patience(|| {
        let reports = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&reports);
        let config = Config::new().cpu_intensive_thresh(Duration::from_millis(2)).on_report(move |report| {
            seen.lock().unwrap().push(report.clone());
            // Foreign code: it costs nobody the manager.
            std::panic::resume_unwind(Box::new("intended"));
        });
        let pools = Pools::new(config).unwrap();
        let cpu = two_cpus().0;
        let wq = pools.alloc("hogs", WqFlags::PERCPU, 0).unwrap();
        let mut rounds = 0;
        while wq.stats().cpu_hogs < 12 {
            // With an item after it; otherwise it holds nobody up.
            wq.spawn_on(cpu, || spin_for(Duration::from_millis(20))).unwrap();
            wq.spawn_on(cpu, || ()).unwrap();
            wq.flush().unwrap();
            rounds += 1;
            assert!(rounds < 1000, "{}", wq.stats());
        }
        let reports = reports.lock().unwrap();
        let times: Vec<u64> = reports
            .iter()
            .filter_map(|r| match r {
                Report::CpuHog { running, times } => {
                    assert!(running.queue == "hogs" && running.function.contains("a_function_that_hogs"), "{running}");
                    Some(*times)
                }
                _ => None,
            })
            .collect();
        assert_eq!(times[..4], [4, 5, 7, 11], "{times:?}");
        assert!(pools.reports().len() >= 4);
    });
}

#[test]
fn a_pool_that_does_not_move_is_reported_once_with_what_its_workers_run() {
    within_patience(|| {
        for flags in BOTH {
            let config = Config::new()
                .cpu_intensive_thresh(Duration::ZERO)
                .watchdog_thresh(Duration::from_millis(20))
                .unbound_concurrency(1);
            let pools = Pools::new(config).unwrap();
            let cpu = two_cpus().0;
            let wq = pools.alloc("stalls", flags, 0).unwrap();
            let (go, may_go) = mpsc::channel::<()>();
            wq.spawn_on(cpu, move || {
                let _ = may_go.recv();
            })
            .unwrap();
            wq.spawn_on(cpu, || ()).unwrap();
            while pools.reports().is_empty() {
                thread::sleep(Duration::from_millis(1));
            }
            thread::sleep(Duration::from_millis(100));
            go.send(()).unwrap();
            wq.flush().unwrap();
            let reports = pools.reports();
            assert_eq!(reports.len(), 1, "{flags:?}: {reports:?}");
            let Report::Stall { stalled, running, pool } = &reports[0] else { panic!("{:?}", reports[0]) };
            assert!(*stalled >= Duration::from_millis(20) && !pool.is_empty());
            assert_eq!((running.len(), running[0].queue.as_str()), (1, "stalls"));
            assert!(running[0].function.contains("a_pool_that_does_not_move"), "{}", running[0]);
        }
    });
}

#[test]
fn an_item_of_a_reclaim_queue_that_flushes_an_ordinary_one_is_reported() {
    within_patience(|| {
        let pools = Pools::new(Config::new()).unwrap();
        let plain = pools.alloc("plain", WqFlags::UNBOUND, 0).unwrap();
        let other = pools.alloc("other", WqFlags::UNBOUND | WqFlags::MEM_RECLAIM, 0).unwrap();
        let reclaim = pools.alloc("reclaim", WqFlags::UNBOUND | WqFlags::MEM_RECLAIM, 0).unwrap();
        reclaim.spawn_task(move || other.flush().unwrap()).join().unwrap();
        assert_eq!(pools.reports(), []);
        reclaim.spawn_task(move || plain.flush().unwrap()).join().unwrap();
        let expected = Report::FlushDependency { queue: "reclaim".into(), target: "plain".into() };
        assert_eq!(pools.reports(), [expected]);
    });
}

/// As when a CPU goes offline, or a cpuset shrinks: the kernel moves the threads to other CPUs. Here the test
/// changes their masks.
#[test]
fn no_item_is_lost_when_cpus_go_away_and_workers_come_home_when_they_are_back() {
    within_patience(|| {
        let (first, last) = two_cpus();
        let pools = Pools::new(Config::new()).unwrap();
        for flags in BOTH {
            let wq = pools.alloc("away", flags, 0).unwrap();
            let ran = Arc::new(AtomicUsize::new(0));
            let stop = AtomicBool::new(false);
            thread::scope(|s| {
                s.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        for worker in pools.stats().iter().flat_map(|p| &p.workers) {
                            let _ = affinity::set_thread(worker.tid, &CpuSet::from_iter([first]));
                        }
                        thread::sleep(Duration::from_millis(2));
                    }
                });
                for i in 0..2000 {
                    let ran = Arc::clone(&ran);
                    wq.spawn_on(if i % 2 == 0 { first } else { last }, move || {
                        if i % 50 == 0 {
                            blocking(|| thread::sleep(Duration::from_micros(200)));
                        }
                        ran.fetch_add(1, Ordering::SeqCst);
                    })
                    .unwrap();
                }
                wq.flush().unwrap();
                stop.store(true, Ordering::Relaxed);
            });
            assert_eq!(ran.load(Ordering::SeqCst), 2000, "{flags:?}");
            if flags == WqFlags::PERCPU {
                // At its next wake-up a worker sees that it is not on its CPU.
                loop {
                    let (tell, told) = mpsc::channel();
                    wq.spawn_on(last, move || tell.send(affinity::current().unwrap()).unwrap()).unwrap();
                    if told.recv().unwrap() == CpuSet::from_iter([last]) {
                        break;
                    }
                    wq.flush().unwrap();
                    thread::sleep(Duration::from_millis(1));
                }
            }
        }
    });
}
