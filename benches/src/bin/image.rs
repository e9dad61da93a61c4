//! Reads of an AES-256-XTS encrypted file out of a warm ext4 image, decrypted and also verified, against the same reads
//! and the same cipher and hash in a bare loop; and the listing of an image of 100,000 files.

use std::fs::File;
use std::hint::black_box;
use std::io::Write;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Instant;

use openssl::cipher::Cipher;
use openssl::cipher_ctx::CipherCtx;
use postread::image::{DecryptStep, Image};
use postread::{Engine, EngineConfig, Linear, OpenFile, Plan, QueuePolicy, VerityLayer};
use postread_benches::{Better, Contestant, Group, Report, median};
use postread_blockcrypt::hash::{BlockHasher, HashAlg};
use postread_blockcrypt::xts::AesXts;
use postread_fscrypt::{ContentsKey, Context, InodeFacts, Keyring, MasterKey};
use postread_io::{Buf, MemorySource, PreadConfig, PreadOptions, PreadPool};
use postread_sys::CpuSet;
use postread_tests::Mount;
use postread_verity::{MerkleTreeParams, TreeBuilder, TreeInMemory};

const SIZE: u64 = 1 << 30;
const CHUNK: usize = 256 << 10;
const UNIT: usize = 4096;
const ROUNDS: usize = 5;
const FILES: u32 = 100_000;
const KERNEL_KEY: &[u8] = b"a key for a benchmark, of no more worth than any other 64 bytes.";

fn run(command: &mut Command) {
    let output = command.output().expect("e2fsprogs is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Writes `len` bytes that repeat nowhere near, always the same.
fn write_noise(out: &mut impl Write, len: u64) -> std::io::Result<()> {
    let mut x = 1u64;
    let mut chunk = vec![0; CHUNK];
    for _ in 0..len / CHUNK as u64 {
        for word in chunk.chunks_exact_mut(8) {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            word.copy_from_slice(&x.to_le_bytes());
        }
        out.write_all(&chunk)?;
    }
    Ok(())
}

/// An image with one file of any bytes: what they decrypt to is not looked at.
fn make_image(dir: &Path) -> std::io::Result<std::path::PathBuf> {
    let tree = dir.join("tree");
    std::fs::create_dir(&tree)?;
    write_noise(&mut File::create(tree.join("big"))?, SIZE)?;
    let image = dir.join("image");
    let size = format!("{}M", (SIZE >> 20) + 64);
    run(Command::new("mke2fs").args(["-q", "-t", "ext4", "-b", "4096", "-d"]).arg(&tree).arg(&image).arg(size));
    std::fs::remove_dir_all(tree)?;
    Ok(image)
}

fn gb_per_s(begun: Instant) -> f64 {
    SIZE as f64 / begun.elapsed().as_secs_f64() / 1e9
}

fn pin(cpu: u32) {
    let set: CpuSet = [cpu].into_iter().collect();
    postread_sys::affinity::set_current(&set).expect("pins");
}

/// The file in as many parts as there are CPUs, each on its own.
fn on_each(cpus: &[u32], part: impl Fn(Range<u64>) + Sync) -> f64 {
    let begun = Instant::now();
    let step = SIZE / cpus.len() as u64;
    std::thread::scope(|s| {
        for (n, &cpu) in cpus.iter().enumerate() {
            let (part, start) = (&part, n as u64 * step);
            s.spawn(move || {
                pin(cpu);
                part(start..start + step);
            });
        }
    });
    gb_per_s(begun)
}

/// Where the file lies in the image: its extents, as a bare loop would have them.
type Runs = Vec<(u64, u64, u64)>;

/// Reads a part of the file piece by piece into an aligned buffer, and gives each to `with`.
fn bare(file: &File, runs: &Runs, part: Range<u64>, mut with: impl FnMut(&mut [u8], u64)) {
    let mut buf = Buf::zeroed(CHUNK);
    for &(logical, physical, len) in runs {
        let (mut at, end) = (part.start.max(logical), part.end.min(logical + len));
        while at < end {
            let n = (end - at).min(CHUNK as u64) as usize;
            file.read_exact_at(&mut buf[..n], physical + at - logical).expect("reads");
            with(&mut buf[..n], at);
            at += n as u64;
        }
    }
}

fn read_part(file: &OpenFile, part: Range<u64>) {
    let reader = file.reader();
    let mut at = part.start;
    while at < part.end {
        let want = (part.end - at).min(CHUNK as u64) as usize;
        let lent = reader.lend(at, want).expect("good").expect("more");
        at += lent.len() as u64;
        black_box(&lent[..]);
    }
}

fn listing(report: &mut Report, dir: &Path) -> std::io::Result<()> {
    let tree = dir.join("many");
    for sub in 0..FILES / 1000 {
        let sub = tree.join(format!("d{sub}"));
        std::fs::create_dir_all(&sub)?;
        for file in 0..1000 {
            std::fs::write(sub.join(format!("file-{file}")), "x")?;
        }
    }
    let image = dir.join("many.image");
    run(Command::new("mke2fs")
        .args(["-q", "-t", "ext4", "-b", "1024", "-N", "110000", "-d"])
        .arg(&tree)
        .arg(&image)
        .arg("300M"));
    std::fs::remove_dir_all(tree)?;
    let open = || {
        let file = Arc::new(File::open(&image).expect("opens"));
        let data = Arc::new(MemorySource::new(Vec::new()));
        Image::open(file, data, 0, Keyring::new(), Default::default()).expect("an image")
    };
    let times: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let begun = Instant::now();
            let image = open();
            let root = image.resolve(b"/").expect("a root");
            let mut files = 0;
            for visit in image.walk(root.ino) {
                let inode = visit.inode.expect("sound");
                black_box((visit.path.len(), image.context(&inode).expect("sound")));
                files += u32::from(!inode.is_dir());
            }
            assert_eq!(files, FILES);
            begun.elapsed().as_secs_f64()
        })
        .collect();
    report.limit("walking an image of 100,000 files, with names, inodes and contexts", "s", median(&times), 2.0);
    Ok(())
}

