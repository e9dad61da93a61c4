//! JSON reports: one envelope for all, written as results arrive.
//!
//! `schema` names the report and its version, `version` the program's; `command` is the command line, `machine` says
//! where it ran, `results` is what the report is about. Each report has a JSON Schema in `docs/schemas/`.

use std::io::{self, BufWriter, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use serde::Serialize;

use crate::exit::Failure;
use crate::text::output_failed;

/// Where a report was made.
#[derive(Debug, Serialize)]
pub(crate) struct Machine {
    /// As the kernel names it; empty where it does not.
    cpu: String,
    /// CPUs that this process may use.
    cpus: usize,
    /// The kernel's release.
    kernel: String,
    /// The instruction set.
    arch: &'static str,
}

impl Machine {
    /// This one.
    pub(crate) fn this() -> Self {
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
        Self {
            cpu: model.map(|(_, name)| name.trim().to_owned()).unwrap_or_default(),
            cpus: postread_sys::affinity::current().map_or(1, |cpus| cpus.len()),
            kernel: std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
            arch: std::env::consts::ARCH,
        }
    }
}

/// A file's name in a report: text, and the bytes in hexadecimal where it is not UTF-8.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Name {
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_hex: Option<String>,
}

impl Name {
    /// As people see it; escaped on a terminal.
    pub(crate) fn shown(&self, terminal: bool) -> String {
        if terminal { crate::text::escape_controls(self.path.as_bytes()) } else { self.path.clone() }
    }

    /// A name within an image; the root directory's is empty, and shown as a slash.
    pub(crate) fn of_bytes(path: &[u8]) -> Self {
        let path = if path.is_empty() { b"/" } else { path };
        Self::new(Path::new(std::ffi::OsStr::from_bytes(path)))
    }

    pub(crate) fn new(path: &Path) -> Self {
        let bytes = path.as_os_str().as_bytes();
        let path_hex = if std::str::from_utf8(bytes).is_ok() { None } else { Some(hex::encode(bytes)) };
        Self { path: path.to_string_lossy().into_owned(), path_hex }
    }
}

/// JSON as a pipe gets it, or, for a terminal, without control characters of any kind: JSON itself escapes C0 only.
#[derive(Clone, Copy, Debug)]
struct ForTerminal(bool);

impl serde_json::ser::Formatter for ForTerminal {
    fn write_string_fragment<W: ?Sized + Write>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        if !self.0 {
            return writer.write_all(fragment.as_bytes());
        }
        let mut plain = 0;
        for (at, c) in fragment.char_indices().filter(|(_, c)| c.is_control()) {
            write!(writer, "{}\\u{:04x}", &fragment[plain..at], u32::from(c))?;
            plain = at + c.len_utf8();
        }
        writer.write_all(&fragment.as_bytes()[plain..])
    }
}

/// Writes one value, escaped if standard output is a terminal.
fn write_json(out: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    let formatter = ForTerminal(io::stdout().is_terminal());
    value.serialize(&mut serde_json::Serializer::with_formatter(out, formatter)).map_err(io::Error::from)
}

/// A report whose results are a list, written one by one: a million of them take no memory.
pub(crate) struct ListReport<W: Write> {
    out: W,
    first: bool,
}

impl<W: Write> ListReport<W> {
    /// Writes the envelope's head. `schema` is the name of a file in `docs/schemas/`, without its ending.
    pub(crate) fn begin(mut out: W, schema: &str) -> io::Result<Self> {
        write_head(&mut out, schema)?;
        out.write_all(b"[")?;
        Ok(Self { out, first: true })
    }

    /// Writes one result.
    pub(crate) fn push(&mut self, result: &impl Serialize) -> io::Result<()> {
        self.out.write_all(if self.first { b"\n" } else { b",\n" })?;
        self.first = false;
        write_json(&mut self.out, result)
    }

    /// Ends the report.
    pub(crate) fn end(mut self) -> io::Result<()> {
        self.out.write_all(b"\n]}\n")?;
        self.out.flush()
    }
}

/// What a command prints about many things: lines for people, or a report.
pub(crate) enum Output {
    Lines(Box<dyn Write + Send>),
    Json(ListReport<Box<dyn Write + Send>>),
}

impl Output {
    /// Standard output; a report of this schema if `json`.
    pub(crate) fn begin(json: bool, schema: &str) -> Result<Self, Failure> {
        let stdout: Box<dyn Write + Send> = Box::new(BufWriter::with_capacity(64 << 10, io::stdout()));
        Ok(match json {
            true => Self::Json(ListReport::begin(stdout, schema).map_err(output_failed)?),
            false => Self::Lines(stdout),
        })
    }

    /// Writes what is buffered, and the end of a report.
    pub(crate) fn end(self) -> io::Result<()> {
        match self {
            Self::Lines(mut out) => out.flush(),
            Self::Json(report) => report.end(),
        }
    }
}

fn write_head(out: &mut impl Write, schema: &str) -> io::Result<()> {
    let command: Vec<String> = std::env::args_os().map(|arg| arg.to_string_lossy().into_owned()).collect();
    out.write_all(b"{\"schema\":")?;
    write_json(out, &schema)?;
    out.write_all(b",\"version\":")?;
    write_json(out, &env!("CARGO_PKG_VERSION"))?;
    out.write_all(b",\"command\":")?;
    write_json(out, &command)?;
    out.write_all(b",\"machine\":")?;
    write_json(out, &Machine::this())?;
    out.write_all(b",\"results\":")
}

/// Writes a report whose results are one value.
pub(crate) fn write_report(mut out: impl Write, schema: &str, results: &impl Serialize) -> io::Result<()> {
    write_head(&mut out, schema)?;
    write_json(&mut out, results)?;
    out.write_all(b"}\n")?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(terminal: bool, text: &str) -> String {
        let mut out = Vec::new();
        text.serialize(&mut serde_json::Serializer::with_formatter(&mut out, ForTerminal(terminal))).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_terminal_gets_no_control_character() {
        let text = "a\u{9b}31m\u{7f}\u{85}b\n\u{1b}\"\u{e9}";
        let shown = json(true, text);
        assert_eq!(shown, "\"a\\u009b31m\\u007f\\u0085b\\n\\u001b\\\"\u{e9}\"");
        assert_eq!(serde_json::from_str::<String>(&shown).unwrap(), text);
        // A program gets the same bytes as ever.
        assert_eq!(json(false, text), serde_json::to_string(text).unwrap());
    }
}
