//! `postread serve` beside `qemu-nbd` and `nbdkit`: a LUKS1 image copied out, and random verified reads of
//! 4 KiB.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use postread_benches::{Better, Contestant, Group, Report};

const MIB: u64 = 1 << 20;
const SIZE: u64 = 512 * MIB;
const BLOCK: u64 = 4096;
/// Requests in flight of the random reads.
const DEPTH: u64 = 16;
const READS: u64 = 40_000;

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

fn make(path: &Path) {
    let mut file = File::create(path).unwrap();
    for i in 0..SIZE >> 25 {
        file.write_all(&noise(1 << 25, i)).unwrap();
    }
}

fn succeeds(dir: &Path, program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).current_dir(dir).args(arguments).output().expect("the program runs");
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A server that runs until it is dropped.
struct Serving(Child);

impl Serving {
    fn start(dir: &Path, socket: &str, program: &str, arguments: &[&str]) -> Self {
        let mut command = Command::new(program);
        command.current_dir(dir).args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().expect("the server runs");
        let end = Instant::now() + Duration::from_secs(20);
        while UnixStream::connect(dir.join(socket)).is_err() {
            assert!(Instant::now() < end, "{program} serves");
            std::thread::sleep(Duration::from_millis(20));
        }
        Self(child)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn copy_out(dir: &Path, socket: &str) -> f64 {
    let uri = format!("nbd+unix:///?socket={}", dir.join(socket).display());
    let start = Instant::now();
    succeeds(dir, "nbdcopy", &[&uri, "null:"]);
    start.elapsed().as_secs_f64()
}

/// A client with simple replies.
struct Client(UnixStream);

impl Client {
    fn connect(path: &Path) -> Self {
        let mut stream = UnixStream::connect(path).expect("a server");
        let mut hello = [0; 18];
        stream.read_exact(&mut hello).unwrap();
        let mut out = 3u32.to_be_bytes().to_vec();
        out.extend(b"IHAVEOPT");
        out.extend(1u32.to_be_bytes());
        out.extend(0u32.to_be_bytes());
        stream.write_all(&out).unwrap();
        stream.read_exact(&mut [0; 10]).unwrap();
        Self(stream)
    }

    fn request(&mut self, cookie: u64, offset: u64) {
        let mut out = 0x2560_9513u32.to_be_bytes().to_vec();
        out.extend([0; 4]);
        out.extend(cookie.to_be_bytes());
        out.extend(offset.to_be_bytes());
        out.extend((BLOCK as u32).to_be_bytes());
        self.0.write_all(&out).unwrap();
    }

    /// Reads a reply. Returns its cookie.
    fn reply(&mut self) -> u64 {
        let mut head = [0; 16];
        self.0.read_exact(&mut head).unwrap();
        assert_eq!(head[4..8], [0; 4], "no error");
        self.0.read_exact(&mut [0; BLOCK as usize]).unwrap();
        u64::from_be_bytes(head[8..].try_into().unwrap())
    }
}

/// Random reads of 4 KiB, 16 in flight, by one client: reads a second.
fn random_reads(path: &Path) -> f64 {
    let mut client = Client::connect(path);
    let mut state = 7u64;
    let mut offset = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) % (SIZE / BLOCK) * BLOCK
    };
    let start = Instant::now();
    (0..DEPTH).for_each(|cookie| client.request(cookie, offset()));
    for cookie in DEPTH..READS {
        client.reply();
        client.request(cookie, offset());
    }
    (0..DEPTH).for_each(|_| {
        client.reply();
    });
    READS as f64 / start.elapsed().as_secs_f64()
}

fn main() -> ExitCode {
    let mut report = Report::new("nbd");
    let postread = build_postread();
    let postread = postread.to_str().expect("a path in UTF-8");
    let dir = tempfile::tempdir().expect("a directory");
    let at = dir.path();
    make(&at.join("luks"));
    fs::write(at.join("pass"), "secret").unwrap();
    let format = ["luksFormat", "-q", "--type=luks1", "--pbkdf-force-iterations=1000", "--cipher=aes-xts-plain64"];
    succeeds(at, "cryptsetup", &[&format[..], &["--key-size=512", "--key-file=pass", "luks"]].concat());
    let _ours =
        Serving::start(at, "ours", postread, &["serve", "luks", "--passphrase-file=pass", "--socket=ours", "-q"]);
    let absolute = |name: &str| at.join(name).display().to_string();
    let secret = format!("secret,id=s,file={}", absolute("pass"));
    let image = format!("driver=luks,key-secret=s,file.driver=file,file.filename={}", absolute("luks"));
    let _qemu = Serving::start(
        at,
        "qemu",
        "qemu-nbd",
        &["-r", "-t", "-e", "16", "-k", &absolute("qemu"), "--object", &secret, "--image-opts", &image],
    );
    let passphrase = format!("passphrase=+{}", absolute("pass"));
    let _nbdkit = Serving::start(
        at,
        "nbdkit",
        "nbdkit",
        &["-r", "-f", "-U", &absolute("nbdkit"), "--filter=luks", "file", &absolute("luks"), &passphrase],
    );
    let group = Group::measure(
        "Copy 512 MiB of LUKS1, AES-256-XTS, out of a server with nbdcopy, warm",
        "s",
        Better::Lower,
        7,
        vec![
            Contestant::new("postread serve", || copy_out(at, "ours")),
            Contestant::new("qemu-nbd", || copy_out(at, "qemu")),
            Contestant::new("nbdkit luks", || copy_out(at, "nbdkit")),
        ],
    );
    report.group(&group);
    report.bar(&group, "postread serve", "qemu-nbd", 2.0);
    report.bar(&group, "postread serve", "nbdkit luks", 2.0);

    make(&at.join("data"));
    let text = succeeds(at, postread, &["dm-verity", "format", "data", "hash"]);
    let root = text.lines().find_map(|line| line.strip_prefix("Root hash:")).expect("a root hash").trim().to_owned();
    let root = format!("--root-hash={root}");
    let verified = ["serve", "data", "--socket=verified", "-q", &root, "--hash-device=hash", "--data-blocks=131072"];
    let _verified = Serving::start(at, "verified", postread, &verified);
    let _file = Serving::start(at, "file", "nbdkit", &["-r", "-f", "-U", &absolute("file"), "file", &absolute("data")]);
    let group = Group::measure(
        "Random reads of 4 KiB of 512 MiB, 16 in flight, one client, warm",
        "reads/s",
        Better::Higher,
        7,
        vec![
            Contestant::new("postread serve, dm-verity", || random_reads(&at.join("verified"))),
            Contestant::new("nbdkit file, unverified", || random_reads(&at.join("file"))),
        ],
    );
    report.group(&group);
    report.bar(&group, "postread serve, dm-verity", "nbdkit file, unverified", 0.6);
    report.finish()
}
