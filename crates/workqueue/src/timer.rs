//! Items whose timer is armed. The manager's thread takes them off when they are due; cancelling or changing the delay
//! takes an item off earlier. Both hold one lock, so exactly one of them gets the pending instance.

use std::collections::BTreeMap;

use crate::sync::modelled::{Mutex, lock};

/// When it is due, and a number that distinguishes items due at the same time.
pub(crate) type Key = (u64, u64);

#[derive(Debug)]
struct State<T> {
    armed: BTreeMap<Key, T>,
    next: u64,
}

#[derive(Debug)]
pub(crate) struct Timers<T> {
    state: Mutex<State<T>>,
}

impl<T> Timers<T> {
    pub(crate) fn new() -> Timers<T> {
        Timers { state: Mutex::new(State { armed: BTreeMap::new(), next: 0 }) }
    }

    /// Arms a timer. `made` is called with its key before anybody can see it. True if it is now the first one due.
    pub(crate) fn arm(&self, at: u64, timed: T, made: impl FnOnce(Key)) -> bool {
        let mut state = lock(&self.state);
        let key = (at, state.next);
        state.next += 1;
        made(key);
        state.armed.insert(key, timed);
        state.armed.first_key_value().is_some_and(|(first, _)| *first == key)
    }

    /// Takes a timer off, if it is armed under this key and `is_it`.
    pub(crate) fn disarm(&self, key: Key, is_it: impl FnOnce(&T) -> bool) -> Option<T> {
        let mut state = lock(&self.state);
        if !state.armed.get(&key).is_some_and(is_it) {
            return None;
        }
        state.armed.remove(&key)
    }

    /// Takes off the first timer that is due.
    pub(crate) fn pop_due(&self, now: u64) -> Option<T> {
        let mut state = lock(&self.state);
        let first = state.armed.first_entry()?;
        if first.key().0 > now {
            return None;
        }
        Some(first.remove())
    }

    /// When the next one is due.
    pub(crate) fn next_due(&self) -> Option<u64> {
        lock(&self.state).armed.first_key_value().map(|(key, _)| key.0)
    }
}
