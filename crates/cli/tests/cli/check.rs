//! `postread check` against `sha256sum --check`'s manners, and the ranges it finds with a tree.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::common::{expect, noise, postread, stderr, stdout};

fn list(at: &Path, files: &[&str]) {
    let args = [&["digest"], files].concat();
    let output = postread(at, &args);
    assert!(output.status.success());
    fs::write(at.join("list"), output.stdout).unwrap();
}

#[test]
fn manners_of_sha256sum() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    fs::write(at.join("a"), "a").unwrap();
    fs::write(at.join("b"), "b").unwrap();
    fs::write(at.join("c"), "c").unwrap();
    list(at, &["a", "b", "c"]);
    assert_eq!(expect(&postread(at, &["check", "list"]), 0), "a: OK\nb: OK\nc: OK\n");
    assert_eq!(expect(&postread(at, &["check", "list", "--quiet"]), 0), "");

    fs::write(at.join("b"), "B").unwrap();
    let output = postread(at, &["check", "list"]);
    assert_eq!(expect(&output, 1), "a: OK\nb: FAILED\nc: OK\n");
    assert!(stderr(&output).contains("WARNING: 1 computed digest did NOT match"));
    assert_eq!(expect(&postread(at, &["check", "list", "--quiet"]), 1), "b: FAILED\n");
    let output = postread(at, &["check", "list", "--status"]);
    assert_eq!((expect(&output, 1), stderr(&output)), (String::new(), String::new()));

    // Missing files: 4, but a mismatch wins; ignored if asked for.
    fs::remove_file(at.join("a")).unwrap();
    let output = postread(at, &["check", "list"]);
    assert_eq!(expect(&output, 1), "a: FAILED open or read\nb: FAILED\nc: OK\n");
    fs::write(at.join("b"), "b").unwrap();
    expect(&postread(at, &["check", "list"]), 4);
    assert_eq!(expect(&postread(at, &["check", "list", "--ignore-missing"]), 0), "b: OK\nc: OK\n");
    fs::remove_file(at.join("b")).unwrap();
    fs::remove_file(at.join("c")).unwrap();
    let output = postread(at, &["check", "list", "--ignore-missing"]);
    expect(&output, 5);
    assert!(stderr(&output).contains("no file was verified"));
}

#[test]
fn improper_lines() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    fs::write(at.join("a"), "a").unwrap();
    list(at, &["a"]);
    let good = fs::read_to_string(at.join("list")).unwrap();
    let long = "x".repeat(100_000);
    fs::write(at.join("list"), format!("# comment\n\nnonsense\n{long}\n{good}")).unwrap();
    let output = postread(at, &["check", "list", "--warn"]);
    assert_eq!(expect(&output, 0), "a: OK\n");
    let text = stderr(&output);
    assert!(text.contains("list: line 3: ") && text.contains("list: line 4: "), "{text}");
    assert!(text.contains("2 lines are improperly formatted"), "{text}");
    expect(&postread(at, &["check", "list", "--strict"]), 2);
    fs::write(at.join("list"), "nonsense\n").unwrap();
    expect(&postread(at, &["check", "list"]), 2);
    fs::write(at.join("list"), "").unwrap();
    expect(&postread(at, &["check", "list"]), 5);
    expect(&postread(at, &["check", "missing"]), 4);
    expect(&postread(at, &["check", "."]), 2);
    // Standard input, which is empty here.
    expect(&postread(at, &["check"]), 5);
}

/// A file of 400 blocks, its list, and its tree beside it.
fn protected(at: &Path, options: &[&str]) {
    fs::write(at.join("f"), noise(400 * 4096 - 7, 3)).unwrap();
    let args = [&["digest", "f", "--out-merkle-tree=f.verity-tree"], options].concat();
    fs::write(at.join("list"), postread(at, &args).stdout).unwrap();
    expect(&postread(at, &["check", "list"]), 0);
}

fn flip(path: &Path, offset: u64) {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[!byte[0]], offset).unwrap();
}