/// An image with an encrypted directory of one file, written through this machine's kernel, and its key.
fn made_by_the_kernel(dir: &Path) -> Result<std::path::PathBuf, String> {
    let (image, key) = (dir.join("kernel.image"), dir.join("key"));
    std::fs::write(&key, KERNEL_KEY).map_err(|e| e.to_string())?;
    let size = format!("{}M", (SIZE >> 20) + 128);
    run(Command::new("mke2fs").args(["-q", "-t", "ext4", "-b", "4096", "-O", "encrypt"]).arg(&image).arg(size));
    let mount = Mount::image(&image, "ext4", "")?;
    let tree = mount.path().join("tree");
    std::fs::create_dir(&tree).map_err(|e| e.to_string())?;
    let identifier = add_key(mount.path(), &key)?;
    xfs_io(&["-c", &format!("set_encpolicy -v 2 {identifier}")], &tree, None)?;
    let mut file = File::create(tree.join("big")).map_err(|e| e.to_string())?;
    write_noise(&mut file, SIZE).and_then(|()| file.sync_all()).map_err(|e| e.to_string())?;
    drop(file);
    mount.unmount();
    Ok(image)
}

/// Adds the key to a mount, and returns its identifier.
fn add_key(mount: &Path, key: &Path) -> Result<String, String> {
    let said = xfs_io(&["-c", "add_enckey"], mount, Some(key))?;
    said.split_whitespace().last().map(Into::into).ok_or_else(|| format!("add_enckey said {said:?}"))
}

fn xfs_io(arguments: &[&str], path: &Path, input: Option<&Path>) -> Result<String, String> {
    let mut command = Command::new("xfs_io");
    command.args(arguments).arg(path);
    if let Some(input) = input {
        command.stdin(File::open(input).map_err(|e| e.to_string())?);
    }
    let output = command.output().map_err(|e| format!("xfs_io: {e}"))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() && output.stderr.is_empty() {
        Ok(said)
    } else {
        Err(format!("xfs_io: {said}{}", String::from_utf8_lossy(&output.stderr)))
    }
}

