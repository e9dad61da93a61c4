//! Reads as futures: tied to no runtime, cancelled by dropping.

mod common;

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use common::{Protected, engine, memory, policies, watchdog};
use futures_util::future::join_all;
use postread::{Engine, EngineConfig, QueuePolicy};
use postread_io::testing::{Deferred, Order};
use postread_io::{Budget, PreadConfig, PreadOptions, PreadPool, Source};

#[test]
fn ten_thousand_pending_reads_on_one_thread() {
    for policy in [QueuePolicy::Inline, QueuePolicy::BOUND, QueuePolicy::UNBOUND] {
        watchdog("10,000 reads", move || {
            let p = Arc::new(Protected::of_len(8 << 20));
            let data = Deferred::new(memory(&p.data));
            let tree = Deferred::new(memory(&p.tree));
            let engine = engine(policy);
            let file = p.open_over(&engine, Arc::new(data.clone()), Arc::new(tree.clone()));
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("runtime");
            let ticks = Arc::new(AtomicU64::new(0));
            runtime.block_on(async {
                let (counting, stop) = (ticks.clone(), Arc::new(AtomicBool::new(false)));
                let stopped = stop.clone();
                let ticker = tokio::spawn(async move {
                    while !stopped.load(Ordering::Relaxed) {
                        counting.fetch_add(1, Ordering::Relaxed);
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                });
                let reads: Vec<_> = (0..10_000_u64)
                    .map(|n| {
                        let (file, p) = (file.clone(), p.clone());
                        tokio::spawn(async move {
                            let at = n * 4_099 % ((8 << 20) - 4096);
                            let bytes = file.read(at, 4096).await.expect("good");
                            assert_eq!(bytes.len(), 4096);
                            assert!(bytes.to_vec() == p.data[at as usize..][..4096]);
                        })
                    })
                    .collect();
                // All are pending at once, and the runtime's one thread is free: the ticker goes on.
                while data.held() < 10_000 {
                    tokio::task::yield_now().await;
                }
                let before = ticks.load(Ordering::Relaxed);
                while ticks.load(Ordering::Relaxed) < before + 5 {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                let running = (tree.run(Order::Lifo).expect("threads"), data.run(Order::Random(1)).expect("threads"));
                for read in join_all(reads).await {
                    read.expect("no panic");
                }
                drop(running);
                stop.store(true, Ordering::Relaxed);
                ticker.await.expect("no panic");
            });
            file.close();
        });
    }
}

#[test]
fn over_a_real_file() {
    watchdog("real file", || {
        let p = Protected::of_len(5_000_000);
        let mut file = tempfile::tempfile().expect("temporary file");
        file.write_all(&p.data).expect("written");
        let pool = PreadPool::new(PreadConfig::new()).expect("pool");
        let mut options = PreadOptions::default();
        options.inline_resident = false;
        let source: Arc<dyn Source> = Arc::new(pool.file(file, options));
        let open = p.open_over(&engine(QueuePolicy::UNBOUND), source, memory(&p.tree));
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("runtime");
        runtime.block_on(async {
            let all = open.read(0, u64::MAX).await.expect("good");
            assert!(all.parts().len() > 1);
            assert!(all.to_vec() == p.data && all.stopped().is_none());
            let reads = (0..500_u64).map(|n| open.read(n * 9_973, 10_000));
            for (n, bytes) in join_all(reads).await.into_iter().enumerate() {
                let at = n * 9_973;
                assert!(bytes.expect("good").to_vec() == p.data[at..(at + 10_000).min(p.data.len())]);
            }
            assert!(open.read(5_000_000, 1).await.expect("the end").is_empty());
        });
    });
}

#[test]
fn dropping_cancels_what_is_queued_and_returns_at_once() {
    for policy in policies() {
        watchdog("drop", move || {
            let p = Protected::of_len(4_000_000);
            let data = Deferred::new(memory(&p.data));
            let engine = engine(policy);
            let file = p.open_over(&engine, Arc::new(data.clone()), memory(&p.tree));
            let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
            let mut read = Box::pin(file.read(0, 2_000_000));
            assert!(std::future::Future::poll(read.as_mut(), &mut cx).is_pending());
            let held = data.held();
            assert!(held >= 7, "{held}");
            drop(read);
            // The source had not begun any of them. What waits for a hash block ends when that is checked.
            assert_eq!(data.held(), 0, "{policy}");
            while file.in_flight() > 0 {
                std::thread::yield_now();
            }
            assert_eq!(engine.stats().cancelled_bios, held as u64);
            // A reader that goes takes its read-ahead with it.
            let reader = file.reader();
            std::thread::scope(|s| {
                let first = s.spawn(|| reader.read_at(&mut [0; 4096], 0).expect("good"));
                while data.held() < 2 {
                    std::thread::yield_now();
                }
                while !first.is_finished() {
                    data.complete_one(Order::Fifo);
                    std::thread::yield_now();
                }
            });
            drop(reader);
            file.close();
            assert_eq!((data.held(), file.in_flight()), (0, 0), "{policy}");
        });
    }
}

/// Small reads from front to back, blocking, lent or as futures, read the file once.
#[test]
fn small_sequential_reads_read_the_file_once() {
    for policy in policies() {
        watchdog("small", move || {
            let p = Protected::of_len(1_000_003);
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("runtime");
            for how in ["future", "lend", "copy"] {
                let data = postread_io::testing::Faulty::new(p.data.clone());
                // A budget of its own: where other tests use the process's up, bios are small, and so more.
                let config = EngineConfig::new().policy(policy).budget(Budget::new(64 << 20));
                let engine = Engine::new(config).expect("engine");
                let file = p.open_over(&engine, Arc::new(data.clone()), memory(&p.tree));
                let reader = file.reader();
                let mut all = Vec::new();
                loop {
                    let at = all.len() as u64;
                    let before = all.len();
                    match how {
                        "future" => all.extend(runtime.block_on(reader.read_range(at, 1_000)).expect("good").to_vec()),
                        "lend" => all.extend(reader.lend(at, 1_000).expect("good").iter().flat_map(|l| l.iter())),
                        _ => {
                            let mut buf = [0; 1_000];
                            let n = reader.read_at(&mut buf, at).expect("good");
                            all.extend_from_slice(&buf[..n]);
                        }
                    }
                    if all.len() == before {
                        break;
                    }
                }
                assert!(all == p.data, "{policy} {how}");
                assert_eq!(data.reads(), 4, "bios of 256 KiB: {policy} {how}");
            }
        });
    }
}
