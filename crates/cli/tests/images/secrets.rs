//! Secrets: nothing of them is left in memory when the program ends, nor on a terminal that asked for one.

use std::fs;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};

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
    fs::write(dir.join("scan.py"), SCAN).unwrap();
    let stdin = stdin.map_or(String::new(), |file| format!(" < {file}"));
    let run = format!("run {}{stdin} > /dev/null 2>&1", args.join(" "));
    let output = Command::new("gdb")
        .current_dir(dir)
        .env("NEEDLES", needles.iter().map(hex::encode).collect::<Vec<_>>().join(" "))
        .args(["-q", "-batch", "-nx", "-readnever", "-ex", "set confirm off", "-ex", "set debuginfod enabled off"])
        .args(["-ex", "catch syscall exit_group", "-ex", &run, "-ex", "source scan.py", "-ex", "kill"])
        .args(["--args", env!("CARGO_BIN_EXE_postread")])
        .stdin(Stdio::null())
        .output()
        .unwrap();
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

/// What a user types at the prompt, and whether the program reads the file then; the terminal echoes afterwards.
#[test]
fn the_terminal_echoes_after_the_prompt() {
    let Some(setsid) = postread_tests::require_tool("setsid") else { return };
    let dir = tempfile::tempdir().unwrap();
    let image = unpack(dir.path(), "fscrypt-tool");
    let typed: [(&[u8], bool); 6] = [
        (b"correct horse\n", true),
        (b"wrong\n", false),
        (b"corrx\x7fect horse\r", true),
        (b"abc\x15correct horse\n", true),
        (b"\x03", false),
        (b"corr\x1a\x1c", false),
    ];
    for (input, good) in typed {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let open = || rustix::fs::open(&name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
        let terminal = open();
        let mut child = Command::new(&setsid)
            .args(["--ctty", "--wait", env!("CARGO_BIN_EXE_postread")])
            .args(["cat", "--passphrase-file", "-", &image, "/passphrase/secret"])
            .current_dir(dir.path())
            .stdin(Stdio::from(open()))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
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
