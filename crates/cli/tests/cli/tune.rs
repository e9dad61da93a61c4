//! `postread tune`: every policy is measured, and `auto` shows what it decided. What it measures is not judged.

use std::fs;

use crate::common::{expect, noise, postread};

#[test]
fn every_policy_is_measured_and_auto_explains_itself() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("f"), noise(6 << 20, 1)).unwrap();
    let digest = expect(&postread(dir.path(), &["digest", "--compact", "f"]), 0);
    let text = expect(
        &postread(dir.path(), &["tune", "--rounds", "2", "--digest", &format!("sha256:{}", digest.trim()), "f"]),
        0,
    );
    for policy in ["inline", "bound", "unbound", "auto"] {
        let line = text.lines().find(|line| line.starts_with(policy)).unwrap_or_else(|| panic!("{policy}: {text}"));
        assert!(line.contains("MB/s") && line.contains("p99"), "{line}");
    }
    for part in ["handing over costs", "epochs", "it settles on"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let wrong = format!("sha256:{}", "0".repeat(64));
    expect(&postread(dir.path(), &["tune", "--digest", &wrong, "f"]), 1);
    for bad in [&["--rounds", "0"][..], &["--rounds", "101"], &["--queue", "auto"]] {
        let arguments = [&["tune", "--digest", &wrong][..], bad, &["f"]].concat();
        expect(&postread(dir.path(), &arguments), 2);
    }
}

/// As with inline: an option that would do nothing is refused.
#[test]
fn auto_chooses_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("f"), noise(10_000, 1)).unwrap();
    let digest = format!("sha256:{}", expect(&postread(dir.path(), &["digest", "--compact", "f"]), 0).trim());
    for option in [&["--high-priority"][..], &["--max-active", "2"]] {
        let arguments = [&["verify", "--digest", &digest, "--queue", "auto"], option, &["f"]].concat();
        let output = postread(dir.path(), &arguments);
        assert_eq!(output.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&output.stderr).contains("--queue auto"));
    }
    let output = postread(dir.path(), &["verify", "--digest", &digest, "--queue", "auto", "--stats", "f"]);
    assert_eq!(output.status.code(), Some(0));
    let stats = String::from_utf8_lossy(&output.stderr);
    assert!(stats.contains("queue auto") && stats.contains("predicted"), "{stats}");
}
