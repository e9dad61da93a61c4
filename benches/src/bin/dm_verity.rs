//! `postread dm-verity` beside `veritysetup`, and beside the roofline: the same reads and the same hashing in a bare loop, on
//! as many pinned threads; and decrypting LUKS sectors through the library beside pread and the bare cipher. Wall time.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use postread_benches::{Better, Contestant, Group, Report};
use postread_blockcrypt::hash::{BlockHasher, HashAlg};
use postread_blockcrypt::xts::AesXts;
use postread_dmcrypt::{CipherSpec, Decrypted, Mapping};
use postread_io::ReadAt;
use postread_sys::{CpuSet, affinity, residency};

const GIB: u64 = 1 << 30;
const BLOCK: usize = 4096;
const PIECE: u64 = 1 << 20;
/// What FEC is measured on: rivals take half a minute a GiB.
const FEC_SIZE: u64 = 256 << 20;

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

fn make(path: &Path, size: u64) {
    let mut file = File::create(path).unwrap();
    for i in 0..size >> 25 {
        file.write_all(&noise(1 << 25, i)).unwrap();
    }
}

/// Wall time of a program, which must end with one of two statuses.
fn seconds(command: &mut Command, statuses: [i32; 2]) -> f64 {
    let start = Instant::now();
    let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status().expect("the program runs");
    let time = start.elapsed().as_secs_f64();
    assert!(statuses.contains(&status.code().unwrap_or(-1)), "{command:?}: {status}");
    time
}

/// Calls `work(buffer, offset)` for each piece of a file, on every CPU.
fn on_every_cpu(size: u64, work: impl Fn(&mut [u8], u64) + Sync) -> f64 {
    let start = Instant::now();
    let next = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for cpu in affinity::current().expect("the affinity mask").iter() {
            let (next, work) = (&next, &work);
            scope.spawn(move || {
                let mut one = CpuSet::new();
                one.insert(cpu);
                affinity::set_current(&one).expect("pinning");
                let mut buf = vec![0; PIECE as usize];
                loop {
                    let at = next.fetch_add(PIECE, Ordering::Relaxed);
                    if at >= size {
                        break;
                    }
                    work(&mut buf, at);
                }
            });
        }
    });
    start.elapsed().as_secs_f64()
}

fn roofline(file: &File, size: u64) -> f64 {
    let hasher = BlockHasher::new(HashAlg::Sha256).with_prefix(&[1; 32]);
    on_every_cpu(size, |buf, at| {
        ReadAt::read_exact_at(file, buf, at).expect("reading");
        let mut digests = [0; PIECE as usize / BLOCK * 32];
        hasher.hash_blocks(buf, BLOCK, &mut digests);
        std::hint::black_box(&digests);
    })
}

