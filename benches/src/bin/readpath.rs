//! Verified reads of a warm file, against the same reads and the same hash in a bare loop.

use std::fs::File;
use std::hint::black_box;
use std::io::{Seek, Write};
use std::os::unix::fs::FileExt;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use postread::{Engine, EngineConfig, Linear, OpenFile, Plan, QueuePolicy, VerityLayer};
use postread_benches::{Better, Contestant, Group, Report, median};
use postread_blockcrypt::hash::{BlockHasher, HashAlg};
use postread_io::{Buf, MemorySource, PreadConfig, PreadOptions, PreadPool};
use postread_sys::CpuSet;
use postread_verity::{Descriptor, MerkleTreeParams, TreeBuilder, TreeInMemory};

const SIZE: usize = 256 << 20;
const CHUNK: usize = 256 << 10;
const RANDOM_READS: u64 = 20_000;
const ROUNDS: usize = 9;

struct Warm {
    file: File,
    tree: Vec<u8>,
    descriptor: Descriptor,
}

fn warm() -> std::io::Result<Warm> {
    let mut file = tempfile::tempfile()?;
    let mut builder = TreeBuilder::new(MerkleTreeParams::default(), TreeInMemory::default());
    let mut x = 1u64;
    let mut chunk = vec![0; CHUNK];
    for _ in 0..SIZE / CHUNK {
        for word in chunk.chunks_exact_mut(8) {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            word.copy_from_slice(&x.to_le_bytes());
        }
        file.write_all(&chunk)?;
        builder.push(&chunk).expect("fits");
    }
    file.sync_all()?;
    file.rewind()?;
    let (built, sink) = builder.finish().expect("fits");
    Ok(Warm { file, tree: sink.into_bytes(&built.geometry).expect("its tree"), descriptor: built.descriptor() })
}

fn open(warm: &Warm, pool: &PreadPool, policy: QueuePolicy) -> OpenFile {
    let engine = Engine::new(EngineConfig::new().policy(policy)).expect("engine");
    let data = Arc::new(pool.file(warm.file.try_clone().expect("clone"), PreadOptions::default()));
    let tree = Arc::new(MemorySource::new(warm.tree.clone()));
    let layer = VerityLayer::new(warm.descriptor.clone().self_consistent()).expect("a possible size");
    let blocks = layer.hash_blocks(Arc::new(Linear::new(tree, 0, warm.tree.len() as u64)), Vec::new());
    let plan = Plan::new(Arc::new(Linear::new(data, 0, SIZE as u64)), SIZE as u64);
    engine.open(layer.protect(plan, blocks).expect("same size"))
}

fn gb_per_s(bytes: usize, since: Instant) -> f64 {
    bytes as f64 / since.elapsed().as_secs_f64() / 1e9
}

/// `pread` and the many-block hash over one part of the file.
fn bare_part(file: &File, from: usize, to: usize) {
    let hasher = BlockHasher::new(HashAlg::Sha256);
    // Page-aligned and faulted in, as the engine's buffers are.
    let mut buf = Buf::zeroed(CHUNK);
    let mut digests = vec![0; CHUNK / 4096 * 32];
    for at in (from..to).step_by(CHUNK) {
        file.read_exact_at(&mut buf, at as u64).expect("reads");
        hasher.hash_blocks(&buf, 4096, &mut digests);
        black_box(&digests);
    }
}

fn thread_cpu_ns() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

fn pin(cpu: u32) {
    let set: CpuSet = [cpu].into_iter().collect();
    postread_sys::affinity::set_current(&set).expect("pins");
}

fn pinned<T: Send>(cpu: u32, f: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|s| {
        s.spawn(|| {
            pin(cpu);
            f()
        })
        .join()
        .expect("ran")
    })
}

fn verified_sequential(file: &OpenFile) -> f64 {
    let reader = file.reader();
    let begun = Instant::now();
    let mut at = 0;
    while let Some(lent) = reader.lend(at, CHUNK).expect("good") {
        at += lent.len() as u64;
        black_box(&lent[..]);
    }
    assert_eq!(at, SIZE as u64);
    gb_per_s(SIZE, begun)
}

fn offsets() -> impl Iterator<Item = u64> {
    let mut x = 99u64;
    (0..RANDOM_READS).map(move |_| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x % (SIZE as u64 / 4096) * 4096
    })
}

