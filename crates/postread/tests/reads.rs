//! Good files read back as they are, under every policy, in every shape of read.

mod common;

use std::io::Write;
use std::sync::Arc;

use common::{Protected, engine, policies, read_all, watchdog};
use postread::{Engine, EngineConfig, Plan, QueuePolicy, VerityLayer};
use postread_io::{Budget, CompletionCpu, PreadConfig, PreadOptions, PreadPool};
use postread_verity::{HashAlg, MerkleTreeParams, Trust};

#[test]
fn every_policy_and_size() {
    for policy in policies() {
        watchdog(&policy.to_string(), move || {
            let engine = engine(policy);
            for len in [0, 1, 4095, 4096, 4097, 128 * 4096, 128 * 4096 + 1, 3_000_001] {
                let p = Protected::of_len(len);
                let file = p.open(&engine);
                assert!(read_all(&file).expect("good") == p.data, "{policy} {len}");
                assert_eq!(file.scan(0..u64::MAX).count(), 0);
                file.close();
                assert_eq!(file.in_flight(), 0);
            }
        });
    }
}

#[test]
fn what_was_proved_goes_with_the_file() {
    let engine = engine(QueuePolicy::Inline);
    let p = Protected::of_len(10_000);
    let digest = p.descriptor.file_digest();
    let trusted = [p.descriptor.clone().trust(&digest).expect("its own"), p.descriptor.clone().self_consistent()];
    for (descriptor, trust) in trusted.into_iter().zip([Trust::Digest, Trust::SelfConsistent]) {
        let layer = VerityLayer::new(descriptor).expect("a possible size");
        let (file, _) = p.open_with(&engine, &layer, common::memory(&p.data), common::memory(&p.tree), Vec::new());
        let trusted = file.trusted().expect("it is verified");
        assert_eq!((trusted.trust(), trusted.file_digest()), (&trust, &digest));
    }
    let plain = Plan::new(common::linear(common::memory(&p.data), 10_000), 10_000);
    assert!(engine.open(plain).trusted().is_none());
}

#[test]
fn every_shape_of_tree() {
    watchdog("shapes", || {
        let engine = engine(QueuePolicy::UNBOUND);
        for alg in [HashAlg::Sha256, HashAlg::Sha512] {
            for block_size in [512, 1024, 4096, 65536] {
                for salt in [&b""[..], b"0123456789abcdef0123456789abcdef"] {
                    for len in [1, block_size - 1, block_size * 9, 700_001] {
                        let params = MerkleTreeParams::new(alg, block_size as u32, salt).expect("sound");
                        let p = Protected::new(common::pattern(len, 5), params);
                        let file = p.open(&engine);
                        assert!(read_all(&file).expect("good") == p.data, "{alg} {block_size} {len}");
                    }
                }
            }
        }
    });
}

#[test]
fn a_real_file_over_the_pread_pool() {
    for policy in [QueuePolicy::Inline, QueuePolicy::BOUND, QueuePolicy::UNBOUND] {
        watchdog("pread", move || {
            let p = Protected::of_len(5_000_003);
            let file = |bytes: &[u8]| {
                let mut file = tempfile::tempfile().expect("temporary file");
                file.write_all(bytes).expect("written");
                file
            };
            let pool = PreadPool::new(PreadConfig::new().threads(2)).expect("pool");
            for inline_resident in [false, true] {
                let mut options = PreadOptions::default();
                options.completion_cpu = CompletionCpu::RoundRobin;
                options.inline_resident = inline_resident;
                let engine = engine(policy);
                let data = Arc::new(pool.file(file(&p.data), options));
                let open = p.open_over(&engine, data, Arc::new(pool.file(file(&p.tree), options)));
                assert!(read_all(&open).expect("good") == p.data);
                let stats = engine.stats();
                assert!(stats.data_blocks_verified >= 5_000_003_u64.div_ceil(4096), "{stats:?}");
                assert!(stats.tree_blocks_verified >= 11, "{stats:?}");
                assert_eq!(stats.queue_latency.count(), stats.items_queued);
                assert_eq!(stats.items_queued > 0, policy != QueuePolicy::Inline);
                assert!(stats.completions.iter().sum::<u64>() >= stats.bios + stats.hash_bios);
            }
        });
    }
}

