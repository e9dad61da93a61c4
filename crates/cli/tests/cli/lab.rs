//! `postread lab`: small runs, whose reports validate. What they measure is not judged.

use std::fs;

use crate::common::postread;
use crate::schemas::{have_validator, valid};

const TINY: &str = "postread-workload 1
app tiny
compute 500
foreground 1 500
file 300000 f
file 5000 g
read 0 100 0 0 4096
read 0 100 0 8192 65536
read 1 0 1 0 5000
read 1 50 0 200000 100000
";

#[test]
fn app_start_and_tar_report_what_their_schema_says() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("tiny"), TINY).unwrap();
    for extra in [&["--rounds", "1"][..], &["--rounds", "3", "--direct", "--seed", "7"]] {
        let arguments = [&["lab", "app-start", "--trace", "tiny", "--dir", ".", "--json"], extra].concat();
        let output = postread(dir.path(), &arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        if error.contains("O_DIRECT") || error.contains("file system") && error.contains("memory") {
            eprintln!("SKIP lab: {error}");
            return;
        }
        assert_eq!(output.status.code(), Some(0), "{error}");
        if have_validator("app_start") {
            valid(&output.stdout);
        }
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let arms = report["results"]["app_start"]["arms"].as_array().unwrap();
        assert_eq!(arms.len(), 7);
        for arm in arms {
            let measured = &arm["measured"];
            if measured.is_null() {
                // Only the rank that needs a privilege may be missing, and it says what the system granted.
                assert_eq!(arm["rank"], "nice-20");
                assert!(!arm["granted"].as_str().unwrap().is_empty());
            } else {
                assert!(measured["bytes"].as_f64().unwrap() >= 174_632.0, "{arm}");
            }
        }
    }
    let output = postread(dir.path(), &["lab", "tar", "--rounds", "1", "--jobs", "1", "--dir", ".", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    if have_validator("tar") {
        valid(&output.stdout);
    }
    // Nothing is left behind.
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

/// As for every other command: a reader that goes away had what it wanted.
#[test]
fn a_reader_that_goes_away_is_no_error() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("tiny"), TINY).unwrap();
    for json in [&[][..], &["--json"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_postread"))
            .current_dir(dir.path())
            .args(["lab", "app-start", "--trace", "tiny", "--rounds", "1", "--dir", "."])
            .args(json)
            .stdout(writer)
            .stderr(std::process::Stdio::piped())
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        if error.contains("file system") && error.contains("memory") {
            eprintln!("SKIP lab: {error}");
            return;
        }
        assert_eq!((output.status.code(), &*error), (Some(0), ""), "{json:?}");
    }
}

/// They would be ignored: the experiment has options of its own.
#[test]
fn options_before_an_experiment_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    for options in [&["--rounds", "3"][..], &["--quick"], &["--json"], &["--dir", "."], &["--seed", "2"], &["-q"]] {
        for experiment in [&["app-start"][..], &["tar"], &["record", "true"]] {
            let output = postread(dir.path(), &[&["lab"], options, experiment].concat());
            assert_eq!(output.status.code(), Some(2), "{options:?} {experiment:?}");
            assert!(String::from_utf8_lossy(&output.stderr).contains(experiment[0]));
        }
    }
}

#[test]
fn what_can_not_be_measured_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("bad"), "postread-workload 1\napp a\nread 0 0 0 0 1\n").unwrap();
    let code = |arguments: &[&str]| postread(dir.path(), &[&["lab", "app-start"], arguments].concat()).status.code();
    assert_eq!(code(&["--trace", "bad"]), Some(2));
    assert_eq!(code(&["--trace", "none"]), Some(4));
    assert_eq!(code(&["--trace", "/dev/zero"]), Some(2));
    assert_eq!(code(&["--rounds", "0"]), Some(2));
    assert_eq!(code(&["--dir", "none"]), Some(4));
    if std::path::Path::new("/dev/shm").is_dir() {
        // Files in memory are never cold.
        assert_eq!(code(&["--dir", "/dev/shm"]), Some(2));
    }
}
