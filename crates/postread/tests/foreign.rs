//! Code of others that panics or waits: sources, mappings, wakers, observers, work items that read. Nothing hangs, no
//! thread is lost, and every bio ends.

mod common;

use std::future::Future;
use std::ops::Range;
use std::panic::resume_unwind;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use common::{Protected, engine, linear, memory, policies, watchdog};
use postread::{
    BioMut, BioObserver, BioRecord, Engine, EngineConfig, Inputs, Mapping, Piece, PieceAt, Plan, QueuePolicy, Step,
    VerifiedInputs,
};
use postread_io::testing::{Deferred, Order};
use postread_io::{
    Bio, BioId, BlockStatus, Completion, FailureKind, PreadConfig, PreadOptions, PreadPool, ReadAt, Source,
};
use postread_workqueue::{Config, Pools, WqFlags};

/// A panic without a message on standard error.
fn panics<T>() -> T {
    resume_unwind(Box::new("on purpose"))
}

struct BadWaker(Arc<AtomicUsize>);

impl Wake for BadWaker {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
        panics()
    }
}

impl Drop for BadWaker {
    fn drop(&mut self) {
        // A second panic during the first one aborts, whoever catches.
        if !std::thread::panicking() {
            panics()
        }
    }
}

/// Takes a moment, so that readers wait for it.
struct Slow;

impl ReadAt for Slow {
    fn len(&self) -> std::io::Result<u64> {
        Ok(1 << 20)
    }

    fn read_at(&self, buf: &mut [u8], _offset: u64) -> std::io::Result<usize> {
        std::thread::sleep(Duration::from_millis(5));
        buf.fill(1);
        Ok(buf.len())
    }
}

/// A step that does nothing, so that there is something to queue.
struct Nothing;

impl Step for Nothing {
    fn block_size(&self) -> u32 {
        4096
    }

    fn inputs(&self, _: Range<u64>, _: &mut Inputs) {}

    fn run(&self, _: &mut BioMut<'_>, _: &VerifiedInputs<'_>) {}
}

fn one_cpu() -> u32 {
    postread_sys::affinity::current().expect("mask").iter().next().expect("a CPU")
}

/// More wakers than the pool has threads panic when they are woken, and again when they are dropped.
#[test]
fn wakers_that_panic_end_no_thread() {
    for policy in policies() {
        watchdog("wakers", move || {
            let pool = PreadPool::new(PreadConfig::new().on_cpus([one_cpu()]).threads(2)).expect("pool");
            let source: Arc<dyn Source> = Arc::new(pool.read_at(Arc::new(Slow), PreadOptions::default()));
            let file = engine(policy).open(Plan::new(linear(source, 1 << 20), 1 << 20).step(Arc::new(Nothing)));
            let woken = Arc::new(AtomicUsize::new(0));
            for n in 1..=5 {
                let mut read = pin!(file.read(0, 4096));
                let waker = Waker::from(Arc::new(BadWaker(woken.clone())));
                assert!(read.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
                // The engine has the last handle now.
                let _ = postread_sys::contain(|| drop(waker));
                while woken.load(Ordering::SeqCst) < n {
                    std::thread::yield_now();
                }
            }
            let mut buf = [0; 10];
            assert_eq!(file.reader().read_at(&mut buf, 500_000), Ok(10), "{policy}");
            file.close();
            assert_eq!(file.in_flight(), 0);
        });
    }
}

/// A task's last waker drops the future, which cancels the very bio that the waker is taken from.
#[test]
fn a_waker_may_drop_the_read_that_it_wakes() {
    struct Task(std::sync::Mutex<Option<postread::ReadFuture>>);
    impl Wake for Task {
        fn wake(self: Arc<Self>) {
            drop(self.0.lock().expect("not poisoned").take());
        }
    }
    watchdog("task", || {
        let data = Deferred::new(memory(&[7; 100_000]));
        let source: Arc<dyn Source> = Arc::new(data.clone());
        let file = engine(QueuePolicy::Inline).open(Plan::new(linear(source, 100_000), 100_000));
        let task = Arc::new(Task(std::sync::Mutex::new(Some(file.read(0, 100_000)))));
        let waker = Waker::from(task.clone());
        let mut future = task.0.lock().expect("not poisoned").take().expect("there");
        assert!(pin!(&mut future).poll(&mut Context::from_waker(&waker)).is_pending());
        *task.0.lock().expect("not poisoned") = Some(future);
        drop((waker, task));
        data.complete_all(Order::Fifo);
        file.close();
    });
}

/// Panics in one of its methods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Panics {
    Align,
    Submit,
    Cancel,
    Piece,
    StepInputs,
}

