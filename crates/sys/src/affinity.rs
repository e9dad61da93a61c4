//! Which CPUs a thread may run on, which one it runs on, and which ones there are.

use std::io;
use std::path::Path;

use crate::CpuSet;
use crate::raw::sched;

/// The calling thread's affinity mask, [`sched_getaffinity(2)`](https://man7.org/linux/man-pages/man2/sched_setaffinity.2.html).
pub fn current() -> io::Result<CpuSet> {
    sched::getaffinity(0)
}

/// The affinity mask of a thread of any process.
pub fn of_thread(tid: i32) -> io::Result<CpuSet> {
    sched::getaffinity(tid)
}

/// Sets the calling thread's affinity mask, and checks that it took effect: some systems accept the call and keep
/// (part of) the old mask. Threads made afterwards inherit it.
///
/// # Errors
/// The kernel's (`InvalidInput` when no CPU of the set is online and allowed), or `Unsupported` when the mask that is in
/// effect afterwards has a CPU outside `cpus`. A mask narrower than asked for (a CPU that is offline) is no error.
pub fn set_current(cpus: &CpuSet) -> io::Result<()> {
    set_thread(0, cpus)
}

/// As [`set_current`] for a thread of any process; 0 is the caller.
pub fn set_thread(tid: i32, cpus: &CpuSet) -> io::Result<()> {
    sched::setaffinity(tid, cpus)?;
    let got = sched::getaffinity(tid)?;
    if got.is_empty() || !got.is_subset(cpus) {
        let text = format!("asked for CPUs {cpus}, the kernel kept {got}");
        return Err(io::Error::new(io::ErrorKind::Unsupported, text));
    }
    Ok(())
}

/// The CPU that the caller runs on. Unless the thread is pinned, it may be on another one before the call returns.
#[inline]
pub fn current_cpu() -> u32 {
    sched::getcpu()
}

/// The CPUs that are online, from `/sys`; where that cannot be read, the calling thread's affinity mask.
pub fn online_cpus() -> io::Result<CpuSet> {
    match online_cpus_in(Path::new("/sys")) {
        Ok(cpus) if !cpus.is_empty() => Ok(cpus),
        _ => current(),
    }
}

/// The CPUs that are online by the `sys` tree under `sysfs`.
pub fn online_cpus_in(sysfs: &Path) -> io::Result<CpuSet> {
    let list = std::fs::read_to_string(sysfs.join("devices/system/cpu/online"))?;
    list.parse().map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
}