/// Reading out of an image that the kernel wrote, beside `tar` over the kernel's own mount of it: its page cache is
/// empty each time (a warm one holds plaintext), the image's is full in both cases.
fn against_the_kernel(report: &mut Report, dir: &Path, cpus: &[u32]) {
    let made = made_by_the_kernel(dir).and_then(|image| Ok((Mount::image(&image, "ext4", "ro")?, image)));
    let (mount, path) = match made {
        Ok(made) => made,
        Err(why) => {
            return report.verdict(
                "at least 20x `tar` over this kernel's mount",
                &format!("not measured: {why}"),
                false,
            );
        }
    };
    add_key(mount.path(), &dir.join("key")).expect("the key is added");
    let file = File::open(&path).expect("opens");
    let pool = PreadPool::new(PreadConfig::new()).expect("pool");
    let source = Arc::new(pool.file(file.try_clone().expect("clone"), PreadOptions::default()));
    let mut keys = Keyring::new();
    keys.add(MasterKey::new(KERNEL_KEY).expect("a key"));
    let image = Image::open(Arc::new(file), source, 0, keys, Default::default()).expect("an image");
    let inode = image.resolve(b"/tree/big").expect("the file");
    let engine = Engine::new(EngineConfig::new().policy(QueuePolicy::Inline)).expect("engine");
    let ours = engine.open(image.contents(&inode).expect("unlocked").plan());
    // It is what was written.
    let mut noise = Vec::new();
    write_noise(&mut noise, 4 * CHUNK as u64).expect("memory");
    let mut head = vec![0; noise.len()];
    ours.reader().read_at(&mut head, 0).expect("good");
    assert!(head == noise, "the image decrypts to what was written");
    let group = Group::measure(
        "The same file in an image written by the kernel, beside the kernel's mount of it",
        "GB/s",
        Better::Higher,
        3,
        vec![
            Contestant::new("inline, 2 cores", || on_each(cpus, |part| read_part(&ours, part))),
            Contestant::new("tar over the mount", || {
                let big = File::open(mount.path().join("tree/big")).expect("unlocked");
                postread_sys::residency::drop_cache(&big).expect("drops");
                let begun = Instant::now();
                // Told that its output is /dev/null, GNU tar would not read the file.
                let sh = format!("set -o pipefail; tar -C '{}' -cf - tree | cat > /dev/null", mount.path().display());
                run(Command::new("bash").args(["-c", &sh]));
                gb_per_s(begun)
            }),
        ],
    );
    report.group(&group);
    report.bar(&group, "inline, 2 cores", "tar over the mount", 20.0);
    report.note("This kernel's AES is in software, so that ratio says as much about this kernel as about postread.");
}

/// The most memory that the process has had resident, in MiB.
fn peak_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or("0");
    line.trim().trim_end_matches("kB").trim().parse::<f64>().unwrap_or(0.0) / 1024.0
}

