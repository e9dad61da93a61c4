//! Threads that complete bios: one group per CPU, pinned, at normal priority.

use std::io;
use std::sync::mpsc;
use std::thread::JoinHandle;

/// The CPUs that this process may use, ascending; at least one.
pub(crate) fn allowed_cpus() -> Vec<u32> {
    let Ok(set) = rustix::thread::sched_getaffinity(None) else { return vec![0] };
    let cpus: Vec<u32> =
        (0..rustix::thread::CpuSet::MAX_CPU).filter(|c| set.is_set(*c)).filter_map(|c| u32::try_from(c).ok()).collect();
    if cpus.is_empty() { vec![0] } else { cpus }
}

/// A thread that is pinned to a CPU, with the kernel's id for it.
pub(crate) struct Pinned {
    pub(crate) tid: u32,
    pub(crate) handle: JoinHandle<()>,
}

/// Waits for threads that were told to stop.
pub(crate) fn join_all(threads: &mut Vec<Pinned>) {
    let me = std::thread::current().id();
    for thread in threads.drain(..) {
        // The last handle may be dropped by a completion that runs on one of these threads.
        if thread.handle.thread().id() != me {
            let _ = thread.handle.join();
        }
    }
}

/// Starts a thread named `name` on `cpu` and waits until it is pinned there.
pub(crate) fn spawn_pinned(name: String, cpu: u32, run: impl FnOnce() + Send + 'static) -> io::Result<Pinned> {
    let (tell, told) = mpsc::sync_channel(1);
    let handle = std::thread::Builder::new().name(name).spawn(move || {
        let pinned = pin(cpu).map(|()| rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs());
        let fine = pinned.is_ok();
        if tell.send(pinned).is_ok() && fine {
            run();
        }
    })?;
    let tid = told.recv().map_err(|_| io::Error::other("the thread ended before it was pinned"))??;
    Ok(Pinned { tid, handle })
}

fn pin(cpu: u32) -> io::Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    if cpu as usize >= rustix::thread::CpuSet::MAX_CPU {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    set.set(cpu as usize);
    rustix::thread::sched_setaffinity(None, &set)?;
    Ok(())
}
