//! A handler that only writes the signal's number to a pipe.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering};

/// The pipe's end to write to; it stays open as long as the process.
static PIPE: AtomicI32 = AtomicI32::new(-1);

extern "C" fn notify(signal: libc::c_int) {
    let byte = [u8::try_from(signal).unwrap_or(0)];
    // SAFETY: write(2) is safe in a signal handler, and reads the one byte that is there. The handler restores errno,
    // so that the interrupted code does not see a change.
    unsafe {
        let errno = *libc::__errno_location();
        libc::write(PIPE.load(Ordering::Relaxed), byte.as_ptr().cast(), 1);
        *libc::__errno_location() = errno;
    }
}

/// From now on these signals are written to `pipe`, one byte each, instead of ending the process.
pub(crate) fn to_pipe(signals: &[i32], pipe: OwnedFd) -> io::Result<()> {
    PIPE.store(pipe.into_raw_fd(), Ordering::Relaxed);
    for &signal in signals {
        // SAFETY: an all-zero `sigaction` is a valid one: no flags, an empty mask.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = notify as extern "C" fn(libc::c_int) as usize;
        action.sa_flags = libc::SA_RESTART;
        // SAFETY: the kernel reads the structure, and the old action is not asked for. The handler does nothing that is not
        // safe in one.
        if unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}
