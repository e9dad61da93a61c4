//! Files that change while they are read: the change is reported, and no digest or verdict.

use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

/// Long enough that reading it does not end before it is changed.
const LEN: u64 = 384 << 20;

/// CPU ticks that a process has used.
fn ticks(child: &Child) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

/// Whether a process has the file open.
fn has_open(child: &Child, file: &Path) -> bool {
    let Ok(open) = fs::read_dir(format!("/proc/{}/fd", child.id())) else { return false };
    open.flatten().any(|fd| fs::read_link(fd.path()).is_ok_and(|path| path == file))
}

/// Runs the program, and changes `file` once it is being read.
fn change_while_read(dir: &Path, args: &[&str], file: &Path, change: fn(&Path)) -> (Option<i32>, String, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_postread"))
        .current_dir(dir)
        .args(args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The file is open, and the work on it has begun.
    let mut from = None;
    loop {
        assert!(child.try_wait().unwrap().is_none(), "{args:?}: it ended before the file was changed");
        match (from, has_open(&child, file)) {
            (Some(from), true) if ticks(&child) > from => break,
            (None, true) => from = Some(ticks(&child)),
            _ => {}
        }
        std::thread::yield_now();
    }
    let pid = Pid::from_child(&child);
    kill_process(pid, Signal::STOP).unwrap();
    change(file);
    kill_process(pid, Signal::CONT).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_file_that_changes_while_it_is_read_fails() {
    let dir = tempfile::tempdir().unwrap();
    let top = dir.path().canonicalize().unwrap();
    let file = top.join("file");
    let kept = top.join("kept");
    let piece = postread_tests::noise(1 << 20, 1);
    let mut writer = fs::File::create(&kept).unwrap();
    (0..LEN >> 20).for_each(|_| writer.write_all(&piece).unwrap());
    let make = |file: &Path| {
        let _ = fs::remove_file(file);
        writer.set_len(LEN).unwrap();
        writer.write_all_at(&piece[..1], 0).unwrap();
        fs::hard_link(&kept, file).unwrap();
    };
    make(&file);
    let output =
        Command::new(env!("CARGO_BIN_EXE_postread")).current_dir(&top).args(["digest", "--compact", "file"]).output();
    let digest = format!("sha256:{}", String::from_utf8(output.unwrap().stdout).unwrap().trim());
    type Change = (&'static str, fn(&Path));
    let changes: [Change; 3] = [
        ("grown", |file| {
            fs::OpenOptions::new().append(true).open(file).unwrap().write_all(b"more").unwrap();
        }),
        ("replaced", |file| {
            let other = file.with_file_name("other");
            fs::write(&other, "other").unwrap();
            fs::rename(other, file).unwrap();
        }),
        // With what was there, so that all of it is what its digest says.
        ("written to", |file| {
            let file = fs::OpenOptions::new().read(true).write(true).open(file).unwrap();
            let mut first = [0];
            file.read_exact_at(&mut first, 0).unwrap();
            file.write_all_at(&first, 0).unwrap();
        }),
    ];
    for (what, change) in changes {
        for args in [&["digest", "file"][..], &["verify", "file", "--digest", &digest]] {
            make(&file);
            let (status, stdout, stderr) = change_while_read(&top, args, &file, change);
            assert_eq!(status, Some(4), "{what} {args:?}: {stdout}{stderr}");
            let told = ["while it was read", "the name leads to another file than the one that was opened"];
            assert!(told.iter().any(|told| stderr.contains(told)), "{what} {args:?}: {stderr}");
            assert!(args[0] != "digest" || stdout.is_empty(), "{what} {args:?}: {stdout}");
        }
    }
}
