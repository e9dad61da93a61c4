//! Signals that ask a program to end, for programs that have to clean up first.

use std::fs::File;
use std::io::{self, Read};

use crate::raw::signal;

/// The signals that a terminal, a supervisor or a shutdown sends.
const SIGNALS: [i32; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// Catches `SIGINT`, `SIGTERM` and `SIGHUP` from when it is made, in whichever thread they arrive.
#[derive(Debug)]
pub struct Termination(File);

impl Termination {
    /// Catches them. A program makes one.
    ///
    /// # Errors
    /// If no pipe can be made.
    pub fn catch() -> io::Result<Self> {
        let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        signal::to_pipe(&SIGNALS, write)?;
        Ok(Self(read.into()))
    }

    /// Waits for the next one, and returns its number.
    ///
    /// # Errors
    /// If the pipe can't be read.
    pub fn wait(&mut self) -> io::Result<i32> {
        let mut byte = [0];
        self.0.read_exact(&mut byte)?;
        Ok(byte[0].into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_caught() {
        let mut termination = Termination::catch().unwrap();
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::HUP).unwrap();
        assert_eq!(termination.wait().unwrap(), libc::SIGHUP);
    }
}
