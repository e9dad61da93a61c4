//! Asking for a passphrase on the terminal, without echo.

use std::fs::OpenOptions;
use std::io::{self, Read, Write};

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use zeroize::Zeroizing;

/// A passphrase has at most this many bytes.
const LINE_MAX: usize = 4096;

/// Echoes again when dropped.
struct Echo<'a>(&'a std::fs::File, Termios);

impl Drop for Echo<'_> {
    fn drop(&mut self) {
        let _ = tcsetattr(self.0, OptionalActions::Flush, &self.1);
        let _ = { self.0 }.write_all(b"\n");
    }
}

/// Asks on the controlling terminal. None where the line is empty.
pub(super) fn ask(prompt: &str) -> io::Result<Option<Zeroizing<Vec<u8>>>> {
    let tty = OpenOptions::new().read(true).write(true).open("/dev/tty")?;
    let before = tcgetattr(&tty)?;
    let mut silent = before.clone();
    silent.local_modes.remove(LocalModes::ECHO);
    (&tty).write_all(prompt.as_bytes())?;
    tcsetattr(&tty, OptionalActions::Flush, &silent)?;
    let _echo = Echo(&tty, before);
    let mut line = Zeroizing::new(Vec::with_capacity(LINE_MAX));
    let mut byte = Zeroizing::new([0]);
    while line.len() < LINE_MAX && (&tty).read(&mut byte[..])? == 1 && byte[0] != b'\n' {
        line.push(byte[0]);
    }
    Ok(Some(line).filter(|line| !line.is_empty()))
}
