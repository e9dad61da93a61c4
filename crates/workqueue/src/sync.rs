//! Locks, and the synchronisation primitives of the modelled files.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, ignoring poisoning: no lock here is held across a foreign function.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// For `state`, `idle`, `occupancy`, `list`, `flush`, `pwq`, `timer` and `mayday`. The package in `models/` compiles
/// these files with loom's primitives under the same names.
pub(crate) mod modelled {
    use std::sync::PoisonError;

    pub(crate) use std::{
        sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
        sync::{Condvar, Mutex, MutexGuard},
        thread::{self, Thread},
    };

    /// Between a sequentially consistent read-modify-write and a sequentially consistent load there is nothing to do:
    /// these have one order that all threads agree on. loom has only acquire and release for them, so there this is the
    /// fence that has the same effect.
    pub(crate) fn between_seq_cst() {}

    pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn wait<'a, T>(condition: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        condition.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }
}
