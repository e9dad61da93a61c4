//! `postread digest` against `fsverity digest`, and what only it can do.

use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::common::{expect, have_tool, noise, postread, run, stderr, stdout};

#[test]
fn output_and_options_of_fsverity() {
    if !have_tool("fsverity", "--version", "output_and_options_of_fsverity") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    // An empty file, a small one, and one that all threads work on.
    fs::write(at.join("empty"), b"").unwrap();
    fs::write(at.join("small"), noise(100_001, 1)).unwrap();
    fs::write(at.join("large"), noise((20 << 20) + 77, 2)).unwrap();
    let options: [&[&str]; 8] = [
        &[],
        &["--compact"],
        &["--for-builtin-sig"],
        &["--compact", "--for-builtin-sig"],
        &["--hash-alg=sha512"],
        &["--hash-alg", "2", "--block-size=1024", "--salt=00"],
        &["--block-size=65536", "--salt=0123456789abcdef"],
        &["--block-size=512", "--salt="],
    ];
    for options in options {
        let args = [&["digest", "empty", "small", "large"], options].concat();
        let (ours, theirs) = (postread(at, &args), run(at, "fsverity", &args));
        assert_eq!(expect(&ours, 0), stdout(&theirs), "{args:?}");
    }
    for file in ["empty", "small", "large"] {
        for options in [&["--block-size=4096"][..], &["--hash-alg=sha512", "--block-size=512", "--salt=aa"]] {
            let both = |program: &dyn Fn(&[&str]) -> std::process::Output, tree: &str, descriptor: &str| {
                let (tree, descriptor) =
                    (format!("--out-merkle-tree={tree}"), format!("--out-descriptor={descriptor}"));
                program(&[&["digest", file, &tree, &descriptor], options].concat())
            };
            expect(&both(&|args| postread(at, args), "t1", "d1"), 0);
            expect(&both(&|args| run(at, "fsverity", args), "t2", "d2"), 0);
            assert!(fs::read(at.join("t1")).unwrap() == fs::read(at.join("t2")).unwrap(), "{file} {options:?}");
            assert!(fs::read(at.join("d1")).unwrap() == fs::read(at.join("d2")).unwrap(), "{file} {options:?}");
        }
    }
}

#[test]
fn sparse_files_by_their_holes() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    // Data at the beginning, in the middle of a piece, and at the very end; and the same without holes.
    let size = (64 << 20) + 4097;
    let sparse = File::create(at.join("sparse")).unwrap();
    sparse.set_len(size).unwrap();
    let mut dense = vec![0; size as usize];
    for (offset, len) in [(0, 5000), ((17 << 20) + 300_000, 100_000), (size as usize - 10, 10)] {
        let data = noise(len, offset as u64);
        sparse.write_all_at(&data, offset as u64).unwrap();
        dense[offset..offset + len].copy_from_slice(&data);
    }
    fs::write(at.join("dense"), &dense).unwrap();
    for options in [&["--compact"][..], &["--compact", "--block-size=65536", "--hash-alg=sha512", "--salt=11"]] {
        let output = postread(at, &[&["digest", "sparse", "dense"], options].concat());
        let text = expect(&output, 0);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], lines[1]);
    }
    let trees = |file: &str| {
        expect(&postread(at, &["digest", file, "--out-merkle-tree=tree", "--block-size=1024"]), 0);
        fs::read(at.join("tree")).unwrap()
    };
    assert!(trees("sparse") == trees("dense"));
}

#[test]
fn directories_lists_and_odd_names() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    fs::create_dir_all(at.join("d/b/c")).unwrap();
    for (name, bytes) in [("d/b/c/2", "two"), ("d/a", "a"), ("d/z", "z"), ("d/b/1", "one")] {
        fs::write(at.join(name), bytes).unwrap();
    }
    std::os::unix::fs::symlink("a", at.join("d/link")).unwrap();
    let names = |output: &str| output.lines().map(|l| l.split_once(' ').unwrap().1.to_owned()).collect::<Vec<_>>();
    let text = expect(&postread(at, &["digest", "-r", "d"]), 0);
    assert_eq!(names(&text), ["d/a", "d/b/1", "d/b/c/2", "d/z"]);
    // A file given by name is digested whatever it is beneath, and a link given by name followed.
    assert_eq!(names(&expect(&postread(at, &["digest", "-r", "d/link", "d/b"]), 0)), ["d/link", "d/b/1", "d/b/c/2"]);

    fs::write(at.join("list"), "d/z\n\nd/a\n").unwrap();
    assert_eq!(names(&expect(&postread(at, &["digest", "--from-list", "list"]), 0)), ["d/z", "d/a"]);

    let odd: &Path = Path::new(std::ffi::OsStr::from_bytes(b"odd\\ \xff\nname"));
    fs::write(at.join(odd), "odd").unwrap();
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_postread"))
        .current_dir(at)
        .arg("digest")
        .arg(odd)
        .output()
        .unwrap();
    assert!(output.stdout.starts_with(b"\\sha256:"));
    assert!(output.stdout.ends_with(b" odd\\\\ \xff\\nname\n"));
    fs::write(at.join("list"), &output.stdout).unwrap();
    assert_eq!(postread(at, &["check", "list"]).stdout, b"\\odd\\\\ \xff\\nname: OK\n");
}