#[test]
fn every_bad_range_with_a_tree() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    protected(at, &[]);
    for offset in [5, 4096 * 9, 4096 * 10 + 1, 4096 * 399 + 4000] {
        flip(&at.join("f"), offset);
    }
    let output = postread(at, &["check", "list"]);
    assert_eq!(expect(&output, 1), "f: FAILED\n");
    let text = stderr(&output);
    let ranges: Vec<&str> = text.lines().filter_map(|l| l.strip_prefix("postread: f: bytes ")).collect();
    assert_eq!(ranges.len(), 3, "{text}");
    assert!(ranges[0].starts_with("0 to 4095: "), "{text}");
    assert!(ranges[1].starts_with("36864 to 45055: "), "{text}");
    assert!(ranges[2].starts_with("1634304 to 1638392: "), "{text}");
    assert!(ranges[0].contains("expected ") && ranges[0].contains("found "), "{text}");

    let output = postread(at, &["check", "list", "--json"]);
    let report: serde_json::Value = serde_json::from_str(&expect(&output, 1)).unwrap();
    let bad = &report["results"][0]["bad_ranges"];
    assert_eq!(report["results"][0]["status"], "failed");
    assert_eq!((&bad[1]["offset"], &bad[1]["length"]), (&36864.into(), &8192.into()));
}

#[test]
fn a_bad_tree_block_hides_what_is_beneath() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    protected(at, &[]);
    flip(&at.join("f"), 0);
    // The third leaf block (the root block comes first): data blocks 256 to 383.
    flip(&at.join("f.verity-tree"), 3 * 4096 + 1);
    let text = stderr(&postread(at, &["check", "list"]));
    let ranges: Vec<&str> = text.lines().filter_map(|l| l.strip_prefix("postread: f: bytes ")).collect();
    assert_eq!(ranges.len(), 2, "{text}");
    assert!(ranges[1].starts_with("1048576 to 1572863: tree block at 12288 (level 0)"), "{text}");
    // A bad root block vouches for nothing, unless the descriptor does.
    flip(&at.join("f.verity-tree"), 0);
    let text = stderr(&postread(at, &["check", "list"]));
    assert!(text.contains("f: its Merkle tree is not the one of the expected digest"), "{text}");
}

#[test]
fn trees_of_other_parameters_and_files() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    protected(at, &[]);
    flip(&at.join("f"), 0);
    let tell = |at: &Path| stderr(&postread(at, &["check", "list"]));
    // Of another file, of other parameters, short, none, a directory.
    fs::write(at.join("other"), noise(400 * 4096, 4)).unwrap();
    for options in [&["other"][..], &["f", "--block-size=1024"], &["f", "--salt=77"]] {
        let args = [&["digest", "--out-merkle-tree=f.verity-tree"], options].concat();
        expect(&postread(at, &args), 0);
        assert!(tell(at).contains("f: its Merkle tree is not the one of the expected digest"), "{}", tell(at));
    }
    fs::write(at.join("f.verity-tree"), b"short").unwrap();
    assert!(tell(at).contains("f: its Merkle tree is not the one"), "{}", tell(at));
    fs::remove_file(at.join("f.verity-tree")).unwrap();
    assert!(tell(at).contains("no bad range is known"), "{}", tell(at));
    fs::create_dir(at.join("f.verity-tree")).unwrap();
    assert!(tell(at).contains("f: its Merkle tree: not a regular file"), "{}", tell(at));
}

