//! What is printed: names on a terminal, errors, and a reader of our output that goes away.

use std::fmt::{Display, Write as _};
use std::io::{self, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::exit::{Failure, Outcome};

/// A name as a terminal may see it: control characters, and bytes that are not text, as `\xNN`.
pub(crate) fn escape_controls(name: &[u8]) -> String {
    let mut out = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c.is_control() {
                let mut bytes = [0; 4];
                for byte in c.encode_utf8(&mut bytes).bytes() {
                    let _ = write!(out, "\\x{byte:02x}");
                }
            } else {
                out.push(c);
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(out, "\\x{byte:02x}");
        }
    }
    out
}

/// A name for standard error: escaped on a terminal, as it is elsewhere.
pub(crate) fn name_for_stderr(path: &Path) -> String {
    if io::stderr().is_terminal() {
        escape_controls(path.as_os_str().as_bytes())
    } else {
        path.to_string_lossy().into_owned()
    }
}

/// A name within an image, for standard error; the root directory's is empty, and shown as a slash.
pub(crate) fn bytes_for_stderr(name: &[u8]) -> String {
    let name = if name.is_empty() { b"/" } else { name };
    name_for_stderr(Path::new(std::ffi::OsStr::from_bytes(name)))
}

/// A name for standard output: escaped on a terminal, as it is elsewhere.
pub(crate) fn write_name(out: &mut impl Write, name: &[u8], terminal: bool) -> io::Result<()> {
    if terminal { out.write_all(escape_controls(name).as_bytes()) } else { out.write_all(name) }
}

/// Says on standard error what went wrong. What a message quotes of a file may hold control characters too: a terminal
/// gets none but ends of lines.
pub(crate) fn complain(message: impl Display) {
    let mut out = io::stderr().lock();
    let _ = match out.is_terminal() {
        false => writeln!(out, "postread: {message}"),
        true => {
            let message = message.to_string();
            let lines: Vec<_> = message.split('\n').map(|line| escape_controls(line.as_bytes())).collect();
            writeln!(out, "postread: {}", lines.join("\n"))
        }
    };
}

/// Says on standard error what went wrong with a file.
pub(crate) fn complain_of(path: &Path, message: impl Display) {
    complain(format_args!("{}: {message}", name_for_stderr(path)));
}

/// Output that could not be written. A reader that went away had what it wanted: that ends the command, and is no error.
pub(crate) fn output_failed(error: io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::new(Outcome::Good, ""),
        _ => Failure::environment(format_args!("output: {error}")),
    }
}

/// Output that could not be written, where something else was found before: what was wrong with the data stands.
pub(crate) fn output_failed_after(outcome: Outcome, error: io::Error) -> Failure {
    let failure = output_failed(error);
    Failure { outcome: outcome.worst(failure.outcome), ..failure }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_cannot_reach_a_terminal() {
        assert_eq!(escape_controls(b"plain \xc3\xa9"), "plain \u{e9}");
        assert_eq!(escape_controls(b"a\x1b[31mb\n\x7f"), "a\\x1b[31mb\\x0a\\x7f");
        // C1 controls, and a byte that is no UTF-8.
        assert_eq!(escape_controls(b"\xc2\x9b\xff"), "\\xc2\\x9b\\xff");
    }
}
