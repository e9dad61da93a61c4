//! A directory, and a process at work in it, that go away with this one, however that ends.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use crate::error::{LabError, Tried};

/// A directory that goes away with this process, however that ends.
#[derive(Debug)]
pub(crate) struct Scratch {
    dir: PathBuf,
    /// A shell that waits for the end of its input, which is this process's end at the latest.
    guard: Child,
    alive: Option<ChildStdin>,
}

const GUARD: &str =
    "read -r _; if [ -s \"$1/pid\" ]; then kill -9 -- \"-$(cat \"$1/pid\")\" 2> /dev/null; fi; rm -rf -- \"$1\"";

impl Scratch {
    pub(crate) fn new(parent: &Path) -> Result<Scratch, LabError> {
        let dir = parent.join(format!(".postread-lab-kernel-{}", std::process::id()));
        let what = || format!("making {}", dir.display());
        fs::create_dir(&dir).tried(what)?;
        let dir = dir.canonicalize().tried(what)?;
        if dir.to_str().is_none_or(|path| path.contains(['\'', ',', ' '])) {
            let _ = fs::remove_dir(&dir);
            return Err(LabError::Kernel(format!(
                "{}: the guest can share no directory of such a name",
                parent.display()
            )));
        }
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", GUARD, "postread-lab-guard"]).arg(&dir).process_group(0);
        let started = shell.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let mut guard = started.tried(|| "starting /bin/sh".into()).inspect_err(|_| {
            // Nothing is in it yet.
            let _ = fs::remove_dir(&dir);
        })?;
        let alive = guard.stdin.take();
        Ok(Scratch { dir, guard, alive })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> Result<(), LabError> {
        fs::write(self.path(name), bytes).tried(|| format!("writing {}", self.path(name).display()))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(self.alive.take());
        let _ = self.guard.wait();
    }
}

/// Waits for a process; false if it had to be killed.
pub(crate) fn wait(child: &mut Child, timeout: Duration) -> Result<bool, LabError> {
    let begin = Instant::now();
    loop {
        if child.try_wait().tried(|| "waiting for the guest".into())?.is_some() {
            return Ok(true);
        }
        if begin.elapsed() > timeout {
            let _ = child.kill();
            let _ = child.wait();
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scratch_directory_goes_with_its_owner() {
        let parent = tempfile::tempdir().unwrap();
        let scratch = Scratch::new(parent.path()).unwrap();
        scratch.write("x", b"y").unwrap();
        drop(scratch);
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0);
    }
}
