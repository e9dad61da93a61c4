//! `postread serve`: programs that nobody here wrote read what it serves.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use postread_tests::{Uml, require_tool, unpack_image};

use crate::common::{expect, have_tool, noise, postread, run, stderr};

/// A server that runs, and where it serves.
struct Serving {
    child: Child,
    uri: String,
}

impl Serving {
    fn start(dir: &Path, args: &[&str]) -> Self {
        let log = fs::File::create(dir.join("log")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_postread"));
        command.current_dir(dir).arg("serve").args(args).stdin(Stdio::null());
        let mut child = command.stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut uri = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut uri).unwrap();
        let log = fs::read_to_string(dir.join("log")).unwrap();
        assert!(uri.ends_with('\n'), "it ended: {log}");
        Self { child, uri: uri.trim_end().to_owned() }
    }

    /// Ends it as a supervisor would.
    fn end(mut self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn stacked(dir: &Path) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/images/stacked");
    let image = unpack_image(&root.join("disk.img.zst"));
    fs::copy(image.path(), dir.join("disk")).unwrap();
    fs::write(dir.join("pass"), "stacked\n").unwrap();
}

const OPTIONS: [&str; 3] = ["--part=1", "--passphrase-file=pass", "--volume=root"];

fn have_clients(test: &str) -> bool {
    ["nbdinfo", "nbdcopy", "qemu-img"].iter().all(|tool| have_tool(tool, "--version", test))
}

#[test]
fn clients_agree_on_a_volume_in_luks() {
    if !have_clients("clients_agree_on_a_volume_in_luks") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    stacked(at);
    let serving = Serving::start(at, &[&["disk", "--socket=nbd"][..], &OPTIONS].concat());
    let uri = format!("nbd+unix:///?socket={}", at.join("nbd").display());
    assert_eq!(serving.uri, "nbd+unix:///?socket=nbd");
    assert_eq!(fs::metadata(at.join("nbd")).unwrap().permissions().mode() & 0o777, 0o700);
    let info = expect(&run(at, "nbdinfo", &[&uri]), 0);
    for part in
        ["structured packets", "export-size: 8388608", "is_read_only: true", "can_multi_conn: true", "can_df: true"]
    {
        assert!(info.contains(part), "{part}: {info}");
    }
    expect(&run(at, "nbdcopy", &["--connections=4", &uri, "copy"]), 0);
    expect(&run(at, "qemu-img", &["convert", "-f", "raw", "-O", "raw", &uri, "image"]), 0);
    let copy = fs::read(at.join("copy")).unwrap();
    assert!(copy == fs::read(at.join("image")).unwrap() && copy.len() == 8 << 20);
    // It is the file system that the layers lead to.
    let read = |args: &[&str]| postread(at, args).stdout;
    let wanted = read(&[&["cat", "disk", "/v/f65537"][..], &OPTIONS].concat());
    assert!(wanted.len() == 65537 && read(&["cat", "copy", "/v/f65537"]) == wanted);
    // Nobody writes.
    let write = run(at, "qemu-io", &["-f", "raw", "-c", "write 0 512", &uri]);
    assert!(!write.status.success());
    serving.end();
    assert!(!at.join("nbd").exists());
}

/// Holes are reported, and reads return the file's bytes.
#[test]
fn holes_are_reported_for_a_plain_file() {
    if !have_clients("holes_are_reported_for_a_plain_file") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    let sparse = fs::File::create(at.join("sparse")).unwrap();
    sparse.set_len(12 << 20).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&sparse, &noise(65536, 1), 4 << 20).unwrap();
    let serving = Serving::start(at, &["sparse", "--offset=1M", "--socket=nbd", "--export=name"]);
    let uri = format!("nbd+unix:///name?socket={}", at.join("nbd").display());
    let map = expect(&run(at, "nbdinfo", &["--map", &uri]), 0);
    let map: Vec<Vec<&str>> = map.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(map[0], ["0", "3145728", "3", "hole,zero"], "{map:?}");
    assert_eq!((map[1][0], map[1][3]), ("3145728", "data"), "{map:?}");
    expect(&run(at, "nbdcopy", &[&uri, "copy"]), 0);
    assert!(fs::read(at.join("copy")).unwrap() == fs::read(at.join("sparse")).unwrap()[1 << 20..]);
    let other = uri.replace("name", "other");
    assert!(!run(at, "nbdinfo", &[&other]).status.success());
    serving.end();
}

