//! Tracepoints through tracefs, in a separate instance, so other users of tracing are not disturbed. Needs root.
//!
//! Interface: Linux Documentation/trace/ftrace.rst and events.rst.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Where tracefs is mounted.
#[derive(Debug, Clone)]
pub struct Tracefs {
    dir: PathBuf,
}

/// An instance: its own ring buffers, clock and enabled events. Dropping it removes it from the kernel, and so does the
/// end of the process, however it ends: a shell waits for that in a process group of its own.
#[derive(Debug)]
pub struct Instance {
    dir: PathBuf,
    guard: Guard,
}

/// What an instance's ring buffer of one CPU kept and lost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BufferStats {
    /// Events in the buffer.
    pub entries: u64,
    /// Events overwritten before they were read.
    pub overrun: u64,
    /// Events dropped because the buffer was full.
    pub dropped: u64,
}

impl Tracefs {
    /// Finds the mounted tracefs.
    ///
    /// # Errors
    /// `NotFound` where it is not mounted; `PermissionDenied` where the caller may not look.
    pub fn find() -> io::Result<Tracefs> {
        for dir in ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"] {
            match fs::metadata(Path::new(dir).join("events")) {
                Ok(_) => return Ok(Tracefs { dir: dir.into() }),
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => return Err(e),
            }
        }
        Err(io::Error::new(
            io::ErrorKind::NotFound,
            "tracefs is not mounted (mount -t tracefs none /sys/kernel/tracing)",
        ))
    }

    /// The tracefs mounted at `dir`.
    pub fn at(dir: &Path) -> Tracefs {
        Tracefs { dir: dir.to_owned() }
    }

    /// Where it is mounted.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The format of an event (`sched/sched_switch`): the fields' offsets, which differ between kernels.
    pub fn event_format(&self, event: &str) -> io::Result<String> {
        fs::read_to_string(self.dir.join("events").join(check(event)?).join("format"))
    }

    /// Makes an instance. Tracing in it is off until [`Instance::start`].
    ///
    /// # Errors
    /// `AlreadyExists` when the name is taken; `PermissionDenied` without root.
    pub fn create_instance(&self, name: &str) -> io::Result<Instance> {
        let dir = self.dir.join("instances").join(check(name)?);
        // Started first: a signal between the two leaves a shell that finds nothing to remove. If the name is taken,
        // the guard is dismissed with the error.
        let guard = Guard::start(&dir);
        fs::create_dir(&dir)?;
        let instance = Instance { dir, guard };
        instance.stop()?;
        Ok(instance)
    }
}

impl Instance {
    /// Its directory, with `per_cpu/cpuN/trace_pipe_raw` and the other files.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Enables an event (`workqueue/workqueue_queue_work`) or all of a system (`workqueue`).
    pub fn enable(&self, event: &str) -> io::Result<()> {
        self.write(&format!("events/{}/enable", check(event)?), "1")
    }

    /// Keeps only the events that match, in the kernel's filter language (`prev_pid == 42`).
    pub fn filter(&self, event: &str, expression: &str) -> io::Result<()> {
        self.write(&format!("events/{}/filter", check(event)?), expression)
    }

    /// Chooses the clock of the stamps: `mono` compares with `CLOCK_MONOTONIC`.
    pub fn set_clock(&self, clock: &str) -> io::Result<()> {
        self.write("trace_clock", clock)
    }

    /// The size of each CPU's buffer. Set it before [`Instance::start`]: the boot value is a few kilobytes.
    pub fn set_buffer_kb(&self, kb: u32) -> io::Result<()> {
        self.write("buffer_size_kb", &kb.to_string())
    }

    /// Records from now on.
    pub fn start(&self) -> io::Result<()> {
        self.write("tracing_on", "1")
    }

    /// Stops recording; what was recorded can be read.
    pub fn stop(&self) -> io::Result<()> {
        self.write("tracing_on", "0")
    }

    /// Writes a marker into the trace.
    pub fn mark(&self, text: &str) -> io::Result<()> {
        self.write("trace_marker", text)
    }

    /// The trace as text, without consuming it.
    pub fn text(&self) -> io::Result<String> {
        fs::read_to_string(self.dir.join("trace"))
    }

    /// A CPU's ring buffer pages, for binary reading.
    pub fn raw_pipe(&self, cpu: u32) -> io::Result<File> {
        File::open(self.dir.join(format!("per_cpu/cpu{cpu}/trace_pipe_raw")))
    }

    /// What a CPU's buffer kept and lost; event counts mean little without it.
    pub fn stats(&self, cpu: u32) -> io::Result<BufferStats> {
        let text = fs::read_to_string(self.dir.join(format!("per_cpu/cpu{cpu}/stats")))?;
        Ok(parse_stats(&text))
    }

    fn write(&self, file: &str, value: &str) -> io::Result<()> {
        let path = self.dir.join(file);
        let named = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", path.display()));
        OpenOptions::new().write(true).open(&path).and_then(|mut f| f.write_all(value.as_bytes())).map_err(named)
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // A failure cannot be reported from here; the guard tries again when this process ends.
        let _ = self.stop();
        if fs::remove_dir(&self.dir).is_err() {
            self.guard.keep();
        }
    }
}

/// A shell that removes an instance when this process has ended, even by SIGKILL. `None` if it could not be started.
#[derive(Debug)]
struct Guard(Option<Child>);

/// Standard input ends with the process that holds its other end. The signals of a terminal go to the foreground
/// process group, which this shell is not in. An instance is busy for as long as a program has one of its files open, so
/// removing it is tried for a few seconds.
const GUARD: &str = r#"
trap '' HUP INT QUIT TERM PIPE
read -r line
for i in 1 2 3 4 5 6 7 8 9 10; do
  [ -d "$1" ] || exit 0
  { echo 0 > "$1/tracing_on"; } 2> /dev/null
  rmdir "$1" 2> /dev/null && exit 0
  sleep 0.5
done
"#;

impl Guard {
    fn start(dir: &Path) -> Guard {
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", GUARD, "postread-trace-guard"]).arg(dir).process_group(0);
        Guard(shell.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok())
    }

    /// Leaves the shell to its task.
    fn keep(&mut self) {
        // The pipe's end stays open until this process ends.
        std::mem::forget(self.0.take());
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(mut shell) = self.0.take() {
            let _ = shell.kill();
            let _ = shell.wait();
        }
    }
}

/// A name that stays inside its directory.
fn check(name: &str) -> io::Result<&str> {
    let good =
        !name.is_empty() && !name.starts_with('/') && name.split('/').all(|part| part != ".." && !part.is_empty());
    good.then_some(name).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, format!("not a name: {name:?}")))
}

fn parse_stats(text: &str) -> BufferStats {
    let field = |name: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")?.trim().parse().ok());
        value.unwrap_or(0)
    };
    BufferStats { entries: field("entries"), overrun: field("overrun"), dropped: field("dropped events") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stats_are_parsed_and_names_checked() {
        let text = "entries: 129\noverrun: 7\ncommit overrun: 0\nbytes: 4000\ndropped events: 2\nread events: 0\n";
        assert_eq!(parse_stats(text), BufferStats { entries: 129, overrun: 7, dropped: 2 });
        assert!(check("sched/sched_switch").is_ok());
        for bad in ["", "/etc", "../x", "a/../b", "a//b"] {
            assert!(check(bad).is_err(), "{bad:?}");
        }
    }
}