fn main() -> ExitCode {
    let mut report = Report::new("image");
    let dir = tempfile::tempdir().expect("a temporary directory");
    // First, since the peak of memory counts from the start.
    listing(&mut report, dir.path()).expect("an image of many files");
    report.limit("memory after that", "MiB", peak_mib(), 100.0);

    let path = make_image(dir.path()).expect("an image");
    let file = File::open(&path).expect("opens");
    let pool = PreadPool::new(PreadConfig::new()).expect("pool");
    let source = Arc::new(pool.file(file.try_clone().expect("clone"), PreadOptions::default()));
    let metadata = Arc::new(file.try_clone().expect("clone"));
    let image = Image::open(metadata, source, 0, Keyring::new(), Default::default()).expect("an image");
    let inode = image.resolve(b"/big").expect("the file");
    let runs: Runs =
        image.fs().extents(&inode).expect("extents").iter().map(|e| (e.logical, e.physical, e.len)).collect();

    let raw_key: Vec<u8> = (0..64).collect();
    let context = [&[2, 1, 4, 3, 0, 0, 0, 0][..], &[1; 16], &[2; 16]].concat();
    let context = Context::parse(&context).expect("a context");
    let master = MasterKey::new(&raw_key).expect("a key");
    let facts = InodeFacts { ino: inode.ino.into(), fs_uuid: [0; 16], block_size: UNIT };
    let key = Arc::new(ContentsKey::derive(&master, &context, &facts).expect("a key"));
    let decrypted = || -> Plan {
        image.ciphertext(&inode).expect("contents").plan().step(Arc::new(DecryptStep::new(key.clone(), 0)))
    };
    let engine = |policy| Engine::new(EngineConfig::new().policy(policy)).expect("engine");

    // The tree of the plaintext, as a kernel would have made it.
    let mut builder = TreeBuilder::new(MerkleTreeParams::default(), TreeInMemory::default());
    let plain = engine(QueuePolicy::Inline).open(decrypted()).reader();
    let mut at = 0;
    while let Some(lent) = plain.lend(at, CHUNK).expect("good") {
        builder.push(&lent).expect("fits");
        at += lent.len() as u64;
    }
    let (built, sink) = builder.finish().expect("fits");
    let tree = sink.into_bytes(&built.geometry).expect("its tree");
    let layer = VerityLayer::new(built.descriptor().self_consistent()).expect("a possible size");
    let verified = || -> Plan {
        let len = tree.len() as u64;
        let source = Arc::new(MemorySource::new(tree.clone()));
        let blocks = layer.hash_blocks(Arc::new(Linear::new(source, 0, len)), Vec::new());
        layer.protect(decrypted(), blocks).expect("same size")
    };

    bare(&file, &runs, 0..SIZE, |_, _| {});
    let resident = postread_sys::residency::resident_pages(&file, 0..SIZE).expect("mincore");
    report.note(&format!("A file of {} MiB in an image, {} extents; {resident:?} resident.", SIZE >> 20, runs.len()));
    let cpus: Vec<u32> = postread_sys::affinity::current().expect("mask").iter().take(2).collect();
    let xts = AesXts::new(&raw_key).expect("a key");
    let decrypt = |buf: &mut [u8], at: u64| xts.decrypt_units(buf, UNIT, at / UNIT as u64, 1).expect("units");
    let with_openssl = |part: Range<u64>| {
        let mut ctx = CipherCtx::new().expect("OpenSSL");
        ctx.decrypt_init(Some(Cipher::aes_256_xts()), Some(&raw_key), None).expect("OpenSSL");
        ctx.set_padding(false);
        let mut out = vec![0; UNIT + 16];
        bare(&file, &runs, part, |buf, at| {
            for (i, unit) in buf.chunks_exact(UNIT).enumerate() {
                let iv = u128::from(at / UNIT as u64 + i as u64).to_le_bytes();
                ctx.decrypt_init(None, None, Some(&iv)).expect("OpenSSL");
                ctx.cipher_update(unit, Some(&mut out)).expect("OpenSSL");
                black_box(&out);
            }
        });
    };
    let bound = engine(QueuePolicy::BOUND).open(decrypted());
    let unbound = engine(QueuePolicy::UNBOUND).open(decrypted());
    let inline = engine(QueuePolicy::Inline).open(decrypted());
    let group = Group::measure(
        "1 GiB of AES-256-XTS out of a warm image, 2 cores, a reader each",
        "GB/s",
        Better::Higher,
        ROUNDS,
        vec![
            Contestant::new("pread + decrypt", || {
                on_each(&cpus, |part| bare(&file, &runs, part, |buf, at| decrypt(buf, at)))
            }),
            Contestant::new("pread + OpenSSL", || on_each(&cpus, &with_openssl)),
            Contestant::new("inline", || on_each(&cpus, |part| read_part(&inline, part))),
            Contestant::new("bound", || on_each(&cpus, |part| read_part(&bound, part))),
            Contestant::new("unbound", || on_each(&cpus, |part| read_part(&unbound, part))),
        ],
    );
    report.group(&group);
    report.bar(&group, "inline", "pread + decrypt", 0.85);
    report.bar(&group, "inline", "pread + OpenSSL", 1.3);

    let inline = engine(QueuePolicy::Inline).open(verified());
    let hash = |buf: &[u8], digests: &mut [u8]| {
        BlockHasher::new(HashAlg::Sha256).hash_blocks(buf, 4096, &mut digests[..buf.len() / 4096 * 32]);
    };
    let group = Group::measure(
        "The same, with fs-verity on top",
        "GB/s",
        Better::Higher,
        ROUNDS,
        vec![
            Contestant::new("pread + decrypt + hash", || {
                on_each(&cpus, |part| {
                    let mut digests = vec![0; CHUNK / 4096 * 32];
                    bare(&file, &runs, part, |buf, at| {
                        decrypt(buf, at);
                        hash(buf, &mut digests);
                        black_box(&digests);
                    });
                })
            }),
            Contestant::new("inline", || on_each(&cpus, |part| read_part(&inline, part))),
        ],
    );
    report.group(&group);
    report.bar(&group, "inline", "pread + decrypt + hash", 0.85);
    against_the_kernel(&mut report, dir.path(), &cpus);
    report.finish()
}
