//! What each task and each CPU did when.

use std::collections::HashMap;

use crate::event::{Kind, Left, Pid, Trace};

/// What a task does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// It does not exist yet.
    Absent,
    /// It sleeps.
    Sleeping,
    /// Its wake-up has been requested; it is on no run queue yet.
    Waking,
    /// It is on the run queue of a CPU.
    Runnable { cpu: u32 },
    /// It runs.
    Running,
}

/// A state that holds from a time on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    pub(crate) from: u64,
    pub(crate) state: State,
    /// When the wake-up was requested that led to this state; for a preempted task, when it was preempted.
    pub(crate) woken: u64,
    /// True if it was moved to another CPU since it was woken.
    pub(crate) migrated: bool,
}

/// Who occupies a CPU from a time on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Occupant {
    pub(crate) from: u64,
    pub(crate) pid: Pid,
    pub(crate) interrupt: bool,
}

/// A task's states in order of time.
#[derive(Debug, Default)]
pub(crate) struct Task {
    segments: Vec<Segment>,
    /// A wake-up that was requested while the task was still running.
    pending: Option<u64>,
}

impl Task {
    /// The states within a range of time, each with its own range.
    pub(crate) fn within(&self, from: u64, to: u64) -> impl Iterator<Item = (u64, u64, Segment)> + '_ {
        let first = self.segments.partition_point(|segment| segment.from <= from).saturating_sub(1);
        (first..self.segments.len())
            .map_while(move |at| {
                let segment = self.segments[at];
                let end = self.segments.get(at + 1).map_or(u64::MAX, |next| next.from).min(to);
                let begin = segment.from.max(from);
                (segment.from < to).then_some((begin, end, segment))
            })
            .filter(|(begin, end, _)| begin < end)
    }

    /// The first time from `from` on that the task runs.
    pub(crate) fn runs_from(&self, from: u64) -> Option<u64> {
        self.within(from, u64::MAX).find(|(_, _, segment)| segment.state == State::Running).map(|(begin, _, _)| begin)
    }

    fn last(&self) -> Option<&Segment> {
        self.segments.last()
    }

    fn enter(&mut self, from: u64, state: State, woken: u64, migrated: bool) {
        self.segments.push(Segment { from, state, woken, migrated });
    }
}

/// All tasks and CPUs of a trace.
#[derive(Debug, Default)]
pub(crate) struct Timeline {
    tasks: HashMap<Pid, Task>,
    cpus: HashMap<u32, Vec<Occupant>>,
}

impl Timeline {
    pub(crate) fn of(trace: &Trace) -> Timeline {
        let mut timeline = Timeline::default();
        // Some recorders have only `sched_waking`: the task is then runnable at once, as far as anyone can tell.
        let wakeups = trace.events.iter().any(|event| matches!(event.kind, Kind::Wakeup { .. }));
        let mut depth: HashMap<u32, u32> = HashMap::new();
        for event in &trace.events {
            let (now, cpu) = (event.time_ns, event.cpu);
            match event.kind {
                Kind::Switch { prev, left, next } => {
                    if prev != 0 {
                        timeline.switched_out(prev, left, now, cpu);
                    }
                    if next != 0 {
                        // Before its first event it must have been runnable.
                        let task = timeline.known(next, State::Runnable { cpu });
                        let (woken, migrated) = task.last().map_or((now, false), |last| (last.woken, last.migrated));
                        task.pending = None;
                        task.enter(now, State::Running, woken, migrated);
                    }
                    let interrupt = depth.get(&cpu).is_some_and(|depth| *depth > 0);
                    timeline.cpus.entry(cpu).or_default().push(Occupant { from: now, pid: next, interrupt });
                }
                Kind::Waking { pid, cpu: target } => {
                    let task = timeline.known(pid, State::Sleeping);
                    match task.last().map(|last| last.state) {
                        // It takes effect when the task leaves its CPU.
                        Some(State::Running) => task.pending = Some(now),
                        Some(State::Sleeping | State::Absent) if wakeups => task.enter(now, State::Waking, now, false),
                        Some(State::Sleeping | State::Absent) => {
                            task.enter(now, State::Runnable { cpu: target }, now, false);
                        }
                        _ => {}
                    }
                }
                Kind::Wakeup { pid, cpu: target } => {
                    let task = timeline.known(pid, State::Sleeping);
                    let last = task.last().copied();
                    match last.map(|last| last.state) {
                        Some(State::Waking) => {
                            let (woken, migrated) = last.map_or((now, false), |last| (last.woken, last.migrated));
                            task.enter(now, State::Runnable { cpu: target }, woken, migrated);
                        }
                        Some(State::Sleeping | State::Absent) => {
                            task.enter(now, State::Runnable { cpu: target }, now, false);
                        }
                        // It had not yet left its CPU: it stays runnable.
                        _ => task.pending = None,
                    }
                }
                Kind::WakeupNew { pid, cpu: target } => {
                    let task = timeline.known(pid, State::Absent);
                    task.enter(now, State::Runnable { cpu: target }, now, false);
                }
                Kind::Migrate { pid, to } => {
                    let task = timeline.known(pid, State::Sleeping);
                    match task.last().copied() {
                        Some(Segment { state: State::Runnable { .. }, woken, .. }) => {
                            task.enter(now, State::Runnable { cpu: to }, woken, true);
                        }
                        Some(Segment { state: State::Waking, woken, .. }) => {
                            task.enter(now, State::Waking, woken, true);
                        }
                        _ => {}
                    }
                }
                Kind::InterruptBegin | Kind::InterruptEnd => {
                    let depth = depth.entry(cpu).or_default();
                    *depth = if event.kind == Kind::InterruptBegin { *depth + 1 } else { depth.saturating_sub(1) };
                    let interrupt = *depth > 0;
                    timeline.cpus.entry(cpu).or_default().push(Occupant { from: now, pid: event.pid, interrupt });
                }
                _ => {}
            }
        }
        timeline
    }

