//! What a connection has in flight: bounded, so that a client that does not read its replies costs no more than that.

use std::sync::{Condvar, Mutex, PoisonError};

/// The most bytes of replies that are read or sent at a time. A single larger read is alone.
const BYTES_MAX: u64 = 16 << 20;
/// The most requests.
const REQUESTS_MAX: usize = 256;

#[derive(Debug, Default)]
struct InFlight {
    bytes: u64,
    requests: usize,
    closed: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Flow {
    now: Mutex<InFlight>,
    less: Condvar,
}

impl Flow {
    /// Waits until there is room. False once the connection is closed.
    pub(crate) fn enter(&self, bytes: u64) -> bool {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        while !now.closed && now.requests > 0 && (now.bytes + bytes > BYTES_MAX || now.requests >= REQUESTS_MAX) {
            now = self.less.wait(now).unwrap_or_else(PoisonError::into_inner);
        }
        now.bytes += bytes;
        now.requests += 1;
        !now.closed
    }

    /// The reply was sent.
    pub(crate) fn leave(&self, bytes: u64) {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        now.bytes = now.bytes.saturating_sub(bytes);
        now.requests = now.requests.saturating_sub(1);
        drop(now);
        self.less.notify_one();
    }

    /// Nobody waits any more.
    pub(crate) fn close(&self) {
        self.now.lock().unwrap_or_else(PoisonError::into_inner).closed = true;
        self.less.notify_all();
    }
}
