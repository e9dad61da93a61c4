//! Standard error that can't be written: the exit status stays the command's own.

use std::fs;
use std::process::{Command, Stdio};

use crate::common::*;

/// Every command that prints there, with the status that it has otherwise.
#[test]
fn an_unwritable_standard_error_changes_no_status() {
    let dir = tempfile::tempdir().unwrap();
    let (enc, verity, key64) = (unpack(dir.path(), "xts-pad16"), unpack(dir.path(), "verity"), key("key64.bin"));
    fs::write(dir.path().join("plain"), vec![7; 100_000]).unwrap();
    fs::write(dir.path().join("list"), "sha256:00 plain\n").unwrap();
    let (enc, verity, key64) = (enc.as_str(), verity.as_str(), key64.as_str());
    let commands: &[&[&str]] = &[
        // Statistics and reports of what went well.
        &["cat", enc, "/enc/f4096", "--key", key64, "--stats"],
        &["verify", verity, "--stats"],
        &["verify", verity, "--stats", "--queue", "auto"],
        &["extract", enc, "/enc", "-C", "out", "--key", key64, "--stats"],
        &["dm-verity", "format", "plain", "tree"],
        // Failures.
        &["digest", "none"],
        &["digest", "plain", "none"],
        &["verify", "none"],
        &["verify", "plain"],
        &["verify", enc],
        &["cat", enc, "/enc/f4096"],
        &["cat", enc, "/none", "--key", key64],
        &["check", "list"],
        &["check", "none"],
        &["inspect", "plain"],
        &["ls", "plain"],
        &["ls", "-R", enc],
        &["extract", "plain", "-C", "never"],
        &["extract", enc, "-C", "locked"],
        &["key", "id", "none"],
        &["key", "id", "list"],
        &["sign", "plain", "signature", "--key=list"],
        &["measure", "plain"],
        &["enable", "none"],
        &["tune", "none"],
        &["dm-verity", "verify", "plain", "none", "00"],
        &["luks", "dump", "plain"],
        &["lab", "run", "none"],
        // Mistakes on the command line.
        &[],
        &["nonsense"],
        &["cat"],
        &["digest", "--hash-alg=nonsense", "plain"],
    ];
    let mut wrong = Vec::new();
    for args in commands {
        let run = |redirection: &str| {
            for made in ["out", "never", "locked", "tree", "signature"] {
                let at = dir.path().join(made);
                let _ = fs::remove_dir_all(&at).or_else(|_| fs::remove_file(&at));
            }
            let script = format!("exec \"$0\" \"$@\" {redirection}");
            let mut command = Command::new("sh");
            command.current_dir(dir.path()).args(["-c", &script, env!("CARGO_BIN_EXE_postread")]).args(*args);
            command.stdin(Stdio::null()).output().unwrap()
        };
        let usual = run("");
        let status = usual.status.code();
        assert!(matches!(status, Some(0..=5)), "{args:?}: {status:?} {}", stderr(&usual));
        assert!(!usual.stderr.is_empty() || args.contains(&"--stats") || status == Some(0), "{args:?}");
        for redirection in ["2> /dev/full", "2>&-"] {
            let output = run(redirection);
            if output.status.code() != status || output.stdout.len() != usual.stdout.len() {
                wrong.push(format!("{args:?} {redirection}: {:?}, not {status:?}", output.status));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
