//! The intrusive list: queueing an item allocates nothing, and removing one from the middle takes constant time.
//!
//! The only unsafe code of this crate. A list owns one strong count of each item in it. The links are in the item, so
//! an item can be in only one list at a time; `owner` in its links identifies it, and pushing an item that is already
//! in a list panics rather than corrupting the list.
#![allow(unsafe_code)]

use std::ptr;
use std::sync::Arc;

use crate::sync::modelled::{AtomicPtr, AtomicUsize, Mutex, MutexGuard, Ordering, fence, lock};

/// In no list.
const FREE: usize = 0;
/// Added to a list's number once the item is in the list proper, not only in the inbox before it.
const LISTED: usize = 1;

/// Numbers are even; 0 is [`FREE`].
fn next_id() -> usize {
    static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(2);
    NEXT.fetch_add(2, std::sync::atomic::Ordering::Relaxed)
}

/// An item's place in a list.
#[derive(Debug)]
pub(crate) struct Links<T> {
    next: AtomicPtr<T>,
    prev: AtomicPtr<T>,
    owner: AtomicUsize,
}

impl<T> Links<T> {
    pub(crate) fn new() -> Links<T> {
        Links {
            next: AtomicPtr::new(ptr::null_mut()),
            prev: AtomicPtr::new(ptr::null_mut()),
            owner: AtomicUsize::new(FREE),
        }
    }

    /// Takes the item for the list `owner`.
    fn take(&self, owner: usize) {
        let before = self.owner.swap(owner, Ordering::AcqRel);
        assert_eq!(before, FREE, "an item was put into two lists");
    }
}

/// What can be in a list.
pub(crate) trait Linked: Send + Sync + Sized {
    fn links(&self) -> &Links<Self>;
}

/// A doubly linked list, first in, first out. Not thread-safe: it is protected by a lock.
#[derive(Debug)]
struct List<T: Linked> {
    id: usize,
    head: *mut T,
    tail: *mut T,
    len: usize,
}

// SAFETY: a list owns its items through counts that `Arc` would let it send, since `T: Send + Sync`.
unsafe impl<T: Linked> Send for List<T> {}

impl<T: Linked> List<T> {
    fn new() -> List<T> {
        List { id: next_id(), head: ptr::null_mut(), tail: ptr::null_mut(), len: 0 }
    }

    fn len(&self) -> usize {
        self.len
    }

    /// The item that [`List::pop_front`] would return.
    fn front(&self) -> Option<&T> {
        // SAFETY: `head` is null or an item that this list holds a count of, for as long as `self` is borrowed.
        unsafe { self.head.as_ref() }
    }

    /// Appends a row of items.
    ///
    /// # Safety
    /// `first` to `last` are linked to each other, `first` backwards to this list's tail, `last` forwards to nothing;
    /// they came from `Arc::into_raw`, their counts are now this list's, and so is their `owner`.
    unsafe fn splice_back(&mut self, first: *mut T, last: *mut T, count: usize) {
        if first.is_null() {
            return;
        }
        // SAFETY: `tail` is null or an item this list holds a count of.
        match unsafe { self.tail.as_ref() } {
            Some(tail) => tail.links().next.store(first, Ordering::Relaxed),
            None => self.head = first,
        }
        self.tail = last;
        self.len += count;
    }

    /// Moves up to `most` of the first items to the end of `to`; `each` sees them. Returns how many.
    fn move_front(&mut self, to: &mut List<T>, most: usize, mut each: impl FnMut(&T)) -> usize {
        let first = self.head;
        let (mut item, mut last, mut count) = (first, ptr::null_mut(), 0);
        while count < most {
            // SAFETY: null or an item of this list.
            let Some(reference) = (unsafe { item.as_ref() }) else { break };
            reference.links().owner.store(to.id | LISTED, Ordering::Release);
            each(reference);
            last = item;
            item = reference.links().next.load(Ordering::Relaxed);
            count += 1;
        }
        if count == 0 {
            return 0;
        }
        self.head = item;
        self.len -= count;
        // SAFETY: null or an item of this list.
        match unsafe { item.as_ref() } {
            Some(next) => next.links().prev.store(ptr::null_mut(), Ordering::Relaxed),
            None => self.tail = ptr::null_mut(),
        }
        // SAFETY: not null, since `count` is not 0; still counted by this list, which gives the counts up here.
        unsafe {
            (*first).links().prev.store(to.tail, Ordering::Relaxed);
            (*last).links().next.store(ptr::null_mut(), Ordering::Relaxed);
            to.splice_back(first, last, count);
        }
        count
    }

