//! JSON reports: one envelope for all, written as results arrive.
//!
//! `schema` names the report and its version, `version` the program's; `command` is the command line, `machine` says
//! where it ran, `results` is what the report is about. Each report has a JSON Schema in `docs/schemas/`.

use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use serde::Serialize;

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
        serde_json::to_writer(&mut self.out, result).map_err(io::Error::from)
    }

    /// Ends the report.
    pub(crate) fn end(mut self) -> io::Result<()> {
        self.out.write_all(b"\n]}\n")?;
        self.out.flush()
    }
}

fn write_head(out: &mut impl Write, schema: &str) -> io::Result<()> {
    let command: Vec<String> = std::env::args_os().map(|arg| arg.to_string_lossy().into_owned()).collect();
    let json = |value: serde_json::Result<String>| value.map_err(io::Error::from);
    write!(
        out,
        "{{\"schema\":{},\"version\":{},\"command\":{},\"machine\":{},\"results\":",
        json(serde_json::to_string(schema))?,
        json(serde_json::to_string(env!("CARGO_PKG_VERSION")))?,
        json(serde_json::to_string(&command))?,
        json(serde_json::to_string(&Machine::this()))?,
    )
}

/// Writes a report whose results are one value.
pub(crate) fn write_report(mut out: impl Write, schema: &str, results: &impl Serialize) -> io::Result<()> {
    write_head(&mut out, schema)?;
    serde_json::to_writer(&mut out, results)?;
    out.write_all(b"}\n")?;
    out.flush()
}
