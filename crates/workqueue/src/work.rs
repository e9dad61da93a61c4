//! The reusable work item.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;

use crate::error::{CancelError, FlushError};
use crate::node::{Func, Node};
use crate::state::Grab;
use crate::worker::{blocking, inside_item, inside_queue};

/// A work item that can be queued again and again, and never runs on two workers at once.
///
/// A handle: clones are the same item. Queueing it allocates nothing. The function gets the item, and so may queue
/// itself; it may also drop the last handle of itself.
///
/// ```
/// use std::sync::atomic::{AtomicU32, Ordering};
/// use std::sync::Arc;
/// use postread_workqueue::{Work, Workqueue, WqFlags};
///
/// let wq = Workqueue::alloc("doc_work", WqFlags::UNBOUND, 0)?;
/// let runs = Arc::new(AtomicU32::new(0));
/// let work = Work::new({
///     let (wq, runs) = (wq.clone(), Arc::clone(&runs));
///     move |work| {
///         if runs.fetch_add(1, Ordering::Relaxed) < 9 {
///             wq.queue(work);
///         }
///     }
/// });
/// assert!(wq.queue(&work));
/// while runs.load(Ordering::Relaxed) < 10 {
///     work.flush()?;
/// }
/// assert!(!work.cancel_sync()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Work {
    node: Arc<Node>,
}

impl Work {
    /// An item that runs `f`.
    pub fn new(f: impl Fn(&Work) + Send + Sync + 'static) -> Work {
        Work { node: Node::new(Func::Reusable(Box::new(f))) }
    }

    pub(crate) fn from_node(node: Arc<Node>) -> Work {
        Work { node }
    }

    pub(crate) fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// Waits for the last queueing instance: what was queued before this call has run (or was cancelled) when it
    /// returns, and what it wrote is visible. Returns false if the item was idle.
    ///
    /// # Errors
    /// [`FlushError::OwnItem`] from inside the item; [`FlushError::SameQueue`] from inside another item of the queue
    /// that this one was last queued to: with a small `max_active` it might wait for its own caller.
    pub fn flush(&self) -> Result<bool, FlushError> {
        if inside_item(&self.node) {
            return Err(FlushError::OwnItem);
        }
        if self.node.wq().is_some_and(|wq| inside_queue(&wq)) {
            return Err(FlushError::SameQueue);
        }
        if !self.is_busy() {
            return Ok(false);
        }
        Ok(blocking(|| self.node.state.flush()))
    }

    /// Takes the item off its queue. True if it was pending: that run will not be. A run under way goes on.
    pub fn cancel(&self) -> bool {
        loop {
            let node = match self.node.state.grab() {
                Grab::Idle => return false,
                Grab::Owned => Some(Arc::clone(&self.node)),
                Grab::Listed => self.node.wq().and_then(|wq| wq.take_out(&self.node)),
            };
            let Some(node) = node else {
                // It is on its way to a list or to a worker: a few instructions, unless that thread was preempted.
                thread::yield_now();
                continue;
            };
            // The pending instance is this caller's now, so the queueing data hold still.
            let (wq, queued) = (node.wq(), node.queued());
            node.state.release();
            if let Some(wq) = wq {
                wq.complete_cancelled(&queued);
            }
            return true;
        }
    }

    /// Takes the item off its queue and waits for a run under way: when this returns, it is neither pending nor
    /// running, even if it queues itself. Queueing it fails meanwhile, and works again after. True if it was pending.
    ///
    /// # Errors
    /// [`CancelError`] from inside the item.
    pub fn cancel_sync(&self) -> Result<bool, CancelError> {
        if inside_item(&self.node) {
            return Err(CancelError);
        }
        self.node.state.disable();
        let pending = self.cancel();
        if self.node.state.is_running() {
            blocking(|| self.node.state.wait_not_running());
        }
        self.node.state.enable();
        Ok(pending)
    }

    /// Is it queued, and has not started?
    pub fn is_pending(&self) -> bool {
        self.node.state.is_pending()
    }

    /// Is it pending or running? Only a hint unless nobody else queues it.
    pub fn is_busy(&self) -> bool {
        self.node.state.is_pending() || self.node.state.is_running()
    }

    /// How many of its runs have panicked.
    pub fn panics(&self) -> u64 {
        self.node.panics.load(Ordering::Relaxed)
    }
}

impl std::fmt::Debug for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Work")
            .field("pending", &self.is_pending())
            .field("running", &self.node.state.is_running())
            .field("panics", &self.panics())
            .finish_non_exhaustive()
    }
}
