//! A simulator of bios that complete on one CPU and whose steps may run on another: **a model**, not a measurement.
//!
//! It is deterministic, runs the same decision function as the engine, and covers machines that we don't have: 1 to 128
//! CPUs, slow and fast ones mixed. It leaves out preemption, caches, frequencies, interrupts and all other load. A CPU
//! does one thing at a time, to completion, in order of arrival; waking a worker costs the hand-off, continuing with
//! the next item costs a fraction of it.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::decide::{Situation, Way};

/// A machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// The speed of each CPU, in permille of the fastest; at least one CPU, at least 1 permille.
    pub speeds: Vec<u32>,
    /// The cost of waking a worker or a reader, in nanoseconds.
    pub handoff_ns: u64,
    /// A worker's overhead between two items, in nanoseconds.
    pub next_ns: u64,
}

impl Machine {
    /// `cpus` CPUs of equal speed, a hand-off of 5 us, 300 ns between items.
    pub fn equal(cpus: usize) -> Self {
        Self { speeds: vec![1000; cpus.max(1)], handoff_ns: 5_000, next_ns: 300 }
    }

    fn run_ns(&self, cpu: usize, work_ns: u64) -> u64 {
        work_ns.saturating_mul(1000) / u64::from(self.speeds[cpu].max(1))
    }
}

/// A bio that becomes ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimBio {
    /// When, in nanoseconds. Bios are given in this order.
    pub at_ns: u64,
    /// The CPU that it completes on.
    pub cpu: usize,
    /// The duration of its steps on the fastest CPU, in nanoseconds.
    pub work_ns: u64,
    /// The CPU on which a reader sleeps until it is delivered; none for read-ahead.
    pub reader: Option<usize>,
}

/// The policy to simulate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimPolicy {
    /// Always the same way ([`Way::Reader`]: bound where no reader sleeps).
    Fixed(Way),
    /// [`Situation::decide`].
    Auto,
}

/// The result.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// From ready to delivered, for each bio in the order given, in nanoseconds.
    pub latencies_ns: Vec<u64>,
    /// When the last one was delivered.
    pub makespan_ns: u64,
    /// The most items of the unbound queue that ran at once.
    pub most_unbound: usize,
    /// How many bios went each way, in the order of [`Way::ALL`].
    pub ways: [u64; 4],
}

impl Outcome {
    /// The mean latency.
    pub fn mean_ns(&self) -> u64 {
        self.latencies_ns.iter().sum::<u64>() / (self.latencies_ns.len() as u64).max(1)
    }

    /// The `q` quantile of the latencies.
    pub fn quantile_ns(&self, q: f64) -> u64 {
        let mut sorted = self.latencies_ns.clone();
        sorted.sort_unstable();
        let rank = (q.clamp(0.0, 1.0) * sorted.len() as f64).ceil() as usize;
        sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A CPU has finished what it ran.
    Free(usize),
    /// A bio is ready.
    Ready(usize),
}

#[derive(Clone, Copy)]
struct Task {
    bio: usize,
    way: Way,
}

#[derive(Default)]
struct Cpu {
    queue: VecDeque<Task>,
    running: Option<Task>,
    free_at_ns: u64,
    /// The work in `queue`, at this CPU's speed.
    queued_ns: u64,
    inline_run_ns: u64,
}

struct Sim<'a> {
    machine: &'a Machine,
    bios: &'a [SimBio],
    cpus: Vec<Cpu>,
    unbound: VecDeque<Task>,
    unbound_ns: u64,
    unbound_running: usize,
    events: BinaryHeap<Reverse<(u64, Event)>>,
    outcome: Outcome,
}

/// Runs `bios` through `machine`.
pub fn simulate(machine: &Machine, bios: &[SimBio], policy: SimPolicy) -> Outcome {
    let mut sim = Sim {
        machine,
        bios,
        cpus: machine.speeds.iter().map(|_| Cpu::default()).collect(),
        unbound: VecDeque::new(),
        unbound_ns: 0,
        unbound_running: 0,
        events: bios.iter().enumerate().map(|(n, bio)| Reverse((bio.at_ns, Event::Ready(n)))).collect(),
        outcome: Outcome { latencies_ns: vec![0; bios.len()], ..Outcome::default() },
    };
    while let Some(Reverse((now, event))) = sim.events.pop() {
        match event {
            Event::Ready(bio) => sim.ready(now, bio, policy),
            Event::Free(cpu) => sim.ended(now, cpu),
        }
    }
    sim.outcome
}

