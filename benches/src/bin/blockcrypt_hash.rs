//! SHA-256 and SHA-512 of 4 KiB blocks, one core: `blockcrypt` beside `sha2`, `tape-sha256` and BLAKE3.

use std::fmt::Write as _;
use std::hint::black_box;
use std::process::ExitCode;
use std::time::Instant;

use postread_benches::{Better, Contestant, Group, Report};
use postread_blockcrypt::Platform;
use postread_blockcrypt::hash::{BlockHasher, HashAlg};
use postread_blockcrypt::xts::AesXts;
use sha2::Digest;

const BLOCK: usize = 4096;
const ROUNDS: usize = 15;

/// GB/s of the fastest of several runs over `bytes` bytes: whoever shares the core slows some of them.
fn speed(bytes: usize, mut run: impl FnMut()) -> f64 {
    let repeat = (256 * 1024 / bytes).max(1);
    let fastest = (0..12)
        .map(|_| {
            let start = Instant::now();
            (0..repeat).for_each(|_| run());
            start.elapsed().as_secs_f64()
        })
        .fold(f64::INFINITY, f64::min);
    (bytes * repeat) as f64 / fastest / 1e9
}

fn ours<'a>(name: &str, hasher: BlockHasher, data: &'a [u8]) -> Contestant<'a> {
    let mut out = vec![0; data.len() / BLOCK * hasher.alg().digest_size()];
    Contestant::new(name, move || speed(data.len(), || hasher.hash_blocks(data, BLOCK, black_box(&mut out))))
}

fn loop_of<'a, D: Digest>(name: &str, data: &'a [u8]) -> Contestant<'a> {
    Contestant::new(name, move || {
        speed(data.len(), || {
            for block in data.chunks(BLOCK) {
                black_box(D::digest(block));
            }
        })
    })
}

fn tape<'a>(data: &'a [u8]) -> Contestant<'a> {
    let blocks: Vec<&[u8]> = data.chunks(BLOCK).collect();
    let mut out = vec![[0; 32]; blocks.len()];
    Contestant::new("tape-sha256", move || speed(data.len(), || tape_sha256::hash_many(&blocks, black_box(&mut out))))
}

fn blake3(data: &[u8]) -> Contestant<'_> {
    Contestant::new("BLAKE3", move || {
        speed(data.len(), || {
            for block in data.chunks(BLOCK) {
                black_box(blake3::hash(block));
            }
        })
    })
}

