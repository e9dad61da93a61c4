//! Whether a worker counts as running in its pool, and who changed that: the worker itself, when it announces a wait,
//! or the monitor, when it finds one.
//!
//! The pool's count (`idle.rs`) and this word change one after the other, in the thread that changes the word. Between
//! the two the count may be one too high, never too low, and a thread that lowers it looks at the lists afterwards.

use crate::sync::modelled::{AtomicU32, Ordering};

/// Counts as running.
const COUNTED: u32 = 0;
/// The worker has counted itself out: it is inside `blocking`, or runs a `CPU_INTENSIVE` item.
const BLOCKED: u32 = 1;
/// The monitor has counted it out: its item sleeps outside of `blocking`, or hogs the CPU.
const MANAGED: u32 = 2;
/// Never counts: asleep, or a rescuer.
const OUT: u32 = 3;

#[derive(Debug)]
pub(crate) struct Occupancy {
    word: AtomicU32,
}

impl Occupancy {
    pub(crate) fn new(counted: bool) -> Occupancy {
        Occupancy { word: AtomicU32::new(if counted { COUNTED } else { OUT }) }
    }

    fn change(&self, from: u32, to: u32) -> bool {
        self.word.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// By the worker. True: it counts itself out of the pool, and looks at the lists.
    pub(crate) fn block(&self) -> bool {
        self.change(COUNTED, BLOCKED)
    }

    /// By the worker, after [`Occupancy::block`]. True: it counts itself in again.
    pub(crate) fn unblock(&self) -> bool {
        self.change(BLOCKED, COUNTED)
    }

    /// By the monitor. True: the monitor counts the worker out of the pool, and looks at the lists.
    pub(crate) fn manage(&self) -> bool {
        self.change(COUNTED, MANAGED)
    }

    /// By the monitor, after [`Occupancy::manage`], when the item runs again or has ended. True: it counts the worker
    /// in again.
    pub(crate) fn unmanage(&self) -> bool {
        self.change(MANAGED, COUNTED)
    }

    /// By the worker at the end of an item. True: it counts itself in again.
    pub(crate) fn item_ended(&self) -> bool {
        // At worst one item late: then the next one is managed too, and the worker looks here after it.
        self.word.load(Ordering::Relaxed) == MANAGED && self.change(MANAGED, COUNTED)
    }

    /// By the worker before it sleeps or exits: from here on the monitor leaves it alone. True: it counts itself in
    /// first, since the monitor has counted it out.
    pub(crate) fn rest(&self) -> bool {
        self.word.swap(OUT, Ordering::AcqRel) == MANAGED
    }

    /// By the worker after its sleep.
    pub(crate) fn wake(&self) {
        self.word.store(COUNTED, Ordering::Release);
    }
}
