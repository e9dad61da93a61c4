//! How a rescuer is called. The manager calls it for a pool that could not get a thread for some time; a call during
//! the rescuer's work is remembered.

use crate::sync::modelled::{Condvar, Mutex, lock, wait};

#[derive(Debug)]
struct State<P> {
    calls: Vec<P>,
    stopped: bool,
}

#[derive(Debug)]
pub(crate) struct Mayday<P> {
    state: Mutex<State<P>>,
    called: Condvar,
}

impl<P: Clone> Mayday<P> {
    pub(crate) fn new() -> Mayday<P> {
        Mayday { state: Mutex::new(State { calls: Vec::new(), stopped: false }), called: Condvar::new() }
    }

    /// Calls the rescuer for a pool, unless it has been called for it already. `same` compares pools.
    pub(crate) fn call(&self, pool: &P, same: impl Fn(&P, &P) -> bool) {
        let mut state = lock(&self.state);
        if state.calls.iter().any(|called| same(called, pool)) {
            return;
        }
        state.calls.push(pool.clone());
        drop(state);
        self.called.notify_one();
    }

    /// Is another pool waiting for the rescuer?
    pub(crate) fn others_wait(&self) -> bool {
        !lock(&self.state).calls.is_empty()
    }

    /// Waits for a call. `None` once there will be none.
    pub(crate) fn wait(&self) -> Option<P> {
        let mut state = lock(&self.state);
        loop {
            if !state.calls.is_empty() {
                return Some(state.calls.remove(0));
            }
            if state.stopped {
                return None;
            }
            state = wait(&self.called, state);
        }
    }

    /// There will be no more calls.
    pub(crate) fn stop(&self) {
        lock(&self.state).stopped = true;
        self.called.notify_one();
    }
}
