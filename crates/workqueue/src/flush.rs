//! What a flush counts: items queued and items done, by CPU and by colour.
//!
//! Items are queued in the current colour. A flush changes the colour (there are two) and waits until the old one is idle;
//! what is queued meanwhile has the other colour, so it does not prolong the wait. Flushes go one at a time, which is why
//! two colours are enough. (The kernel has 16 and lets flushes overlap.)
//!
//! Both counts only grow, so no consistent snapshot is needed: the done items are summed before the queued ones, and
//! equal sums mean that nothing was in flight when the first sum was taken.

use crate::padded::Padded;
use crate::sync::modelled::{
    AtomicBool, AtomicU64, AtomicUsize, Condvar, Mutex, Ordering, between_seq_cst, fence, lock, wait,
};

#[derive(Debug)]
struct Counts {
    queued: [AtomicU64; 2],
    done: [AtomicU64; 2],
}

impl Counts {
    fn new() -> Counts {
        let zeros = || [AtomicU64::new(0), AtomicU64::new(0)];
        Counts { queued: zeros(), done: zeros() }
    }
}

#[derive(Debug)]
pub(crate) struct FlushCounts {
    cpus: Vec<Padded<Counts>>,
    color: AtomicUsize,
    /// Nothing is queued any more.
    closed: AtomicBool,
    /// Threads that wait for a colour to be idle.
    waiters: AtomicUsize,
    lock: Mutex<()>,
    idle: Condvar,
}

impl FlushCounts {
    pub(crate) fn new(cpus: usize) -> FlushCounts {
        FlushCounts {
            cpus: (0..cpus).map(|_| Padded(Counts::new())).collect(),
            color: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            waiters: AtomicUsize::new(0),
            lock: Mutex::new(()),
            idle: Condvar::new(),
        }
    }

    /// Counts an item that is about to be queued. Returns its colour, and how many this CPU had queued in it before.
    pub(crate) fn count_queued(&self, cpu: usize) -> (usize, u64) {
        loop {
            let color = self.color.load(Ordering::SeqCst);
            let before = self.cpus[cpu].0.queued[color].fetch_add(1, Ordering::SeqCst);
            between_seq_cst();
            // A flush that changed the colour before this count was visible might have missed it, and the next flush
            // would wait for the other colour.
            if self.color.load(Ordering::SeqCst) == color {
                return (color, before);
            }
            self.uncount(cpu, color);
        }
    }

    /// Undoes [`FlushCounts::count_queued`] when the item is not queued after all. On the same counter, so no sum is
    /// ever too small.
    pub(crate) fn uncount(&self, cpu: usize, color: usize) {
        self.cpus[cpu].0.queued[color].fetch_sub(1, Ordering::SeqCst);
        self.wake(color);
    }

    /// Counts an item as done, on any CPU.
    pub(crate) fn count_done(&self, cpu: usize, color: usize) {
        self.cpus[cpu].0.done[color].fetch_add(1, Ordering::SeqCst);
        self.wake(color);
    }

    fn wake(&self, color: usize) {
        between_seq_cst();
        if self.waiters.load(Ordering::SeqCst) != 0 && self.is_idle(color) {
            drop(lock(&self.lock));
            self.idle.notify_all();
        }
    }

    /// Is nothing of this colour in flight?
    pub(crate) fn is_idle(&self, color: usize) -> bool {
        let done: u64 = self.cpus.iter().map(|c| c.0.done[color].load(Ordering::SeqCst)).sum();
        let queued: u64 = self.cpus.iter().map(|c| c.0.queued[color].load(Ordering::SeqCst)).sum();
        done == queued
    }

    /// Changes the colour. Returns the old one.
    pub(crate) fn turn(&self) -> usize {
        let old = self.color.fetch_xor(1, Ordering::SeqCst);
        between_seq_cst();
        old
    }

    /// Waits until these colours are idle. `sleep` is called around the wait proper.
    pub(crate) fn wait_idle(&self, colors: &[usize], sleep: impl FnOnce(&dyn Fn())) {
        let idle = || colors.iter().all(|&color| self.is_idle(color));
        self.waiters.fetch_add(1, Ordering::SeqCst);
        between_seq_cst();
        if !idle() {
            sleep(&|| {
                let mut guard = lock(&self.lock);
                while !idle() {
                    guard = wait(&self.idle, guard);
                }
            });
        }
        self.waiters.fetch_sub(1, Ordering::SeqCst);
    }

    /// Nothing is queued from here on. True if nothing is in flight either. Otherwise the thread that counts the last
    /// item done notices with [`FlushCounts::is_over`]: each side stores, then looks, and one of them sees the other.
    pub(crate) fn close(&self) -> bool {
        self.closed.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        self.is_over()
    }

    /// Is it closed, and nothing in flight? Called by the thread that has just counted an item done.
    pub(crate) fn is_over(&self) -> bool {
        between_seq_cst();
        self.closed.load(Ordering::SeqCst) && self.is_idle(0) && self.is_idle(1)
    }

    /// Items queued on a CPU.
    pub(crate) fn queued_on(&self, cpu: usize) -> u64 {
        self.cpus[cpu].0.queued.iter().map(|n| n.load(Ordering::Acquire)).sum()
    }

    /// Items counted done on a CPU.
    pub(crate) fn done_on(&self, cpu: usize) -> u64 {
        self.cpus[cpu].0.done.iter().map(|n| n.load(Ordering::Acquire)).sum()
    }

    /// Items queued.
    pub(crate) fn queued(&self) -> u64 {
        (0..self.cpus.len()).map(|cpu| self.queued_on(cpu)).sum()
    }

    /// Items done.
    pub(crate) fn done(&self) -> u64 {
        (0..self.cpus.len()).map(|cpu| self.done_on(cpu)).sum()
    }
}
