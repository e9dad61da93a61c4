//! Which of a pool's workers are awake: the idle/wake protocol, whose bugs ordinary tests find only by luck.
//!
//! One word counts the workers that are *running* (awake and not inside `blocking`), *waking* (woken but not yet looking
//! at the lists; these count as running too) and *idle*. The idle ones are on a stack, last in, first out, so that the
//! warmest cache is used first. Each sleeps on its own wake word.
//!
//! The rule that ensures no item is forgotten has two halves:
//!
//! - The thread that makes an item visible looks at the word *after* that, and wakes a worker when fewer than the limit
//!   run and none is waking.
//! - A worker counts itself out *before* it looks at the lists for the last time.
//!
//! Each half is sequentially consistent (a fence between its store and its load, or both of that kind), so at least
//! one of the two sees the other. A waker may leave the rest to a worker that is waking: that worker looks at the lists
//! after it has counted itself out of the waking ones, and then wakes the next one if there is more. A worker that enters
//! `blocking` is like one that goes idle: it counts itself out, then looks.

use std::sync::Arc;

use crate::sync::modelled::{AtomicU32, AtomicU64, Mutex, Ordering, Thread, between_seq_cst, fence, lock, thread};

const RUNNING: u64 = 1;
const WAKING: u64 = 1 << 16;
const IDLE: u64 = 1 << 32;

fn running(word: u64) -> u64 {
    word & 0xffff
}

fn waking(word: u64) -> u64 {
    word >> 16 & 0xffff
}

const AWAKE: u32 = 0;
const WAKE: u32 = 1;
const EXIT: u32 = 2;

/// The protocol's view of a worker.
#[derive(Debug)]
pub(crate) struct Sleeper {
    signal: AtomicU32,
    /// Was idle at the manager's last round.
    marked: AtomicU32,
    thread: Thread,
}

impl Sleeper {
    /// The calling thread.
    pub(crate) fn current() -> Arc<Sleeper> {
        Arc::new(Sleeper { signal: AtomicU32::new(AWAKE), marked: AtomicU32::new(0), thread: thread::current() })
    }

    fn send(&self, what: u32) {
        self.signal.store(what, Ordering::Release);
        self.thread.unpark();
    }
}

/// The outcome of a wake-up.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Wake {
    /// None was needed: enough workers run, or one is on its way.
    Enough,
    /// A worker was woken.
    Woken,
    /// One is needed and none is idle: a new thread is needed.
    NoneIdle,
}

/// How a worker's sleep ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Slept {
    /// It did not sleep: there is work. It is counted as running.
    Stayed,
    /// It was woken: counted as running and waking; it calls [`Idle::woke`] before it looks for work.
    Woken,
    /// It exits; it is counted nowhere.
    Exit,
}

#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Idle {
    word: AtomicU64,
    limit: u64,
    sleepers: Mutex<Vec<Arc<Sleeper>>>,
}

impl Idle {
    /// `limit`: how many may run at once.
    pub(crate) fn new(limit: usize) -> Idle {
        let limit = u64::try_from(limit.clamp(1, 0x7fff)).unwrap_or(1);
        Idle { word: AtomicU64::new(0), limit, sleepers: Mutex::new(Vec::new()) }
    }

    fn wanted(&self, word: u64) -> bool {
        waking(word) == 0 && running(word) < self.limit
    }

    /// Called after making an item visible, by a sequentially consistent read-modify-write or with a fence after it.
    pub(crate) fn notify(&self) -> Wake {
        between_seq_cst();
        if self.wanted(self.word.load(Ordering::SeqCst)) { self.wake() } else { Wake::Enough }
    }

    /// Would [`Idle::notify`] do anything? A hint, without the fence.
    pub(crate) fn may_want(&self) -> bool {
        self.wanted(self.word.load(Ordering::Relaxed))
    }

    /// Would [`Idle::notify`] wake a sleeper? A hint, without the fence.
    pub(crate) fn has_ready(&self) -> bool {
        let word = self.word.load(Ordering::Relaxed);
        word >= IDLE && self.wanted(word)
    }

    #[cold]
    fn wake(&self) -> Wake {
        let mut sleepers = lock(&self.sleepers);
        let Some(_) = sleepers.last() else {
            return if self.wanted(self.word.load(Ordering::Acquire)) { Wake::NoneIdle } else { Wake::Enough };
        };
        if !self.add_if_wanted((RUNNING + WAKING).wrapping_sub(IDLE)) {
            return Wake::Enough;
        }
        let sleeper = sleepers.pop();
        drop(sleepers);
        if let Some(sleeper) = sleeper {
            sleeper.send(WAKE);
        }
        Wake::Woken
    }

