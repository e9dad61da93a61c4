//! A work item as stored in the lists, and how it was queued.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::list::{Linked, Links};
use crate::pool::Shared;
use crate::queue::WqInner;
use crate::state::WorkState;
use crate::sync::lock;
use crate::timer::Key;
use crate::work::Work;

pub(crate) type Reusable = Box<dyn Fn(&Work) + Send + Sync>;

/// A closure to run once, and the name of its type for reports.
pub(crate) trait RunOnce: Send {
    fn run(self: Box<Self>);
    fn name(&self) -> &'static str;
}

impl<F: FnOnce() + Send> RunOnce for F {
    fn run(self: Box<Self>) {
        self();
    }

    fn name(&self) -> &'static str {
        std::any::type_name::<F>()
    }
}

pub(crate) type Once = Box<dyn RunOnce>;

/// What an item does.
pub(crate) enum Body {
    /// Apart from the node, so that the nodes of one-shot items stay small.
    Work(Box<WorkBody>),
    Once(Mutex<Option<Once>>),
}

/// A reusable item's function and state.
pub(crate) struct WorkBody {
    pub(crate) f: Reusable,
    pub(crate) name: &'static str,
    pub(crate) state: WorkState,
    pub(crate) panics: AtomicU64,
    /// The timer that the pending instance waits for, and whose set of pools has it. A hint for cancelling.
    pub(crate) timer: Mutex<Option<(Arc<Shared>, Key)>>,
}

/// Where a pending item was put. A hint for cancelling, which checks under the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// The pool_workqueue's list of items beyond `max_active`.
    Inactive,
    /// Armed: on no list until it is due.
    Timer,
    /// A list of the pool with this number.
    Shard { pool: u16, shard: usize },
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
    /// The pool_workqueue that it counts in: of a bound queue the CPU's index, of an unbound one the NUMA node's.
    pub(crate) pwq: usize,
    /// The flush colour it counts in.
    pub(crate) color: usize,
}

/// What both sides touch for every item comes first, in as few cache lines as possible.
#[repr(C)]
pub(crate) struct Node {
    links: Links<Node>,
    /// From the lowest bit: CPU (14 bits), pwq (14), colour (1), it waited (1), place (2), pool (16), list (14). Beside
    /// the links, since moving a row of items from list to list touches both, and of most items nothing else.
    packed: AtomicU64,
    at: AtomicU64,
    pub(crate) body: Body,
    /// The address of `wq`, to compare without the lock. An item that is queued to one queue again and again touches no
    /// reference count of the queue.
    wq_address: AtomicUsize,
    wq: Mutex<Option<Arc<WqInner>>>,
    /// Of an item that waited.
    active_at: AtomicU64,
}

/// CPU indices, pwqs and lists of a pool are below this.
pub(crate) const MAX_CPUS: usize = 1 << 14;
const INDEX: u64 = MAX_CPUS as u64 - 1;
const PWQ: u32 = 14;
const COLOR: u32 = 28;
const WAITED: u64 = 1 << 29;
const PLACE: u32 = 30;
const POOL: u32 = 32;
const SHARD: u32 = 48;
const INACTIVE: u64 = 0;
const TIMER: u64 = 1;
const LISTED: u64 = 2;

impl Node {
    pub(crate) fn new(body: Body) -> Arc<Node> {
        Arc::new(Node {
            links: Links::new(),
            body,
            at: AtomicU64::new(0),
            packed: AtomicU64::new(INACTIVE << PLACE),
            wq_address: AtomicUsize::new(0),
            wq: Mutex::new(None),
            active_at: AtomicU64::new(0),
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
        let packed =
            queued.cpu as u64 | (queued.pwq as u64) << PWQ | (queued.color as u64) << COLOR | INACTIVE << PLACE;
        self.packed.store(packed, Ordering::Relaxed);
    }

    /// By the owner.
    pub(crate) fn queued(&self) -> Queued {
        let packed = self.packed.load(Ordering::Relaxed);
        let at = self.at.load(Ordering::Relaxed);
        Queued {
            at,
            active_at: if packed & WAITED != 0 { self.active_at.load(Ordering::Relaxed) } else { at },
            cpu: (packed & INDEX) as usize,
            pwq: (packed >> PWQ & INDEX) as usize,
            color: (packed >> COLOR & 1) as usize,
        }
    }

    /// By the owner, when it becomes active after it waited.
    pub(crate) fn set_active_at(&self, at: u64) {
        self.active_at.store(at, Ordering::Relaxed);
        self.packed.store(self.packed.load(Ordering::Relaxed) | WAITED, Ordering::Relaxed);
    }

    /// Is this the queue it was last queued to? Exact for the owner.
    pub(crate) fn is_on(&self, wq: &Arc<WqInner>) -> bool {
        self.wq_address.load(Ordering::Relaxed) == Arc::as_ptr(wq) as usize
    }

    /// Do both count in one pwq? For the owners of both.
    pub(crate) fn same_pwq(&self, other: &Node) -> bool {
        self.wq_address.load(Ordering::Relaxed) == other.wq_address.load(Ordering::Relaxed)
            && self.queued().pwq == other.queued().pwq
    }

    /// The queue it was last queued to.
    pub(crate) fn wq(&self) -> Option<Arc<WqInner>> {
        lock(&self.wq).clone()
    }

    /// By the owner.
    pub(crate) fn set_place(&self, place: Place) {
        let place = match place {
            Place::Inactive => INACTIVE << PLACE,
            Place::Timer => TIMER << PLACE,
            Place::Shard { pool, shard } => LISTED << PLACE | u64::from(pool) << POOL | (shard as u64) << SHARD,
        };
        let rest = self.packed.load(Ordering::Relaxed) & ((1 << PLACE) - 1);
        self.packed.store(rest | place, Ordering::Relaxed);
    }

    pub(crate) fn place(&self) -> Place {
        let packed = self.packed.load(Ordering::Relaxed);
        match packed >> PLACE & 3 {
            INACTIVE => Place::Inactive,
            TIMER => Place::Timer,
            _ => Place::Shard { pool: (packed >> POOL & 0xffff) as u16, shard: (packed >> SHARD & INDEX) as usize },
        }
    }
}

impl Linked for Node {
    fn links(&self) -> &Links<Node> {
        &self.links
    }
}