    fn pop_front(&mut self) -> Option<Arc<T>> {
        if self.head.is_null() {
            return None;
        }
        // SAFETY: `head` is in this list.
        Some(unsafe { self.unlink(self.head) })
    }

    fn any(&self, wanted: impl Fn(&T) -> bool) -> bool {
        let mut item = self.head;
        // SAFETY: null or an item of this list.
        while let Some(reference) = unsafe { item.as_ref() } {
            if wanted(reference) {
                return true;
            }
            item = reference.links().next.load(Ordering::Relaxed);
        }
        false
    }

    /// Takes out the first item for which `wanted` holds.
    fn remove_first(&mut self, wanted: impl Fn(&T) -> bool) -> Option<Arc<T>> {
        let mut item = self.head;
        // SAFETY: null or an item of this list.
        while let Some(reference) = unsafe { item.as_ref() } {
            if wanted(reference) {
                // SAFETY: `item` is this list's own pointer: the head, or its neighbour's link.
                return Some(unsafe { self.unlink(item) });
            }
            item = reference.links().next.load(Ordering::Relaxed);
        }
        None
    }

    /// Takes an item out, if it is in this list.
    fn remove(&mut self, item: &T) -> Option<Arc<T>> {
        if item.links().owner.load(Ordering::Acquire) != self.id | LISTED {
            return None;
        }
        // The list's own pointer to it, from `Arc::into_raw`; one made from the reference might not reach the counts.
        // SAFETY: its owner is this list, and owners change only with the list borrowed mutably, as here.
        let item = match unsafe { item.links().prev.load(Ordering::Relaxed).as_ref() } {
            Some(prev) => prev.links().next.load(Ordering::Relaxed),
            None => self.head,
        };
        // SAFETY: as above.
        Some(unsafe { self.unlink(item) })
    }

    /// # Safety
    /// `item` is one of this list's own pointers.
    unsafe fn unlink(&mut self, item: *mut T) -> Arc<T> {
        // SAFETY: in this list, so its count keeps it valid; so are its neighbours.
        let links = unsafe { (*item).links() };
        let (prev, next) = (links.prev.load(Ordering::Relaxed), links.next.load(Ordering::Relaxed));
        // SAFETY: as above.
        match unsafe { prev.as_ref() } {
            Some(prev) => prev.links().next.store(next, Ordering::Relaxed),
            None => self.head = next,
        }
        // SAFETY: as above.
        match unsafe { next.as_ref() } {
            Some(next) => next.links().prev.store(prev, Ordering::Relaxed),
            None => self.tail = prev,
        }
        self.len -= 1;
        links.owner.store(FREE, Ordering::Release);
        // SAFETY: the pointer came from `Arc::into_raw` when the item was pushed, and the list gives its count up here.
        unsafe { Arc::from_raw(item) }
    }
}

impl<T: Linked> Drop for List<T> {
    fn drop(&mut self) {
        while self.pop_front().is_some() {}
    }
}

/// A list that any thread pushes to without a lock: a stack in front (the inbox), which the next taker reverses into
/// the list proper, under the lock. Items keep the order of the pushes.
#[derive(Debug)]
pub(crate) struct Fifo<T: Linked> {
    id: usize,
    inbox: AtomicPtr<T>,
    consumers: Consumers<T>,
}

/// On other cache lines than the inbox, so that taking does not slow down pushing.
#[derive(Debug)]
#[repr(align(128))]
struct Consumers<T: Linked> {
    /// Length of the list proper.
    len: AtomicUsize,
    list: Mutex<List<T>>,
}

impl<T: Linked> Fifo<T> {
    pub(crate) fn new() -> Fifo<T> {
        let list = List::new();
        Fifo {
            id: list.id,
            inbox: AtomicPtr::new(ptr::null_mut()),
            consumers: Consumers { len: AtomicUsize::new(0), list: Mutex::new(list) },
        }
    }

    /// True if the inbox was empty: the item is the first of a batch. It becomes visible by a sequentially consistent
    /// operation, as the idle protocol requires.
    pub(crate) fn push(&self, item: Arc<T>) -> bool {
        item.links().take(self.id);
        let item = Arc::into_raw(item).cast_mut();
        let mut head = self.inbox.load(Ordering::Relaxed);
        loop {
            // SAFETY: owned by this thread until the exchange below succeeds: `take` made this list its owner.
            unsafe { (*item).links().next.store(head, Ordering::Relaxed) };
            match self.inbox.compare_exchange_weak(head, item, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => return head.is_null(),
                Err(now) => head = now,
            }
        }
    }