fn main() -> ExitCode {
    let mut report = Report::new("readpath");
    let warm = warm().expect("a temporary file");
    let pool = PreadPool::new(PreadConfig::new()).expect("pool");
    let cpus: Vec<u32> = postread_sys::affinity::current().expect("mask").iter().collect();
    bare_part(&warm.file, 0, SIZE);
    let resident = postread_sys::residency::resident_pages(&warm.file, 0..SIZE as u64).expect("mincore");
    report.note(&format!("A file of {} MiB; {resident:?} resident before the runs.", SIZE >> 20));

    let inline = open(&warm, &pool, QueuePolicy::Inline);
    let unbound = open(&warm, &pool, QueuePolicy::UNBOUND);
    let bound = open(&warm, &pool, QueuePolicy::BOUND);
    let auto = open(&warm, &pool, QueuePolicy::Auto);
    let group = Group::measure(
        "Sequential verified read, warm",
        "GB/s",
        Better::Higher,
        ROUNDS,
        vec![
            Contestant::new("roofline, 1 thread", || {
                pinned(cpus[0], || {
                    let begun = Instant::now();
                    bare_part(&warm.file, 0, SIZE);
                    gb_per_s(SIZE, begun)
                })
            }),
            Contestant::new("roofline, 2 threads", || {
                let begun = Instant::now();
                std::thread::scope(|s| {
                    for (n, cpu) in cpus.iter().take(2).enumerate() {
                        let file = &warm.file;
                        s.spawn(move || {
                            pin(*cpu);
                            bare_part(file, n * SIZE / 2, (n + 1) * SIZE / 2);
                        });
                    }
                });
                gb_per_s(SIZE, begun)
            }),
            Contestant::new("inline, 1 core", || pinned(cpus[0], || verified_sequential(&inline))),
            Contestant::new("unbound, 2 cores", || verified_sequential(&unbound)),
            Contestant::new("bound, 2 cores", || verified_sequential(&bound)),
            Contestant::new("auto, 2 cores", || verified_sequential(&auto)),
        ],
    );
    report.group(&group);
    report.bar(&group, "inline, 1 core", "roofline, 1 thread", 0.85);
    report.bar(&group, "unbound, 2 cores", "inline, 1 core", 1.7);
    report.bar(&group, "auto, 2 cores", "roofline, 2 threads", 0.9);
    report.note(
        "The reader itself preads what is resident and two workers hash: on a busy machine the scheduler often keeps all \
         three on one CPU, so this bar means something only on an idle one.",
    );
    report.note(&format!(
        "Unbound on 2 cores is {:.2}x the two-thread roofline and {:.2}x the one-thread one.",
        group.times_better("unbound, 2 cores", "roofline, 2 threads"),
        group.times_better("unbound, 2 cores", "roofline, 1 thread"),
    ));

    let reader = inline.reader();
    let mut buf = vec![0; 4096];
    for at in (0..SIZE as u64).step_by(512 << 10) {
        reader.read_at(&mut buf, at).expect("warms the tree");
    }
    let hasher = BlockHasher::new(HashAlg::Sha256);
    // The CPU time of the one thread that does all of it: what else the machine runs does not count.
    let per_read = |begun: u64| (thread_cpu_ns() - begun) as f64 / RANDOM_READS as f64;
    let group = Group::measure(
        "Random verified reads of 4 KiB, queue depth 1, warm file and tree",
        "ns of CPU time a read",
        Better::Lower,
        ROUNDS,
        vec![
            Contestant::new("bare read + hash", || {
                pinned(cpus[0], || {
                    let mut buf = vec![0; 4096];
                    let mut digest = [0; 32];
                    let begun = thread_cpu_ns();
                    for at in offsets() {
                        warm.file.read_exact_at(&mut buf, at).expect("reads");
                        hasher.hash_blocks(&buf, 4096, &mut digest);
                        black_box(&digest);
                    }
                    per_read(begun)
                })
            }),
            Contestant::new("inline, read_at", || {
                pinned(cpus[0], || {
                    let mut buf = vec![0; 4096];
                    let begun = thread_cpu_ns();
                    for at in offsets() {
                        assert_eq!(reader.read_at(&mut buf, at).expect("good"), 4096);
                        black_box(&buf);
                    }
                    per_read(begun)
                })
            }),
        ],
    );
    report.group(&group);
    let over: Vec<f64> = group
        .series("inline, read_at")
        .rounds
        .iter()
        .zip(&group.series("bare read + hash").rounds)
        .map(|(ours, bare)| ours - bare)
        .collect();
    report.limit("a verified read over the bare read + hash", "ns", median(&over), 1000.0);
    report.finish()
}