#[test]
fn bad_input_is_told_and_the_rest_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    fs::write(at.join("good"), "x").unwrap();
    fs::create_dir(at.join("dir")).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, at.join("fifo"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let output = postread(at, &["digest", "missing", "good", "dir", "fifo", "good"]);
    assert_eq!(expect(&output, 4).lines().count(), 2);
    let text = stderr(&output);
    assert!(text.contains("missing: No such file"), "{text}");
    assert!(text.contains("dir: not a regular file (a directory)"), "{text}");
    assert!(text.contains("fifo: not a regular file"), "{text}");
    // What only the arguments can be blamed for.
    expect(&postread(at, &["digest", "dir", "good"]), 2);
    for args in [
        &["digest"][..],
        &["digest", "good", "--block-size=1000"],
        &["digest", "good", "--block-size=256"],
        &["digest", "good", "--block-size=131072"],
        &["digest", "good", "--salt=abc"],
        &["digest", "good", "--hash-alg=md5"],
        &["digest", "good", "--out-merkle-tree=t", "good"],
        &["digest", "good", "--compact", "--json"],
    ] {
        assert!(!stderr(&postread(at, args)).is_empty());
        expect(&postread(at, args), 2);
    }
    let long = format!("--salt={}", "00".repeat(33));
    expect(&postread(at, &["digest", "good", &long]), 2);
    expect(&postread(at, &["digest", "--from-list", "missing"]), 4);
    expect(&postread(at, &["digest", "good", "--out-merkle-tree=no/such/dir"]), 4);
    // Too large for eight levels of 8: a sparse file costs nothing to find that out.
    File::create(at.join("huge")).unwrap().set_len(1 << 40).unwrap();
    let output = postread(at, &["digest", "huge", "--hash-alg=sha512", "--block-size=512"]);
    expect(&output, 2);
    assert!(stderr(&output).contains("more than 8 levels"), "{}", stderr(&output));
}

#[test]
fn a_sparse_tebibyte() {
    let dir = tempfile::tempdir().unwrap();
    File::create(dir.path().join("huge")).unwrap().set_len(1 << 40).unwrap();
    // Computed by hand in postread-verity's test `a_hole_of_a_tebibyte_takes_no_time`, here as a whole.
    let digest = expect(&postread(dir.path(), &["digest", "huge", "--compact"]), 0);
    assert_eq!(digest, "6e6073779fecb21db0e39f3b78ad40f18f832163fbc651cd850c1e842a7cdefb\n");
}

#[test]
fn json() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("f"), "hello world").unwrap();
    let output = postread(dir.path(), &["digest", "f", "none", "--json", "--for-builtin-sig"]);
    let report: serde_json::Value = serde_json::from_str(&expect(&output, 4)).unwrap();
    assert_eq!(report["schema"], "postread-digest-1");
    assert_eq!(report["results"][0]["path"], "f");
    assert_eq!(report["results"][0]["size"], 11);
    let digest = "1e2eaa4202d750a41174ee454970b92c1bc2f925b1e35076d8c7d5f56362ba64";
    assert_eq!(report["results"][0]["digest"], digest);
    assert_eq!(report["results"][0]["formatted_digest"], format!("46535665726974790100200 0{digest}").replace(' ', ""));
    assert_eq!(report["results"][1]["exit_status"], 4);
}

/// A reader that goes away ends the work, and does not turn a failure into a success.
#[test]
fn a_reader_that_goes_away_ends_the_work_with_its_status() {
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Command, Stdio};

    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("f"), "x").unwrap();
    for (first, status) in [("f\n", 0), ("missing\n", 4)] {
        for json in [&[][..], &["--json"]] {
            let mut child = Command::new(env!("CARGO_BIN_EXE_postread"))
                .current_dir(dir.path())
                .args(["digest", "--from-list", "-"])
                .args(json)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            let mut names = child.stdin.take().unwrap();
            names.write_all(first.as_bytes()).unwrap();
            // There is always one more name: only the reader's end ends it.
            let writer = std::thread::spawn(move || while names.write_all(b"f\n").is_ok() {});
            let mut line = String::new();
            BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
            assert_eq!(child.wait().unwrap().code(), Some(status), "{first}{json:?} {line}");
            writer.join().unwrap();
        }
    }
}
