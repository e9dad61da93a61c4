//! What the tests share.

use std::path::Path;
use std::process::{Command, Output};

pub(crate) use postread_tests::noise;

/// Runs the program in `dir`.
pub(crate) fn postread(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_postread")).current_dir(dir).args(args).output().unwrap()
}

/// Runs another program in `dir`.
pub(crate) fn run(dir: &Path, program: &str, args: &[&str]) -> Output {
    Command::new(program).current_dir(dir).args(args).output().unwrap()
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The output's text, if the exit status is the one wanted.
#[track_caller]
pub(crate) fn expect(output: &Output, status: i32) -> String {
    assert_eq!(output.status.code(), Some(status), "{}{}", stdout(output), stderr(output));
    stdout(output)
}

/// Whether a tool is there. Where it is not, the test is skipped with the reason, or fails if everything is required.
pub(crate) fn have_tool(tool: &str, arg: &str, test: &str) -> bool {
    let found = Command::new(tool).arg(arg).output().is_ok();
    if !found {
        assert_ne!(std::env::var("POSTREAD_REQUIRE_ALL").as_deref(), Ok("1"), "{test} needs {tool}");
        let _ = std::io::Write::write_all(&mut std::io::stderr(), format!("SKIP {test}: no {tool}\n").as_bytes());
    }
    found
}
