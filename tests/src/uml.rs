//! A real Linux kernel as an ordinary process (User-Mode Linux): it boots in about a second and needs no privileges.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use tempfile::TempDir;

use crate::skip;

/// A script to run in the kernel, and what it gets.
///
/// `tests/uml/run` describes the guest: the host's `/` is there read-only, `/tmp` is the guest's own, and [`Uml::dir`] is
/// `/mnt/out`.
#[derive(Debug)]
pub struct Uml {
    dir: TempDir,
    disks: Vec<PathBuf>,
    environment: Vec<(&'static str, OsString)>,
}

/// A finished run of a script in a real kernel.
#[derive(Debug)]
pub struct KernelRun {
    dir: TempDir,
    /// What the script printed.
    pub log: String,
    /// What the kernel printed.
    pub console: String,
    /// The script's exit status; nothing where the kernel crashed or hung.
    pub status: Option<i32>,
}

impl KernelRun {
    /// From a runner's output directory and exit status; 99 is a kernel that did not finish.
    pub(crate) fn collect(dir: TempDir, output: &Output) -> Self {
        let read = |name| fs::read(dir.path().join(name)).map(|bytes| text(&bytes)).unwrap_or_default();
        let (log, console) = (read("log"), read("console"));
        let status = output.status.code().filter(|&code| code != 99);
        Self { dir, log, console, status }
    }

    /// The directory that the script saw as `/mnt/out`.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The same run, if its script succeeded.
    ///
    /// # Panics
    /// When the script failed or the kernel did not finish, with what both printed.
    #[track_caller]
    pub fn success(self) -> Self {
        let Self { status, log, console, .. } = &self;
        assert!(*status == Some(0), "the script in the kernel: {status:?}\n{log}\n{console}");
        self
    }
}

impl Uml {
    /// Looks for a kernel; skips if there is none.
    #[track_caller]
    pub fn new() -> Option<Self> {
        let output = runner().arg("--kernel").output();
        match output {
            Ok(output) if output.status.success() => {}
            Ok(output) if output.status.code() == Some(3) => {
                skip(text(&output.stderr));
                return None;
            }
            Ok(output) => panic!("tests/uml/run: {}", text(&output.stderr)),
            Err(error) => {
                skip(format!("tests/uml/run: {error}"));
                return None;
            }
        }
        let dir = TempDir::new().expect("a temporary directory");
        Some(Self { dir, disks: Vec::new(), environment: Vec::new() })
    }

    /// True where there is a kernel.
    pub fn available() -> bool {
        runner().arg("--kernel").output().is_ok_and(|output| output.status.success())
    }

    /// The directory that the script will see as `/mnt/out`.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Copies `file` to `/mnt/out/NAME`.
    ///
    /// # Panics
    /// When it cannot be copied.
    #[must_use]
    pub fn file(self, name: &str, file: &Path) -> Self {
        fs::copy(file, self.dir().join(name)).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        self
    }

    /// Adds an image as a disk: the first is `/dev/ubda`, the second `/dev/ubdb`. The guest may write to it.
    #[must_use]
    pub fn disk(mut self, image: &Path) -> Self {
        self.disks.push(image.to_owned());
        self
    }

    /// How many CPUs the guest has, at most 8. Default: 2.
    #[must_use]
    pub fn cpus(self, cpus: usize) -> Self {
        self.with("UML_CPUS", cpus.to_string())
    }

    /// How much memory the guest has, in MiB. Default: 1024.
    #[must_use]
    pub fn memory(self, mib: usize) -> Self {
        self.with("UML_MEM", format!("{mib}M"))
    }

    /// Kernel parameters (`verity_unbound=1`); `NAME=VALUE` that the kernel does not know is in the script's environment.
    #[must_use]
    pub fn parameters(self, parameters: &str) -> Self {
        self.with("UML_APPEND", parameters)
    }

    /// How long it may take. Default: 300 seconds.
    #[must_use]
    pub fn timeout(self, limit: Duration) -> Self {
        self.with("UML_TIMEOUT", limit.as_secs().max(1).to_string())
    }

    fn with(mut self, name: &'static str, value: impl Into<OsString>) -> Self {
        self.environment.push((name, value.into()));
        self
    }

    /// Runs a bash script as root.
    ///
    /// # Panics
    /// When the runner itself fails.
    #[track_caller]
    pub fn run(self, script: &str) -> KernelRun {
        let script_file = self.dir().join("script");
        fs::write(&script_file, script).expect("write the script");
        let disks: Vec<&str> = self.disks.iter().map(|disk| disk.to_str().expect("a path in UTF-8")).collect();
        let output = runner()
            .args([&script_file, self.dir()])
            .env("UML_DISKS", disks.join(" "))
            .envs(self.environment)
            .output()
            .expect("bash runs");
        KernelRun::collect(self.dir, &output)
    }
}

fn runner() -> Command {
    Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("uml/run"))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim_end().to_owned()
}
