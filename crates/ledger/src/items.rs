//! Which worker executed which item when.

use std::collections::HashMap;

use crate::event::{Kind, Pid, Trace};

/// An item that was queued, started and finished within the trace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Item {
    pub(crate) work: u64,
    pub(crate) function: u32,
    pub(crate) unbound: bool,
    pub(crate) queued: u64,
    pub(crate) queued_on: u32,
    pub(crate) activated: u64,
    pub(crate) started: u64,
    pub(crate) started_on: u32,
    pub(crate) ended: u64,
    pub(crate) worker: Pid,
}

/// A time during which a worker executed an item, of any function.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Execution {
    pub(crate) from: u64,
    pub(crate) to: u64,
}

/// Everything about the items of a trace.
#[derive(Debug, Default)]
pub(crate) struct Items {
    pub(crate) items: Vec<Item>,
    /// Of each worker, in order of time.
    pub(crate) executions: HashMap<Pid, Vec<Execution>>,
    /// Items whose queueing, start or end is outside the trace.
    pub(crate) censored: HashMap<u32, u64>,
}

#[derive(Clone, Copy)]
struct Pending {
    function: u32,
    unbound: bool,
    queued: u64,
    queued_on: u32,
    activated: Option<u64>,
}

impl Items {
    pub(crate) fn of(trace: &Trace) -> Items {
        let mut found = Items::default();
        let mut pending: HashMap<u64, Pending> = HashMap::new();
        let mut running: HashMap<Pid, (u64, u64, u32, u32, Option<Pending>)> = HashMap::new();
        let first = trace.events.first().map_or(0, |event| event.time_ns);
        let last = trace.events.last().map_or(0, |event| event.time_ns);
        for event in &trace.events {
            let now = event.time_ns;
            match event.kind {
                Kind::Queue { work, function, cpu, .. } => {
                    // A second time before the start: the first was cancelled, which has no event of its own.
                    let (queued, queued_on, unbound) = (now, event.cpu, cpu.is_none());
                    pending.insert(work, Pending { function, unbound, queued, queued_on, activated: None });
                }
                Kind::Activate { work } => {
                    if let Some(pending) = pending.get_mut(&work) {
                        pending.activated.get_or_insert(now);
                    }
                }
                Kind::Start { work, function } => {
                    let queued = pending.remove(&work);
                    running.insert(event.pid, (work, now, event.cpu, function, queued));
                }
                Kind::End { work } => {
                    let Some((started_work, started, started_on, function, queued)) = running.remove(&event.pid) else {
                        // It started before the trace did.
                        let list = found.executions.entry(event.pid).or_default();
                        if list.is_empty() {
                            list.push(Execution { from: first, to: now });
                        }
                        continue;
                    };
                    found.executions.entry(event.pid).or_default().push(Execution { from: started, to: now });
                    let Some(queued) = queued.filter(|_| started_work == work) else {
                        *found.censored.entry(function).or_default() += 1;
                        continue;
                    };
                    found.items.push(Item {
                        work,
                        function: queued.function,
                        unbound: queued.unbound,
                        queued: queued.queued,
                        queued_on: queued.queued_on,
                        activated: queued.activated.unwrap_or(queued.queued).min(started),
                        started,
                        started_on,
                        ended: now,
                        worker: event.pid,
                    });
                }
                _ => {}
            }
        }
        for (worker, (_, started, _, function, _)) in running {
            found.executions.entry(worker).or_default().push(Execution { from: started, to: last });
            *found.censored.entry(function).or_default() += 1;
        }
        for left in pending.values() {
            *found.censored.entry(left.function).or_default() += 1;
        }
        found
    }

    /// What a worker executed within a range of time.
    pub(crate) fn within(&self, worker: Pid, from: u64, to: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let list = self.executions.get(&worker).map_or(&[][..], Vec::as_slice);
        let first = list.partition_point(|execution| execution.to <= from);
        list[first..]
            .iter()
            .take_while(move |execution| execution.from < to)
            .map(move |execution| (execution.from.max(from), execution.to.min(to)))
            .filter(|(begin, end)| begin < end)
    }
}
