//! Asking for a passphrase on the terminal, without echo.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};

use rustix::process::{Signal, getpid, kill_process};
use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr};
use zeroize::Zeroizing;

/// The most bytes of a passphrase.
const LINE_MAX: usize = 4096;

/// Restores the terminal when dropped.
struct Restore<'a>(&'a File, Termios);

impl Drop for Restore<'_> {
    fn drop(&mut self) {
        let _ = tcsetattr(self.0, OptionalActions::Flush, &self.1);
        let _ = { self.0 }.write_all(b"\n");
    }
}

/// How a line ended.
enum Ended {
    Line,
    /// With a key that sends a signal.
    Signal(Signal),
}

/// Asks on the controlling terminal. `None` where the line is empty.
///
/// Keys that send a signal are read as characters, so that the terminal echoes again before the signal is sent.
pub(crate) fn ask(prompt: &str) -> io::Result<Option<Zeroizing<Vec<u8>>>> {
    let tty = OpenOptions::new().read(true).write(true).open("/dev/tty")?;
    let before = tcgetattr(&tty)?;
    let mut silent = before.clone();
    silent.local_modes.remove(LocalModes::ECHO | LocalModes::ECHONL | LocalModes::ICANON | LocalModes::ISIG);
    silent.special_codes[SpecialCodeIndex::VMIN] = 1;
    silent.special_codes[SpecialCodeIndex::VTIME] = 0;
    (&tty).write_all(prompt.as_bytes())?;
    tcsetattr(&tty, OptionalActions::Flush, &silent)?;
    let restore = Restore(&tty, before);
    let mut line = Zeroizing::new(Vec::with_capacity(LINE_MAX));
    let ended = read_line(&tty, &restore.1, &mut line)?;
    drop(restore);
    if let Ended::Signal(signal) = ended {
        kill_process(getpid(), signal)?;
    }
    Ok(Some(line).filter(|line| !line.is_empty()))
}

/// Reads a line character by character, with the terminal's own keys for editing it.
fn read_line(mut tty: &File, keys: &Termios, line: &mut Vec<u8>) -> io::Result<Ended> {
    let key = |index: SpecialCodeIndex| Some(keys.special_codes[index]).filter(|&code| code != 0);
    let signals = keys.local_modes.contains(LocalModes::ISIG);
    let mut byte = Zeroizing::new([0]);
    while line.len() < LINE_MAX && tty.read(&mut byte[..])? == 1 {
        let pressed = Some(byte[0]);
        if signals && pressed == key(SpecialCodeIndex::VINTR) {
            return Ok(Ended::Signal(Signal::INT));
        } else if signals && pressed == key(SpecialCodeIndex::VQUIT) {
            return Ok(Ended::Signal(Signal::QUIT));
        } else if pressed == Some(b'\n') || pressed == Some(b'\r') || pressed == key(SpecialCodeIndex::VEOF) {
            break;
        } else if pressed == key(SpecialCodeIndex::VERASE) || pressed == Some(8) {
            line.pop();
        } else if pressed == key(SpecialCodeIndex::VKILL) {
            line.clear();
        } else if !(signals && pressed == key(SpecialCodeIndex::VSUSP)) {
            line.push(byte[0]);
        }
    }
    Ok(Ended::Line)
}
