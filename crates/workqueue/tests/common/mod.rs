//! What the workqueue tests share.
#![allow(dead_code, reason = "each test file uses a part")]

use std::sync::Mutex;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use postread_sys::affinity;
use postread_sys::topology::Topology;
use postread_workqueue::{Config, Pools, Work, Workqueue, WqFlags, blocking};

/// Both kinds of queue.
pub(crate) const BOTH: [WqFlags; 2] = [WqFlags::PERCPU, WqFlags::UNBOUND];

/// How long a test may take before it counts as hung: far beyond what the slowest machine needs.
/// `POSTREAD_HANG_SECS` changes it.
fn patience() -> Duration {
    let secs = std::env::var("POSTREAD_HANG_SECS").ok().and_then(|s| s.parse().ok());
    Duration::from_secs(secs.unwrap_or(120))
}

/// Runs a test's body; a hang fails the test instead of the whole run.
#[track_caller]
pub(crate) fn within_patience(body: impl FnOnce() + Send + 'static) {
    within(patience(), body);
}

/// As [`within_patience`], for a body that runs `extra` by intent.
#[track_caller]
pub(crate) fn within_patience_and(extra: Duration, body: impl FnOnce() + Send + 'static) {
    within(patience() + extra, body);
}

#[track_caller]
fn within(limit: Duration, body: impl FnOnce() + Send + 'static) {
    let (done, is_done) = mpsc::channel();
    let name = std::thread::current().name().unwrap_or("test").to_owned();
    let thread = std::thread::Builder::new().name(name).spawn(move || {
        body();
        let _ = done.send(());
    });
    let thread = thread.expect("a thread");
    match is_done.recv_timeout(limit) {
        Err(RecvTimeoutError::Timeout) => panic!("hung for {limit:?}"),
        _ => {
            if let Err(payload) = thread.join() {
                std::panic::resume_unwind(payload);
            }
        }
    }
}

/// Worker pools of the test's own, so that no other test's items are in the way; four unbound workers at once even on
/// one CPU.
pub(crate) fn pools() -> Pools {
    Pools::new(config().unbound_concurrency(4)).expect("pools")
}

/// Settings without the monitor, for tests whose items hold a worker without saying that they wait.
pub(crate) fn config() -> Config {
    Config::new().cpu_intensive_thresh(Duration::ZERO)
}

/// A topology in which each CPU of the tests has a core, a last-level cache and a NUMA node of its own.
pub(crate) fn split_topology() -> Topology {
    let cpus = affinity::current().expect("the affinity mask");
    let dir = tempfile::tempdir().expect("a directory");
    let write = |path: String, text: String| {
        let path = dir.path().join(path);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
        std::fs::write(path, text).expect("a file");
    };
    write("devices/system/cpu/online".into(), cpus.to_string());
    write("devices/system/node/online".into(), format!("0-{}", cpus.len() - 1));
    for (node, cpu) in cpus.iter().enumerate() {
        write(format!("devices/system/node/node{node}/cpulist"), cpu.to_string());
        let cpu_dir = format!("devices/system/cpu/cpu{cpu}");
        write(format!("{cpu_dir}/topology/thread_siblings_list"), cpu.to_string());
        write(format!("{cpu_dir}/cache/index0/level"), "3".into());
        write(format!("{cpu_dir}/cache/index0/type"), "Unified".into());
        write(format!("{cpu_dir}/cache/index0/shared_cpu_list"), cpu.to_string());
    }
    Topology::read(dir.path()).expect("a topology")
}

/// The first and the last CPU that the tests may use: the same on a machine with one.
pub(crate) fn two_cpus() -> (u32, u32) {
    let cpus = affinity::current().expect("the affinity mask");
    (cpus.first().expect("a CPU"), cpus.last().expect("a CPU"))
}

/// Numbers that look random and come from a seed: xorshift64*.
#[derive(Debug, Clone)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Below `n`.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() >> 33) as usize % n
    }
}

/// An item that has started and waits inside `blocking` until the test lets it go on.
pub(crate) struct Gate {
    pub(crate) entered: mpsc::Receiver<()>,
    pub(crate) go: mpsc::Sender<()>,
}

/// A reusable item that passes through a gate at each run.
pub(crate) fn gated_work(inside: impl Fn(&Work) + Send + Sync + 'static) -> (Work, Gate) {
    let (enter, entered) = mpsc::channel();
    let (go, may_go) = mpsc::channel();
    let (enter, may_go) = (Mutex::new(enter), Mutex::new(may_go));
    let work = Work::new(move |work| {
        inside(work);
        let _ = enter.lock().unwrap().send(());
        let _ = blocking(|| may_go.lock().unwrap().recv());
    });
    (work, Gate { entered, go })
}

/// Queues an item that holds its worker: it waits without saying so.
pub(crate) fn hog(wq: &Workqueue, cpu: u32) -> Gate {
    let (enter, entered) = mpsc::channel();
    let (go, may_go) = mpsc::channel::<()>();
    let queued = wq.spawn_on(cpu, move || {
        let _ = enter.send(());
        let _ = may_go.recv();
    });
    assert!(queued.unwrap());
    entered.recv().unwrap();
    Gate { entered, go }
}