/// The root hash that a format printed.
fn root_of(command: &mut Command) -> String {
    let output = command.output().expect("the program runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().find_map(|line| line.strip_prefix("Root hash:")).expect("a root hash").trim().to_owned()
}

fn main() -> ExitCode {
    let mut report = Report::new("dm_verity");
    let postread = build_postread();
    let dir = tempfile::tempdir().expect("a directory");
    let at = dir.path();
    make(&at.join("large"), GIB);
    let file = File::open(at.join("large")).unwrap();
    let resident = residency::resident_pages(&file, 0..GIB).expect("mincore");
    report.verdict("the device of 1 GiB is in the page cache", &format!("{resident:?}"), resident.is_complete());
    let salt = format!("--salt={}", "01".repeat(32));
    let ours = |arguments: &[&str]| {
        let mut command = Command::new(&postread);
        command.current_dir(at).arg("dm-verity").args(arguments);
        command
    };
    let theirs = |arguments: &[&str]| {
        let mut command = Command::new("veritysetup");
        command.current_dir(at).args(arguments);
        command
    };
    let root = root_of(&mut theirs(&["format", "large", "hash1", &salt]));
    assert_eq!(root_of(&mut ours(&["format", "large", "hash2", &salt])), root, "both programs agree");

    let group = Group::measure(
        "Format 1 GiB, SHA-256, 4096-byte blocks, warm",
        "s",
        Better::Lower,
        5,
        vec![
            Contestant::new("postread dm-verity format", || {
                seconds(&mut ours(&["format", "large", "hash2", &salt]), [0, 0])
            }),
            Contestant::new("veritysetup format", || {
                seconds(&mut theirs(&["format", "large", "hash1", &salt]), [0, 0])
            }),
            Contestant::new("roofline", || roofline(&file, GIB)),
        ],
    );
    report.group(&group);
    report.bar(&group, "postread dm-verity format", "roofline", 0.85);
    report.bar(&group, "postread dm-verity format", "veritysetup format", 3.8);
    let group = Group::measure(
        "Verify 1 GiB, SHA-256, 4096-byte blocks, warm",
        "s",
        Better::Lower,
        5,
        vec![
            Contestant::new("postread dm-verity verify", || {
                seconds(&mut ours(&["verify", "large", "hash2", &root]), [0, 0])
            }),
            Contestant::new("veritysetup verify", || {
                seconds(&mut theirs(&["verify", "large", "hash1", &root]), [0, 0])
            }),
            Contestant::new("roofline", || roofline(&file, GIB)),
        ],
    );
    report.group(&group);
    report.bar(&group, "postread dm-verity verify", "roofline", 0.85);
    report.bar(&group, "postread dm-verity verify", "veritysetup verify", 3.8);
    drop(file);

    make(&at.join("small"), FEC_SIZE);
    let format = |fec| ["format", "small", "hash3", salt.as_str(), fec, "--fec-roots=2"];
    let group = Group::measure(
        "Format 256 MiB with parity of 2 roots",
        "s",
        Better::Lower,
        3,
        vec![
            Contestant::new("postread dm-verity format --fec-device", || {
                seconds(&mut ours(&format("--fec-device=fec2")), [0, 0])
            }),
            Contestant::new("veritysetup format --fec-device", || {
                seconds(&mut theirs(&format("--fec-device=fec1")), [0, 0])
            }),
        ],
    );
    report.group(&group);
    report.bar(&group, "postread dm-verity format --fec-device", "veritysetup format --fec-device", 5.0);
    let same = fs::read(at.join("fec1")).unwrap() == fs::read(at.join("fec2")).unwrap();
    report.verdict("both programs write the same parity", &same.to_string(), same);

    // Neighbouring blocks, as many as 8 roots can correct without knowing where they are, which is all that the rival tries.
    let fec = ["--fec-device=fec8", "--fec-roots=8"];
    let root = root_of(theirs(&["format", "small", "hash4", &salt]).args(fec));
    let damaged = FEC_SIZE / 100 / BLOCK as u64 * BLOCK as u64;
    let file = fs::OpenOptions::new().write(true).open(at.join("small")).unwrap();
    file.write_all_at(&noise(damaged as usize, 99), FEC_SIZE / 2).unwrap();
    let group = Group::measure(
        "1 % of 256 MiB damaged: repaired into a copy (postread), only counted as repairable (veritysetup)",
        "s",
        Better::Lower,
        3,
        vec![
            Contestant::new("postread dm-verity repair", || {
                seconds(ours(&["repair", "--output=out", "small", "hash4", &root]).args(fec), [0, 0])
            }),
            Contestant::new("veritysetup verify --fec-device", || {
                seconds(theirs(&["verify", "small", "hash4", &root]).args(fec), [0, 1])
            }),
        ],
    );
    report.group(&group);
    report.bar(&group, "postread dm-verity repair", "veritysetup verify --fec-device", 5.0);

    let file = Arc::new(File::open(at.join("large")).unwrap());
    let key = noise(64, 5);
    let spec: CipherSpec = "aes-xts-plain64".parse().expect("a specification");
    let mapping = Mapping::new(&spec, &key).expect("a key").with_sector_size(4096).expect("a sector size");
    let device = Decrypted::new(file.clone(), Arc::new(mapping), 0, None).expect("a device");
    let bare = AesXts::new(&key).expect("a key");
    let group = Group::measure(
        "Read 1 GiB of AES-256-XTS sectors of 4096 bytes on every CPU, warm",
        "s",
        Better::Lower,
        7,
        vec![
            Contestant::new("Decrypted", || {
                on_every_cpu(GIB, |buf, at| device.read_exact_at(buf, at).expect("reading"))
            }),
            Contestant::new("roofline: pread and decrypt", || {
                on_every_cpu(GIB, |buf, at| {
                    FileExt::read_exact_at(&*file, buf, at).expect("reading");
                    bare.decrypt_units(buf, 4096, at / 512, 8).expect("whole sectors");
                })
            }),
        ],
    );
    report.group(&group);
    report.bar(&group, "Decrypted", "roofline: pread and decrypt", 0.85);
    report.finish()
}
