//! Events, independent of the recorder.

use std::collections::HashMap;

/// A thread's number; 0 is the idle task of each CPU.
pub type Pid = u32;

/// Why a task left its CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// It was preempted, or yielded: it is still runnable.
    Runnable,
    /// It sleeps.
    Sleeping,
    /// It has exited.
    Dead,
}

/// What happened. Functions and queues are indices into [`Trace::names`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A CPU went from one task to another.
    Switch {
        /// The task that left.
        prev: Pid,
        /// Why it left.
        left: Left,
        /// The task that runs from now on.
        next: Pid,
    },
    /// A wake-up was requested.
    Waking {
        /// The task.
        pid: Pid,
        /// Where it last ran: the placement is known only from [`Kind::Wakeup`].
        cpu: u32,
    },
    /// A task was put on a CPU's run queue.
    Wakeup {
        /// The task.
        pid: Pid,
        /// The CPU.
        cpu: u32,
    },
    /// A new task was put on a CPU's run queue.
    WakeupNew {
        /// The task.
        pid: Pid,
        /// The CPU.
        cpu: u32,
    },
    /// A task was moved to another CPU's run queue.
    Migrate {
        /// The task.
        pid: Pid,
        /// The CPU it is moved to.
        to: u32,
    },
    /// An interrupt handler, hard or soft, began on this CPU.
    InterruptBegin,
    /// It ended.
    InterruptEnd,
    /// A work item was queued.
    Queue {
        /// Its address.
        work: u64,
        /// Its function's name.
        function: u32,
        /// Its workqueue's name.
        queue: u32,
        /// The CPU that it is bound to; `None` on an unbound queue.
        cpu: Option<u32>,
    },
    /// A work item was put on its pool's list: `max_active` does not hold it back any more.
    Activate {
        /// Its address.
        work: u64,
    },
    /// A worker (the event's task) starts a work item.
    Start {
        /// Its address.
        work: u64,
        /// Its function's name.
        function: u32,
    },
    /// The worker has finished it.
    End {
        /// Its address.
        work: u64,
    },
}

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Nanoseconds of the trace's clock.
    pub time_ns: u64,
    /// The CPU on which it happened.
    pub cpu: u32,
    /// The task that ran there.
    pub pid: Pid,
    /// True in an interrupt, where the task is merely the one that was interrupted.
    pub interrupt: bool,
    /// What happened.
    pub kind: Kind,
}

/// Events with the names that they refer to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// In order of time; events of one time in the order in which they happened.
    pub events: Vec<Event>,
    /// The name of each task.
    pub comms: HashMap<Pid, String>,
    /// Names of functions and workqueues.
    pub names: Vec<String>,
    /// Events that the recorder lost.
    pub lost: u64,
}

/// What kind of task a waiting worker finds on its CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// The idle task.
    Idle,
    /// A worker of a workqueue.
    Worker,
    /// A thread that completes I/O.
    Completer,
    /// A program: readers and everything in front of them.
    App,
    /// Another kernel thread.
    Kernel,
}

impl Trace {
    /// The index of a name, which is added if it is new.
    pub fn name(&mut self, name: &str) -> u32 {
        let at = self.names.iter().position(|known| known == name).unwrap_or_else(|| {
            self.names.push(name.into());
            self.names.len() - 1
        });
        at as u32
    }

    /// A task's class, by its name.
    pub fn class(&self, pid: Pid) -> Class {
        const KERNEL: [&str; 10] = [
            "kthreadd",
            "rcu",
            "migration/",
            "jbd2/",
            "kswapd",
            "khugepaged",
            "kcompactd",
            "f2fs_",
            "cpuhp/",
            "pool_work",
        ];
        if pid == 0 {
            return Class::Idle;
        }
        let comm = self.comms.get(&pid).map_or("", String::as_str);
        let begins = |list: &[&str]| list.iter().any(|prefix| comm.starts_with(prefix));
        if begins(&["kworker/", "pr/"]) {
            Class::Worker
        } else if begins(&["pr-io/", "pr-ring/", "ksoftirqd/", "irq/"]) {
            Class::Completer
        } else if begins(&KERNEL) {
            Class::Kernel
        } else {
            Class::App
        }
    }

    /// The worker pool of a worker, from its name: `0H` of `kworker/0:1H`, `u9` of `kworker/u9:3`. A worker with any other
    /// name, such as a rescuer, is a pool of its own.
    pub(crate) fn pool(&self, pid: Pid) -> String {
        let comm = self.comms.get(&pid).map_or("", String::as_str);
        let pool = || {
            let (_, place) = comm.split_once('/')?;
            let (cpu, worker) = place.split_once(':')?;
            let digits = cpu.strip_prefix('u').unwrap_or(cpu);
            let number = worker.trim_start_matches(|c: char| c.is_ascii_digit());
            let known = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) && number.len() < worker.len();
            known.then(|| format!("{cpu}{}", if number.starts_with('H') { "H" } else { "" }))
        };
        pool().unwrap_or_else(|| format!("={pid}"))
    }
}
