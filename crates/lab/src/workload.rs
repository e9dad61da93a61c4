//! Workloads: what an app reads while it starts, frozen as text, so that it is the same before and after.
//!
//! A line each, fields apart by single spaces, `#` starts a comment:
//!
//! ```text
//! postread-workload 1
//! app NAME
//! compute PERMILLE                     share of a think time that computes; the rest sleeps
//! foreground THREADS PERMILLE          more threads that compute for that share while the app starts
//! file SIZE NAME                       files are numbered from 0 in each app
//! read THREAD THINK_US FILE OFFSET LENGTH
//! ```
//!
//! A thread's reads happen one after the other, each after its think time; threads run at the same time. A read is of
//! at most 8 MiB; the recorder cuts longer ones.

use std::fmt::Write as _;

/// The largest workload: bytes of all files, reads, threads an app.
const FILES_MAX: u64 = 16 << 30;
const READS_MAX: usize = 1 << 20;
const THREADS_MAX: u32 = 64;
/// The longest read in bytes: each thread that replays has a buffer of its longest one.
pub(crate) const READ_LEN_MAX: u64 = 8 << 20;
const THINK_MAX_US: u64 = 10_000_000;

/// One read of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// Time before the read in microseconds.
    pub think_us: u64,
    /// Index of the file.
    pub file: u32,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// A file of an app.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkloadFile {
    /// Bytes.
    pub size: u64,
    /// A name for people; nothing is opened by it.
    pub name: String,
}

/// What one app reads while it starts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct App {
    /// Its name.
    pub name: String,
    /// Share of think times that computes, in thousandths.
    pub compute_permille: u32,
    /// More threads that compute while the app starts.
    pub foreground_threads: u32,
    /// The share of time that they compute, in thousandths.
    pub foreground_permille: u32,
    /// Its files.
    pub files: Vec<WorkloadFile>,
    /// Its reads, one list per thread.
    pub threads: Vec<Vec<Read>>,
}

impl App {
    /// Number of reads.
    pub fn reads(&self) -> usize {
        self.threads.iter().map(Vec::len).sum()
    }

    /// Bytes that the reads ask for.
    pub fn bytes_read(&self) -> u64 {
        self.threads.iter().flatten().map(|read| read.len).sum()
    }

    /// Bytes of its files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.size).sum()
    }
}

/// A line that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("workload, line {line}: {why}")]
#[non_exhaustive]
pub struct WorkloadError {
    /// The line, from 1.
    pub line: usize,
    /// What is wrong.
    pub why: &'static str,
}

/// Parses a workload.
pub fn parse(text: &str) -> Result<Vec<App>, WorkloadError> {
    let mut parser = Parser { apps: Vec::new(), bytes: 0, reads: 0, header: false };
    let mut last = 0;
    for (number, line) in (1..).zip(text.lines()) {
        last = number;
        let line = line.split_once('#').map_or(line, |(before, _)| before).trim_end();
        if !line.is_empty() {
            parser.line(line).map_err(|why| WorkloadError { line: number, why })?;
        }
    }
    parser.check_last_app().map_err(|why| WorkloadError { line: last, why })?;
    if parser.apps.is_empty() {
        return Err(WorkloadError { line: last, why: "there is no app" });
    }
    Ok(parser.apps)
}

/// Writes a workload, such that [`parse`] gives it back.
pub fn format(apps: &[App]) -> String {
    let mut text = String::from("postread-workload 1\n");
    for app in apps {
        let _ = writeln!(text, "app {}\ncompute {}", app.name, app.compute_permille);
        let _ = writeln!(text, "foreground {} {}", app.foreground_threads, app.foreground_permille);
        for file in &app.files {
            let _ = writeln!(text, "file {} {}", file.size, file.name);
        }
        for (thread, reads) in app.threads.iter().enumerate() {
            for read in reads {
                let Read { think_us, file, offset, len } = read;
                let _ = writeln!(text, "read {thread} {think_us} {file} {offset} {len}");
            }
        }
    }
    text
}

struct Parser {
    apps: Vec<App>,
    bytes: u64,
    reads: usize,
    header: bool,
}

