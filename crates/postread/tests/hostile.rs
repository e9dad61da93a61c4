//! Sources that lie, stall, fail, answer out of order, elsewhere or never: no unverified byte, and no hang.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use common::{Protected, engine, linear, memory, pattern, policies, read_all, watchdog};
use postread::{BioMut, Engine, EngineConfig, Inputs, Plan, QueuePolicy, Step, VerifiedInputs};
use postread_io::testing::{Deferred, Faulty, Flip, Order};
use postread_io::{BlockStatus, CorruptionKind, FailureKind, Source};
use postread_verity::{HashAlg, MerkleTreeParams};
use postread_workqueue::{Config, Pools};

/// A toy cipher: each block XORed with its number. It counts what it decrypted.
struct Xor {
    block_size: u32,
    first: u64,
    runs: AtomicU64,
}

impl Xor {
    fn new(block_size: u32, first: u64) -> Arc<Self> {
        Arc::new(Self { block_size, first, runs: AtomicU64::new(0) })
    }

    fn apply(&self, offset: u64, data: &mut [u8]) {
        for (n, block) in data.chunks_mut(self.block_size as usize).enumerate() {
            let key = (self.first + offset / u64::from(self.block_size) + n as u64).wrapping_mul(0x9e37_79b9) as u8 | 1;
            block.iter_mut().for_each(|b| *b ^= key);
        }
    }
}

impl Step for Xor {
    fn block_size(&self) -> u32 {
        self.block_size
    }

    fn inputs(&self, _blocks: std::ops::Range<u64>, _wanted: &mut Inputs) {}

    fn run(&self, bio: &mut BioMut<'_>, _inputs: &VerifiedInputs<'_>) {
        self.runs.fetch_add(1, Ordering::Relaxed);
        let offset = bio.offset();
        self.apply(offset, bio.data_mut());
    }
}

/// A file whose data and whose hash blocks are encrypted, over sources made by `wrap`.
fn encrypted(
    p: &Protected,
    wrap: impl Fn(Vec<u8>) -> Arc<dyn Source>,
    cache: usize,
    engine: &Engine,
) -> postread::OpenFile {
    let (data_key, tree_key) = (Xor::new(4096, 0), Xor::new(4096, 1 << 20));
    let mut data = p.data.clone();
    data.resize(data.len().next_multiple_of(4096), 0);
    let len = data.len() as u64;
    data_key.apply(0, &mut data);
    let mut tree = p.tree.clone();
    tree_key.apply(0, &mut tree);
    let layer = p.layer().cache_bytes(cache);
    let blocks = layer.hash_blocks(linear(wrap(tree), p.tree.len() as u64), vec![tree_key]);
    let plan = Plan::new(linear(wrap(data), len), p.data.len() as u64).step(data_key);
    engine.open(layer.protect(plan, blocks).expect("same size"))
}

#[test]
fn encrypted_data_under_an_encrypted_tree() {
    for policy in policies() {
        watchdog("encrypted", move || {
            let engine = engine(policy);
            for len in [1, 4096, 4097, 2_000_001] {
                let p = Protected::of_len(len);
                for cache in [0, 1 << 20] {
                    let file = encrypted(&p, |bytes| memory(&bytes), cache, &engine);
                    assert!(read_all(&file).expect("good") == p.data, "{policy} {len} {cache}");
                }
            }
        });
    }
}

/// One CPU, max_active 1, no tree cache, 64 readers, bios that complete in random order on every CPU.
#[test]
fn nothing_hangs_with_one_of_everything() {
    for (bound, order) in [(true, Order::Random(3)), (false, Order::Lifo), (true, Order::Lifo), (false, Order::Fifo)] {
        watchdog("one of everything", move || {
            let one = postread_sys::affinity::current().expect("mask").iter().next().expect("a CPU");
            let pools =
                Pools::new(Config::new().cpus([one].into_iter().collect()).unbound_concurrency(1)).expect("pools");
            let policy = if bound { QueuePolicy::BOUND } else { QueuePolicy::UNBOUND }.max_active(1);
            let engine = Engine::new(EngineConfig::new().policy(policy).pools(pools)).expect("engine");
            let p = Arc::new(Protected::of_len(900_000));
            let deferred = std::cell::RefCell::new(Vec::new());
            let wrap = |bytes: Vec<u8>| -> Arc<dyn Source> {
                let source = Deferred::new(memory(&bytes));
                deferred.borrow_mut().push(source.run(order).expect("threads"));
                Arc::new(source)
            };
            let file = encrypted(&p, wrap, 0, &engine);
            std::thread::scope(|s| {
                for n in 0..64_u64 {
                    let (file, p) = (&file, &p);
                    s.spawn(move || {
                        let reader = file.reader();
                        let mut buf = vec![0; 50_000];
                        for turn in 0..4 {
                            let at = (n * 13_577 + turn * 200_003) % 850_000;
                            assert_eq!(reader.read_at(&mut buf, at).expect("good"), 50_000);
                            assert!(buf[..] == p.data[at as usize..][..50_000]);
                        }
                    });
                }
            });
            file.close();
            assert_eq!(file.in_flight(), 0);
        });
    }
}