struct Bad(Panics, Arc<dyn Source>);

impl Source for Bad {
    fn len(&self) -> std::io::Result<u64> {
        self.1.len()
    }

    fn align(&self) -> u32 {
        if self.0 == Panics::Align { panics() } else { 1 }
    }

    fn submit(&self, bio: Bio, done: Completion) -> BioId {
        if self.0 == Panics::Submit { panics() } else { self.1.submit(bio, done) }
    }

    fn cancel(&self, id: BioId) -> bool {
        self.1.cancel(id);
        panics()
    }
}

struct BadMap(Panics, Arc<dyn Source>);

impl Mapping for BadMap {
    fn piece(&self, offset: u64, len: u64) -> Piece<'_> {
        // Some pieces first, so that a half-made bio has to be taken apart.
        if self.0 == Panics::Piece && offset % 65_536 >= 8192 {
            panics()
        }
        Piece { len: len.min(4096), at: PieceAt::Source { source: &self.1, offset } }
    }
}

struct BadStep(Panics);

impl Step for BadStep {
    fn block_size(&self) -> u32 {
        4096
    }

    fn inputs(&self, _: Range<u64>, _: &mut Inputs) {
        if self.0 == Panics::StepInputs {
            panics()
        }
    }

    fn run(&self, _: &mut BioMut<'_>, _: &VerifiedInputs<'_>) {}
}

#[test]
fn sources_mappings_and_steps_that_panic_fail_their_bio_only() {
    for policy in policies() {
        for what in [Panics::Align, Panics::Submit, Panics::Cancel, Panics::Piece, Panics::StepInputs] {
            watchdog("panics", move || {
                let p = Protected::of_len(200_000);
                let engine = engine(policy);
                let data = Deferred::new(memory(&p.data));
                let source: Arc<dyn Source> = Arc::new(Bad(what, Arc::new(data.clone())));
                let layer = p.layer();
                let blocks = layer.hash_blocks(linear(memory(&p.tree), p.tree.len() as u64), Vec::new());
                let plan = Plan::new(Arc::new(BadMap(what, source)), 200_000);
                let plan = layer.protect(plan, blocks.clone()).expect("same size");
                let plan = plan.verified_step(Arc::new(BadStep(what)), blocks);
                let file = engine.open(plan);
                // Dropped at once: what its source still holds is cancelled.
                let pending = pin!(file.read(0, 65_536)).poll(&mut Context::from_waker(Waker::noop())).is_pending();
                assert!(pending || what != Panics::Cancel);
                if what != Panics::Cancel {
                    let error = file.reader().read_at(&mut [0; 100], 0).expect_err("it panicked");
                    assert_eq!(error.kind(), FailureKind::Io, "{what:?}: {error}");
                }
                file.close();
                assert_eq!(file.in_flight(), 0, "{what:?}");
            });
        }
    }
}

/// Counts records, and panics.
struct BadObserver(AtomicUsize);

impl BioObserver for BadObserver {
    fn bio(&self, _record: &BioRecord) {
        self.0.fetch_add(1, Ordering::SeqCst);
        panics()
    }
}

#[test]
fn an_observer_that_panics_disturbs_nobody() {
    for policy in policies() {
        watchdog("observer", move || {
            let observer = Arc::new(BadObserver(AtomicUsize::new(0)));
            let config = EngineConfig::new().policy(policy).observer(observer.clone());
            let engine = Engine::new(config).expect("engine");
            let p = Protected::of_len(1_000_000);
            assert!(common::read_all(&p.open(&engine)).expect("good") == p.data);
            let stats = engine.stats();
            assert_eq!(observer.0.load(Ordering::SeqCst) as u64, stats.bios + stats.hash_bios, "{policy}");
        });
    }
}