    fn switched_out(&mut self, pid: Pid, left: Left, now: u64, cpu: u32) {
        let task = self.known(pid, State::Running);
        let pending = task.pending.take();
        match (left, pending) {
            (Left::Runnable, _) => task.enter(now, State::Runnable { cpu }, now, false),
            (Left::Sleeping, Some(woken)) => task.enter(now, State::Runnable { cpu }, woken, false),
            (Left::Sleeping | Left::Dead, _) => task.enter(now, State::Sleeping, now, false),
        }
    }

    /// A task; where it is new, `before` is what it must have been until now.
    fn known(&mut self, pid: Pid, before: State) -> &mut Task {
        let task = self.tasks.entry(pid).or_default();
        if task.segments.is_empty() {
            task.enter(0, before, 0, false);
        }
        task
    }

    pub(crate) fn task(&self, pid: Pid) -> Option<&Task> {
        self.tasks.get(&pid)
    }

    /// Who occupied a CPU within a range of time, each with its own range. Unknown before the first event of a CPU.
    pub(crate) fn occupants(&self, cpu: u32, from: u64, to: u64) -> Vec<(u64, u64, Option<Occupant>)> {
        let list = self.cpus.get(&cpu).map_or(&[][..], Vec::as_slice);
        let first = list.partition_point(|occupant| occupant.from <= from);
        let mut found = Vec::new();
        let mut at = from;
        for i in first.saturating_sub(1)..list.len() {
            let occupant = list[i];
            if occupant.from >= to {
                break;
            }
            if occupant.from > at {
                found.push((at, occupant.from, None));
                at = occupant.from;
            }
            let end = list.get(i + 1).map_or(to, |next| next.from.min(to));
            if end > at {
                found.push((at, end, Some(occupant)));
                at = end;
            }
        }
        if at < to {
            found.push((at, to, None));
        }
        found
    }

    /// How long within a range of time at least one CPU was idle.
    pub(crate) fn some_idle_ns(&self, from: u64, to: u64) -> u64 {
        let mut idle: Vec<(u64, u64)> = self
            .cpus
            .keys()
            .flat_map(|cpu| self.occupants(*cpu, from, to))
            .filter(|(_, _, occupant)| occupant.is_some_and(|o| o.pid == 0 && !o.interrupt))
            .map(|(begin, end, _)| (begin, end))
            .collect();
        idle.sort_unstable();
        let (mut sum, mut reached) = (0, from);
        for (begin, end) in idle {
            let begin = begin.max(reached);
            sum += end.saturating_sub(begin);
            reached = reached.max(end);
        }
        sum
    }
}
