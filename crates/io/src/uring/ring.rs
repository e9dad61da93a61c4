//! One ring and its bios in flight: the part of `io_uring` that needs `unsafe`.
//!
//! The kernel writes into a bio's buffer between submission and completion. So the bio, and the file that it reads, are
//! owned by the ring's table of slots from before the submission until after the completion, and a ring that is dropped
//! with reads in flight leaks the table rather than free it.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use io_uring::{IoUring, opcode, types};

use crate::bio::Bio;
use crate::completion::Completion;

/// Makes the reaper check whether it is to stop.
const WAKE: u64 = u64::MAX;

/// A bio on a ring.
pub(super) struct Op {
    pub(super) file: Arc<File>,
    pub(super) bio: Bio,
    pub(super) done: Completion,
    /// Bytes read so far.
    pub(super) filled: usize,
}

#[derive(Default)]
struct Slots {
    ops: Vec<Option<Op>>,
    free: Vec<usize>,
    in_flight: usize,
}

/// A ring with its table of bios in flight.
pub(super) struct Ring {
    uring: IoUring,
    /// Held around every use of the submission queue.
    slots: Mutex<Slots>,
    /// A thread is reading the completion queue.
    reaping: AtomicBool,
}

impl Ring {
    pub(super) fn new(entries: u32) -> io::Result<Self> {
        Ok(Self { uring: IoUring::new(entries)?, slots: Mutex::default(), reaping: AtomicBool::new(false) })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Submits the read of the rest of `op`.
    ///
    /// # Errors
    /// The op again, where the kernel takes no more.
    pub(super) fn submit(&self, op: Op) -> Result<(), (Box<Op>, io::Error)> {
        let mut slots = self.lock();
        let at = slots.free.pop().unwrap_or(slots.ops.len());
        if at == slots.ops.len() {
            slots.ops.push(None);
        }
        let op = slots.ops[at].insert(op);
        let fd = types::Fd(op.file.as_raw_fd());
        let offset = op.bio.offset().saturating_add(op.filled as u64);
        let filled = op.filled;
        let room = &mut op.bio.buf_mut()[filled..];
        // The kernel gets at most this slice: a length that does not fit its field is cut.
        let len = u32::try_from(room.len()).unwrap_or(1 << 30);
        let entry = opcode::Read::new(fd, room.as_mut_ptr(), len).offset(offset).build().user_data(at as u64);
        // SAFETY: the buffer's memory is on the heap and does not move with its owner; the owner and the file stay in
        // `slots` until the completion of this entry has been seen, and nobody touches the buffer there meanwhile.
        // `len` does not exceed the room that is left.
        let pushed = unsafe { self.push(&entry) };
        if let Err(error) = pushed {
            slots.free.push(at);
            let op = slots.ops[at].take();
            return match op {
                Some(op) => Err((Box::new(op), error)),
                None => Ok(()),
            };
        }
        slots.in_flight += 1;
        drop(slots);
        // An entry that the kernel did not take now goes with the next submission or the reaper's wait.
        let _ = self.uring.submit();
        Ok(())
    }

    /// Pushes an entry; the lock is held.
    ///
    /// # Safety
    /// What the entry points to must stay valid until its completion.
    unsafe fn push(&self, entry: &io_uring::squeue::Entry) -> io::Result<()> {
        for _ in 0..2 {
            // SAFETY: every user of the submission queue holds the lock of `slots`, so this view is the only one; the
            // caller guarantees what the entry points to.
            let pushed = unsafe { self.uring.submission_shared().push(entry) };
            if pushed.is_ok() {
                return Ok(());
            }
            self.uring.submit()?;
        }
        Err(io::ErrorKind::WouldBlock.into())
    }

    /// Waits for completions and gives each: the op and the kernel's result. Called by the reaper alone.
    pub(super) fn reap(&self, ended: &mut Vec<(Op, i32)>) -> io::Result<()> {
        match self.uring.submit_and_wait(1) {
            Ok(_) => {}
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EBUSY | libc::EAGAIN)) => {}
            Err(error) => return Err(error),
        }
        let mut slots = self.lock();
        assert!(!self.reaping.swap(true, Ordering::Acquire), "a ring has one reaper");
        // SAFETY: `reaping` was false, so this view of the completion queue is the only one until it is false again.
        let completions = unsafe { self.uring.completion_shared() };
        for entry in completions {
            if entry.user_data() == WAKE {
                continue;
            }
            let at = entry.user_data() as usize;
            if let Some(op) = slots.ops.get_mut(at).and_then(Option::take) {
                slots.free.push(at);
                slots.in_flight -= 1;
                ended.push((op, entry.result()));
            }
        }
        self.reaping.store(false, Ordering::Release);
        Ok(())
    }

    /// Ends a wait of the reaper.
    pub(super) fn wake(&self) {
        let _slots = self.lock();
        let entry = opcode::Nop::new().build().user_data(WAKE);
        // SAFETY: a no-operation points to nothing.
        let _ = unsafe { self.push(&entry) };
        let _ = self.uring.submit();
    }

    pub(super) fn in_flight(&self) -> usize {
        self.lock().in_flight
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let slots = std::mem::take(&mut *self.lock());
        if slots.in_flight > 0 {
            // The kernel may still write into these buffers.
            std::mem::forget(slots);
        }
    }
}
