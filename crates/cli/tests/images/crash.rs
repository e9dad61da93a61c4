//! `extract`, killed at each system call that changes its directory: no name leads to anything but a whole file, and the
//! next run completes with the right bytes.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output};

use crate::common::*;

/// The calls that change a directory or what is in it.
const CALLS: [&str; 19] = [
    "mkdirat",
    "mknodat",
    "symlinkat",
    "linkat",
    "unlinkat",
    "renameat",
    "renameat2",
    "ftruncate",
    "pwrite64",
    "chmod",
    "fchmod",
    "fchmodat",
    "fchown",
    "fchownat",
    "utimensat",
    "setxattr",
    "fsetxattr",
    "openat",
    "openat2",
];

/// Everything below a directory: kinds, modes, times, sizes, targets, numbers of names, contents; owners as root.
fn listing(dir: &Path) -> String {
    let script = "find \"$0\" -mindepth 1 -printf '%P %y %m %s %l %n ' \\( -type d -printf '\\n' -o -printf '%T@\\n' \\) | \
                  grep -v '^lost+found ' | sed 's/ d \\([0-7]*\\) [0-9]* / d \\1 /' | sort; \
                  cd \"$0\" && find . -type f -exec sha256sum {} + | sort";
    let output = Command::new("bash").args(["-c", script]).arg(dir).output().unwrap();
    expect(&output, 0)
}

/// Runs the program, which is killed as it enters a call for the `n`th time.
fn killed_at(strace: &Path, dir: &Path, out: &str, args: &[&str], call: &str, n: usize) -> Output {
    let inject = format!("inject={call}:signal=SIGKILL:when={n}");
    let mut command = Command::new(strace);
    command.current_dir(dir).args(["-f", "-qqq", "-o", "/dev/null", "-e", &format!("trace={call}"), "-e", &inject]);
    // Of files that are opened, those in the directory itself.
    if call.starts_with("openat") {
        command.arg("-P").arg(dir.join(out));
    }
    command.arg(env!("CARGO_BIN_EXE_postread")).args(args).output().unwrap()
}

fn fill(tree: &Path) {
    fs::create_dir_all(tree.join("d/inner")).unwrap();
    for (name, size) in [("small", 100), ("blocks", 9000), ("d/large", 3 << 20), ("d/inner/x", 1), ("empty", 0)] {
        fs::write(tree.join(name), postread_tests::noise(size, size as u64)).unwrap();
    }
    fs::hard_link(tree.join("blocks"), tree.join("d/same")).unwrap();
    symlink("target", tree.join("link")).unwrap();
    let fifo = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, tree.join("d/pipe"), fifo, 0o640.into(), 0).unwrap();
    let _ = rustix::fs::setxattr(tree.join("small"), "user.note", b"value", rustix::fs::XattrFlags::empty());
    fs::set_permissions(tree.join("d/inner"), fs::Permissions::from_mode(0o500)).unwrap();
    fs::set_permissions(tree.join("small"), fs::Permissions::from_mode(0o400)).unwrap();
}

/// What an older extraction left: other bytes, and other kinds of files.
fn stale(out: &Path) {
    fs::create_dir_all(out.join("d")).unwrap();
    for name in ["small", "blocks", "link", "d/same", "d/pipe", "d/large"] {
        fs::write(out.join(name), "stale").unwrap();
    }
}

#[test]
fn killed_at_any_call_the_next_run_completes() {
    let (Some(mke2fs), Some(strace)) = (postread_tests::require_tool("mke2fs"), postread_tests::require_tool("strace"))
    else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("tree")).unwrap();
    fill(&dir.path().join("tree"));
    let mut command = Command::new(mke2fs);
    command.current_dir(&dir).args(["-q", "-F", "-t", "ext4", "-d", "tree", "image", "16M"]);
    postread_tests::run(&mut command);
    let killed_at =
        |call, n| killed_at(&strace, dir.path(), "out", &["extract", "-q", "image", "-C", "out", "--jobs=1"], call, n);
    let extract = |out: &str| postread(dir.path(), &["extract", "-q", "image", "-C", out]);
    expect(&extract("good"), 0);
    let (good, out) = (listing(&dir.path().join("good")), dir.path().join("out"));
    if let Some(why) = Some(killed_at("getpid", 60_000)).filter(|output| !output.status.success()) {
        return postread_tests::skip(format!("strace: {}", stderr(&why)));
    }
    fs::remove_dir_all(&out).unwrap();
    let whole = |name: &str| good.lines().find(|line| line.ends_with(&format!("  ./{name}"))).unwrap_or_default();
    let mut kills = 0;
    for over in [false, true] {
        for call in CALLS {
            for n in 1.. {
                if over {
                    stale(&out);
                }
                let killed = killed_at(call, n);
                if killed.status.signal() != Some(9) {
                    expect(&killed, 0);
                    fs::remove_dir_all(&out).unwrap();
                    break;
                }
                kills += 1;
                let at = format!("{call} {n}, over an older one: {over}");
                if out.exists() {
                    // Whole files, or what was there before, or what has no name of the image.
                    for line in listing(&out).lines().filter(|line| line.contains("  ./")) {
                        let (_, name) = line.split_once("  ./").unwrap();
                        let old = over && fs::read(out.join(name)).unwrap() == b"stale";
                        assert!(name.contains(".postread-") || old || line == whole(name), "{at}: {line}");
                    }
                }
                expect(&extract("out"), 0);
                assert_eq!(listing(&out), good, "{at}");
                fs::remove_dir_all(&out).unwrap();
            }
        }
    }
    // Each file alone takes several.
    assert!(kills > 50, "{kills}");
}

/// The same of saving: what an interrupted run leaves is completed, and restored as the image has it.
#[test]
fn a_save_that_was_killed_is_completed() {
    let Some(strace) = postread_tests::require_tool("strace") else { return };
    let dir = tempfile::tempdir().unwrap();
    let (image, key) = (unpack(dir.path(), "xts-pad16"), key("key64.bin"));
    let save = ["extract", "-q", "--ciphertext", &image, "/enc", "-C", "saved"];
    let trial = killed_at(&strace, dir.path(), "saved", &save, "getpid", 60_000);
    if !trial.status.success() {
        return postread_tests::skip(format!("strace: {}", stderr(&trial)));
    }
    let saved = dir.path().join("saved");
    let manifest_of = || fs::read(saved.join("manifest.jsonl"));
    let good = manifest_of().unwrap();
    fs::remove_dir_all(&saved).unwrap();
    let mut kills = 0;
    for call in ["mkdirat", "linkat", "ftruncate", "pwrite64", "utimensat", "write"] {
        // Files are alike: some of them stand for all.
        for n in (1..).step_by(13) {
            let killed = killed_at(&strace, dir.path(), "saved", &save, call, n);
            if killed.status.signal() != Some(9) {
                fs::remove_dir_all(&saved).unwrap();
                break;
            }
            kills += 1;
            // The manifest is whole, or not there.
            assert!(manifest_of().map_or(true, |found| found == good), "{call} {n}");
            expect(&postread(dir.path(), &save), 0);
            assert!(manifest_of().unwrap() == good, "{call} {n}");
            let restore = ["extract", "-q", "--from-ciphertext", "saved", "-C", "restored", "--key", &key];
            expect(&postread(dir.path(), &restore), 0);
            assert_eq!(manifest(&dir.path().join("restored")), text_of("tree.manifest"), "{call} {n}");
            fs::remove_dir_all(&saved).unwrap();
            fs::remove_dir_all(dir.path().join("restored")).unwrap();
        }
    }
    assert!(kills > 10, "{kills}");
}
