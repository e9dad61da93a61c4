//! `postread digest` beside `fsverity digest` and beside the roofline: the same reads and the same hashing in a bare loop,
//! on as many pinned threads. Wall time; the two programs are timed with their start and end, the roofline is not.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use postread_benches::{Better, Contestant, Group, Report};
use postread_blockcrypt::hash::{BlockHasher, HashAlg};
use postread_sys::{CpuSet, affinity, residency};

const GIB: u64 = 1 << 30;
const BLOCK: usize = 4096;
const CHUNK: usize = 256 << 10;
const PIECE: u64 = 1 << 20;

/// The program, built from this tree.
fn build_postread() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .args(["build", "--release", "--quiet", "-p", "postread-cli"])
        .current_dir(&root)
        .status()
        .expect("cargo runs");
    assert!(built.success(), "the program must build");
    root.join("target/release/postread")
}

fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend_from_slice(&state.to_le_bytes());
    }
    out.truncate(len);
    out
}

/// Wall time of a program.
fn seconds(program: &Path, dir: &Path, args: &[String]) -> f64 {
    let mut command = Command::new(program);
    command.current_dir(dir).arg("digest").args(args).stdout(Stdio::null());
    let start = Instant::now();
    let status = command.status().expect("the program runs");
    let time = start.elapsed().as_secs_f64();
    assert!(status.success(), "{} failed", program.display());
    time
}

/// Both programs must print the same.
fn same_output(postread: &Path, dir: &Path, args: &[String]) {
    let output =
        |program: &Path| Command::new(program).current_dir(dir).arg("digest").args(args).output().unwrap().stdout;
    assert!(output(postread) == output(Path::new("fsverity")), "postread and fsverity differ");
}

fn cpus() -> Vec<u32> {
    affinity::current().expect("the affinity mask").iter().collect()
}

/// Reads and hashes the files, in pieces, on every CPU.
fn roofline(files: &[(File, u64)]) -> f64 {
    let start = Instant::now();
    let mut pieces = Vec::new();
    for (index, (_, size)) in files.iter().enumerate() {
        pieces.extend((0..*size).step_by(PIECE as usize).map(|at| (index, at, (at + PIECE).min(*size))));
    }
    let next = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for cpu in cpus() {
            let (next, pieces) = (&next, &pieces);
            scope.spawn(move || {
                let mut one = CpuSet::new();
                one.insert(cpu);
                affinity::set_current(&one).expect("pinning");
                let hasher = BlockHasher::new(HashAlg::Sha256);
                let (mut buf, mut digests) = (vec![0; CHUNK], vec![0; CHUNK / BLOCK * 32]);
                while let Some(&(file, mut at, end)) = pieces.get(next.fetch_add(1, Ordering::Relaxed) as usize) {
                    while at < end {
                        let now = ((end - at) as usize).min(CHUNK);
                        files[file].0.read_exact_at(&mut buf[..now], at).expect("reading");
                        // The tail is hashed zero-padded, as everyone does.
                        let whole = now.next_multiple_of(BLOCK);
                        buf[now..whole].fill(0);
                        hasher.hash_blocks(&buf[..whole], BLOCK, &mut digests[..whole / BLOCK * 32]);
                        at += now as u64;
                    }
                }
                std::hint::black_box(&digests);
            });
        }
    });
    start.elapsed().as_secs_f64()
}

/// CPU seconds, user and system, of this process and of its ended children.
fn cpu_seconds() -> (f64, f64) {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // Behind the name, which ends with a bracket: utime, stime, cutime, cstime are fields 14 to 17 of all.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let field = |i: usize| fields.get(i).and_then(|f| f.parse::<f64>().ok()).unwrap_or(0.0) / 100.0;
    (field(11) + field(12), field(13) + field(14))
}

/// CPU time stolen from this virtual machine since the start, in hundredths of a second.
fn stolen() -> u64 {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    stat.lines().next().and_then(|line| line.split_whitespace().nth(8)?.parse().ok()).unwrap_or(0)
}

/// The most memory the program had resident, in MiB, by GNU time.
fn peak(postread: &Path, dir: &Path, args: &[&str]) -> Option<f64> {
    let output = Command::new("/usr/bin/time")
        .args(["-f", "%M"])
        .arg(postread)
        .current_dir(dir)
        .arg("digest")
        .args(args)
        .stdout(Stdio::null())
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stderr);
    text.lines().last()?.trim().parse::<f64>().ok().map(|kib| kib / 1024.0)
}