#[test]
fn a_lie_on_the_second_read_changes_nothing_but_an_error() {
    for policy in policies() {
        let engine = engine(policy);
        let p = Protected::of_len(1_200_000);
        let data = Faulty::new(p.data.clone());
        let tree = Faulty::new(p.tree.clone());
        // Every block of data, every hash block: honest once.
        (0..p.data.len() as u64).step_by(4096).for_each(|at| data.flip(at + 7, 0x10, Flip::FromSecondRead));
        (0..p.tree.len() as u64).step_by(4096).for_each(|at| tree.flip(at + 9, 0x10, Flip::FromSecondRead));
        let layer = p.layer();
        let (file, blocks) = p.open_with(&engine, &layer, Arc::new(data.clone()), Arc::new(tree.clone()), Vec::new());
        assert!(read_all(&file).expect("honest once") == p.data);
        // The hash blocks that were checked are still in memory; data is read anew, and is not what it was.
        let mut buf = vec![0; 4096];
        let error = file.reader().read_at(&mut buf, 8192).expect_err("a lie");
        assert!(
            matches!(&error.status, BlockStatus::Corrupt(c) if c.kind == CorruptionKind::Data && c.position == 8192)
        );
        // Evicted hash blocks are read anew too, and lose their verified bit with their bytes.
        blocks.evict_all();
        let error = file.reader().read_at(&mut buf, 8192).expect_err("a lie");
        assert!(matches!(&error.status, BlockStatus::Corrupt(c) if c.kind == CorruptionKind::Tree), "{error}");
        // A failure is not remembered.
        data.heal();
        tree.heal();
        assert!(read_all(&file).expect("honest again") == p.data, "{policy}");
    }
}

#[test]
fn a_lie_on_the_first_read_is_an_error_once() {
    let engine = engine(QueuePolicy::Inline);
    let p = Protected::of_len(600_000);
    let tree = Faulty::new(p.tree.clone());
    tree.flip(100, 1, Flip::FirstRead);
    let file = p.open_over(&engine, memory(&p.data), Arc::new(tree));
    let mut buf = vec![0; 4096];
    assert_eq!(file.reader().read_at(&mut buf, 0).expect_err("bad root level").kind(), FailureKind::Corrupt);
    assert_eq!(file.reader().read_at(&mut buf, 0).expect("good"), 4096);
}

#[test]
fn errors_stand_where_they_are() {
    for policy in policies() {
        let engine = engine(policy);
        let p = Protected::of_len(1_000_000);
        let data = Faulty::new(p.data.clone());
        data.fail(100_000..100_001, 5);
        data.flip(300_000, 1, Flip::Always);
        data.flip(310_000, 1, Flip::Always);
        let file = p.open_over(&engine, Arc::new(data.clone()), memory(&p.tree));
        let reader = file.reader();
        let mut buf = vec![0; 1_000_000];
        let bad = |at: usize| at / 4096 * 4096;
        let mut at = 0;
        let mut good = Vec::new();
        let mut errors = Vec::new();
        while at < 1_000_000 {
            match reader.read_at(&mut buf, at as u64) {
                Ok(n) => {
                    assert!(buf[..n] == p.data[at..at + n], "{policy}");
                    good.push((at, at + n));
                    at += n;
                }
                Err(error) => {
                    assert_eq!(error.offset, at as u64);
                    errors.push((at, error.kind()));
                    at += 4096;
                }
            }
        }
        let (io, c1, c2) = (bad(100_000), bad(300_000), bad(310_000));
        assert_eq!(errors, [(io, FailureKind::Io), (c1, FailureKind::Corrupt), (c2, FailureKind::Corrupt)]);
        assert_eq!(good, [(0, io), (io + 4096, c1), (c1 + 4096, c2), (c2 + 4096, 1_000_000)]);
        let mut scan = file.scan(0..u64::MAX);
        let found: Vec<_> = scan.by_ref().map(|b| (b.range.start as usize, b.status.failure().expect("bad"))).collect();
        assert_eq!(found, errors);
        assert_eq!(scan.totals().bad, 3 * 4096);
        assert_eq!(scan.totals().good, 1_000_000 - 3 * 4096);
    }
}