impl Sim<'_> {
    fn idle(&self, cpu: usize) -> bool {
        self.cpus[cpu].running.is_none() && self.cpus[cpu].queue.is_empty()
    }

    /// The fastest idle CPU, as a scheduler would choose; the first of several.
    fn idle_cpu(&self) -> Option<usize> {
        (0..self.cpus.len()).filter(|&cpu| self.idle(cpu)).max_by_key(|&cpu| (self.machine.speeds[cpu], Reverse(cpu)))
    }

    fn ready(&mut self, now: u64, bio: usize, policy: SimPolicy) {
        let SimBio { cpu, work_ns, reader, .. } = self.bios[bio];
        let cpu = cpu % self.cpus.len();
        let here = &self.cpus[cpu];
        let running = if here.running.is_some() { here.free_at_ns.saturating_sub(now) } else { 0 };
        let situation = Situation {
            steps_ns: self.machine.run_ns(cpu, work_ns),
            backlog_ns: here.queued_ns.saturating_add(running),
            unbound_backlog_ns: self.unbound_ns / self.cpus.len() as u64,
            handoff_ns: self.machine.handoff_ns,
            inline_run_ns: here.inline_run_ns,
            idle_worker: self.idle_cpu().is_some(),
            other_cpus: self.cpus.len() > 1,
            reader_sleeps: reader.is_some(),
            reader_completes: false,
        };
        let way = match policy {
            SimPolicy::Auto => situation.decide(),
            SimPolicy::Fixed(Way::Reader) if reader.is_none() => Way::Bound,
            SimPolicy::Fixed(way) => way,
        };
        self.outcome.ways[Way::ALL.iter().position(|&w| w == way).unwrap_or(0)] += 1;
        let task = Task { bio, way };
        match way {
            Way::Inline | Way::Bound => self.put(now, cpu, task),
            // A thread that wakes up runs where it was, or on an idle CPU.
            Way::Reader => {
                let home = reader.unwrap_or(cpu) % self.cpus.len();
                let at = if self.idle(home) { home } else { self.idle_cpu().unwrap_or(home) };
                self.put(now, at, task);
            }
            Way::Unbound => match self.idle_cpu() {
                Some(idle) => self.put(now, idle, task),
                None => {
                    self.unbound.push_back(task);
                    self.unbound_ns += work_ns;
                }
            },
        }
    }

    fn put(&mut self, now: u64, cpu: usize, task: Task) {
        if self.cpus[cpu].running.is_none() {
            // The completing thread is awake; any other has to be woken.
            let delay = if task.way == Way::Inline { 0 } else { self.machine.handoff_ns };
            self.begin(now, cpu, task, delay);
        } else {
            self.cpus[cpu].queued_ns += self.machine.run_ns(cpu, self.bios[task.bio].work_ns);
            self.cpus[cpu].queue.push_back(task);
        }
    }

    fn begin(&mut self, now: u64, cpu: usize, task: Task, delay: u64) {
        let run = self.machine.run_ns(cpu, self.bios[task.bio].work_ns);
        let state = &mut self.cpus[cpu];
        state.inline_run_ns = if task.way == Way::Inline { state.inline_run_ns + run } else { 0 };
        state.running = Some(task);
        state.free_at_ns = now + delay + run;
        self.events.push(Reverse((state.free_at_ns, Event::Free(cpu))));
        if task.way == Way::Unbound {
            self.unbound_running += 1;
            self.outcome.most_unbound = self.outcome.most_unbound.max(self.unbound_running);
        }
    }

    fn ended(&mut self, now: u64, cpu: usize) {
        if let Some(task) = self.cpus[cpu].running.take() {
            let bio = self.bios[task.bio];
            let wakes = bio.reader.is_some() && task.way != Way::Reader;
            let delivered = now + if wakes { self.machine.handoff_ns } else { 0 };
            self.outcome.latencies_ns[task.bio] = delivered - bio.at_ns;
            self.outcome.makespan_ns = self.outcome.makespan_ns.max(delivered);
            if task.way == Way::Unbound {
                self.unbound_running -= 1;
            }
        }
        if let Some(task) = self.cpus[cpu].queue.pop_front() {
            self.cpus[cpu].queued_ns -= self.machine.run_ns(cpu, self.bios[task.bio].work_ns);
            self.begin(now, cpu, task, self.machine.next_ns);
        } else if let Some(task) = self.unbound.pop_front() {
            self.unbound_ns -= self.bios[task.bio].work_ns;
            self.begin(now, cpu, task, self.machine.next_ns);
        } else {
            self.cpus[cpu].inline_run_ns = 0;
        }
    }
}