#[test]
fn a_tiny_budget_slows_and_does_not_stop() {
    watchdog("budget", || {
        let budget = Budget::new(1);
        let config = EngineConfig::new().policy(QueuePolicy::UNBOUND).budget(budget.clone());
        let engine = Engine::new(config).expect("engine");
        let p = Protected::of_len(2_000_000);
        let file = p.open(&engine);
        assert!(read_all(&file).expect("good") == p.data);
        drop(file);
        assert!(budget.peak() <= 64 * 4096, "{}", budget.peak());
        assert_eq!(budget.used(), 0);
    });
}

#[test]
fn lent_buffers_and_random_reads() {
    let p = Protected::of_len(1_500_000);
    for policy in policies() {
        let engine = engine(policy);
        let file = p.open(&engine);
        let reader = file.reader();
        let mut at = 0;
        while let Some(lent) = reader.lend(at, 1 << 20).expect("good") {
            assert_eq!(lent.offset(), at);
            assert!(*lent == p.data[at as usize..][..lent.len()]);
            at += lent.len() as u64;
        }
        assert_eq!(at, 1_500_000);
        let mut buf = [0; 5000];
        for turn in 0..300_u64 {
            let at = turn.wrapping_mul(0x9e37_79b9) % 1_500_000;
            let n = reader.read_at(&mut buf, at).expect("good");
            assert_eq!(n, 5000.min(1_500_000 - at as usize));
            assert!(buf[..n] == p.data[at as usize..][..n]);
        }
        assert_eq!(reader.read_at(&mut buf, 1_500_000).expect("the end"), 0);
        assert_eq!(reader.read_at(&mut buf, u64::MAX).expect("behind the end"), 0);
    }
}

/// As `std::io::Read` and `Seek`: whole, from anywhere, and never past a bad block.
#[test]
fn a_reader_is_read_and_seek() {
    use std::io::{Read, Seek, SeekFrom};
    for policy in policies() {
        let engine = engine(policy);
        let p = Protected::of_len(700_001);
        let mut reader = p.open(&engine).reader();
        let mut all = Vec::new();
        assert_eq!(reader.read_to_end(&mut all).expect("good"), 700_001);
        assert!(all == p.data);
        assert_eq!(reader.stream_position().expect("a position"), 700_001);
        let mut some = [0; 5000];
        for (to, at) in [
            (SeekFrom::Start(9), 9),
            (SeekFrom::End(-6000), 694_001),
            (SeekFrom::Current(-5000), 694_001),
            (SeekFrom::Current(-8000), 691_001),
        ] {
            assert_eq!(reader.seek(to).expect("inside"), at);
            reader.read_exact(&mut some).expect("good");
            assert!(some[..] == p.data[at as usize..][..5000], "{to:?}");
        }
        assert_eq!(reader.seek(SeekFrom::End(10)).expect("as for files"), 700_011);
        assert_eq!(reader.read(&mut some).expect("past the end"), 0);
        assert!(reader.seek(SeekFrom::Current(-800_000)).is_err());
        assert_eq!(reader.stream_position().expect("unmoved"), 700_011);

        let data = postread_io::testing::Faulty::new(p.data.clone());
        data.flip(300_000, 1, postread_io::testing::Flip::Always);
        let mut reader = p.open_over(&engine, Arc::new(data), common::memory(&p.tree)).reader();
        all.clear();
        let error = reader.read_to_end(&mut all).expect_err("a bad block");
        let inner = error.get_ref().and_then(|e| e.downcast_ref::<postread::Error>()).expect("ours");
        assert_eq!((error.kind(), inner.kind()), (std::io::ErrorKind::InvalidData, postread::ErrorKind::Corrupt));
        assert!(all == p.data[..299_008], "{policy}");
        assert!(reader.read(&mut some).is_err(), "it stays where it is");
    }
}