fn main() -> ExitCode {
    let mut report = Report::new("blockcrypt_hash");
    report.note(&format!("CPU level {}; each round's figure is the fastest of 12 runs.", Platform::detect()));
    let noise: Vec<u8> = (0..(16 << 20) + BLOCK as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    // On a page boundary, as a buffer that was read into lies.
    let data = &noise[noise.as_ptr().align_offset(BLOCK)..][..16 << 20];
    let sha256 = || BlockHasher::new(HashAlg::Sha256);
    let bio = &data[..32 * BLOCK];

    let levels = Platform::available().rev();
    let mut contestants = vec![ours("SHA-256", sha256(), bio), ours("SHA-512", BlockHasher::new(HashAlg::Sha512), bio)];
    contestants.extend(levels.clone().skip(1).map(|p| ours(&format!("SHA-256 {p}"), sha256().with_platform(p), bio)));
    contestants.extend(
        levels.skip(1).map(|p| ours(&format!("SHA-512 {p}"), BlockHasher::new(HashAlg::Sha512).with_platform(p), bio)),
    );
    contestants.extend([loop_of::<sha2::Sha256>("sha2", bio), loop_of::<sha2::Sha512>("sha2 SHA-512", bio)]);
    contestants.extend([tape(bio), blake3(bio)]);
    let group = Group::measure("32 blocks of 4 KiB", "GB/s", Better::Higher, ROUNDS, contestants);
    report.group(&group);
    report.bar(&group, "SHA-256", "sha2", 2.7);
    report.note(
        "On Zen 4 one SHA-NI stream of `sha2` runs at 129 cycles a compression block, and 128 is what its 32 dependent \
         `sha256rnds2` of 4 cycles take: it is at its limit. 16 lanes need 1616 vector instructions for 16 blocks, at \
         two of 512 bits a cycle 50.5 cycles a block, plus at least 3 to turn the blocks into lanes: 2.4x is the most \
         that lanes can give here, and we are at 61 cycles. Lanes and SHA-NI streams interleaved (4, 8, 12 or 16 \
         streams' messages beside 16 lanes, ordered by the compiler) gave no more than one behind the other: \
         `sha256rnds2` shares the two pipes that rotate.",
    );
    report.bar(&group, "SHA-256", "tape-sha256", 1.15);
    report.bar(&group, "SHA-256", "BLAKE3", 0.95);
    report.bar(&group, "SHA-512", "SHA-256", 0.7);
    if Platform::detect() > Platform::Avx2 {
        report.bar(&group, "SHA-256 avx2", "sha2", 1.6);
    }

    let contestants =
        vec![ours("SHA-256", sha256(), data), loop_of::<sha2::Sha256>("sha2", data), tape(data), blake3(data)];
    report.group(&Group::measure("4096 blocks of 4 KiB, 16 MiB", "GB/s", Better::Higher, 5, contestants));

    curve(&mut report, data);
    fused(&mut report, data);
    report.finish()
}

/// Decryption and hashing of data larger than L2: in turn on runs that stay in the cache, or one pass behind the other.
fn fused(report: &mut Report, data: &[u8]) {
    let key: Vec<u8> = (0..64).collect();
    let xts = AesXts::new(&key).expect("a key of 64 bytes with different halves");
    let hasher = BlockHasher::new(HashAlg::Sha256);
    let by_runs = |name: &str, run: usize| {
        let (xts, hasher) = (xts.clone(), hasher.clone());
        // Each with a copy of its own, so that nobody finds what another left in the cache.
        let mut noise = vec![0; data.len() + BLOCK];
        let start = noise.as_ptr().align_offset(BLOCK);
        noise[start..start + data.len()].copy_from_slice(data);
        let mut out = vec![0; data.len() / BLOCK * 32];
        Contestant::new(name, move || {
            let data = &mut noise[start..start + data.len()];
            speed(data.len(), || {
                for (i, (data, out)) in data.chunks_mut(run).zip(out.chunks_mut(run / BLOCK * 32)).enumerate() {
                    let first = (i * run / BLOCK) as u64;
                    xts.decrypt_units(data, BLOCK, first, 1).expect("whole units");
                    hasher.hash_blocks(data, BLOCK, black_box(out));
                }
            })
        })
    };
    let contestants = vec![
        by_runs("two passes", data.len()),
        by_runs("runs of 64 KiB", 16 * BLOCK),
        by_runs("runs of 128 KiB", 32 * BLOCK),
        by_runs("runs of 512 KiB", 128 * BLOCK),
    ];
    let group =
        Group::measure("AES-256-XTS decrypt, then SHA-256, 16 MiB of 4 KiB", "GB/s", Better::Higher, 7, contestants);
    report.group(&group);
    let best = ["runs of 64 KiB", "runs of 128 KiB", "runs of 512 KiB"]
        .map(|run| group.times_better(run, "two passes"))
        .into_iter()
        .fold(0.0, f64::max);
    report.note(&format!(
        "A fused pass would be such a run in one call, and was to be shipped at 1.1x the two passes. The best run is \
         {best:.3}x here (1.04x to 1.07x on an idle machine), so there is none: hashing takes three quarters of the \
         time, its loads hide behind its rounds, and whoever works bio by bio has what there is to gain already."
    ));
}

/// Speed by the number of blocks: a batch that the lanes don't divide must not fall off a cliff.
fn curve(report: &mut Report, data: &[u8]) {
    let mut text = String::from(
        "\n### 1 to 33 blocks of 4 KiB, SHA-256\n\n| blocks | GB/s | µs | times `sha2` | times `tape-sha256` |\n\
         |---|---|---|---|---|\n",
    );
    let (mut slower, mut cliffs, mut times) = (Vec::new(), Vec::new(), Vec::new());
    for count in 1..=33 {
        let data = &data[..count * BLOCK];
        let contestants = vec![
            ours("ours", BlockHasher::new(HashAlg::Sha256), data),
            loop_of::<sha2::Sha256>("sha2", data),
            tape(data),
        ];
        let group = Group::measure("", "GB/s", Better::Higher, 5, contestants);
        let speed = group.series("ours").rounds.iter().copied().fold(0.0, f64::max);
        let (sha2, tape) = (group.times_better("ours", "sha2"), group.times_better("ours", "tape-sha256"));
        let time = data.len() as f64 / speed / 1e3;
        let _ = writeln!(text, "| {count} | {speed:.2} | {time:.2} | {sha2:.2} | {tape:.2} |");
        if sha2 < 0.95 {
            slower.push(count);
        }
        times.push(time);
    }
    for (i, &time) in times.iter().enumerate() {
        // A batch may cost what a larger one costs (its lanes are idle), not more.
        if times[i + 1..].iter().any(|&larger| larger < time * 0.95) {
            cliffs.push(i + 1);
        }
    }
    report.note(&text);
    let figure = format!("slower than sha2: {slower:?}, slower than a larger batch: {cliffs:?}");
    report.verdict(
        "1 to 33 blocks: none slower than sha2, none takes longer than a larger batch",
        &figure,
        slower.is_empty() && cliffs.is_empty(),
    );
}
