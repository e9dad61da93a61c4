//! Assigns each nanosecond of each item to the first state that fits.

use std::collections::HashMap;

use serde::Serialize;

use crate::event::{Class, Kind, Pid, Trace};
use crate::items::{Item, Items};
use crate::parts::{Part, Parts};
use crate::timeline::{Segment, State, Timeline};

/// What an item's worker did between its start and its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Inside {
    /// It ran.
    pub running_ns: u64,
    /// It was preempted.
    pub preempted_ns: u64,
    /// It slept.
    pub blocked_ns: u64,
}

/// From an item's end until the tasks that it woke run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Delivery {
    /// Tasks that it woke.
    pub woken: u64,
    /// From the item's end until they ran, summed over them; 0 for one that ran before.
    pub wait_ns: u64,
    /// Of that: the wake path.
    pub wake_path_ns: u64,
    /// Of that: runnable behind a worker.
    pub behind_worker_ns: u64,
    /// Of that: runnable behind anything else.
    pub behind_other_ns: u64,
}

/// The account of one item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ItemAccount {
    /// Its address.
    pub work: u64,
    /// The thread that executed it.
    pub worker: Pid,
    /// True if its queue is unbound.
    pub unbound: bool,
    /// When it was queued.
    pub queued_ns: u64,
    /// When it started.
    pub started_ns: u64,
    /// When it ended.
    pub ended_ns: u64,
    /// The CPU on which it was queued.
    pub queued_on: u32,
    /// The CPU on which it started.
    pub started_on: u32,
    /// From queueing to start. The parts sum to `started_ns - queued_ns`.
    pub wait: Parts,
    /// Of the time runnable (P5): while another CPU that the worker may use was idle.
    pub idle_elsewhere_ns: u64,
    /// Of the time waiting for an absorbed wake (P2): while that worker was runnable and its CPU busy.
    pub absorbed_runnable_ns: u64,
    /// Its worker was moved to another CPU between wake-up and start.
    pub migrated: bool,
    /// From start to end.
    pub inside: Inside,
    /// From the end until its readers run.
    pub delivery: Delivery,
}

/// The account of a trace.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    /// The requested items, in the order in which they ended.
    pub items: Vec<ItemAccount>,
    /// Requested items whose queueing, start or end is outside the trace. They are not in any sum.
    pub censored: u64,
    /// Events that the recorder lost.
    pub lost_events: u64,
    /// From the first event to the last.
    pub window_ns: u64,
    /// Time that threads of each class were runnable and did not run, after a wake-up or preempted.
    pub runnable_ns: ClassTimes,
    /// Time that they ran.
    pub running_ns: ClassTimes,
}

/// A time for each class of threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ClassTimes {
    /// Workers, of any queue.
    pub workers: u64,
    /// Threads that complete I/O. Interrupts are not threads, and not included.
    pub completers: u64,
    /// Programs.
    pub apps: u64,
    /// Other kernel threads.
    pub kernel: u64,
}

impl ClassTimes {
    /// All classes together.
    pub fn total(&self) -> u64 {
        self.workers + self.completers + self.apps + self.kernel
    }

    fn of(&mut self, class: Class) -> Option<&mut u64> {
        match class {
            Class::Idle => None,
            Class::Worker => Some(&mut self.workers),
            Class::Completer => Some(&mut self.completers),
            Class::App => Some(&mut self.apps),
            Class::Kernel => Some(&mut self.kernel),
        }
    }
}

/// Sums over the items of a ledger.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Totals {
    /// Items.
    pub items: u64,
    /// From queueing to start.
    pub wait_ns: u64,
    /// Its median over items.
    pub wait_p50_ns: u64,
    /// Its 99th percentile over items.
    pub wait_p99_ns: u64,
    /// What the wait consists of.
    pub parts: Parts,
    /// Items of which some part of the wait was behind another item.
    pub items_behind_item: u64,
    /// See [`ItemAccount::idle_elsewhere_ns`].
    pub idle_elsewhere_ns: u64,
    /// See [`ItemAccount::absorbed_runnable_ns`].
    pub absorbed_runnable_ns: u64,
    /// Items whose worker was moved to another CPU between wake-up and start.
    pub migrated: u64,
    /// Items that started on another CPU than the one on which they were queued.
    pub started_elsewhere: u64,
    /// From start to end.
    pub inside: Inside,
    /// From the end until readers run.
    pub delivery: Delivery,
}

