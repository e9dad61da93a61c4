//! A real Linux kernel in an emulator, as a judge.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::{require_root, require_tool, skip};

/// A finished run of the emulator.
#[derive(Debug)]
pub struct OracleRun {
    dir: TempDir,
    /// The script's output.
    pub log: String,
}

impl OracleRun {
    /// The directory that the script saw as `/mnt/out`.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }
}

/// As [`kernel_oracle_with`], with the emulator's defaults.
#[track_caller]
pub fn kernel_oracle(script: &str, files: &[(&str, &Path)]) -> Option<OracleRun> {
    kernel_oracle_with(script, files, &[])
}

/// Runs a bash script as root in the emulated kernel; skips where the emulator or root is not there. `files` are copied
/// to `/mnt/out` under the given names first (`/tmp` is the guest's own); `environment` sets `ORACLE_SMP` and the like
/// (see the head of `tests/kernel-oracle/run`).
///
/// # Panics
/// When the script fails, with its output.
#[track_caller]
pub fn kernel_oracle_with(script: &str, files: &[(&str, &Path)], environment: &[(&str, &str)]) -> Option<OracleRun> {
    require_root()?;
    for tool in ["qemu-system-x86_64", "busybox", "cpio", "depmod"] {
        require_tool(tool)?;
    }
    let dir = TempDir::new().expect("a temporary directory");
    for (name, file) in files {
        fs::copy(file, dir.path().join(name)).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    }
    let script_file = dir.path().join("script");
    fs::write(&script_file, script).expect("write the script");
    let runner = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("kernel-oracle/run");
    let output = Command::new(&runner)
        .args([&script_file, dir.path()])
        .envs(environment.iter().copied())
        .output()
        .unwrap_or_else(|e| panic!("{}: {e}", runner.display()));
    let log = fs::read_to_string(dir.path().join("log")).unwrap_or_default();
    if !dir.path().join("log").exists() && !output.status.success() {
        // The kernel's package cannot be fetched, or the emulator does not start.
        skip(format!("the emulator: {}", String::from_utf8_lossy(&output.stderr).trim()));
        return None;
    }
    assert!(output.status.success(), "the script in the emulator: {}\n{log}", output.status);
    Some(OracleRun { dir, log })
}
