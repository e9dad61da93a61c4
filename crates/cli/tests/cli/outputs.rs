//! Outputs: one that is an input is refused, and one that is not finished is not left.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use postread_tests::{Mount, require, require_root};

use crate::common::{expect, have_tool, noise, postread, run, stderr};

#[test]
fn no_input_is_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    let bytes = noise(300_000, 8);
    for name in ["f", "cert", "key"] {
        fs::write(at.join(name), &bytes).unwrap();
    }
    let list = expect(&postread(at, &["digest", "f", "--out-merkle-tree=tree", "--out-descriptor=desc"]), 0);
    let digest = list.split(' ').next().unwrap();
    let (tree, desc) = (fs::read(at.join("tree")).unwrap(), fs::read(at.join("desc")).unwrap());
    fs::hard_link(at.join("f"), at.join("hard")).unwrap();
    symlink("f", at.join("soft")).unwrap();
    symlink("new", at.join("dangling")).unwrap();
    let map = |map| ["verify", "f", "--digest", digest, "--merkle-tree=tree", "--descriptor=desc", "--map", map];
    let sign = |out, more| ["sign", "f", out, "--key=key", "--cert=cert", more];
    for args in [
        &map("f")[..],
        &map("hard"),
        &map("soft"),
        &map("./tree"),
        &map("desc"),
        &["verify", "f", "--merkle-tree=tree", "--descriptor=desc", "--signature=key", "--cert=cert", "--map=key"],
        &["verify", "f", "--merkle-tree=tree", "--descriptor=desc", "--signature=key", "--cert=cert", "--map=cert"],
        &["digest", "--out-merkle-tree=f", "f"],
        &["digest", "--out-merkle-tree=soft", "f"],
        &["digest", "--out-descriptor=hard", "f"],
        &["digest", "--out-merkle-tree=new", "--out-descriptor=./new", "f"],
        &["digest", "--out-merkle-tree=new", "--out-descriptor=dangling", "f"],
        &sign("f", "--quiet"),
        &sign("key", "--quiet"),
        &sign("cert", "--quiet"),
        &sign("new", "--out-merkle-tree=new"),
        &sign("new", "--out-descriptor=key"),
    ] {
        let output = postread(at, args);
        expect(&output, 2);
        assert!(stderr(&output).contains("are the same file"), "{args:?}: {}", stderr(&output));
        for name in ["f", "cert", "key"] {
            assert!(fs::read(at.join(name)).unwrap() == bytes, "{name} after {args:?}");
        }
        assert!(fs::read(at.join("tree")).unwrap() == tree && fs::read(at.join("desc")).unwrap() == desc);
        assert!(!at.join("new").exists(), "{args:?}");
    }
    // What overwrites nothing is not refused.
    expect(&postread(at, &["digest", "--out-merkle-tree=/dev/null", "--out-descriptor=/dev/null", "f"]), 0);
}

#[test]
fn a_range_is_said_to_be_one() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    fs::write(at.join("f"), noise(30_000, 9)).unwrap();
    let list = expect(&postread(at, &["digest", "f"]), 0);
    let digest = list.split(' ').next().unwrap();
    let verify = |command: &str, range: &str| postread(at, &[command, "f", "--digest", digest, "--range", range]);
    let text = expect(&verify("verify", "5000..9000"), 0);
    assert!(text.starts_with("f: bytes 5000 to 8999 verified, 4000 bytes"), "{text}");
    for range in ["30000..", "30000..40000", "99999..", "5..5"] {
        for command in ["verify", "cat"] {
            let output = verify(command, range);
            assert_eq!(expect(&output, 2), "", "{command} {range}");
        }
    }
    for command in ["verify", "cat"] {
        expect(&verify(command, "29999.."), 0);
        expect(&verify(command, ".."), 0);
    }
}

