//! The thread's number and name.

use std::ffi::CString;
use std::io;

/// The calling thread's kernel number, as `ps -L` and traces show it.
pub fn gettid() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

/// Names the calling thread for `ps`, `perf` and traces. The kernel keeps 15 bytes.
///
/// # Errors
/// `InvalidInput` for a name beyond 15 bytes or with a zero byte: a name cut short would make two threads look alike.
pub fn set_thread_name(name: &str) -> io::Result<()> {
    let invalid = |text: &str| io::Error::new(io::ErrorKind::InvalidInput, format!("thread name {name:?} {text}"));
    if name.len() > 15 {
        return Err(invalid("is longer than 15 bytes"));
    }
    let name = CString::new(name).map_err(|_| invalid("has a zero byte"))?;
    rustix::thread::set_name(&name).map_err(io::Error::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_shows_the_name() {
        let name = std::thread::spawn(|| {
            set_thread_name("pr/u0:3").unwrap();
            std::fs::read_to_string(format!("/proc/self/task/{}/comm", gettid())).unwrap()
        });
        assert_eq!(name.join().unwrap(), "pr/u0:3\n");
        assert_eq!(set_thread_name("a name of 16 byt").unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(set_thread_name("a\0b").unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