#[test]
fn truncated_while_it_is_read() {
    for policy in policies() {
        let engine = engine(policy);
        let p = Protected::of_len(1_000_000);
        let data = Faulty::new(p.data.clone());
        let file = p.open_over(&engine, Arc::new(data.clone()), memory(&p.tree));
        let reader = file.reader();
        let mut buf = vec![0; 4096];
        assert_eq!(reader.read_at(&mut buf, 0).expect("good"), 4096);
        data.truncate(500_000);
        let file2 = p.open_over(&engine, Arc::new(data), memory(&p.tree));
        let error = read_all(&file2).expect_err("too short");
        assert_eq!((error.offset, error.status.clone()), (499_712, BlockStatus::Short), "{policy}");
    }
}

#[test]
fn wrong_trees() {
    let engine = engine(QueuePolicy::UNBOUND);
    let p = Protected::of_len(1_000_000);
    let other = Protected::new(pattern(1_000_000, 77), MerkleTreeParams::default());
    let read = |tree: &[u8]| read_all(&p.open_over(&engine, memory(&p.data), memory(tree)));
    // Another file's tree, none, a short one, one of other parameters.
    for (what, tree) in [
        ("other", other.tree.clone()),
        ("empty", Vec::new()),
        ("short", p.tree[..p.tree.len() - 1].to_vec()),
        (
            "1024",
            Protected::new(p.data.clone(), MerkleTreeParams::new(HashAlg::Sha256, 1024, b"").expect("sound")).tree,
        ),
        (
            "salted",
            Protected::new(p.data.clone(), MerkleTreeParams::new(HashAlg::Sha256, 4096, b"s").expect("sound")).tree,
        ),
    ] {
        let error = read(&tree).expect_err(what);
        let kind = if matches!(what, "empty" | "short") { FailureKind::Io } else { FailureKind::Corrupt };
        assert_eq!(error.kind(), kind, "{what}: {error}");
    }
    // The leaf block that is cut is the last: all before it is good.
    let file = p.open_over(&engine, memory(&p.data), memory(&p.tree[..p.tree.len() - 1]));
    let bad: Vec<_> = file.scan(0..u64::MAX).collect();
    assert_eq!(bad.len(), 1);
    assert_eq!(bad[0].range, 524_288..1_000_000);
    assert!(matches!(&bad[0].status, BlockStatus::Input { cause, .. } if **cause == BlockStatus::Short));
}

#[test]
fn vanishing_and_stalling_sources() {
    for policy in policies() {
        watchdog("vanish", move || {
            let engine = engine(policy);
            let p = Protected::of_len(1_000_000);
            for (lost_data, lost_tree) in [(true, false), (false, true), (true, true)] {
                let data = Deferred::new(memory(&p.data));
                let tree = Deferred::new(memory(&p.tree));
                let file = p.open_over(&engine, Arc::new(data.clone()), Arc::new(tree.clone()));
                let reading = {
                    let file = file.clone();
                    std::thread::spawn(move || {
                        let mut buf = vec![0; 4096];
                        file.reader().read_at(&mut buf, 4096)
                    })
                };
                while !reading.is_finished() {
                    for (source, lost) in [(&data, lost_data), (&tree, lost_tree)] {
                        if lost {
                            source.vanish();
                        } else {
                            source.complete_all(Order::Lifo);
                        }
                    }
                    std::thread::yield_now();
                }
                let error = reading.join().expect("no panic").expect_err("lost");
                assert_eq!(error.kind(), FailureKind::Io);
                // What stalls holds no reader that does not want it any more.
                let stalled = file.read(0, 8192);
                let mut stalled = Box::pin(stalled);
                let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
                assert!(std::future::Future::poll(stalled.as_mut(), &mut cx).is_pending());
                drop(stalled);
                data.complete_all(Order::Fifo);
                tree.complete_all(Order::Fifo);
                while file.in_flight() > 0 {
                    data.complete_all(Order::Fifo);
                    tree.complete_all(Order::Fifo);
                    std::thread::yield_now();
                }
                file.close();
                assert_eq!(file.reader().read_at(&mut [0; 10], 0).expect_err("closed").kind(), FailureKind::Cancelled);
            }
        });
    }
}

#[test]
fn a_step_that_panics_fails_its_bio() {
    struct Panics;
    impl Step for Panics {
        fn block_size(&self) -> u32 {
            4096
        }
        fn inputs(&self, _: std::ops::Range<u64>, _: &mut Inputs) {}
        fn run(&self, _: &mut BioMut<'_>, _: &VerifiedInputs<'_>) {
            panic!("on purpose");
        }
    }
    for policy in policies() {
        watchdog("panic", move || {
            let plan = Plan::new(linear(memory(&[1; 10_000]), 10_000), 10_000).step(Arc::new(Panics));
            let file = engine(policy).open(plan);
            let error = file.reader().read_at(&mut [0; 10], 0).expect_err("panicked");
            assert!(matches!(error.status, BlockStatus::Step { .. }));
        });
    }
}
