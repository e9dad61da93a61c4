//! The reusable work item.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::current::{blocking, inside_item, inside_queue};
use crate::delayed::Timed;
use crate::error::{CancelError, EnableError, FlushError};
use crate::node::{Body, Node, Place, Queued, WorkBody};
use crate::pool::Shared;
use crate::queue::WqInner;
use crate::state::{Grab, WorkState};
use crate::sync::lock;
use crate::timer::Key;

/// What was taken off its list or timer: the pending instance is the caller's.
enum Grabbed {
    /// Off a list, or deferred: it counts in its queue.
    Queued(Option<Arc<WqInner>>, Queued),
    Timed(Timed),
}

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
    pub fn new<F: Fn(&Work) + Send + Sync + 'static>(f: F) -> Work {
        let body = WorkBody {
            f: Box::new(f),
            name: std::any::type_name::<F>(),
            state: WorkState::new(),
            panics: AtomicU64::new(0),
            timer: Mutex::new(None),
        };
        Work { node: Node::new(Body::Work(Box::new(body))) }
    }

    /// Makes an item from a node that has the body of a reusable item.
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

    pub(crate) fn set_timer(&self, shared: &Arc<Shared>, key: Key) {
        *lock(&self.body().timer) = Some((Arc::clone(shared), key));
    }

    /// Takes the item off its timer, if it waits for one. The pending instance is then the caller's.
    pub(crate) fn disarm(&self) -> Option<Timed> {
        let (shared, key) = lock(&self.body().timer).clone()?;
        shared.timers.disarm(key, |timed| timed.is(&self.node))
    }

    /// Can the caller wait for the item?
    pub(crate) fn check_flush(&self) -> Result<(), FlushError> {
        if inside_item(&self.node) {
            return Err(FlushError::OwnItem);
        }
        if self.node.wq().is_some_and(|wq| inside_queue(&wq)) {
            return Err(FlushError::SameQueue);
        }
        Ok(())
    }

    /// Waits for the last queueing instance: when this returns, what was queued before the call has run or was cancelled,
    /// and what it wrote is visible. Returns false if the item was idle.
    ///
    /// # Errors
    /// [`FlushError::OwnItem`] from inside the item; [`FlushError::SameQueue`] from inside another item of the queue
    /// that this one was last queued to: with a small `max_active` it might wait for its own caller.
    pub fn flush(&self) -> Result<bool, FlushError> {
        self.check_flush()?;
        if !self.is_busy() {
            return Ok(false);
        }
        Ok(blocking(|| self.body().state.flush()))
    }

    /// Takes the pending instance for the caller. `None` if the item is not pending.
    fn grab_pending(&self) -> Option<Grabbed> {
        loop {
            match self.body().state.grab() {
                Grab::Idle => return None,
                Grab::Owned => return Some(Grabbed::Queued(self.node.wq(), self.node.queued())),
                Grab::Listed => {
                    if let Some(timed) = self.disarm() {
                        return Some(Grabbed::Timed(timed));
                    }
                    if self.node.place() != Place::Timer
                        && let Some(wq) = self.node.wq()
                        && wq.take_out(&self.node).is_some()
                    {
                        // This caller owns the pending instance now, so the queueing data does not change.
                        return Some(Grabbed::Queued(self.node.wq(), self.node.queued()));
                    }
                }
            }
            // It is on its way to a list or to a worker: a few instructions, unless that thread was preempted.
            thread::yield_now();
        }
    }

    /// Takes the item off its queue or timer. True if it was pending: that run will not happen. A run in progress
    /// continues.
    pub fn cancel(&self) -> bool {
        let grabbed = self.grab_pending();
        let pending = grabbed.is_some();
        if pending {
            self.body().state.release();
        }
        give_up(grabbed);
        pending
    }

    /// Takes the pending instance for another queueing. False if there is none.
    pub(crate) fn take_pending(&self) -> bool {
        let grabbed = self.grab_pending();
        let pending = grabbed.is_some();
        give_up(grabbed);
        pending
    }

    /// Takes the item off its queue and waits for a run in progress: when this returns, it is neither pending nor
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
        self.wait_not_running();
        self.body().state.enable();
        Ok(pending)
    }

    fn wait_not_running(&self) {
        if self.body().state.is_running() {
            blocking(|| self.body().state.wait_not_running());
        }
    }

    /// Cancels the item, and makes queueing it fail until every disable has been undone by an [`enable`](Work::enable).
    /// True if it was pending. A run in progress continues.
    pub fn disable(&self) -> bool {
        self.body().state.user_disable();
        self.cancel()
    }

    /// As [`disable`](Work::disable), and waits for a run in progress.
    ///
    /// # Errors
    /// [`CancelError`] from inside the item, which is then not disabled.
    pub fn disable_sync(&self) -> Result<bool, CancelError> {
        if inside_item(&self.node) {
            return Err(CancelError);
        }
        let pending = self.disable();
        self.wait_not_running();
        Ok(pending)
    }

    /// Undoes one disable. True if the item can be queued again.
    ///
    /// # Errors
    /// [`EnableError`] if it is not disabled.
    pub fn enable(&self) -> Result<bool, EnableError> {
        self.body().state.user_enable().ok_or(EnableError)
    }

    /// How many disables are in force.
    pub fn disable_depth(&self) -> u32 {
        self.body().state.user_disabled()
    }

    /// Is it queued, and has not started?
    pub fn is_pending(&self) -> bool {
        self.body().state.is_pending()
    }

    /// Is it pending or running? Only a hint unless nobody else queues it.
    pub fn is_busy(&self) -> bool {
        self.body().state.is_pending() || self.body().state.is_running()
    }

    /// The name of its function's type; a closure's shows where it was defined.
    pub fn function(&self) -> &'static str {
        self.body().name
    }

    /// How many of its runs have panicked.
    pub fn panics(&self) -> u64 {
        self.body().panics.load(Ordering::Relaxed)
    }
}

/// Accounts for a pending instance that will not run, after its owner is done with it.
fn give_up(grabbed: Option<Grabbed>) {
    match grabbed {
        Some(Grabbed::Queued(Some(wq), queued)) => wq.complete_cancelled(&queued),
        Some(Grabbed::Timed(timed)) => timed.discard(),
        Some(Grabbed::Queued(None, _)) | None => {}
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
