//! The programs of `examples/` do what they say.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// `cargo test` builds the examples too, except where it is asked for this test alone.
fn example(name: &str) -> PathBuf {
    let exe = std::env::current_exe().expect("a path");
    let path = exe.ancestors().nth(2).expect("target/debug/deps/examples").join("examples").join(name);
    if !path.exists() {
        let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        let built = Command::new(env!("CARGO")).args(["build", "--manifest-path", manifest, "--examples"]).status();
        assert!(built.expect("cargo runs").success());
    }
    path
}

fn run(name: &str, args: &[&Path]) -> Output {
    Command::new(example(name)).args(args).output().expect("it runs")
}

#[test]
fn digests_and_verified_reads() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("file");
    let data: Vec<u8> = (0..3_000_001u32).map(|i| (i / 7) as u8).collect();
    std::fs::write(&path, &data).expect("written");

    let printed = run("digest", &[&path]);
    assert!(printed.status.success(), "{printed:?}");
    let line = String::from_utf8(printed.stdout).expect("text");
    let (digest, name) = line.trim_end().split_once(' ').expect("two words");
    assert_eq!(name, path.to_str().expect("text"));
    assert_eq!(digest, postread::digest_file(&path).expect("readable").to_string());
    assert!(!run("digest", &[&dir.path().join("missing")]).status.success());

    let other = "sha256:3d248ca542a24fc62d1c43b916eae5016878e2533c88238480b26128a1f1af95";
    for name in ["verified_read", "verified_read_tokio"] {
        let read = run(name, &[Path::new(digest), &path]);
        assert!(read.status.success() && read.stdout == data, "{name}: {}", String::from_utf8_lossy(&read.stderr));
        let refused = run(name, &[Path::new(other), &path]);
        assert!(!refused.status.success() && refused.stdout.is_empty(), "{name}: {refused:?}");
    }
}

#[test]
fn items_of_a_workqueue() {
    let dir = tempfile::tempdir().expect("a directory");
    let (file, missing) = (dir.path().join("file"), dir.path().join("missing"));
    std::fs::write(&file, [0; 1234]).expect("written");
    let printed = run("workqueue", &[&file, &missing]);
    let text = String::from_utf8(printed.stdout).expect("text");
    assert!(printed.status.success());
    assert!(text.contains(&format!("1234 {}\n", file.display())), "{text}");
    assert!(text.contains(&format!("{}: ", missing.display())), "{text}");
    // Both items were queued and are done.
    assert!(text.contains("sizes"), "{text}");
}
