//! The state word of a work item: pending, running, waited for. The item's whole protocol is in this one word.
//!
//! ```text
//! bit 0        PENDING   queued and not yet started: whoever set it owns the item until it is cleared
//! bit 1        RUNNING   a worker is inside the function
//! bit 2        DEFERRED  taken off its list while still running elsewhere: the running worker runs it again
//! bit 3        WAITERS   somebody sleeps until the word changes
//! bits 4..12   disable depth: queueing fails while it is not 0
//! bits 12..38  number of the last queueing
//! bits 38..64  number of the queueing that is running, or ran last
//! ```
//!
//! A flush uses the two numbers: "the last queueing instance" is the one that had the last number when the flush began.
//! They wrap: a waiter would have to miss 2^25 changes in a row to go wrong, and even then it wakes at the next one.

use crate::sync::modelled::{AtomicU64, Condvar, Mutex, Ordering, lock, thread, wait};

const PENDING: u64 = 1;
const RUNNING: u64 = 1 << 1;
const DEFERRED: u64 = 1 << 2;
const WAITERS: u64 = 1 << 3;
const DISABLE_ONE: u64 = 1 << 4;
const DISABLE_MASK: u64 = 0xff << 4;
const SEQ_MASK: u64 = (1 << 26) - 1;
const QUEUED_SHIFT: u32 = 12;
const RAN_SHIFT: u32 = 38;

fn queued_seq(word: u64) -> u64 {
    word >> QUEUED_SHIFT & SEQ_MASK
}

fn ran_seq(word: u64) -> u64 {
    word >> RAN_SHIFT & SEQ_MASK
}

/// The word with the last queueing as the one that runs, and no longer pending.
fn begin(word: u64) -> u64 {
    let word = word & !(PENDING | SEQ_MASK << RAN_SHIFT);
    word | RUNNING | queued_seq(word) << RAN_SHIFT
}

/// Is queueing `a` the same as `b` or before it?
fn not_after(a: u64, b: u64) -> bool {
    (b.wrapping_sub(a) & SEQ_MASK) <= SEQ_MASK / 2
}

/// What a worker does with an item that it took off a list.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// Run it: no longer pending, and this worker's alone.
    Run,
    /// Nothing: it still runs on another worker, which will run it again.
    Deferred,
}

/// What the worker that ran an item does next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Finish {
    /// Nothing.
    Idle,
    /// Run it again, after [`WorkState::restart`]: it was queued and taken off its list meanwhile.
    Again,
}

/// How a canceller gets the pending instance of an item.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Grab {
    /// Not pending.
    Idle,
    /// The caller now owns the pending instance (it was deferred), and must [`WorkState::release`] it.
    Owned,
    /// Pending: on a list, or on its way to one or from one.
    Listed,
}

#[derive(Debug)]
pub(crate) struct WorkState {
    word: AtomicU64,
    lock: Mutex<()>,
    changed: Condvar,
    /// How often the item's user has disabled it. The first one adds to the depth in the word and the last enable takes
    /// that back, so that one enable too many cannot let a queueing through while a cancel waits.
    disabled: Mutex<u32>,
}

impl WorkState {
    pub(crate) fn new() -> WorkState {
        WorkState { word: AtomicU64::new(0), lock: Mutex::new(()), changed: Condvar::new(), disabled: Mutex::new(0) }
    }

