//! What a thread currently runs: how code finds out that it is inside an item, and how it announces that it waits.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::node::Node;
use crate::pool::{Pool, WorkerInfo};
use crate::queue::WqInner;
use crate::sync::lock;
use crate::work::Work;

struct Current {
    worker: RefCell<Option<(Arc<Pool>, Arc<WorkerInfo>)>>,
    /// A thread of the crate that is not a worker, but must not wait for one either.
    service: Cell<bool>,
    /// Addresses of the item that runs and of its queue; 0 between items.
    node: Cell<usize>,
    wq: Cell<usize>,
    /// The item, if it is a reusable one.
    work: RefCell<Option<Work>>,
    /// Depth of `blocking`.
    blocked: Cell<u32>,
}

thread_local! {
    static CURRENT: Current = const {
        Current {
            worker: RefCell::new(None),
            service: Cell::new(false),
            node: Cell::new(0),
            wq: Cell::new(0),
            work: RefCell::new(None),
            blocked: Cell::new(0),
        }
    };
}

/// Looks at the thread's state. A thread in teardown no longer has one and is no longer a worker, but the destructor of
/// another thread-local may still drop or flush a queue.
fn with_current<R>(look: impl FnOnce(&Current) -> R) -> Option<R> {
    CURRENT.try_with(look).ok()
}

/// Does the caller run inside an item of this queue?
pub(crate) fn inside_queue(wq: &Arc<WqInner>) -> bool {
    with_current(|current| current.wq.get() == Arc::as_ptr(wq) as usize).unwrap_or(false)
}

/// Does the caller run inside this item?
pub(crate) fn inside_item(node: &Arc<Node>) -> bool {
    with_current(|current| current.node.get() == Arc::as_ptr(node) as usize).unwrap_or(false)
}

/// Does the caller run inside any item?
pub(crate) fn inside_any_item() -> bool {
    with_current(|current| current.node.get() != 0).unwrap_or(false)
}

/// Is the caller a thread that runs items, of any set of pools, or serves one?
pub(crate) fn on_worker() -> bool {
    with_current(|current| current.service.get() || current.worker.borrow().is_some()).unwrap_or(false)
}

/// The queue of the item that this worker runs.
pub(crate) fn current_queue() -> Option<Arc<WqInner>> {
    with_current(|current| {
        let worker = current.worker.borrow();
        let (_, info) = worker.as_ref().filter(|_| current.node.get() != 0)?;
        lock(&info.doing).wq.clone()
    })
    .flatten()
}

/// Makes the calling thread a worker, or no longer one.
pub(crate) fn set_worker(worker: Option<(&Arc<Pool>, &Arc<WorkerInfo>)>) {
    let worker = worker.map(|(pool, info)| (Arc::clone(pool), Arc::clone(info)));
    with_current(|current| drop(current.worker.replace(worker)));
}

/// Marks the calling thread as serving a set of pools.
pub(crate) fn serve() {
    with_current(|current| current.service.set(true));
}

/// The item that the calling thread runs, if it is a reusable one: as the kernel's `current_work()`.
pub fn current_work() -> Option<Work> {
    with_current(|current| current.work.borrow().clone()).flatten()
}

/// Scope of being inside an item. When it ends, the thread is where it was before, perhaps inside an outer item.
pub(crate) struct Inside {
    node: usize,
    wq: usize,
    /// The outer item; `None` if nothing was changed.
    work: Option<Option<Work>>,
}

impl Inside {
    pub(crate) fn enter(node: &Arc<Node>, wq: &Arc<WqInner>, work: Option<&Work>) -> Inside {
        with_current(|current| {
            let set_work = work.is_some() || current.node.get() != 0;
            Inside {
                node: current.node.replace(Arc::as_ptr(node) as usize),
                wq: current.wq.replace(Arc::as_ptr(wq) as usize),
                work: set_work.then(|| current.work.replace(work.cloned())),
            }
        })
        .unwrap_or_else(|| Inside { node: 0, wq: 0, work: None })
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        with_current(|current| {
            current.node.set(self.node);
            current.wq.set(self.wq);
            if let Some(work) = self.work.take() {
                drop(current.work.replace(work));
            }
        });
    }
}

/// Drops a panic's payload, whose own destructor may panic too.
pub(crate) fn drop_payload(payload: Box<dyn Any + Send>) {
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(again);
    }
}

/// Runs `f`, which waits (for I/O, a lock, another item), and lets another worker of the pool run meanwhile.
///
/// A bound pool runs one worker at a time, an unbound pool as many as there are CPUs; the kernel notices when a worker
/// sleeps, a user-space pool cannot. An item that waits outside of `blocking` holds up the items after it, until the
/// monitor notices ([`Config::cpu_intensive_thresh`](crate::Config::cpu_intensive_thresh)). Outside of a worker this
/// only calls `f`. It nests. Waiting with this crate's own `flush`, `drain` and `cancel_sync` needs no `blocking`
/// around it.
///
/// ```
/// use std::sync::mpsc;
/// use postread_workqueue::{Workqueue, WqFlags, blocking};
///
/// let wq = Workqueue::alloc("doc_blocking", WqFlags::PERCPU, 0)?;
/// let (answer, question) = mpsc::channel();
/// wq.spawn_on(0, move || assert_eq!(blocking(|| question.recv()), Ok(42)))?;
/// // This item comes after the first one on the same CPU, and runs all the same: otherwise both would wait forever.
/// wq.spawn_on(0, move || answer.send(42).unwrap())?;
/// assert_eq!(wq.flush()?.panics, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn blocking<R>(f: impl FnOnce() -> R) -> R {
    let _blocked = Blocked::enter();
    f()
}

/// Counts a worker out of its pool, and back in when dropped, also after a panic.
pub(crate) struct Blocked {
    worker: bool,
}

impl Blocked {
    pub(crate) fn enter() -> Blocked {
        let worker = with_current(|current| {
            let worker = current.worker.borrow();
            let Some((pool, info)) = &*worker else { return false };
            current.blocked.set(current.blocked.get() + 1);
            if current.blocked.get() == 1 && info.occupancy.block() {
                pool.idle.block();
                if pool.has_work() {
                    pool.notify();
                }
            }
            true
        });
        Blocked { worker: worker.unwrap_or(false) }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        if !self.worker {
            return;
        }
        with_current(|current| {
            current.blocked.set(current.blocked.get() - 1);
            if current.blocked.get() == 0
                && let Some((pool, info)) = &*current.worker.borrow()
                && info.occupancy.unblock()
            {
                pool.idle.unblock();
            }
        });
    }
}