fn main() -> ExitCode {
    let mut report = Report::new("verity");
    let postread = build_postread();
    let fsverity = Path::new("fsverity");
    let dir = tempfile::tempdir().expect("a directory");
    let at = dir.path();
    let steal = stolen();

    let large = at.join("large");
    let mut file = File::create(&large).unwrap();
    for i in 0..GIB >> 26 {
        file.write_all(&noise(1 << 26, i)).unwrap();
    }
    drop(file);
    let args = vec!["large".to_owned()];
    same_output(&postread, at, &args);
    let file = File::open(&large).unwrap();
    let resident = residency::resident_pages(&file, 0..GIB).expect("mincore");
    report.verdict("the file of 1 GiB is in the page cache", &format!("{resident:?}"), resident.is_complete());
    let files = [(file, GIB)];
    let group = Group::measure(
        "One warm file of 1 GiB, SHA-256, 4096-byte blocks",
        "s",
        Better::Lower,
        7,
        vec![
            Contestant::new("postread digest", || seconds(&postread, at, &args)),
            Contestant::new("fsverity digest", || seconds(fsverity, at, &args)),
            Contestant::new("roofline", || roofline(&files)),
        ],
    );
    report.group(&group);
    report.bar(&group, "postread digest", "roofline", 0.9);
    report.bar(&group, "postread digest", "fsverity digest", 4.0);
    // On a busy machine wall times are not to be had; CPU times are less disturbed.
    let mut cpu = [0.0; 3];
    for _ in 0..5 {
        let start = cpu_seconds();
        seconds(&postread, at, &args);
        let ours = cpu_seconds();
        seconds(fsverity, at, &args);
        let theirs = cpu_seconds();
        roofline(&files);
        let bare = cpu_seconds();
        cpu[0] += ours.1 - start.1;
        cpu[1] += theirs.1 - ours.1;
        cpu[2] += bare.0 - theirs.0;
    }
    report.note(&format!(
        "CPU seconds a GiB (user and system, mean of 5): postread {:.3}, fsverity {:.3}, roofline {:.3}.",
        cpu[0] / 5.0,
        cpu[1] / 5.0,
        cpu[2] / 5.0
    ));
    drop(files);
    fs::remove_file(&large).unwrap();

    let many = at.join("many");
    fs::create_dir(&many).unwrap();
    let args: Vec<String> = (0..10_000).map(|i| format!("{i:05}")).collect();
    for (i, name) in args.iter().enumerate() {
        fs::write(many.join(name), noise(200_000, i as u64)).unwrap();
    }
    same_output(&postread, &many, &args);
    let files: Vec<(File, u64)> =
        args.iter().take(500).map(|name| (File::open(many.join(name)).unwrap(), 200_000)).collect();
    let group = Group::measure(
        "10,000 warm files of 200 KB in one command",
        "s",
        Better::Lower,
        5,
        vec![
            Contestant::new("postread digest", || seconds(&postread, &many, &args)),
            Contestant::new("fsverity digest", || seconds(fsverity, &many, &args)),
            // Of open files, so that their number needs no raised limit: the time of 500, twenty times.
            Contestant::new("roofline (open files)", || roofline(&files) * 20.0),
        ],
    );
    report.group(&group);
    report.bar(&group, "postread digest", "fsverity digest", 3.5);
    drop(files);

    fs::write(at.join("tiny"), "hello world").unwrap();
    let args = vec!["tiny".to_owned()];
    let group = Group::measure(
        "One file of 11 bytes, 50 times",
        "s",
        Better::Lower,
        9,
        vec![
            Contestant::new("postread digest", || (0..50).map(|_| seconds(&postread, at, &args)).sum()),
            Contestant::new("fsverity digest", || (0..50).map(|_| seconds(fsverity, at, &args)).sum()),
        ],
    );
    report.group(&group);
    report.bar(&group, "postread digest", "fsverity digest", 1.0);

    report.note("### Memory\n");
    let sparse = |name: &str, size: u64| File::create(at.join(name)).unwrap().set_len(size).unwrap();
    sparse("hundredth", (1 << 40) / 100);
    sparse("tebibyte", 1 << 40);
    let flat = |name: &str, count: usize| {
        fs::create_dir(at.join(name)).unwrap();
        (0..count).for_each(|i| drop(File::create(at.join(name).join(format!("{i:07}"))).unwrap()));
    };
    flat("ten-thousand", 10_000);
    flat("million", 1_000_000);
    for (what, args) in [
        ("a sparse file of 1/100 TiB", &["hundredth"][..]),
        ("a sparse file of 1 TiB", &["tebibyte"]),
        ("a directory of 10,000 files", &["-r", "ten-thousand"]),
        ("a directory of 1,000,000 files", &["-r", "million"]),
        ("10,000 files of 200 KB", &["-r", "many"]),
    ] {
        match peak(&postread, at, args) {
            Some(mib) => report.limit(&format!("peak memory, {what}"), "MiB", mib, 64.0),
            None => report.verdict(&format!("peak memory, {what}"), "GNU time is missing", false),
        }
    }
    report.note(&format!("Stolen CPU time during the whole run: {} s.", (stolen() - steal) as f64 / 100.0));
    report.finish()
}
