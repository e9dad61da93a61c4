//! What is read whole or by line: endless, huge, binary, pipes with and without a writer.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::common::{expect, have_tool, postread, run, stderr};

/// The memory that a run may take, in KiB: far less than what is offered.
const MEMORY: u64 = 400 << 10;

/// Runs the program with a bounded address space, and not for ever; on one CPU, whose threads and their stacks are few.
fn bounded(dir: &Path, args: &[&str]) -> Output {
    let cpu = postread_sys::affinity::current().unwrap().iter().next().unwrap();
    let script = format!("ulimit -v {MEMORY}; exec timeout 120 taskset -c {cpu} \"$0\" \"$@\"");
    let mut command = Command::new("bash");
    command.current_dir(dir).env("MALLOC_ARENA_MAX", "2").arg("-c").arg(script);
    command.arg(env!("CARGO_BIN_EXE_postread")).args(args).output().unwrap()
}

fn pipe(path: &Path) {
    rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
}

/// Every option that reads a file whole or by line, given as `@`.
const READERS: [&[&str]; 14] = [
    &["check", "@"],
    &["digest", "--from-list", "@"],
    &["verify", "f", "--digests", "@", "/"],
    &["extract", "f", "--digests", "@", "-C", "out"],
    &["sign", "f", "sig", "--key", "@"],
    &["sign", "f", "sig", "--key", "pem", "--cert", "@"],
    &["enable", "f", "--signature", "@"],
    &["verify", "f", "--descriptor", "@", "--cert", "pem"],
    &["verify", "f", "--signature", "@", "--cert", "pem"],
    &["verify", "f", "--cert", "@", "--signature", "f"],
    &["ls", "f", "--key", "@"],
    &["ls", "f", "--passphrase-file", "@"],
    &["key", "id", "@"],
    &["lab", "app-start", "--trace", "@"],
];

fn with(args: &[&str], file: &str) -> Vec<String> {
    args.iter().map(|arg| arg.replace('@', file)).collect()
}

/// A small file, a key with its certificate, and a saved tree whose manifest is to be replaced.
fn prepare(at: &Path) -> bool {
    fs::write(at.join("f"), [7; 5000]).unwrap();
    fs::create_dir_all(at.join("saved/data")).unwrap();
    let request = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "pem", "-out", "cert", "-subj", "/CN=x"];
    if !have_tool("openssl", "version", "inputs") {
        return false;
    }
    assert!(run(at, "openssl", &request).status.success());
    true
}

#[test]
fn endless_and_huge_inputs_end_with_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    if !prepare(at) {
        return;
    }
    File::create(at.join("sparse")).unwrap().set_len(100 << 30).unwrap();
    for file in ["/dev/zero", "sparse"] {
        for reader in READERS {
            let args = with(reader, file);
            let output = bounded(at, &args.iter().map(String::as_str).collect::<Vec<_>>());
            expect(&output, 2);
            assert!(stderr(&output).starts_with("postread: "), "{args:?}: {}", stderr(&output));
        }
    }
    for (start, what) in [(&b""[..], "line 1"), (br#"{"format":"#, "line 1")] {
        let manifest = at.join("saved/manifest.jsonl");
        fs::write(&manifest, start).unwrap();
        File::options().write(true).open(&manifest).unwrap().set_len(100 << 30).unwrap();
        let output = bounded(at, &["extract", "--from-ciphertext", "saved", "-C", "out"]);
        expect(&output, 2);
        assert!(stderr(&output).contains(what), "{}", stderr(&output));
    }
}

/// Random bytes, an image, empty: never a crash, and never a success.
#[test]
fn binary_and_empty_inputs() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    if !prepare(at) {
        return;
    }
    fs::write(at.join("binary"), crate::common::noise(3_000_000, 77)).unwrap();
    fs::write(at.join("empty"), "").unwrap();
    for file in ["binary", "empty", "/dev/null"] {
        for reader in READERS {
            let args = with(reader, file);
            let output = bounded(at, &args.iter().map(String::as_str).collect::<Vec<_>>());
            let nothing = file != "binary" && reader[0] == "digest";
            let code = output.status.code();
            assert!(nothing || matches!(code, Some(2..=5)), "{args:?}: {code:?} {}", stderr(&output));
            assert!(!stderr(&output).contains("panicked"), "{args:?}: {}", stderr(&output));
        }
    }
}

/// A name that no file can have is malformed input, and the others are digested.
#[test]
fn names_with_a_nul() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    fs::write(at.join("f"), "x").unwrap();
    fs::write(at.join("names"), "a\0b\nf\n").unwrap();
    let output = postread(at, &["digest", "--from-list", "names"]);
    assert!(expect(&output, 2).ends_with(" f\n"));
    assert!(stderr(&output).contains("NUL"), "{}", stderr(&output));
}

