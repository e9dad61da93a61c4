//! A work item as the lists hold it, and the data of its queueing.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::list::{Linked, Links};
use crate::queue::WqInner;
use crate::state::WorkState;
use crate::sync::lock;
use crate::work::Work;

pub(crate) type Reusable = Box<dyn Fn(&Work) + Send + Sync>;
pub(crate) type Once = Box<dyn FnOnce() + Send>;

/// What an item does.
pub(crate) enum Body {
    /// Apart from the node, so that the nodes of one-shot items stay small.
    Work(Box<WorkBody>),
    Once(Mutex<Option<Once>>),
}

/// A reusable item's function and state.
pub(crate) struct WorkBody {
    pub(crate) f: Reusable,
    pub(crate) state: WorkState,
    pub(crate) panics: AtomicU64,
}

/// Where a pending item was put. A hint for cancel, which checks under the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// The domain's list of items beyond `max_active`.
    Inactive,
    /// A list of the pool.
    Shard(usize),
}

/// How an item was queued: written by the owner of the pending instance, before the item goes on a list.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Queued {
    /// When, in nanoseconds.
    pub(crate) at: u64,
    /// When it became active.
    pub(crate) active_at: u64,
    /// The CPU that queued it, as an index.
    pub(crate) cpu: usize,
    /// The pwq it counts in: 0 for unbound, the CPU's index for bound.
    pub(crate) domain: usize,
    /// The flush colour it counts in.
    pub(crate) color: usize,
}

/// What both sides touch for every item comes first, in one or two cache lines.
#[repr(C)]
pub(crate) struct Node {
    links: Links<Node>,
    at: AtomicU64,
    active_at: AtomicU64,
    /// CPU (16 bits), domain (16 bits), colour (1 bit).
    packed: AtomicU64,
    place: AtomicUsize,
    pub(crate) body: Body,
    /// The address of `wq`, to compare without the lock. An item that is queued to one queue again and again touches no
    /// reference count of the queue.
    wq_address: AtomicUsize,
    wq: Mutex<Option<Arc<WqInner>>>,
}

const INACTIVE: usize = usize::MAX;

impl Node {
    pub(crate) fn new(body: Body) -> Arc<Node> {
        Arc::new(Node {
            links: Links::new(),
            body,
            wq_address: AtomicUsize::new(0),
            wq: Mutex::new(None),
            at: AtomicU64::new(0),
            active_at: AtomicU64::new(0),
            packed: AtomicU64::new(0),
            place: AtomicUsize::new(INACTIVE),
        })
    }

    /// By the owner.
    pub(crate) fn set_queued(&self, wq: &Arc<WqInner>, queued: &Queued) {
        let address = Arc::as_ptr(wq) as usize;
        if self.wq_address.load(Ordering::Relaxed) != address {
            let before = lock(&self.wq).replace(Arc::clone(wq));
            self.wq_address.store(address, Ordering::Relaxed);
            drop(before);
        }
        self.at.store(queued.at, Ordering::Relaxed);
        self.active_at.store(queued.active_at, Ordering::Relaxed);
        let packed = queued.cpu as u64 | (queued.domain as u64) << 16 | (queued.color as u64) << 32;
        self.packed.store(packed, Ordering::Relaxed);
    }

    /// By the owner.
    pub(crate) fn queued(&self) -> Queued {
        let packed = self.packed.load(Ordering::Relaxed);
        Queued {
            at: self.at.load(Ordering::Relaxed),
            active_at: self.active_at.load(Ordering::Relaxed),
            cpu: (packed & 0xffff) as usize,
            domain: (packed >> 16 & 0xffff) as usize,
            color: (packed >> 32 & 1) as usize,
        }
    }

    /// By the owner, when it becomes active.
    pub(crate) fn set_active_at(&self, at: u64) {
        self.active_at.store(at, Ordering::Relaxed);
    }

    /// Is this the queue it was last queued to? Exact for the owner.
    pub(crate) fn is_on(&self, wq: &Arc<WqInner>) -> bool {
        self.wq_address.load(Ordering::Relaxed) == Arc::as_ptr(wq) as usize
    }

    /// Do both count in one pwq? For the owners of both.
    pub(crate) fn same_domain(&self, other: &Node) -> bool {
        self.wq_address.load(Ordering::Relaxed) == other.wq_address.load(Ordering::Relaxed)
            && self.queued().domain == other.queued().domain
    }

    /// The queue it was last queued to.
    pub(crate) fn wq(&self) -> Option<Arc<WqInner>> {
        lock(&self.wq).clone()
    }

    /// By the owner.
    pub(crate) fn set_place(&self, place: Place) {
        let place = match place {
            Place::Inactive => INACTIVE,
            Place::Shard(shard) => shard,
        };
        self.place.store(place, Ordering::Relaxed);
    }

    pub(crate) fn place(&self) -> Place {
        match self.place.load(Ordering::Relaxed) {
            INACTIVE => Place::Inactive,
            shard => Place::Shard(shard),
        }
    }
}

impl Linked for Node {
    fn links(&self) -> &Links<Node> {
        &self.links
    }
}
