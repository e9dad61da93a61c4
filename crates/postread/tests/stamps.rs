//! Every bio of an engine that measures is recorded once, with stamps in order, whatever becomes of it.

mod common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Protected, memory, policies, watchdog};
use postread::{BioFate, BioKind, BioObserver, BioRecord, Engine, EngineConfig, QueuePolicy};
use postread_io::testing::{Deferred, Order};
use postread_io::{PreadConfig, PreadOptions, PreadPool, Priority, ReadAt, Source};

#[derive(Default)]
struct Records(Mutex<Vec<BioRecord>>);

impl BioObserver for Records {
    fn bio(&self, record: &BioRecord) {
        self.0.lock().expect("not poisoned").push(*record);
    }
}

impl Records {
    fn take(&self) -> Vec<BioRecord> {
        std::mem::take(&mut self.0.lock().expect("not poisoned"))
    }
}

/// Takes a moment: what answers at once leaves nothing to read ahead.
struct Slow(Vec<u8>);

impl ReadAt for Slow {
    fn len(&self) -> std::io::Result<u64> {
        self.0.as_slice().len().try_into().map_err(std::io::Error::other)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> std::io::Result<usize> {
        std::thread::sleep(Duration::from_millis(2));
        self.0.read_at(buf, offset)
    }
}

fn measured(policy: QueuePolicy) -> (Engine, Arc<Records>) {
    let records = Arc::new(Records::default());
    let config = EngineConfig::new().policy(policy).observer(records.clone());
    (Engine::new(config).expect("engine"), records)
}

/// Each stamp is at or after the one before it, but for the microsecond that two threads' clocks may differ by.
fn in_order(stamps: &[u64]) -> bool {
    stamps.windows(2).all(|pair| pair[0] > 0 && pair[0] <= pair[1] + 2_000)
}

#[test]
fn stations_are_passed_in_order() {
    for policy in policies() {
        watchdog("stations", move || {
            let (engine, records) = measured(policy);
            let p = Protected::of_len(3_000_000);
            let pool = PreadPool::new(PreadConfig::new()).expect("pool");
            let source: Arc<dyn Source> =
                Arc::new(pool.read_at(Arc::new(Slow(p.data.clone())), PreadOptions::default()));
            let file = p.open_over(&engine, source, memory(&p.tree));
            assert!(common::read_all(&file).expect("good") == p.data);
            file.close();
            let all = records.take();
            let stats = engine.stats();
            assert_eq!(all.len() as u64, stats.bios + stats.hash_bios, "{policy}: each bio once");
            for record in &all {
                let t = &record.times;
                assert!(in_order(&[t.submitted_ns, t.read_begun_ns, t.arrived_ns, t.dispatched_ns]), "{record:?}");
                assert!(in_order(&[t.ready_ns(), t.dispatched_ns, t.started_ns, t.ended_ns, t.delivered_ns]));
                assert_eq!(record.fate, BioFate::Delivered, "{record:?}");
                assert!(policy == QueuePolicy::Auto || record.queued == (policy != QueuePolicy::Inline));
                assert!(t.step_cpu_ns > 0 && record.completing_thread > 0 && record.running_thread > 0);
                assert!(record.kind == BioKind::Tree || record.reading_thread == postread_sys::gettid());
                assert!(record.kind == BioKind::Tree || in_order(&[t.wanted_ns, t.delivered_ns]));
                if policy == QueuePolicy::Inline && record.times.inputs_ns == 0 {
                    assert_eq!(record.completing_thread, record.running_thread);
                }
            }
            // The classes are kept apart and cover everything.
            let of = |kind, why| all.iter().filter(|r| r.kind == kind && r.submitted_as == why).count() as u64;
            let (demand, ahead) = (of(BioKind::Data, Priority::Demand), of(BioKind::Data, Priority::ReadAhead));
            assert_eq!((stats.demand.bios, stats.read_ahead.bios), (demand, ahead));
            assert_eq!(stats.tree.bios, stats.hash_bios);
            assert!(demand > 0 && ahead > 0, "{demand} and {ahead}");
            assert_eq!(stats.demand.bytes + stats.read_ahead.bytes, stats.bytes);
            let queued = stats.demand.queue.count() + stats.read_ahead.queue.count() + stats.tree.queue.count();
            assert_eq!((queued, stats.queue_latency.count()), (stats.items_queued, stats.items_queued), "{policy}");
            let delays: u64 =
                all.iter().filter(|r| r.kind == BioKind::Data).filter_map(|r| r.times.post_read_delay_ns()).sum();
            assert_eq!(stats.post_read_delay.total_ns(), delays);
        });
    }
}

/// The time that a reader thinks is no delay of the bios that were read ahead of it.
#[test]
fn think_time_is_not_in_the_delay_of_read_ahead() {
    for policy in policies() {
        let (engine, records) = measured(policy);
        let p = Protected::of_len(2_000_000);
        let pool = PreadPool::new(PreadConfig::new()).expect("pool");
        let source: Arc<dyn Source> = Arc::new(pool.read_at(Arc::new(Slow(p.data.clone())), PreadOptions::default()));
        let file = p.open_over(&engine, source, memory(&p.tree));
        let reader = file.reader();
        let mut thought = 0;
        let mut at = 0;
        while let Some(chunk) = reader.lend(at, 1 << 20).expect("good") {
            at += chunk.len() as u64;
            let begin = postread_sys::monotonic_ns();
            std::thread::sleep(Duration::from_millis(20));
            thought += postread_sys::monotonic_ns() - begin;
        }
        file.close();
        let ahead: Vec<_> = records.take().into_iter().filter(|r| r.submitted_as == Priority::ReadAhead).collect();
        assert!(!ahead.is_empty());
        for record in ahead {
            let t = record.times;
            assert!(t.wanted_ns > t.submitted_ns, "a reader came later: {record:?}");
            // By definition, not by luck: nothing before the reader came is counted.
            let delay = t.post_read_delay_ns().expect("delivered");
            assert!(delay <= t.delivered_ns - t.wanted_ns.max(t.arrived_ns), "{record:?}");
            assert!(delay <= thought);
        }
    }
}

/// What is cancelled or read in vain does not vanish from the figures.
#[test]
fn cancelled_and_unused_bios_are_recorded() {
    for policy in policies() {
        watchdog("cancelled", move || {
            let (engine, records) = measured(policy);
            let p = Protected::of_len(2_000_000);
            let data = Deferred::new(memory(&p.data));
            let file = p.open_over(&engine, Arc::new(data.clone()), memory(&p.tree));
            let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
            // Cancelled while its source holds it.
            let mut read = Box::pin(file.read(0, 1_000_000));
            assert!(std::future::Future::poll(read.as_mut(), &mut cx).is_pending());
            let cancelled = data.held();
            drop(read);
            while file.in_flight() > 0 {
                std::thread::yield_now();
            }
            // Ended, and never taken.
            let mut read = Box::pin(file.read(0, 1_000_000));
            assert!(std::future::Future::poll(read.as_mut(), &mut cx).is_pending());
            let unused = data.held();
            data.complete_all(Order::Fifo);
            while file.in_flight() > 0 {
                std::thread::yield_now();
            }
            drop(read);
            let all = records.take();
            let fates = |fate| all.iter().filter(|r| r.kind == BioKind::Data && r.fate == fate).count();
            assert_eq!((fates(BioFate::Cancelled), fates(BioFate::Unused)), (cancelled, unused), "{policy}");
            assert_eq!(fates(BioFate::Delivered), 0);
            let stats = engine.stats();
            assert_eq!((stats.demand.cancelled, stats.demand.unused), (cancelled as u64, unused as u64));
            assert_eq!(stats.cancelled_bios, cancelled as u64);
            assert!(all.iter().all(|r| r.kind == BioKind::Tree || r.times.delivered_ns == 0));
        });
    }
}