    /// Is there nothing to take? Exact after a fence, as the idle protocol requires.
    pub(crate) fn is_empty(&self) -> bool {
        // The length first, since takers share that line; and again at the end, since items are counted before they
        // leave the inbox.
        let listed = || self.consumers.len.load(Ordering::SeqCst) != 0;
        !listed() && self.inbox.load(Ordering::SeqCst).is_null() && !listed()
    }

    /// Under the lock: what is in the inbox goes to the list proper.
    fn absorb(&self, list: &mut List<T>) {
        if self.inbox.load(Ordering::Relaxed).is_null() {
            return;
        }
        // Never looks empty in between: the list proper is not, before the inbox is.
        self.consumers.len.store(list.len() + 1, Ordering::Release);
        // The swap takes the whole stack, so there is no pop that could meet an item pushed again (ABA).
        let newest = self.inbox.swap(ptr::null_mut(), Ordering::AcqRel);
        // One walk from the newest to the oldest reverses it: `next` is the older one, and becomes the newer one.
        let (mut item, mut newer, mut count) = (newest, ptr::null_mut(), 0);
        // SAFETY: the items of the stack are valid (each is a count given up by `push`) and, since the swap, this
        // thread's alone.
        while let Some(reference) = unsafe { item.as_ref() } {
            let links = reference.links();
            let older = links.next.load(Ordering::Relaxed);
            links.next.store(newer, Ordering::Relaxed);
            links.prev.store(if older.is_null() { list.tail } else { older }, Ordering::Relaxed);
            links.owner.store(self.id | LISTED, Ordering::Release);
            newer = item;
            item = older;
            count += 1;
        }
        // SAFETY: `newer` is the oldest item now; `push` gave the counts to this list, and `owner` is this list.
        unsafe { list.splice_back(newer, newest, count) };
    }

    /// Reverses the inbox early, while its items are still in the caller's cache, unless another thread holds the lock.
    pub(crate) fn tidy(&self) {
        if let Ok(mut list) = self.consumers.list.try_lock() {
            self.absorb(&mut list);
            self.publish(&list);
        }
    }

    fn publish(&self, list: &MutexGuard<'_, List<T>>) {
        self.consumers.len.store(list.len(), Ordering::Release);
    }

    /// Takes the first item. `look` also sees the next one, under the lock.
    pub(crate) fn pop<R>(&self, look: impl FnOnce(&T, Option<&T>) -> R) -> Option<(Arc<T>, R)> {
        let mut list = lock(&self.consumers.list);
        if list.len() <= 1 {
            self.absorb(&mut list);
        }
        let item = list.pop_front()?;
        self.publish(&list);
        let seen = look(&item, list.front());
        Some((item, seen))
    }

    /// Moves up to `most` of the first items to the end of another list; `each` sees them. Returns how many; they are
    /// visible before a fence. Two of these in opposite directions would deadlock: items only ever move from waiting to
    /// active.
    pub(crate) fn move_to(&self, other: &Fifo<T>, most: usize, each: impl FnMut(&T)) -> usize {
        let mut from = lock(&self.consumers.list);
        if from.len() < most {
            self.absorb(&mut from);
        }
        let mut to = lock(&other.consumers.list);
        other.absorb(&mut to);
        let moved = from.move_front(&mut to, most, each);
        other.publish(&to);
        self.publish(&from);
        drop((from, to));
        fence(Ordering::SeqCst);
        moved
    }

    /// Is there an item for which `wanted` holds?
    pub(crate) fn any(&self, wanted: impl Fn(&T) -> bool) -> bool {
        let mut list = lock(&self.consumers.list);
        self.absorb(&mut list);
        let found = list.any(wanted);
        self.publish(&list);
        found
    }

    /// Takes out the first item for which `wanted` holds.
    pub(crate) fn remove_first(&self, wanted: impl Fn(&T) -> bool) -> Option<Arc<T>> {
        let mut list = lock(&self.consumers.list);
        self.absorb(&mut list);
        let taken = list.remove_first(wanted);
        self.publish(&list);
        taken
    }

    /// Removes an item from the middle, if it is here. An item that is being pushed or popped is not.
    pub(crate) fn remove(&self, item: &T) -> Option<Arc<T>> {
        let mut list = lock(&self.consumers.list);
        self.absorb(&mut list);
        let taken = list.remove(item);
        self.publish(&list);
        taken
    }
}

impl<T: Linked> Drop for Fifo<T> {
    fn drop(&mut self) {
        let mut list = lock(&self.consumers.list);
        self.absorb(&mut list);
    }
}
