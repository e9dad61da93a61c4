//! A one-shot item with a result.

use std::any::Any;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use crate::current::{blocking, inside_queue};
use crate::queue::{Workqueue, WqInner};
use crate::sync::lock;
use crate::work::Work;

/// Why a [`Task`] has no result.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// It was cancelled before it started, or its queue was draining and refused it.
    #[error("the task was cancelled before it started")]
    Cancelled,
    /// Its function panicked, with this payload.
    #[error("the task panicked")]
    Panicked(Box<dyn Any + Send>),
    /// The caller is an item of the task's queue: it might wait for itself.
    #[error("join from inside an item of the task's queue")]
    SameQueue,
}

impl std::fmt::Debug for JoinError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            JoinError::Cancelled => "Cancelled",
            JoinError::Panicked(_) => "Panicked",
            JoinError::SameQueue => "SameQueue",
        })
    }
}

enum Outcome<T> {
    Running,
    Done(T),
    Panicked(Box<dyn Any + Send>),
    Cancelled,
}

struct Shared<T> {
    outcome: Mutex<Outcome<T>>,
    done: Condvar,
}

impl<T> Shared<T> {
    fn set(&self, outcome: Outcome<T>) {
        *lock(&self.outcome) = outcome;
        self.done.notify_all();
    }
}

/// A function that was queued to run once, with its result: [`Workqueue::spawn_task`]. Dropping it leaves the function
/// queued.
#[must_use = "a task that is dropped still runs; `spawn` needs no result"]
pub struct Task<T> {
    work: Work,
    wq: std::sync::Weak<WqInner>,
    shared: Arc<Shared<T>>,
}

impl Workqueue {
    /// Queues a function to run once, and returns a handle for its result.
    ///
    /// ```
    /// use postread_workqueue::{JoinError, Workqueue, WqFlags};
    ///
    /// let wq = Workqueue::alloc("doc_task", WqFlags::UNBOUND, 0)?;
    /// let sum = wq.spawn_task(|| (1..=100u32).sum::<u32>());
    /// assert_eq!(sum.join()?, 5050);
    ///
    /// let fails = wq.spawn_task(|| -> u32 { panic!("no such file") });
    /// let Err(JoinError::Panicked(payload)) = fails.join() else { unreachable!() };
    /// assert_eq!(payload.downcast_ref(), Some(&"no such file"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn spawn_task<T: Send + 'static>(&self, f: impl FnOnce() -> T + Send + 'static) -> Task<T> {
        let shared = Arc::new(Shared { outcome: Mutex::new(Outcome::Running), done: Condvar::new() });
        let result = Arc::clone(&shared);
        let f = Mutex::new(Some(f));
        let work = Work::new(move |_| {
            let Some(f) = lock(&f).take() else { return };
            // The panic must also count in the queue's statistics: this catches it for the payload, and raises another
            // one.
            match std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)) {
                Ok(value) => result.set(Outcome::Done(value)),
                Err(payload) => {
                    result.set(Outcome::Panicked(payload));
                    std::panic::resume_unwind(Box::new("a task's panic"));
                }
            }
        });
        if !self.queue(&work) {
            shared.set(Outcome::Cancelled);
        }
        Task { work, wq: Arc::downgrade(self.inner()), shared }
    }
}

impl<T> Task<T> {
    /// Waits for the result.
    ///
    /// # Errors
    /// It was cancelled, or panicked, or the caller is an item of the same queue.
    pub fn join(self) -> Result<T, JoinError> {
        let same = self.wq.upgrade().is_some_and(|wq| inside_queue(&wq));
        let mut outcome = lock(&self.shared.outcome);
        if matches!(*outcome, Outcome::Running) {
            if same {
                return Err(JoinError::SameQueue);
            }
            drop(outcome);
            outcome = blocking(|| {
                let mut outcome = lock(&self.shared.outcome);
                while matches!(*outcome, Outcome::Running) {
                    outcome = self.shared.done.wait(outcome).unwrap_or_else(PoisonError::into_inner);
                }
                outcome
            });
        }
        match std::mem::replace(&mut *outcome, Outcome::Cancelled) {
            Outcome::Done(value) => Ok(value),
            Outcome::Panicked(payload) => Err(JoinError::Panicked(payload)),
            Outcome::Running | Outcome::Cancelled => Err(JoinError::Cancelled),
        }
    }

    /// Takes the task off its queue. True if it had not started: it never will.
    pub fn cancel(&self) -> bool {
        let cancelled = self.work.cancel();
        if cancelled {
            self.shared.set(Outcome::Cancelled);
        }
        cancelled
    }

    /// Has it run, or been cancelled?
    pub fn is_finished(&self) -> bool {
        !matches!(*lock(&self.shared.outcome), Outcome::Running)
    }
}

impl<T> std::fmt::Debug for Task<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Task").field("finished", &self.is_finished()).finish_non_exhaustive()
    }
}