/// As `| head -1` does: the reader goes away, and that is no error.
#[test]
fn a_reader_that_goes_away_is_no_error() {
    let dir = tempfile::tempdir().unwrap();
    for i in 0..2000 {
        fs::write(dir.path().join(format!("a-file-with-a-long-name-{i}")), "x").unwrap();
    }
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_postread"))
        .current_dir(dir.path())
        .args(["digest", "-r", "."])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    expect(&output, 0);
    assert_eq!(stderr(&output), "");
}

/// Where the map can't be begun there is no work; where it can't be written at the end, the verdict stands.
#[test]
fn a_map_that_can_not_be_written() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    fs::write(at.join("f"), noise(30_000, 9)).unwrap();
    let list = expect(&postread(at, &["digest", "f", "--out-merkle-tree=f.verity-tree"]), 0);
    let digest = list.split(' ').next().unwrap();
    let verify = |map| postread(at, &["verify", "f", "--digest", digest, "--map", map]);
    let output = verify("no/dir/map");
    assert_eq!(expect(&output, 4), "");
    assert!(stderr(&output).contains("no/dir/map: "));
    let output = verify("/dev/full");
    assert!(expect(&output, 4).contains("verified"));
    assert!(stderr(&output).contains("/dev/full: "), "{}", stderr(&output));
    let mut bad = noise(30_000, 9);
    bad[5000] ^= 1;
    fs::write(at.join("f"), bad).unwrap();
    assert!(expect(&verify("/dev/full"), 1).contains("f: BAD: "));
}

/// What is in a directory, name and contents.
fn contents(dir: &Path) -> BTreeMap<OsString, Vec<u8>> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    entries.map(|entry| (entry.file_name(), fs::read(entry.path()).unwrap())).collect()
}

/// On a full disk no part of an output is left, and what was there stays.
#[test]
fn a_full_disk_leaves_no_part() {
    if require_root().is_none() {
        return;
    }
    let Some(mount) = require("a tmpfs", Mount::tmpfs(256 << 10)) else { return };
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    if !have_tool("openssl", "version", "a_full_disk_leaves_no_part") {
        return;
    }
    let request = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "key", "-out", "cert", "-subj", "/CN=x"];
    assert!(run(at, "openssl", &request).status.success());
    // Its tree has 9 blocks of 4096 bytes; the first ones fit.
    fs::write(at.join("f"), noise(4 << 20, 5)).unwrap();
    let list = expect(&postread(at, &["digest", "f", "--out-merkle-tree=f.verity-tree"]), 0);
    let digest = list.split(' ').next().unwrap().to_owned();
    let image = postread_tests::unpack_image(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/images/fscrypt/xts-pad16.img.zst"),
    );
    let image = image.path().to_str().unwrap();
    fs::write(mount.path().join("old"), "what was there").unwrap();
    let full = |room: u64| {
        let filler = mount.path().join("filler");
        let _ = fs::remove_file(&filler);
        let stat = rustix::fs::statvfs(mount.path()).unwrap();
        fs::write(filler, vec![1; (stat.f_bavail * stat.f_frsize - room) as usize]).unwrap();
    };
    for name in ["new", "old"] {
        let path = mount.path().join(name).to_str().unwrap().to_owned();
        let out = |option: &str| format!("{option}{path}");
        for (room, args) in [
            (16 << 10, &["digest", "f", &out("--out-merkle-tree=")][..]),
            (0, &["digest", "f", &out("--out-descriptor=")]),
            (0, &["sign", "f", &path, "--key=key", "--cert=cert"]),
            (16 << 10, &["sign", "f", "sig", "--key=key", "--cert=cert", &out("--out-merkle-tree=")]),
            (0, &["sign", "f", "sig", "--key=key", "--cert=cert", &out("--out-descriptor=")]),
            (0, &["verify", "f", "--digest", &digest, &out("--map=")]),
        ] {
            full(room);
            let before = contents(mount.path());
            let output = postread(at, args);
            expect(&output, 4);
            assert!(stderr(&output).contains("No space left"), "{args:?} {}", stderr(&output));
            assert!(contents(mount.path()) == before, "{args:?}");
            assert!(!at.join("sig").exists(), "{args:?}: a signature without what goes with it");
        }
    }
    // Saved ciphertext: whole files, and no part of one; no manifest that says more.
    full(160 << 10);
    let saved = mount.path().join("saved");
    let output = postread(at, &["extract", "--ciphertext", image, "-C", saved.to_str().unwrap()]);
    expect(&output, 4);
    assert!(!saved.join("manifest.jsonl").exists());
    let parts = |dir: &Path| contents(dir).into_keys().filter(|name| name.to_str().unwrap().ends_with(".part")).count();
    assert_eq!(parts(&saved.join("data")), 0);
    // With room again, all of it works.
    fs::remove_dir_all(&saved).unwrap();
    full(64 << 10);
    expect(&postread(at, &["digest", "f", &format!("--out-merkle-tree={}", mount.path().join("old").display())]), 0);
    assert!(fs::read(mount.path().join("old")).unwrap() == fs::read(at.join("f.verity-tree")).unwrap());
}