impl Parser {
    fn line(&mut self, line: &str) -> Result<(), &'static str> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        if !self.header {
            self.header = line == "postread-workload 1";
            return if self.header { Ok(()) } else { Err("the first line is not `postread-workload 1`") };
        }
        if word == "app" {
            self.check_last_app()?;
            if rest.is_empty() {
                return Err("an app without a name");
            }
            self.apps.push(App { name: rest.to_string(), ..App::default() });
            return Ok(());
        }
        let app = self.apps.last_mut().ok_or("before the first app")?;
        match word {
            "compute" => app.compute_permille = permille(rest)?,
            "foreground" => {
                let (threads, share) = rest.split_once(' ').ok_or("expected THREADS PERMILLE")?;
                app.foreground_threads =
                    number(threads)?.try_into().ok().filter(|n| *n <= THREADS_MAX).ok_or("too many threads")?;
                app.foreground_permille = permille(share)?;
            }
            "file" => {
                let (size, name) = rest.split_once(' ').ok_or("expected SIZE NAME")?;
                let size = number(size)?;
                self.bytes =
                    self.bytes.checked_add(size).filter(|sum| *sum <= FILES_MAX).ok_or("the files are too large")?;
                app.files.push(WorkloadFile { size, name: name.to_string() });
            }
            "read" => {
                let mut fields = rest.split(' ').map(number);
                let mut next = || fields.next().unwrap_or(Err("expected THREAD THINK_US FILE OFFSET LENGTH"));
                let (thread, think_us, file, offset, len) = (next()?, next()?, next()?, next()?, next()?);
                if fields.next().is_some() {
                    return Err("expected THREAD THINK_US FILE OFFSET LENGTH");
                }
                let size = usize::try_from(file).ok().and_then(|i| app.files.get(i)).ok_or("no such file")?.size;
                if len == 0 || offset.checked_add(len).is_none_or(|end| end > size) {
                    return Err("the read is empty or goes past the end of its file");
                }
                if len > READ_LEN_MAX {
                    return Err("a read of more than 8 MiB (8388608 bytes)");
                }
                if think_us > THINK_MAX_US {
                    return Err("a think time of more than 10 s");
                }
                self.reads += 1;
                if thread >= u64::from(THREADS_MAX) || self.reads > READS_MAX {
                    return Err("too many threads or reads");
                }
                let thread = thread as usize;
                if app.threads.len() <= thread {
                    app.threads.resize(thread + 1, Vec::new());
                }
                app.threads[thread].push(Read { think_us, file: file as u32, offset, len });
            }
            _ => return Err("unknown word"),
        }
        Ok(())
    }

    fn check_last_app(&self) -> Result<(), &'static str> {
        match self.apps.last() {
            Some(app) if app.reads() == 0 => Err("an app without reads"),
            _ => Ok(()),
        }
    }
}

fn number(text: &str) -> Result<u64, &'static str> {
    // `u64::from_str` accepts a plus sign, which the format does not have.
    if text.starts_with('+') { Err("not a number") } else { text.parse().map_err(|_| "not a number") }
}

fn permille(text: &str) -> Result<u32, &'static str> {
    number(text)?.try_into().ok().filter(|share| *share <= 1000).ok_or("expected thousandths, 0 to 1000")
}

/// The workload that the experiment runs without `--trace`: made by `workloads/make`, frozen before any policy was
/// compared.
pub const APP_START: &str = include_str!("../workloads/app-start.workload");

/// A recorded start of a real program: see its first lines.
pub const RECORDED: &str = include_str!("../workloads/recorded.workload");

/// The tree that the archive experiment archives: made by `workloads/make-tree`.
pub const TREE: &str = include_str!("../workloads/tree.workload");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_frozen_workloads_parse_and_round_trip() {
        for text in [APP_START, RECORDED, TREE] {
            let apps = parse(text).unwrap();
            assert!(!apps.is_empty());
            assert_eq!(parse(&format(&apps)).unwrap(), apps);
        }
    }

    #[test]
    fn a_reads_length_is_bounded_and_the_error_says_how() {
        let text = |len: u64| format!("postread-workload 1\napp a\nfile 17179869184 f\nread 0 0 0 0 {len}\n");
        parse(&text(READ_LEN_MAX)).unwrap();
        for len in [READ_LEN_MAX + 1, 16 << 30] {
            let error = parse(&text(len)).unwrap_err().to_string();
            assert_eq!(error, format!("workload, line 4: a read of more than 8 MiB ({READ_LEN_MAX} bytes)"));
        }
    }

    #[test]
    fn every_bad_line_is_an_error_with_its_number() {
        let head = "postread-workload 1\napp a\nfile 100 f\nread 0 0 0 0 10\n";
        parse(head).unwrap();
        for bad in [
            "read 0 0 1 0 10",
            "read 0 0 0 95 10",
            "read 0 0 0 18446744073709551615 10",
            "read 0 0 0 0 0",
            "read 64 0 0 0 1",
            "read 0 10000001 0 0 1",
            "read 0 0 0 0",
            "read 0 0 0 0 1 1",
            "read 0 -1 0 0 1",
            "read 0 +1 0 0 1",
            "compute 1001",
            "foreground 65 0",
            "foreground 1",
            "file 17179869185 g",
            "file 1",
            "what 1",
            "app",
            "app b",
        ] {
            let text = format!("{head}{bad}\n");
            assert_eq!(parse(&text).unwrap_err().line, 5, "{bad}");
        }
        for bad in
            ["", "postread-workload 2\n", "app a\n", "postread-workload 1\n", "postread-workload 1\nread 0 0 0 0 1\n"]
        {
            parse(bad).unwrap_err();
        }
    }
}