impl Ledger {
    /// Sums over all items.
    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        let mut waits: Vec<u64> = self.items.iter().map(|item| item.wait.total_ns()).collect();
        waits.sort_unstable();
        let at = |q: f64| waits.get(((waits.len() as f64 * q) as usize).min(waits.len().saturating_sub(1)));
        (totals.wait_p50_ns, totals.wait_p99_ns) = (at(0.5).copied().unwrap_or(0), at(0.99).copied().unwrap_or(0));
        for item in &self.items {
            totals.items += 1;
            totals.wait_ns += item.wait.total_ns();
            totals.parts.merge(&item.wait);
            totals.items_behind_item += u64::from(item.wait.behind_item_ns() > 0);
            totals.idle_elsewhere_ns += item.idle_elsewhere_ns;
            totals.absorbed_runnable_ns += item.absorbed_runnable_ns;
            totals.migrated += u64::from(item.migrated);
            totals.started_elsewhere += u64::from(item.started_on != item.queued_on);
            totals.inside.running_ns += item.inside.running_ns;
            totals.inside.preempted_ns += item.inside.preempted_ns;
            totals.inside.blocked_ns += item.inside.blocked_ns;
            totals.delivery.woken += item.delivery.woken;
            totals.delivery.wait_ns += item.delivery.wait_ns;
            totals.delivery.wake_path_ns += item.delivery.wake_path_ns;
            totals.delivery.behind_worker_ns += item.delivery.behind_worker_ns;
            totals.delivery.behind_other_ns += item.delivery.behind_other_ns;
        }
        totals
    }
}

/// Accounts for the items whose function's name `wanted` accepts.
pub fn account(trace: &Trace, wanted: impl Fn(&str) -> bool) -> Ledger {
    let items = Items::of(trace);
    let mut pools: HashMap<String, Vec<Pid>> = HashMap::new();
    let mut workers: Vec<Pid> = items.executions.keys().copied().collect();
    workers.extend(trace.comms.keys().copied().filter(|pid| trace.class(*pid) == Class::Worker));
    workers.sort_unstable();
    workers.dedup();
    for worker in &workers {
        pools.entry(trace.pool(*worker)).or_default().push(*worker);
    }
    // Which tasks each worker woke.
    let mut woke: HashMap<Pid, Vec<(u64, Pid)>> = HashMap::new();
    for event in &trace.events {
        if let Kind::Waking { pid, .. } = event.kind
            && !event.interrupt
            && items.executions.contains_key(&event.pid)
            && workers.binary_search(&pid).is_err()
        {
            woke.entry(event.pid).or_default().push((event.time_ns, pid));
        }
    }
    let books = Books { trace, timeline: Timeline::of(trace), items: &items, workers: &workers };
    let accepted: Vec<bool> = trace.names.iter().map(|name| wanted(name)).collect();
    let accepts = |function: u32| accepted.get(function as usize).copied().unwrap_or(false);
    let mut ledger = Ledger { lost_events: trace.lost, ..Ledger::default() };
    ledger.censored = items.censored.iter().filter(|(function, _)| accepts(**function)).map(|(_, n)| n).sum();
    for item in items.items.iter().filter(|item| accepts(item.function)) {
        let mates = pools.get(&trace.pool(item.worker)).map_or(&[][..], Vec::as_slice);
        ledger.items.push(books.item(item, mates, woke.get(&item.worker).map_or(&[][..], Vec::as_slice)));
    }
    if let (Some(first), Some(last)) = (trace.events.first(), trace.events.last()) {
        ledger.window_ns = last.time_ns - first.time_ns;
        for pid in trace.comms.keys() {
            let Some(task) = books.timeline.task(*pid) else { continue };
            for (begin, end, segment) in task.within(first.time_ns, last.time_ns) {
                let times = match segment.state {
                    State::Runnable { .. } => &mut ledger.runnable_ns,
                    State::Running => &mut ledger.running_ns,
                    _ => continue,
                };
                if let Some(sum) = times.of(books.class(*pid)) {
                    *sum += end - begin;
                }
            }
        }
    }
    ledger
}

struct Books<'a> {
    trace: &'a Trace,
    timeline: Timeline,
    items: &'a Items,
    /// Sorted.
    workers: &'a [Pid],
}

/// What a worker is doing.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Doing {
    executing: bool,
    state: State,
    woken: u64,
}