/// Killed at any moment: the whole output, or what was there before.
#[test]
fn a_kill_leaves_no_part() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    fs::write(at.join("f"), noise(48 << 20, 6)).unwrap();
    expect(&postread(at, &["digest", "f", "--out-merkle-tree=whole"]), 0);
    let whole = fs::read(at.join("whole")).unwrap();
    let mut left = 0;
    for i in 0..12 {
        let name = if i % 2 == 0 { "new" } else { "whole" };
        let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_postread"))
            .current_dir(at)
            .args(["digest", "f", &format!("--out-merkle-tree={name}")])
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(std::time::Duration::from_millis(3 * i));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(fs::read(at.join("whole")).unwrap() == whole, "{i}");
        match fs::read(at.join("new")) {
            Ok(new) => assert!(new == whole, "{i}: {} of {} bytes", new.len(), whole.len()),
            Err(_) => left += 1,
        }
        let _ = fs::remove_file(at.join("new"));
    }
    println!("{left} of 12 were killed before the end");
    assert_eq!(contents(at).len(), 2);
}

/// A file that can't be digested has no tree, no descriptor and no signature.
#[test]
fn outputs_of_what_failed_are_not_made() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    fs::write(at.join("old"), "old").unwrap();
    let args = ["digest", "missing", "--out-merkle-tree=new", "--out-descriptor=old"];
    expect(&postread(at, &args), 4);
    assert_eq!(contents(at).len(), 1);
    assert_eq!(fs::read(at.join("old")).unwrap(), b"old");
}

/// Standard output by its name, as a pipe and as a file: the tree, and then the line.
#[test]
fn standard_output_by_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    fs::write(at.join("f"), noise(9000, 7)).unwrap();
    let line = expect(&postread(at, &["digest", "f", "--out-merkle-tree=tree", "--compact"]), 0);
    let tree = fs::read(at.join("tree")).unwrap();
    for script in [
        "\"$0\" digest f --compact --out-merkle-tree=/dev/stdout | cat",
        "\"$0\" digest f --compact --out-merkle-tree=/dev/stdout > out; cat out",
    ] {
        let output = run(at, "bash", &["-c", script, env!("CARGO_BIN_EXE_postread")]);
        assert!(output.stdout == [line.as_bytes(), &tree].concat(), "{script}");
    }
}

#[test]
fn a_recording_overwrites_no_program_and_no_file_it_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    fs::copy("/bin/true", at.join("program")).unwrap();
    fs::write(at.join("data"), "data").unwrap();
    symlink("data", at.join("link")).unwrap();
    let before = contents(at);
    for args in [
        &["lab", "record", "-o", "program", "./program"][..],
        &["lab", "record", "-o", "data", "./program", "data"],
        &["lab", "record", "-o", "link", "./program", "-x", "data"],
    ] {
        let output = postread(at, args);
        expect(&output, 2);
        assert!(stderr(&output).contains("are the same file: nothing was written"), "{}", stderr(&output));
        assert!(contents(at) == before);
    }
}
