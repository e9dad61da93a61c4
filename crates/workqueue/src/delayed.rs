//! Delayed work: an item with a timer.

use std::sync::Arc;
use std::time::Duration;

use postread_sys::monotonic_ns;

use crate::error::{CancelError, FlushError};
use crate::node::{Node, Place};
use crate::queue::Workqueue;
use crate::work::Work;

/// An item that is queued after a delay.
///
/// It is pending from [`queue_delayed`](Workqueue::queue_delayed) on, though not on a list until the delay has passed:
/// [`flush`](Workqueue::flush) and [`drain`](Workqueue::drain) of the queue do not wait for it. An armed timer keeps
/// its queue alive, as a handle does.
///
/// ```
/// use std::time::Duration;
/// use postread_workqueue::{DelayedWork, Workqueue, WqFlags};
///
/// let wq = Workqueue::alloc("doc_delayed", WqFlags::UNBOUND, 0)?;
/// let flush_cache = DelayedWork::new(|_| println!("written"));
/// assert!(wq.queue_delayed(&flush_cache, Duration::from_secs(60)));
/// assert!(!wq.queue_delayed(&flush_cache, Duration::from_secs(60)), "pending");
/// assert!(wq.mod_delayed(&flush_cache, Duration::from_secs(5)), "later or sooner, it still was pending");
/// assert!(flush_cache.flush()?, "no longer: it has been queued at once, and has run");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct DelayedWork {
    work: Work,
}

impl DelayedWork {
    /// An item that runs `f`.
    pub fn new<F: Fn(&Work) + Send + Sync + 'static>(f: F) -> DelayedWork {
        DelayedWork { work: Work::new(f) }
    }

    /// The item itself. Queueing it skips the delay.
    pub fn work(&self) -> &Work {
        &self.work
    }

    /// Queues the item at once if its timer is armed. Then as [`Work::flush`].
    ///
    /// # Errors
    /// As [`Work::flush`].
    pub fn flush(&self) -> Result<bool, FlushError> {
        self.work.check_flush()?;
        let mut armed = false;
        if let Some(timed) = self.work.disarm() {
            armed = true;
            Timed::fire(timed);
        }
        // It may have run by now.
        Ok(self.work.flush()? || armed)
    }

    /// As [`Work::cancel`]; an armed timer counts as pending.
    pub fn cancel(&self) -> bool {
        self.work.cancel()
    }

    /// As [`Work::cancel_sync`].
    ///
    /// # Errors
    /// As [`Work::cancel_sync`].
    pub fn cancel_sync(&self) -> Result<bool, CancelError> {
        self.work.cancel_sync()
    }
}

impl From<Work> for DelayedWork {
    fn from(work: Work) -> DelayedWork {
        DelayedWork { work }
    }
}

/// A pending instance whose timer is armed.
pub(crate) struct Timed {
    node: Arc<Node>,
    wq: Workqueue,
    /// The CPU that queued it, and the one that it was queued to, as indices.
    here: usize,
    target: Option<usize>,
}

impl Timed {
    pub(crate) fn is(&self, node: &Arc<Node>) -> bool {
        Arc::ptr_eq(&self.node, node)
    }

    /// Arms a timer for a pending instance that the caller owns.
    pub(crate) fn arm(wq: &Workqueue, work: &Work, delay: Duration, target: Option<usize>) {
        let inner = wq.inner();
        let shared = inner.shared();
        let node = work.node();
        node.set_place(Place::Timer);
        let delay = u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX);
        let timed = Timed { node: Arc::clone(node), wq: wq.clone(), here: inner.here(), target };
        let first = shared.timers.arm(monotonic_ns().saturating_add(delay), timed, |key| work.set_timer(shared, key));
        if first {
            shared.manager.ask();
        }
    }

    /// Queues the item. It was promised a run when it was armed, so a drain that began later does not refuse it.
    pub(crate) fn fire(timed: Timed) {
        let Timed { node, wq, here, target } = timed;
        wq.inner().queue_promised(node, here, target);
        wq.let_go();
    }

    /// Gives up the pending instance.
    pub(crate) fn discard(self) {
        self.wq.let_go();
    }
}
