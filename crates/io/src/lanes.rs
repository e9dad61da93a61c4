//! Bios that wait for a thread or for room on a ring: demand first, then read-ahead.

use std::collections::VecDeque;

use crate::bio::Priority;

/// Two queues; the second moves only while the first is empty.
pub(crate) struct Lanes<T> {
    demand: VecDeque<(u64, T)>,
    ahead: VecDeque<(u64, T)>,
}

impl<T> Default for Lanes<T> {
    fn default() -> Self {
        Self { demand: VecDeque::new(), ahead: VecDeque::new() }
    }
}

impl<T> Lanes<T> {
    pub(crate) fn push(&mut self, id: u64, priority: Priority, item: T) {
        let lane = if priority == Priority::ReadAhead { &mut self.ahead } else { &mut self.demand };
        lane.push_back((id, item));
    }

    /// The next one.
    pub(crate) fn pop(&mut self) -> Option<T> {
        self.demand.pop_front().or_else(|| self.ahead.pop_front()).map(|(_, item)| item)
    }

    /// Takes one out, wherever it waits.
    pub(crate) fn remove(&mut self, id: u64) -> Option<T> {
        remove(&mut self.demand, id).or_else(|| remove(&mut self.ahead, id))
    }

    /// Turns read-ahead into demand. False if it is not read-ahead, or no longer waits.
    pub(crate) fn raise(&mut self, id: u64) -> bool {
        let item = remove(&mut self.ahead, id);
        item.map(|item| self.demand.push_back((id, item))).is_some()
    }
}

fn remove<T>(lane: &mut VecDeque<(u64, T)>, id: u64) -> Option<T> {
    let at = lane.iter().position(|(other, _)| *other == id)?;
    lane.remove(at).map(|(_, item)| item)
}
