//! Helpers that the tests of all crates share: images, mounts, a real kernel, random numbers, and skips that give a
//! reason.
//!
//! A test that needs a tool, a privilege or a device asks for it here, and returns if it is missing. The reason is printed
//! as `SKIP test: reason`. With `POSTREAD_REQUIRE_ALL=1`, which CI sets, a missing thing fails the test instead.

use std::env;
use std::fmt::Display;
use std::path::PathBuf;
use std::process::{Command, Output};

mod image;
mod oracle;
mod random;
pub mod super_image;
mod uml;

pub use image::{Mount, unpack_image};
pub use oracle::{emulator_oracle, kernel_oracle};
pub use random::{Random, noise};
pub use uml::{KernelRun, Uml};

/// True if a test must fail rather than skip.
pub fn require_all() -> bool {
    env::var_os("POSTREAD_REQUIRE_ALL").is_some_and(|v| v == "1")
}

/// Reports that the running test is skipped, and why. The caller returns.
///
/// # Panics
/// With `POSTREAD_REQUIRE_ALL=1`.
#[track_caller]
pub fn skip(why: impl Display) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("test");
    assert!(!require_all(), "{test}: {why}, and POSTREAD_REQUIRE_ALL=1 forbids skipping");
    // Not through `eprintln!`: the harness keeps what that prints, and a skip has to be seen without `--nocapture`.
    let _ = std::io::Write::write_all(&mut std::io::stderr(), format!("SKIP {test}: {why}\n").as_bytes());
}

/// Finds a program in `PATH` or the `sbin` directories; skips if it is missing.
#[track_caller]
pub fn require_tool(tool: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let dirs = env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    let found = dirs.map(|dir| dir.join(tool)).find(|file| file.is_file());
    if found.is_none() {
        skip(format!("no {tool} on this machine"));
    }
    found
}

/// Skips unless the tests run as root.
#[track_caller]
pub fn require_root() -> Option<()> {
    let root = rustix::process::geteuid().is_root();
    if !root {
        skip("needs root");
    }
    root.then_some(())
}

/// Skips if `result` is an error: for privileges and devices that can only be tried.
#[track_caller]
pub fn require<T, E: Display>(what: &str, result: Result<T, E>) -> Option<T> {
    result.map_err(|e| skip(format!("{what}: {e}"))).ok()
}

/// Runs a command to its end.
///
/// # Panics
/// When it cannot be started or fails, with its output.
#[track_caller]
pub fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// The seed of a randomised test: `POSTREAD_SEED`, else from the clock. Prints it, so that a failed test shows it.
pub fn seed() -> u64 {
    let given = env::var("POSTREAD_SEED").ok().map(|s| s.parse().expect("POSTREAD_SEED is a number"));
    let clock = || std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(0, |t| t.as_nanos() as u64);
    let seed = given.unwrap_or_else(clock);
    eprintln!("POSTREAD_SEED={seed}");
    seed
}