impl Books<'_> {
    fn class(&self, pid: Pid) -> Class {
        if self.workers.binary_search(&pid).is_ok() { Class::Worker } else { self.trace.class(pid) }
    }

    fn item(&self, item: &Item, mates: &[Pid], woke: &[(u64, Pid)]) -> ItemAccount {
        let mut account = ItemAccount {
            work: item.work,
            worker: item.worker,
            unbound: item.unbound,
            queued_ns: item.queued,
            started_ns: item.started,
            ended_ns: item.ended,
            queued_on: item.queued_on,
            started_on: item.started_on,
            wait: Parts::default(),
            idle_elsewhere_ns: 0,
            absorbed_runnable_ns: 0,
            migrated: false,
            inside: Inside::default(),
            delivery: Delivery::default(),
        };
        account.wait.add(Part::Throttled, item.activated - item.queued);
        for (begin, end, doing, segment) in self.doing(item.worker, item.activated, item.started) {
            self.waits(item, mates, (begin, end), doing, &mut account);
            account.migrated |= segment.migrated && matches!(doing.state, State::Runnable { .. } | State::Waking);
        }
        let Some(worker) = self.timeline.task(item.worker) else {
            // A trace without scheduler events: only P0 and P1 can be separated.
            let behind: u64 = self.items.within(item.worker, item.activated, item.started).map(|(a, b)| b - a).sum();
            account.wait.add(Part::BehindRunning, behind);
            account.wait.add(Part::Unexplained, item.started - item.activated - behind);
            account.inside.running_ns = item.ended - item.started;
            return account;
        };
        for (begin, end, segment) in worker.within(item.started, item.ended) {
            match segment.state {
                State::Running => account.inside.running_ns += end - begin,
                State::Runnable { .. } => account.inside.preempted_ns += end - begin,
                _ => account.inside.blocked_ns += end - begin,
            }
        }
        let first = woke.partition_point(|(time, _)| *time < item.started);
        for (time, reader) in woke[first..].iter().take_while(|(time, _)| *time <= item.ended) {
            self.delivery(item, *time, *reader, &mut account.delivery);
        }
        account
    }

    /// What a worker does within a range of time: its states, cut where it executes an item.
    fn doing(&self, worker: Pid, from: u64, to: u64) -> Vec<(u64, u64, Doing, Segment)> {
        let mut found = Vec::new();
        let Some(task) = self.timeline.task(worker) else { return found };
        for (begin, end, segment) in task.within(from, to) {
            let mut at = begin;
            let doing = |executing| Doing { executing, state: segment.state, woken: segment.woken };
            for (a, b) in self.items.within(worker, begin, end) {
                if at < a {
                    found.push((at, a, doing(false), segment));
                }
                found.push((a, b, doing(true), segment));
                at = b;
            }
            if at < end {
                found.push((at, end, doing(false), segment));
            }
        }
        found
    }

    fn waits(&self, item: &Item, mates: &[Pid], (begin, end): (u64, u64), doing: Doing, account: &mut ItemAccount) {
        let whole = end - begin;
        if doing.executing {
            account.wait.add(behind(doing.state), whole);
            return;
        }
        match doing.state {
            State::Running => account.wait.add(Part::Dispatch, whole),
            State::Waking if doing.woken < item.queued => account.wait.add(Part::WakeAbsorbed, whole),
            State::Waking => account.wait.add(Part::WakePath, whole),
            State::Runnable { cpu } => {
                let absorbed = doing.woken < item.queued;
                for (a, b, part) in self.runnable(cpu, begin, end) {
                    match (absorbed, part) {
                        (true, part) => {
                            account.wait.add(Part::WakeAbsorbed, b - a);
                            account.absorbed_runnable_ns += if part == Part::WakePath { 0 } else { b - a };
                        }
                        (false, part) => {
                            account.wait.add(part, b - a);
                            if item.unbound && part != Part::WakePath {
                                account.idle_elsewhere_ns += self.timeline.some_idle_ns(a, b);
                            }
                        }
                    }
                }
            }
            State::Sleeping | State::Absent => {
                // Made for this item, or for one queued since.
                let made = doing.state == State::Absent || self.born(item.worker) > item.queued;
                self.asleep(item, mates, (begin, end), made, doing.state == State::Absent, account);
            }
        }
    }

    /// When a task came into being; 0 if before the trace.
    fn born(&self, pid: Pid) -> u64 {
        let absent = |task: &crate::timeline::Task| {
            task.within(0, u64::MAX)
                .next()
                .filter(|(_, _, segment)| segment.state == State::Absent)
                .map(|(_, end, _)| end)
        };
        self.timeline.task(pid).and_then(absent).unwrap_or(0)
    }

    /// The worker that will execute the item sleeps or does not exist: what the others of its pool do decides.
    fn asleep(
        &self,
        item: &Item,
        mates: &[Pid],
        (begin, end): (u64, u64),
        made: bool,
        absent: bool,
        account: &mut ItemAccount,
    ) {
        let others: Vec<Vec<(u64, u64, Doing, Segment)>> = mates
            .iter()
            .filter(|mate| **mate != item.worker)
            .map(|mate| self.doing(*mate, begin, end))
            .filter(|list| !list.is_empty())
            .collect();
        let queuer_until = self.queuer_until(item);
        let mut cuts: Vec<u64> = others.iter().flatten().flat_map(|(a, b, ..)| [*a, *b]).collect();
        cuts.extend([begin, end, queuer_until.clamp(begin, end)]);
        cuts.sort_unstable();
        cuts.dedup();
        for pair in cuts.windows(2) {
            let (a, b) = (pair[0], pair[1]);
            let now: Vec<Doing> = others
                .iter()
                .filter_map(|list| list.iter().find(|(x, y, ..)| *x <= a && a < *y))
                .map(|d| d.2)
                .collect();
            let executing = |state: fn(State) -> bool| now.iter().any(|doing| doing.executing && state(doing.state));
            let awake = |state: fn(State) -> bool| now.iter().any(|doing| !doing.executing && state(doing.state));
            let running = executing(|state| state == State::Running);
            let preempted = executing(|state| matches!(state, State::Runnable { .. } | State::Waking));
            let blocked = executing(|_| true);
            let coming = awake(|state| matches!(state, State::Runnable { .. } | State::Waking));
            let between = awake(|state| state == State::Running);
            // A bound pool lets one item run at a time, so that a running one holds the others back. An unbound pool
            // wakes a worker for each item, unless all of them are busy or one is on its way.
            let part = if !item.unbound && running {
                Part::BehindRunning
            } else if !item.unbound && preempted {
                Part::BehindPreempted
            } else if coming {
                Part::WakeAbsorbed
            } else if between {
                if made { Part::WorkerMade } else { Part::Dispatch }
            } else if a < queuer_until && !absent {
                Part::Dispatch
            } else if running {
                Part::BehindRunning
            } else if preempted {
                Part::BehindPreempted
            } else if blocked {
                Part::BehindBlocked
            } else if made {
                Part::WorkerMade
            } else {
                Part::Unexplained
            };
            account.wait.add(part, b - a);
        }
    }

    /// Until when the code that queued the item may still be at it: until its CPU does something else.
    fn queuer_until(&self, item: &Item) -> u64 {
        let occupants = self.timeline.occupants(item.queued_on, item.queued, item.started);
        occupants.first().map_or(item.queued, |(_, end, _)| *end)
    }

    /// A task is on the run queue of `cpu`: what for.
    fn runnable(&self, cpu: u32, from: u64, to: u64) -> impl Iterator<Item = (u64, u64, Part)> + '_ {
        self.timeline.occupants(cpu, from, to).into_iter().map(|(a, b, occupant)| {
            let part = match occupant {
                None => Part::Unexplained,
                Some(occupant) if occupant.interrupt => Part::BehindInterrupt,
                Some(occupant) => match self.class(occupant.pid) {
                    Class::Idle => Part::WakePath,
                    Class::Worker => Part::BehindWorker,
                    Class::Completer => Part::BehindCompleter,
                    Class::App => Part::BehindApp,
                    Class::Kernel => Part::BehindKernel,
                },
            };
            (a, b, part)
        })
    }

    fn delivery(&self, item: &Item, woken: u64, reader: Pid, delivery: &mut Delivery) {
        let Some(task) = self.timeline.task(reader) else { return };
        let Some(runs) = task.runs_from(woken) else { return };
        delivery.woken += 1;
        if runs <= item.ended {
            return;
        }
        delivery.wait_ns += runs - item.ended;
        for (begin, end, segment) in task.within(item.ended, runs) {
            match segment.state {
                State::Runnable { cpu } => {
                    for (a, b, part) in self.runnable(cpu, begin, end) {
                        let sum = match part {
                            Part::WakePath => &mut delivery.wake_path_ns,
                            Part::BehindWorker => &mut delivery.behind_worker_ns,
                            _ => &mut delivery.behind_other_ns,
                        };
                        *sum += b - a;
                    }
                }
                _ => delivery.wake_path_ns += end - begin,
            }
        }
    }
}

/// Behind an item whose worker is in this state.
fn behind(state: State) -> Part {
    match state {
        State::Running => Part::BehindRunning,
        State::Runnable { .. } | State::Waking => Part::BehindPreempted,
        State::Sleeping | State::Absent => Part::BehindBlocked,
    }
}
