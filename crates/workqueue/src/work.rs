//! The reusable work item.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use crate::error::{CancelError, FlushError};
use crate::node::{Body, Node, WorkBody};
use crate::state::{Grab, WorkState};
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
        let body = WorkBody { f: Box::new(f), state: WorkState::new(), panics: AtomicU64::new(0) };
        Work { node: Node::new(Body::Work(Box::new(body))) }
    }

    /// Of a node that has the body of a reusable item.
    pub(crate) fn from_node(node: Arc<Node>) -> Work {
        Work { node }
    }

    pub(crate) fn body(&self) -> &WorkBody {
        match &self.node.body {
            Body::Work(body) => body,
            Body::Once(_) => unreachable!("only nodes with this body are made into a Work"),
        }
    }

    pub(crate) fn into_node(self) -> Arc<Node> {
        self.node
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
        Ok(blocking(|| self.body().state.flush()))
    }

    /// Takes the item off its queue. True if it was pending: that run will not be. A run under way goes on.
    pub fn cancel(&self) -> bool {
        loop {
            let node = match self.body().state.grab() {
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
            self.body().state.release();
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
        self.body().state.disable();
        let pending = self.cancel();
        if self.body().state.is_running() {
            blocking(|| self.body().state.wait_not_running());
        }
        self.body().state.enable();
        Ok(pending)
    }

    /// Is it queued, and has not started?
    pub fn is_pending(&self) -> bool {
        self.body().state.is_pending()
    }

    /// Is it pending or running? Only a hint unless nobody else queues it.
    pub fn is_busy(&self) -> bool {
        self.body().state.is_pending() || self.body().state.is_running()
    }

    /// How many of its runs have panicked.
    pub fn panics(&self) -> u64 {
        self.body().panics.load(Ordering::Relaxed)
    }
}

impl std::fmt::Debug for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Work")
            .field("pending", &self.is_pending())
            .field("running", &self.body().state.is_running())
            .field("panics", &self.panics())
            .finish_non_exhaustive()
    }
}