/// A corrupt block is `EIO` to the client and a report to whoever serves.
#[test]
fn a_corrupt_block_is_an_error_to_the_client_and_a_report_here() {
    let test = "a_corrupt_block_is_an_error_to_the_client_and_a_report_here";
    if !have_clients(test) || !have_tool("veritysetup", "--version", test) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    let data = noise(4 << 20, 2);
    fs::write(at.join("data"), &data).unwrap();
    let text = expect(&run(at, "veritysetup", &["format", "data", "hash"]), 0);
    let root = text.lines().find_map(|line| line.strip_prefix("Root hash:")).unwrap().trim().to_owned();
    let mut changed = data.clone();
    changed[1_000_000] ^= 1;
    fs::write(at.join("data"), changed).unwrap();
    let root = format!("--root-hash={root}");
    let serving = Serving::start(at, &["data", "--socket=nbd", &root, "--hash-device=hash", "--data-blocks=1024"]);
    let uri = format!("nbd+unix:///?socket={}", at.join("nbd").display());
    let copy = run(at, "nbdcopy", &[&uri, "copy"]);
    assert!(!copy.status.success() && stderr(&copy).contains("Input/output error"), "{}", stderr(&copy));
    let block = 1_000_000 / 4096 * 4096;
    let log = fs::read_to_string(at.join("log")).unwrap();
    assert!(log.contains(&format!("at byte {block}: data block at {block} is corrupt: expected ")), "{log}");
    // All else is there.
    let good = run(at, "qemu-img", &["dd", "-O", "raw", "bs=4096", "skip=245", &format!("if={uri}"), "of=rest"]);
    assert!(good.status.success(), "{}", stderr(&good));
    assert!(fs::read(at.join("rest")).unwrap() == data[245 * 4096..]);
    serving.end();
}

#[test]
fn sockets_and_ports() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    fs::write(at.join("disk"), noise(100_000, 3)).unwrap();
    let fails = |status, args: &[&str], wanted: &str| {
        let output = postread(at, &[&["serve", "disk"], args].concat());
        expect(&output, status);
        assert!(stderr(&output).contains(wanted), "{}", stderr(&output));
    };
    fails(2, &[], "--socket");
    fails(2, &["--socket=s", "--tcp=127.0.0.1:0"], "cannot be used with");
    fails(2, &["--socket=s", "--export=a/b"], "without / ? # %");
    fails(2, &["--socket=s", "--superblock=3"], "unexpected argument '--superblock'");
    fails(4, &["--socket=no/such/dir"], "no/such/dir: No such file");
    fails(4, &["--tcp=192.0.2.1:1"], "192.0.2.1:1: ");
    stacked(at);
    let locked = postread(at, &["serve", "disk", "--part=1", "--socket=s"]);
    expect(&locked, 3);
    assert!(stderr(&locked).contains("locked LUKS volume; give its passphrase"), "{}", stderr(&locked));
    assert!(!at.join("s").exists());
    // A disk with partitions is served whole.
    let serving = Serving::start(at, &["disk", "--socket=s"]);
    UnixStream::connect(at.join("s")).unwrap();
    // A second server does not take its place; one that was killed leaves a socket that the next one replaces.
    fails(4, &["--socket=s"], "s: Address already in use");
    drop(serving);
    assert!(at.join("s").exists());
    Serving::start(at, &["disk", "--socket=s"]).end();
    let listener = UnixListener::bind(at.join("s")).unwrap();
    fails(4, &["--socket=s"], "Address already in use");
    drop(listener);
    fs::remove_file(at.join("s")).unwrap();
    fs::write(at.join("s"), "somebody's").unwrap();
    fails(4, &["--socket=s"], "Address already in use");
    assert_eq!(fs::read_to_string(at.join("s")).unwrap(), "somebody's");
    if have_clients("sockets_and_ports") {
        let serving = Serving::start(at, &["disk", "--tcp=127.0.0.1:0"]);
        assert!(serving.uri.starts_with("nbd://127.0.0.1:"), "{}", serving.uri);
        expect(&run(at, "nbdcopy", &[&serving.uri, "copy"]), 0);
        assert!(fs::read(at.join("copy")).unwrap() == fs::read(at.join("disk")).unwrap());
    }
}

/// The kernel's own client mounts what is served.
#[test]
fn the_kernels_client() {
    let (Some(uml), Some(_)) = (Uml::new(), require_tool("nbd-client")) else { return };
    let dir = tempfile::tempdir().unwrap();
    stacked(dir.path());
    let uml = uml
        .file("postread", &PathBuf::from(env!("CARGO_BIN_EXE_postread")))
        .file("disk", &dir.path().join("disk"))
        .file("pass", &dir.path().join("pass"));
    let script = r#"
set -e
cp /mnt/out/disk /mnt/out/pass /tmp/; cd /tmp; mkdir m
/mnt/out/postread serve disk --part=1 --passphrase-file=pass --volume=root --socket=s > uri &
for i in $(seq 100); do [ -S s ] && break; sleep 0.1; done
nbd-client -unix s /dev/nbd0 -readonly -connections 2 > /dev/null
[ "$(blockdev --getsize64 /dev/nbd0)" = 8388608 ]
mount -o ro /dev/nbd0 m
(cd m && sha256sum v/f* && fsverity measure v/f65537)
umount m; nbd-client -d /dev/nbd0 > /dev/null
kill %1; wait %1
[ ! -e s ]
"#;
    let log = uml.run(script).success().log;
    let wanted =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/images/stacked/stacked.sha256"))
            .unwrap();
    let plain: Vec<&str> = wanted.lines().filter(|line| line.contains("  v/f")).collect();
    assert_eq!(plain.len(), 6);
    assert!(plain.iter().all(|line| log.contains(line)), "{log}");
    let digests =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/images/stacked/stacked.digests"))
            .unwrap();
    let digest = digests.lines().find(|line| line.ends_with("v/f65537")).unwrap();
    assert!(log.contains(digest), "{log}");
}
