//! How many bios of a file are in flight, for `close` to wait on.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

use postread_workqueue::blocking;

#[derive(Debug, Default)]
pub(crate) struct OpenCount {
    in_flight: AtomicUsize,
    /// How many threads wait: waking costs a system call, and waiters are rare.
    waiting: AtomicUsize,
    lock: Mutex<()>,
    none_left: Condvar,
}

impl OpenCount {
    pub(crate) fn enter(&self) {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn leave(&self) {
        // Either this sees the waiter, or the waiter sees this.
        if self.in_flight.fetch_sub(1, Ordering::SeqCst) == 1 && self.waiting.load(Ordering::SeqCst) > 0 {
            // The lock orders this before or after the waiter's look at the count, never in between.
            drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
            self.none_left.notify_all();
        }
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::SeqCst)
    }

    pub(crate) fn wait_until_none(&self) {
        if self.in_flight() > 0 {
            blocking(|| self.sleep_until_none());
        }
    }

    fn sleep_until_none(&self) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        while self.in_flight() > 0 {
            guard = self.none_left.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}