    /// Changes the word, always with a read-modify-write: even a caller that changes nothing releases its earlier
    /// writes to the next one. Returns the word before.
    fn update(&self, mut change: impl FnMut(u64) -> u64) -> u64 {
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            match self.word.compare_exchange_weak(word, change(word), Ordering::AcqRel, Ordering::Relaxed) {
                Ok(before) => return before,
                Err(now) => word = now,
            }
        }
    }

    fn wake(&self, before: u64) {
        if before & WAITERS != 0 {
            // Taking the lock orders this after the waiter's check, which it makes under the lock.
            drop(lock(&self.lock));
            self.changed.notify_all();
        }
    }

    fn wait_while(&self, unwanted: impl Fn(u64) -> bool) {
        let mut guard = lock(&self.lock);
        loop {
            let word = self.word.load(Ordering::Acquire);
            if !unwanted(word) {
                return;
            }
            if self.word.compare_exchange(word, word | WAITERS, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                guard = wait(&self.changed, guard);
            }
        }
    }

    /// Makes it pending. False if it is already, or disabled. Either way, the function's next start sees what the
    /// caller wrote before.
    pub(crate) fn try_claim(&self) -> bool {
        let taken = |word: u64| word & (PENDING | DISABLE_MASK) != 0;
        let before = self.update(|word| {
            if taken(word) {
                word
            } else {
                let seq = queued_seq(word).wrapping_add(1) & SEQ_MASK;
                word & !(SEQ_MASK << QUEUED_SHIFT) | PENDING | seq << QUEUED_SHIFT
            }
        });
        !taken(before)
    }

    /// By the owner of a pending instance: gives it up without a run.
    pub(crate) fn release(&self) {
        let before = self.update(|word| word & !(PENDING | WAITERS));
        self.wake(before);
    }

    /// By the worker that took it off its list.
    pub(crate) fn start(&self) -> Start {
        let before = self.update(|word| if word & RUNNING != 0 { word | DEFERRED } else { begin(word) });
        if before & RUNNING != 0 { Start::Deferred } else { Start::Run }
    }

    /// By the worker that ran it.
    pub(crate) fn finish(&self) -> Finish {
        let before = self.update(|word| {
            // Deferred: this worker becomes the owner of the pending instance. It stays PENDING until `restart`, so
            // that nobody writes the item's queueing data while they are read.
            if word & DEFERRED != 0 { word & !(DEFERRED | WAITERS) } else { word & !(RUNNING | WAITERS) }
        });
        self.wake(before);
        if before & DEFERRED != 0 { Finish::Again } else { Finish::Idle }
    }

    /// After [`Finish::Again`], once the queueing data have been read.
    pub(crate) fn restart(&self) {
        let before = self.update(|word| begin(word) & !WAITERS);
        self.wake(before);
    }

    /// After [`Finish::Again`], when another pool is to run the item: it is pending and no longer running. The caller
    /// still owns the pending instance, and puts it on a list.
    pub(crate) fn hand_over(&self) {
        let before = self.update(|word| word & !(RUNNING | WAITERS));
        self.wake(before);
    }

    /// The first step of a cancel.
    pub(crate) fn grab(&self) -> Grab {
        let before = self.update(|word| word & !DEFERRED);
        match (before & PENDING != 0, before & DEFERRED != 0) {
            (false, _) => Grab::Idle,
            (true, true) => Grab::Owned,
            (true, false) => Grab::Listed,
        }
    }

    /// Waits for the last queueing instance. False if it was idle.
    pub(crate) fn flush(&self) -> bool {
        let word = self.word.load(Ordering::Acquire);
        if word & (PENDING | RUNNING) == 0 {
            return false;
        }
        let last = queued_seq(word);
        self.wait_while(|word| {
            let pending = word & PENDING != 0 && queued_seq(word) == last;
            let running = word & RUNNING != 0 && not_after(ran_seq(word), last);
            pending || running
        });
        true
    }

    /// Waits until no worker is inside the function.
    pub(crate) fn wait_not_running(&self) {
        self.wait_while(|word| word & RUNNING != 0);
    }

    /// Queueing fails from here to [`WorkState::enable`]; nests.
    pub(crate) fn disable(&self) {
        loop {
            let before =
                self.update(|word| if word & DISABLE_MASK == DISABLE_MASK { word } else { word + DISABLE_ONE });
            if before & DISABLE_MASK != DISABLE_MASK {
                return;
            }
            thread::yield_now();
        }
    }

    pub(crate) fn enable(&self) {
        self.update(|word| word - DISABLE_ONE);
    }

    /// By the user; counted.
    pub(crate) fn user_disable(&self) {
        let mut depth = lock(&self.disabled);
        if *depth == 0 {
            self.disable();
        }
        *depth += 1;
    }

    /// By the user. `None` if the item is not disabled; otherwise whether it is enabled now.
    pub(crate) fn user_enable(&self) -> Option<bool> {
        let mut depth = lock(&self.disabled);
        *depth = depth.checked_sub(1)?;
        if *depth == 0 {
            self.enable();
        }
        Some(*depth == 0)
    }

    /// How often the user has disabled it.
    pub(crate) fn user_disabled(&self) -> u32 {
        *lock(&self.disabled)
    }

    /// Does queueing fail now, because of a disable or a cancel in progress?
    pub(crate) fn is_disabled(&self) -> bool {
        self.word.load(Ordering::Acquire) & DISABLE_MASK != 0
    }

    pub(crate) fn is_pending(&self) -> bool {
        self.word.load(Ordering::Acquire) & PENDING != 0
    }

    pub(crate) fn is_running(&self) -> bool {
        self.word.load(Ordering::Acquire) & RUNNING != 0
    }
}