#[test]
fn a_descriptor_beside_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    protected(at, &["--out-descriptor=f.verity-desc", "--block-size=1024", "--salt=abcdef", "--hash-alg=sha512"]);
    // Cut: the descriptor knows how long it was.
    let file = OpenOptions::new().write(true).open(at.join("f")).unwrap();
    file.set_len(399 * 4096).unwrap();
    let text = stderr(&postread(at, &["check", "list"]));
    assert!(text.contains("f: bytes 1634304 to 1638392: "), "{text}");
    // Longer than it was.
    file.set_len(400 * 4096 + 5).unwrap();
    let text = stderr(&postread(at, &["check", "list"]));
    assert!(text.contains("the file has 1638405 bytes, expected 1638393"), "{text}");
    // A descriptor of another digest is not believed: with the default parameters the file then fails.
    flip(&at.join("f.verity-desc"), 20);
    assert_eq!(expect(&postread(at, &["check", "list"]), 1), "f: FAILED\n");
    // But the right ones may be given.
    file.set_len(399 * 4096).unwrap();
    fs::write(at.join("f"), noise(400 * 4096 - 7, 3)).unwrap();
    let output = postread(at, &["check", "list", "--block-size=1024", "--salt=abcdef"]);
    assert_eq!(expect(&output, 0), "f: OK\n");
}

#[test]
fn many_files_keep_their_order() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    let names: Vec<String> = (0..3000).map(|i| format!("file{i:04}")).collect();
    for (i, name) in names.iter().enumerate() {
        let len = if i == 7 { 9 << 20 } else { i };
        fs::write(at.join(name), noise(len, i as u64)).unwrap();
    }
    let args: Vec<&str> = ["digest"].into_iter().chain(names.iter().map(String::as_str)).collect();
    let output = postread(at, &args);
    let text = stdout(&output);
    assert!(text.lines().map(|line| line.split_once(' ').unwrap().1).eq(names.iter().map(String::as_str)));
    fs::write(at.join("list"), &output.stdout).unwrap();
    assert_eq!(expect(&postread(at, &["check", "list"]), 0).lines().count(), 3000);
}

#[test]
fn a_file_of_another_length_than_the_trees() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    protected(at, &[]);
    let digest = fs::read_to_string(at.join("list")).unwrap().split(' ').next().unwrap().to_owned();
    let file = OpenOptions::new().write(true).open(at.join("f")).unwrap();
    for len in [100 * 4096, 700 * 4096 + 1] {
        file.set_len(len).unwrap();
        // 400 blocks have four blocks of hashes and one above them; so do 385 to 512.
        let wanted = format!("the file has {len} bytes, the tree is of a file of 1572865 to 2097152 bytes");
        for args in [&["check", "list"][..], &["verify", "f", "--digest", &digest]] {
            let output = postread(at, args);
            expect(&output, 1);
            assert!(stderr(&output).contains(&wanted), "{args:?} {}", stderr(&output));
        }
    }
    let tree = OpenOptions::new().write(true).open(at.join("f.verity-tree")).unwrap();
    tree.set_len(4097).unwrap();
    let text = stderr(&postread(at, &["check", "list"]));
    assert!(text.contains("no file has a tree of 4097 bytes"), "{text}");
    tree.set_len(0).unwrap();
    let text = stderr(&postread(at, &["check", "list"]));
    assert!(text.contains("the tree is of a file of 0 to 4096 bytes"), "{text}");
}

#[test]
fn lists_that_are_none_say_what_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    protected(at, &["--out-descriptor=f.verity-desc", "--hash-alg=sha512"]);
    let told = |list: &[u8], wanted: &str| {
        fs::write(at.join("list"), list).unwrap();
        let output = postread(at, &["check", "list"]);
        let status = if list.starts_with(b"sha256:0000") { 1 } else { 2 };
        expect(&output, status);
        assert!(stderr(&output).contains(wanted), "{wanted}: {}", stderr(&output));
    };
    let compact = postread(at, &["digest", "--compact", "f"]).stdout;
    told(&compact, "list: no line of a digest list; line 1: only a digest (expected ALG:HEX PATH");
    told(&[&compact[..64], b"  f\n"].concat(), "as sha256sum prints it");
    let long = fs::read_to_string(at.join("list")).unwrap();
    let long = format!("sha256:{} f\n", long[..64].repeat(2));
    told(long.as_bytes(), "expected 64 hexadecimal digits for sha256, found 128 (as many as sha512 has)");
    // A good line of another algorithm than the descriptor beside the file.
    told(format!("sha256:{} f\n", "0".repeat(64)).as_bytes(), "uses sha512, but the digest in the list uses sha256");
}
