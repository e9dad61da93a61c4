//! Which CPUs a thread may run on, which one it runs on, and which ones exist.

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
/// The kernel's (`InvalidInput` when no CPU of the set is online and allowed), or `Unsupported` when the mask that is
/// in effect afterwards has a CPU outside `cpus`. A mask narrower than requested (because a CPU is offline) is not an
/// error.
pub fn set_current(cpus: &CpuSet) -> io::Result<()> {
    set_thread(0, cpus)
}

/// As [`set_current`] for a thread of any process; 0 is the caller.
pub fn set_thread(tid: i32, cpus: &CpuSet) -> io::Result<()> {
    set_checked(cpus, || sched::setaffinity(tid, cpus), || sched::getaffinity(tid))
}

/// A CPU may go offline between the two calls, and the kernel then widens the mask of a thread that has no other.
/// Setting it again distinguishes the cases: a CPU that is gone is refused, and a system that ignores masks ignores
/// this one too.
const TRIES: u32 = 4;

fn set_checked(
    cpus: &CpuSet,
    mut set: impl FnMut() -> io::Result<()>,
    mut get: impl FnMut() -> io::Result<CpuSet>,
) -> io::Result<()> {
    let mut kept = CpuSet::default();
    for _ in 0..TRIES {
        set()?;
        kept = get()?;
        if !kept.is_empty() && kept.is_subset(cpus) {
            return Ok(());
        }
    }
    Err(io::Error::new(io::ErrorKind::Unsupported, format!("asked for CPUs {cpus}, the kernel kept {kept}")))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn cpus(list: &str) -> CpuSet {
        list.parse().unwrap()
    }

    #[test]
    fn a_cpu_that_goes_offline_between_the_two_calls_is_gone_and_not_unsupported() {
        let online = std::cell::Cell::new(true);
        let set = || if online.get() { Ok(()) } else { Err(io::ErrorKind::InvalidInput.into()) };
        let get = || {
            online.set(false);
            Ok(cpus("0-4,6-7"))
        };
        assert_eq!(set_checked(&cpus("5"), set, get).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn a_cpu_that_is_back_at_once_is_set_again() {
        let mut masks = [cpus("0-4,6-7"), cpus("5")].into_iter();
        set_checked(&cpus("5"), || Ok(()), || Ok(masks.next().unwrap())).unwrap();
    }

    #[test]
    fn a_system_that_keeps_its_own_mask_is_unsupported() {
        let error = set_checked(&cpus("1"), || Ok(()), || Ok(cpus("0-3"))).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
        assert_eq!(error.to_string(), "asked for CPUs 1, the kernel kept 0-3");
        assert!(set_checked(&cpus("1"), || Ok(()), || Ok(CpuSet::default())).is_err());
    }
}
