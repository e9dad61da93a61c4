//! Secrets: nothing of them is left in memory when the program ends, nor on a terminal that asked for one.

use std::ffi::CString;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, tcgetattr};

use crate::common::*;

/// Looks for each of `$NEEDLES` in all memory that the stopped program can write.
const SCAN: &str = r#"
import gdb, os
needles = [bytes.fromhex(needle) for needle in os.environ['NEEDLES'].split()]
process = gdb.selected_inferior()
found = scanned = 0
for line in open('/proc/%d/maps' % process.pid):
    fields = line.split()
    if not fields[1].startswith('rw'): continue
    start, end = [int(at, 16) for at in fields[0].split('-')]
    try: memory = bytes(process.read_memory(start, end - start))
    except gdb.error: continue
    scanned += len(memory)
    for i, needle in enumerate(needles):
        if needle in memory: print('NEEDLE', i, 'in', fields[-1])
        found += memory.count(needle)
print('RESULT', found, scanned)
"#;

/// How often `needles` are in the memory of the program when it ends; `None` where the program could not be stopped there.
fn residue(dir: &Path, args: &[&str], stdin: Option<&str>, needles: &[&[u8]]) -> Option<usize> {
    residue_after(dir, args, stdin, needles, |_| ())
}

/// The same, with something done while the program runs.
fn residue_after(
    dir: &Path,
    args: &[&str],
    stdin: Option<&str>,
    needles: &[&[u8]],
    meanwhile: impl FnOnce(&mut Child),
) -> Option<usize> {
    fs::write(dir.join("scan.py"), SCAN).unwrap();
    let stdin = stdin.map_or(String::new(), |file| format!(" < {file}"));
    let run = format!("run {}{stdin} > /dev/null 2>&1", args.join(" "));
    let mut gdb = Command::new("gdb")
        .current_dir(dir)
        .env("NEEDLES", needles.iter().map(hex::encode).collect::<Vec<_>>().join(" "))
        .args(["-q", "-batch", "-nx", "-readnever", "-ex", "set confirm off", "-ex", "set debuginfod enabled off"])
        .args(["-ex", "catch syscall exit_group", "-ex", &run, "-ex", "source scan.py", "-ex", "kill"])
        .args(["--args", env!("CARGO_BIN_EXE_postread")])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    meanwhile(&mut gdb);
    let output = gdb.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let result = text.lines().find_map(|line| line.strip_prefix("RESULT "));
    let Some((found, scanned)) = result.and_then(|result| result.split_once(' ')) else {
        postread_tests::skip(format!("gdb cannot stop the program at its end: {text}{}", stderr(&output)));
        return None;
    };
    assert!(scanned.parse::<u64>().unwrap() > 100_000, "{text}");
    if found != "0" {
        eprintln!("{args:?}: {text}");
    }
    Some(found.parse().unwrap())
}

/// Each way a passphrase comes in.
#[test]
fn no_passphrase_is_left_in_memory() {
    let Some(_) = postread_tests::require_tool("gdb") else { return };
    let dir = tempfile::tempdir().unwrap();
    // The scan finds what is there: an argument is.
    let Some(found) =
        residue(dir.path(), &["ls", "AnArgumentThatStaysInMemory"], None, &[b"AnArgumentThatStaysInMemory"])
    else {
        return;
    };
    assert!(found > 0);
    let mut left = Vec::new();
    let tool = unpack(dir.path(), "fscrypt-tool");
    let passphrase = b"correct horse";
    fs::write(dir.path().join("passphrase"), [&passphrase[..], b"\n"].concat()).unwrap();
    for (option, stdin) in [("--passphrase-file=passphrase", None), ("--passphrase-file=-", Some("passphrase"))] {
        if residue(dir.path(), &["ls", "-R", &tool, option], stdin, &[passphrase]) != Some(0) {
            left.push(format!("{option} {stdin:?}"));
        }
    }
    assert!(left.is_empty(), "{left:#?}");
}

/// Each way a master key comes in, and each kind of use. Sixteen bytes of it are a trace already.
#[test]
fn no_master_key_is_left_in_memory() {
    let Some(_) = postread_tests::require_tool("gdb") else { return };
    let dir = tempfile::tempdir().unwrap();
    let [key64, key32] = ["key64.bin", "key32.bin"].map(key);
    let whole = fs::read(&key64).unwrap();
    assert!(whole.starts_with(&fs::read(&key32).unwrap()));
    let needles: Vec<&[u8]> = whole.chunks(16).collect();
    let [v2, v1, direct, tool] =
        ["xts-pad16", "v1-xts", "v1-direct", "fscrypt-tool"].map(|name| unpack(dir.path(), name));
    let lblk32 = unpack(dir.path(), "lblk32");
    let casefold = unpack(dir.path(), "casefold-enc");
    let (of_v1, of_direct) = (format!("0000111122223333={key64}"), format!("0000111122223333={key32}"));
    let ways: [(&[&str], Option<&str>, i32); 16] = [
        (&["key", "id", &key64], None, 0),
        (&["key", "id", "-"], Some(&key64), 0),
        (&["key", "id", "--hw-wrapped", &key32], None, 0),
        (&["cat", &v2, "/enc/f4096", "--key", &key64], None, 0),
        (&["cat", &v2, "/enc/f4096", "--key", "-"], Some(&key64), 0),
        (&["cat", &v1, "/enc/f4096", "--key", &of_v1], None, 0),
        (&["cat", &direct, "/enc/f4096", "--key", &of_direct], None, 0),
        (&["cat", &tool, "/raw/secret", "--key", &key32], None, 0),
        (&["cat", &v2, "/enc/f4096", "--hw-wrapped-key", &key32], None, 3),
        (&["ls", "-R", &v1, "--key", &of_v1], None, 0),
        (&["ls", "-R", &lblk32, "--key", &key64], None, 0),
        (&["ls", "-R", &casefold, "--key", &key64], None, 0),
        (&["inspect", &v1, "--key", &of_v1], None, 0),
        (&["extract", "-q", &v2, "/enc", "-C", "bound", "--queue", "bound", "--key", &key64], None, 0),
        (&["extract", "-q", &v1, "/enc", "-C", "v1", "--queue", "unbound", "--key", &of_v1], None, 0),
        (&["extract", "-q", &direct, "/enc", "-C", "direct", "--key", &of_direct], None, 0),
    ];
    let mut left = Vec::new();
    for (args, stdin, status) in ways {
        // That the key is used.
        let stdin_file = || stdin.map_or_else(Stdio::null, |file| fs::File::open(file).unwrap().into());
        let mut command = Command::new(env!("CARGO_BIN_EXE_postread"));
        let output = command.current_dir(dir.path()).args(args).stdin(stdin_file()).output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{args:?} {}", stderr(&output));
        if let Some(at) = args.iter().position(|&arg| arg == "-C") {
            fs::remove_dir_all(dir.path().join(args[at + 1])).unwrap();
        }
        match residue(dir.path(), args, stdin, &needles) {
            None => return,
            Some(0) => {}
            Some(_) => left.push(format!("{args:?}")),
        }
    }
    assert!(left.is_empty(), "{left:#?}");
}

