//! Nice values and EEVDF slices, and the best of both that the system grants.
//!
//! A nice value ranks a thread only within its scheduling group (see [`crate::group`]), and lowering it takes
//! `CAP_SYS_NICE` or a raised `RLIMIT_NICE`. A shorter slice (Linux 6.12 and later) takes no privilege: the thread is
//! picked sooner after it wakes, and preempted sooner once it runs; its share of the CPU stays the same.

use std::io;
use std::time::Duration;

use rustix::process::{Resource, getpriority_process, getrlimit, setpriority_process};

use crate::raw::sched;

/// `SCHED_FLAG_RESET_ON_FORK`, the one flag to keep when attributes are rewritten.
const RESET_ON_FORK: u64 = 1;

/// The shortest slice that the kernel accepts: shorter ones are raised to it (`__setparam_fair` in
/// kernel/sched/fair.c).
pub const SHORTEST_SLICE: Duration = Duration::from_micros(100);

/// What took effect when high priority was requested. The three differ in effect, so reports show which one it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum HighPriority {
    /// This nice value, below the one before; -20 where the system allows it.
    Nice(i32),
    /// The nice value did not change; this slice took effect.
    Slice(Duration),
    /// Nothing: the thread runs as before.
    None,
}

impl std::fmt::Display for HighPriority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            HighPriority::Nice(nice) => write!(f, "nice {nice}"),
            HighPriority::Slice(slice) => write!(f, "slice {} us", slice.as_micros()),
            HighPriority::None => write!(f, "none"),
        }
    }
}

/// The calling thread's nice value, -20 (first) to 19. (On Linux, unlike POSIX, nice is per thread.)
pub fn current_nice() -> io::Result<i32> {
    getpriority_process(None).map_err(io::Error::from)
}

/// Sets the calling thread's nice value; the kernel clamps it to -20..=19. Threads made afterwards inherit it.
///
/// # Errors
/// `PermissionDenied` when it is lower than now and neither `CAP_SYS_NICE` nor `RLIMIT_NICE` allows it.
pub fn set_nice_current(nice: i32) -> io::Result<()> {
    setpriority_process(None, nice).map_err(io::Error::from)
}

/// The calling thread's slice. `None` if the kernel does not report it (before 6.12).
pub fn current_slice() -> io::Result<Option<Duration>> {
    let runtime = sched::getattr(0)?.runtime;
    Ok((runtime != 0).then(|| Duration::from_nanos(runtime)))
}

/// Sets the calling thread's slice, and returns the one in effect: the kernel raises it to 100 us, or lowers it to 100
/// ms. Zero restores the default.
///
/// # Errors
/// `Unsupported` on a kernel that accepts the call and ignores it (before 6.12); else the kernel's.
pub fn set_slice_current(slice: Duration) -> io::Result<Duration> {
    let mut attr = sched::getattr(0)?;
    attr.flags &= RESET_ON_FORK;
    attr.runtime = u64::try_from(slice.as_nanos()).unwrap_or(u64::MAX);
    sched::setattr(0, attr)?;
    match sched::getattr(0)?.runtime {
        0 => Err(io::Error::new(io::ErrorKind::Unsupported, "this kernel has no per-thread slice (needs Linux 6.12)")),
        got => Ok(Duration::from_nanos(got)),
    }
}

/// Makes a thread real-time (`SCHED_FIFO`) at the lowest such priority: no fair thread, of whatever nice value, preempts it.
/// 0 is the calling thread.
///
/// # Errors
/// `PermissionDenied` when neither `CAP_SYS_NICE` nor `RLIMIT_RTPRIO` allows it.
pub fn set_fifo(tid: i32) -> io::Result<()> {
    const SCHED_FIFO: u32 = 1;
    sched::setattr(tid, sched::SchedAttr { policy: SCHED_FIFO, priority: 1, ..Default::default() })
}

/// Gives the calling thread the highest priority that the system grants: nice -20; or as low as `RLIMIT_NICE` allows;
/// or a slice of `slice`; or nothing. Returns what took effect.
pub fn raise_current(slice: Duration) -> HighPriority {
    let before = current_nice().unwrap_or(0);
    // The limit is kept as 20 - nice, 1 to 40.
    let limit = getrlimit(Resource::Nice).current.map_or(40, |l| l.min(40));
    let allowed = 20 - i32::try_from(limit).unwrap_or(0);
    for nice in [-20, allowed] {
        if nice < before && set_nice_current(nice).is_ok() {
            return HighPriority::Nice(current_nice().unwrap_or(nice));
        }
    }
    if before == -20 {
        return HighPriority::Nice(before);
    }
    match set_slice_current(slice) {
        Ok(got) => HighPriority::Slice(got),
        Err(_) => HighPriority::None,
    }
}