    fn add_if_wanted(&self, change: u64) -> bool {
        let mut word = self.word.load(Ordering::Acquire);
        while self.wanted(word) {
            match self.word.compare_exchange_weak(word, word.wrapping_add(change), Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
        false
    }

    /// Counts a thread that is about to be made as woken. False if none is needed any more.
    pub(crate) fn reserve_thread(&self) -> bool {
        let sleepers = lock(&self.sleepers);
        sleepers.is_empty() && self.add_if_wanted(RUNNING + WAKING)
    }

    /// Counts the first thread of a pool as woken.
    pub(crate) fn reserve_first(&self) {
        self.word.fetch_add(RUNNING + WAKING, Ordering::AcqRel);
    }

    /// The thread could not be made.
    pub(crate) fn unreserve_thread(&self) {
        self.word.fetch_sub(RUNNING + WAKING, Ordering::AcqRel);
    }

    /// Called by a woken worker, before it looks at the lists.
    pub(crate) fn woke(&self) {
        self.word.fetch_sub(WAKING, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Called by a worker that found nothing, or is one too many. `has_work` looks at the lists.
    pub(crate) fn sleep(&self, me: &Arc<Sleeper>, has_work: impl Fn() -> bool) -> Slept {
        {
            let mut sleepers = lock(&self.sleepers);
            me.signal.store(AWAKE, Ordering::Relaxed);
            me.marked.store(0, Ordering::Relaxed);
            sleepers.push(Arc::clone(me));
            self.word.fetch_add(IDLE - RUNNING, Ordering::SeqCst);
        }
        fence(Ordering::SeqCst);
        if has_work() && self.withdraw(me) {
            return Slept::Stayed;
        }
        loop {
            match me.signal.load(Ordering::Acquire) {
                WAKE => return Slept::Woken,
                EXIT => return Slept::Exit,
                _ => thread::park(),
            }
        }
    }

    /// Takes the worker off the idle stack again, unless another thread has just done so, or enough others run: those
    /// look at the lists after their items.
    fn withdraw(&self, me: &Arc<Sleeper>) -> bool {
        let mut sleepers = lock(&self.sleepers);
        let Some(place) = sleepers.iter().rposition(|s| Arc::ptr_eq(s, me)) else { return false };
        let mut word = self.word.load(Ordering::Acquire);
        while running(word) < self.limit {
            match self.word.compare_exchange_weak(word, word + RUNNING - IDLE, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    sleepers.remove(place);
                    return true;
                }
                Err(now) => word = now,
            }
        }
        false
    }

    /// Called by a worker whose item is about to wait. The caller then looks at the lists, and calls [`Idle::notify`]
    /// if there is work.
    pub(crate) fn block(&self) {
        self.word.fetch_sub(RUNNING, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Called by a worker whose item has waited. One more than the limit may run until an item ends.
    pub(crate) fn unblock(&self) {
        self.word.fetch_add(RUNNING, Ordering::AcqRel);
    }

    /// Do more than the limit run? Then a worker that has finished an item goes idle.
    pub(crate) fn too_many(&self) -> bool {
        running(self.word.load(Ordering::Relaxed)) > self.limit
    }

    /// Do as many run as may? A hint.
    pub(crate) fn is_full(&self) -> bool {
        running(self.word.load(Ordering::Relaxed)) >= self.limit
    }

    /// How many run, and how many are idle.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let word = self.word.load(Ordering::Relaxed);
        (running(word) as usize, (word >> 32) as usize)
    }

    /// The manager's round: workers that have been idle since the last round exit, the oldest first, down to `keep` idle
    /// ones. Returns how many.
    pub(crate) fn cull(&self, keep: usize) -> usize {
        let mut sleepers = lock(&self.sleepers);
        let spare = sleepers.len().saturating_sub(keep);
        let old = sleepers.iter().take(spare).take_while(|s| s.marked.load(Ordering::Relaxed) != 0).count();
        for sleeper in sleepers.drain(..old) {
            self.word.fetch_sub(IDLE, Ordering::AcqRel);
            sleeper.send(EXIT);
        }
        sleepers.iter().for_each(|s| s.marked.store(1, Ordering::Relaxed));
        old
    }

    /// Called by a running worker that exits because all workers do: those that went idle since `dismiss` exit too. (A
    /// worker that is just going idle is dismissed here, or finds this one no longer running and does not sleep.)
    pub(crate) fn leave(&self) {
        self.word.fetch_sub(RUNNING, Ordering::AcqRel);
        self.dismiss();
    }

    /// Makes every idle worker exit.
    pub(crate) fn dismiss(&self) {
        for sleeper in lock(&self.sleepers).drain(..) {
            self.word.fetch_sub(IDLE, Ordering::AcqRel);
            sleeper.send(EXIT);
        }
    }
}