/// The passphrase of a key slot of systemd-homed, and the master key in it.
#[test]
fn nothing_of_a_slot_of_systemd_homed_is_left_in_memory() {
    let Some(_) = postread_tests::require_tool("gdb") else { return };
    let dir = tempfile::tempdir().unwrap();
    let Some((image, _)) = crate::metadata::homed_image(dir.path()) else { return };
    fs::write(dir.path().join("pass"), "correct horse\n").unwrap();
    let whole = fs::read(key("key64.bin")).unwrap();
    let needles: Vec<&[u8]> = whole.chunks(16).chain([&b"correct horse"[..]]).collect();
    for args in [&["cat", &image, "/enc/f4096"][..], &["ls", "-R", &image], &["inspect", &image]] {
        let args = [args, &["--passphrase-file", "pass"]].concat();
        expect(&postread(dir.path(), &args), 0);
        match residue(dir.path(), &args, None, &needles) {
            None => return,
            found => assert_eq!(found, Some(0), "{args:?}"),
        }
    }
}

/// A terminal: the side of whoever types, and the name of the other.
fn terminal_pair() -> (OwnedFd, CString) {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap();
    (master, name)
}

/// A passphrase that a user types.
#[test]
fn no_typed_passphrase_is_left_in_memory() {
    let Some(_) = postread_tests::require_tool("gdb") else { return };
    let dir = tempfile::tempdir().unwrap();
    let image = unpack(dir.path(), "fscrypt-tool");
    let (master, name) = terminal_pair();
    let terminal = rustix::fs::open(&name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
    let passphrase = b"correct horse";
    let args = ["cat", "--passphrase-file", "-", &image, "/passphrase/secret"];
    let found = residue_after(dir.path(), &args, Some(name.to_str().unwrap()), &[passphrase], |gdb| {
        let echoes = || tcgetattr(terminal.as_fd()).unwrap().local_modes.contains(LocalModes::ECHO);
        while echoes() && gdb.try_wait().unwrap().is_none() {
            std::thread::yield_now();
        }
        rustix::io::write(&master, &[&passphrase[..], b"\n"].concat()).unwrap();
    });
    assert!(matches!(found, None | Some(0)), "{found:?}");
}

/// What a user types at the prompt, and whether the program reads the file then; the terminal echoes afterwards.
#[test]
fn the_terminal_echoes_after_the_prompt() {
    let Some(setsid) = postread_tests::require_tool("setsid") else { return };
    let dir = tempfile::tempdir().unwrap();
    let image = unpack(dir.path(), "fscrypt-tool");
    let typed: [(&[u8], bool); 8] = [
        (b"correct horse\n", true),
        (b"wrong\n", false),
        (b"corrx\x7fect horse\r", true),
        (b"abc\x15correct horse\n", true),
        (b"\x03", false),
        (b"corr\x1a\x1c", false),
        // No passphrase: it is not asked for again.
        (b"\x04", false),
        (b"\n", false),
    ];
    for (input, good) in typed {
        let (master, name) = terminal_pair();
        let open = || rustix::fs::open(&name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
        let terminal = open();
        let mut child = Command::new(&setsid)
            .args(["--ctty", "--wait", env!("CARGO_BIN_EXE_postread")])
            .args(["cat", "--passphrase-file", "-", &image, "/passphrase/secret"])
            .current_dir(dir.path())
            .stdin(Stdio::from(open()))
            .stdout(Stdio::null())
            .stderr(Stdio::from(open()))
            .spawn()
            .unwrap();
        let echoes = || tcgetattr(terminal.as_fd()).unwrap().local_modes.contains(LocalModes::ECHO);
        // Typed before, the terminal would echo it.
        while echoes() && child.try_wait().unwrap().is_none() {
            std::thread::yield_now();
        }
        rustix::io::write(&master, input).unwrap();
        let status = child.wait().unwrap();
        assert!(echoes(), "{}", input.escape_ascii());
        assert_eq!(status.success(), good, "{}: {status:?}", input.escape_ascii());
    }
}