/// What shells make of `<(...)`, `|` and `mkfifo` is a list as any other.
#[test]
fn lists_come_from_pipes() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    fs::write(at.join("f"), "x").unwrap();
    let list = postread(at, &["digest", "f"]).stdout;
    fs::write(at.join("list"), &list).unwrap();
    pipe(&at.join("fifo"));
    for script in [
        "\"$0\" check <(cat list)",
        "\"$0\" check <(sleep 1; cat list)",
        "\"$0\" check <(sleep 7; cat list)",
        "cat list | \"$0\" check /dev/stdin",
        "cat list | \"$0\" check -",
        "cat list | \"$0\" check",
        "\"$0\" check < list",
        "(sleep 1; cat list > fifo) & \"$0\" check fifo",
        "\"$0\" check fifo & sleep 1; cat list > fifo; wait $!",
    ] {
        let output = run(at, "timeout", &["60", "bash", "-c", script, env!("CARGO_BIN_EXE_postread")]);
        assert_eq!(expect(&output, 0), "f: OK\n", "{script}");
    }
    // A writer that has gone, and wrote nothing.
    let output = run(at, "timeout", &["60", "bash", "-c", "\"$0\" check <(true)", env!("CARGO_BIN_EXE_postread")]);
    expect(&output, 5);
    // On a terminal nothing is waited for that nobody knows of.
    if have_tool("script", "--version", "lists_come_from_pipes") {
        let command = format!("{} check", env!("CARGO_BIN_EXE_postread"));
        let output = run(at, "timeout", &["60", "script", "-qec", &command, "/dev/null"]);
        assert!(expect(&output, 2).contains("check what?"));
    }
}

/// A pipe that nobody opens for writing is not waited for without end; where a regular file belongs, not at all.
#[test]
fn pipes_that_nobody_writes() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    if !prepare(at) {
        return;
    }
    pipe(&at.join("fifo"));
    pipe(&at.join("saved/manifest.jsonl"));
    let start = |args: &[&str]| {
        let mut command = Command::new("timeout");
        command.current_dir(at).args(["60", env!("CARGO_BIN_EXE_postread")]).args(args);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    // All at once: each waits.
    let children = READERS.map(|reader| {
        let args = with(reader, "fifo");
        (args.clone(), start(&args.iter().map(String::as_str).collect::<Vec<_>>()))
    });
    for (args, child) in children {
        let output = child.wait_with_output().unwrap();
        expect(&output, 2);
        assert!(stderr(&output).contains("fifo: a pipe that nobody opened for writing"), "{args:?} {output:?}");
    }
    let output = start(&["extract", "--from-ciphertext", "saved", "-C", "out"]).wait_with_output().unwrap();
    expect(&output, 2);
    assert!(stderr(&output).contains("manifest.jsonl: not a regular file"), "{output:?}");
}

/// What was found before the list went wrong stands.
#[test]
fn a_list_that_breaks_off_hides_no_bad_file() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    fs::write(at.join("f"), "x").unwrap();
    let mut list = File::create(at.join("list")).unwrap();
    list.write_all(&postread(at, &["digest", "f"]).stdout).unwrap();
    fs::write(at.join("f"), "y").unwrap();
    list.set_len(4 << 20).unwrap();
    let output = postread(at, &["check", "list"]);
    assert_eq!(expect(&output, 1), "f: FAILED\n");
    assert!(stderr(&output).contains("line 2 is longer than"), "{}", stderr(&output));
    fs::write(at.join("f"), "x").unwrap();
    assert_eq!(expect(&postread(at, &["check", "list"]), 2), "f: OK\n");
    // So many lines, and none of a list.
    fs::write(at.join("list"), "no\n".repeat(1 << 20)).unwrap();
    let output = postread(at, &["check", "list"]);
    expect(&output, 2);
    assert!(stderr(&output).contains("none of its first 1048576 lines"), "{}", stderr(&output));
}

/// A message names what is wrong, not what the parser met first.
#[test]
fn messages_that_lead_the_right_way() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    fs::write(at.join("f"), "x").unwrap();
    for (digest, says) in [
        ("abc", "3 hexadecimal digits, expected 64 (sha256) or 128 (sha512)"),
        ("nonsense", "not a digest: expected ALG:HEX"),
        ("md5:00", "unknown hash algorithm"),
    ] {
        let output = postread(at, &["verify", "f", "--digest", digest]);
        expect(&output, 2);
        assert!(stderr(&output).contains(says) && !stderr(&output).contains("colon"), "{}", stderr(&output));
    }
    // An ext4 superblock's magic number is enough to call it an image.
    let mut image = vec![0; 64 << 10];
    image[1024 + 56..1024 + 58].copy_from_slice(&[0x53, 0xef]);
    fs::write(at.join("img"), image).unwrap();
    let output = postread(at, &["cat", "img"]);
    expect(&output, 2);
    let text = stderr(&output);
    assert!(text.contains("img: this is an image: give the PATH") && !text.contains("--digest"), "{text}");
}
