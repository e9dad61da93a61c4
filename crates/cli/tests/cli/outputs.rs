//! An output that is an input, by whatever name, is refused and nothing is written.

use std::fs;
use std::os::unix::fs::symlink;

use crate::common::{expect, noise, postread, stderr};

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
