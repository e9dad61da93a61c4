//! A real Linux kernel that judges ours: User-Mode Linux where there is one, else Debian's kernel in an emulator.

use std::fs;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::uml::{KernelRun, Uml};
use crate::{require_root, require_tool, skip};

/// Runs a bash script as root in a real kernel; skips if neither User-Mode Linux nor the emulator (which needs root) is
/// there. `files` are copied to `/mnt/out` under the given names first; `/tmp` is the guest's own.
///
/// # Panics
/// When the script fails, with its output.
#[track_caller]
pub fn kernel_oracle(script: &str, files: &[(&str, &Path)]) -> Option<KernelRun> {
    if Uml::available() {
        let mut uml = Uml::new()?;
        for (name, file) in files {
            uml = uml.file(name, file);
        }
        return Some(uml.run(script).success());
    }
    emulator_oracle(script, files)
}

/// The same in the emulator only, which has Linux 6.1: for what newer kernels do differently, or too slowly.
///
/// # Panics
/// When the script fails, with its output.
#[track_caller]
pub fn emulator_oracle(script: &str, files: &[(&str, &Path)]) -> Option<KernelRun> {
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
    let runner = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernel-oracle/run");
    let output = Command::new(&runner)
        .args([&script_file, dir.path()])
        .output()
        .unwrap_or_else(|e| panic!("{}: {e}", runner.display()));
    if !dir.path().join("log").exists() && !output.status.success() {
        // The kernel's package cannot be fetched, or the emulator does not start.
        skip(format!("the emulator: {}", String::from_utf8_lossy(&output.stderr).trim()));
        return None;
    }
    Some(KernelRun::collect(dir, &output).success())
}
