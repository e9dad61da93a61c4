//! Models of the workqueue's protocols, checked by loom: every interleaving of a few threads, and every value that the
//! memory model lets a load return, up to the stated number of preemptions.
//!
//! The modules are the crate's own files; only the primitives beneath them are loom's. A mistake in them is found here
//! before it hangs somebody: take a fence out of `idle.rs` and `nothing_is_forgotten` fails.
#![cfg(test)]

#[path = "../../src/flush.rs"]
mod flush;
#[path = "../../src/idle.rs"]
mod idle;
#[path = "../../src/list.rs"]
mod list;
#[path = "../../src/mayday.rs"]
mod mayday;
#[path = "../../src/occupancy.rs"]
mod occupancy;
#[path = "../../src/padded.rs"]
mod padded;
#[path = "../../src/pwq.rs"]
mod pwq;
#[path = "../../src/state.rs"]
mod state;
#[path = "../../src/timer.rs"]
mod timer;

/// What the crate has in `sync.rs`, by loom.
mod sync {
    pub(crate) mod modelled {
        pub(crate) use loom::{
            sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
            sync::{Condvar, Mutex, MutexGuard},
            thread::{self, Thread},
        };

        pub(crate) fn between_seq_cst() {
            fence(Ordering::SeqCst);
        }

        pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
            mutex.lock().unwrap()
        }

        pub(crate) fn wait<'a, T>(condition: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
            condition.wait(guard).unwrap()
        }
    }
}

mod delayed;
mod flush_cancel;
mod flush_queue;
mod idle_wake;
mod max_active;
mod monitor;
mod rescue;

/// Runs a model. A thread that waits for ever is found too: loom reports a deadlock.
fn model(preemptions: usize, f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(f);
}