/// A work item reads, blocking, through an engine whose items run on the very worker that the item holds.
#[test]
fn a_work_item_may_read_through_the_pools_that_it_runs_on() {
    for bound in [true, false] {
        watchdog("read in an item", move || {
            let cpus = [one_cpu()].into_iter().collect();
            let pools = Pools::new(Config::new().cpus(cpus).unbound_concurrency(1)).expect("pools");
            let policy = if bound { QueuePolicy::BOUND } else { QueuePolicy::UNBOUND };
            let engine = Engine::new(EngineConfig::new().policy(policy).pools(pools.clone())).expect("engine");
            let threads = PreadPool::new(PreadConfig::new().on_cpus([one_cpu()])).expect("threads");
            let source: Arc<dyn Source> = Arc::new(threads.read_at(Arc::new(Slow), PreadOptions::default()));
            let file = engine.open(Plan::new(linear(source, 1 << 20), 1 << 20).step(Arc::new(Nothing)));
            let flags = if bound { WqFlags::PERCPU } else { WqFlags::UNBOUND };
            let queue = pools.alloc("reads", flags, 0).expect("queue");
            let (tell, told) = mpsc::channel();
            let item = move || {
                let mut buf = [0; 10];
                let read = file.reader().read_at(&mut buf, 500_000);
                let scanned = file.scan(0..100_000).count();
                // Reads that nobody waits for are still in flight when it closes.
                let _ = pin!(file.read(0, 300_000)).poll(&mut Context::from_waker(Waker::noop()));
                file.close();
                tell.send((read, buf, scanned)).expect("somebody waits");
            };
            assert!(queue.spawn(item));
            assert_eq!(told.recv().expect("it ran"), (Ok(10), [1; 10], 0));
            assert_eq!(queue.flush().expect("from outside").panics, 0);
        });
    }
}

/// A read in the destructor of a thread-local, when this crate's own may be gone.
#[test]
fn a_thread_locals_destructor_may_read() {
    struct Reads(postread::OpenFile, Arc<AtomicBool>);
    impl Drop for Reads {
        fn drop(&mut self) {
            let good = self.0.reader().read_at(&mut [0; 10], 0) == Ok(10);
            self.1.store(good, Ordering::SeqCst);
        }
    }
    thread_local! { static HELD: std::cell::RefCell<Option<Reads>> = const { std::cell::RefCell::new(None) }; }
    for policy in policies() {
        let pool = PreadPool::new(PreadConfig::new()).expect("pool");
        let source: Arc<dyn Source> = Arc::new(pool.read_at(Arc::new(Slow), PreadOptions::default()));
        let file = engine(policy).open(Plan::new(linear(source, 1 << 20), 1 << 20).step(Arc::new(Nothing)));
        let good = Arc::new(AtomicBool::new(false));
        let (held, seen) = (file.clone(), good.clone());
        let thread = std::thread::spawn(move || {
            // Registered first, so destroyed last.
            HELD.with(|slot| *slot.borrow_mut() = Some(Reads(held, seen)));
            file.reader().read_at(&mut [0; 10], 300_000).expect("good");
        });
        thread.join().expect("no panic");
        assert!(good.load(Ordering::SeqCst), "{policy}");
    }
}

/// What a bad block cuts short says so, wherever in a bio it lies.
#[test]
fn a_read_that_a_bad_block_cut_short_says_so() {
    for policy in policies() {
        let engine = engine(policy);
        let p = Protected::of_len(1_000_000);
        for bad in [4096, 40_960, 262_144, 258_048, 999_424_u64] {
            let data = postread_io::testing::Faulty::new(p.data.clone());
            data.flip(bad, 1, postread_io::testing::Flip::Always);
            let file = p.open_over(&engine, Arc::new(data), memory(&p.tree));
            let reader = file.reader();
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("runtime");
            for read in [file.read(0, u64::MAX), reader.read_range(0, u64::MAX)] {
                let bytes = runtime.block_on(read).expect("a good prefix");
                assert!(bytes.to_vec() == p.data[..bad as usize], "{policy} {bad}");
                let stopped = bytes.stopped().expect("it is not the end of the file");
                assert_eq!((stopped.offset, stopped.kind()), (bad, FailureKind::Corrupt), "{policy} {bad}");
                assert!(matches!(&stopped.status, BlockStatus::Corrupt(c) if c.position == bad));
            }
            let whole = runtime.block_on(file.read(0, bad)).expect("good");
            assert!(whole.stopped().is_none() && whole.len() as u64 == bad);
        }
    }
}
