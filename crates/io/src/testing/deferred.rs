//! A source that answers later: the test decides in which order, from which thread and whether at all.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::bio::Bio;
use crate::completion::Completion;
use crate::source::{BioId, Source};
use crate::status::BlockStatus;
use crate::threads::{allowed_cpus, spawn_pinned};

/// In which order a [`Deferred`] source completes what it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// As it came.
    Fifo,
    /// The newest first.
    Lifo,
    /// By a seeded generator.
    Random(u64),
}

struct Held {
    id: u64,
    bio: Bio,
    done: Completion,
}

struct Inner {
    below: Arc<dyn Source>,
    held: Mutex<Vec<Held>>,
    next_id: AtomicU64,
}

/// Holds bios back until the test (or a thread of its own) lets them go.
#[derive(Clone)]
pub struct Deferred(Arc<Inner>);

impl Deferred {
    /// Holds back the reads of `below`, which must itself complete before its `submit` returns.
    pub fn new(below: Arc<dyn Source>) -> Self {
        Self(Arc::new(Inner { below, held: Mutex::default(), next_id: AtomicU64::new(1) }))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Held>> {
        self.0.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many bios it holds.
    pub fn held(&self) -> usize {
        self.lock().len()
    }

    /// Reads and completes one bio on this thread. False if it holds none.
    pub fn complete_one(&self, order: Order) -> bool {
        let held = {
            let mut all = self.lock();
            let at = match order {
                Order::Fifo => 0,
                Order::Lifo => all.len().wrapping_sub(1),
                Order::Random(seed) => {
                    let mix =
                        (seed ^ self.0.next_id.fetch_add(1, Ordering::Relaxed)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                    ((mix >> 33) as usize) % all.len().max(1)
                }
            };
            if at >= all.len() {
                return false;
            }
            all.remove(at)
        };
        self.0.below.submit(held.bio, held.done);
        true
    }

    /// Completes everything it holds, and what that brings, in `order`.
    pub fn complete_all(&self, order: Order) {
        while self.complete_one(order) {}
    }

    /// Drops everything it holds without an answer: the device has vanished.
    pub fn vanish(&self) {
        let all = std::mem::take(&mut *self.lock());
        drop(all);
    }

    /// Completes in `order` from a thread on each CPU in turn, until the guard is dropped.
    ///
    /// # Errors
    /// If a thread can't be started.
    pub fn run(&self, order: Order) -> io::Result<Running> {
        let mut running = Running { stop: Vec::new(), threads: Vec::new() };
        for cpu in allowed_cpus() {
            let (stop, stopped): (Sender<()>, Receiver<()>) = channel();
            let this = self.clone();
            let thread = spawn_pinned(format!("pr-test/{cpu}"), cpu, move || {
                while stopped.try_recv() != Err(std::sync::mpsc::TryRecvError::Disconnected) {
                    if !this.complete_one(order) {
                        std::thread::sleep(std::time::Duration::from_micros(50));
                    }
                }
            })?;
            running.stop.push(stop);
            running.threads.push(thread.handle);
        }
        Ok(running)
    }
}

impl fmt::Debug for Deferred {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Deferred({} held)", self.held())
    }
}

/// The threads of a [`Deferred`] source; they end when this is dropped.
#[derive(Debug)]
pub struct Running {
    stop: Vec<Sender<()>>,
    threads: Vec<JoinHandle<()>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.clear();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Source for Deferred {
    fn len(&self) -> io::Result<u64> {
        self.0.below.len()
    }

    fn align(&self) -> u32 {
        self.0.below.align()
    }

    fn submit(&self, bio: Bio, done: Completion) -> BioId {
        let id = self.0.next_id.fetch_add(1, Ordering::Relaxed);
        self.lock().push(Held { id, bio, done });
        BioId(id)
    }

    fn cancel(&self, id: BioId) -> bool {
        let held = {
            let mut all = self.lock();
            let Some(at) = all.iter().position(|h| h.id == id.0) else { return false };
            all.remove(at)
        };
        let mut bio = held.bio;
        bio.fail_all(&BlockStatus::Cancelled);
        held.done.complete_here(bio);
        true
    }
}
