//! The machine's CPU time by kind, from `/proc/stat`: above all steal time, when a hypervisor ran something else.

use std::io;
use std::path::Path;
use std::time::Duration;

/// CPU time since boot, summed over all CPUs. Later minus earlier gives an interval.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CpuTimes {
    /// In user space at nice 0 and below.
    pub user: Duration,
    /// In user space at nice above 0.
    pub nice: Duration,
    /// In the kernel.
    pub system: Duration,
    /// Idle.
    pub idle: Duration,
    /// Idle while I/O was outstanding.
    pub iowait: Duration,
    /// In interrupts, hard and soft.
    pub irq: Duration,
    /// Runnable while the hypervisor ran something else: measurements with much of it are worth little.
    pub steal: Duration,
}

impl CpuTimes {
    /// Reads the first line of `/proc/stat` (`proc_stat(5)`), in ticks of which `ticks_per_second` make a second.
    pub fn parse(text: &str, ticks_per_second: u64) -> Option<CpuTimes> {
        let mut fields = text.lines().next()?.split_ascii_whitespace();
        if fields.next()? != "cpu" {
            return None;
        }
        let micros_per_tick = 1_000_000u64.checked_div(ticks_per_second)?;
        // Fields that old kernels lack count as zero.
        let mut next = || -> Option<Duration> {
            let ticks: u64 = fields.next().map_or(Some(0), |f| f.parse().ok())?;
            Some(Duration::from_micros(ticks.saturating_mul(micros_per_tick)))
        };
        let (user, nice, system, idle, iowait) = (next()?, next()?, next()?, next()?, next()?);
        let irq = next()?.saturating_add(next()?);
        Some(CpuTimes { user, nice, system, idle, iowait, irq, steal: next()? })
    }

    /// What was counted since `earlier`; a counter that went backwards (idle time may) gives 0.
    pub fn since(&self, earlier: &CpuTimes) -> CpuTimes {
        CpuTimes {
            user: self.user.saturating_sub(earlier.user),
            nice: self.nice.saturating_sub(earlier.nice),
            system: self.system.saturating_sub(earlier.system),
            idle: self.idle.saturating_sub(earlier.idle),
            iowait: self.iowait.saturating_sub(earlier.iowait),
            irq: self.irq.saturating_sub(earlier.irq),
            steal: self.steal.saturating_sub(earlier.steal),
        }
    }
}

/// The counters now.
pub fn cpu_times() -> io::Result<CpuTimes> {
    cpu_times_in(Path::new("/proc"))
}

/// The counters by the `proc` tree at `proc`.
pub fn cpu_times_in(proc: &Path) -> io::Result<CpuTimes> {
    let text = std::fs::read_to_string(proc.join("stat"))?;
    CpuTimes::parse(&text, rustix::param::clock_ticks_per_second())
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "not the format of /proc/stat"))
}

/// CPU time of this process's children that have ended and been waited for, their own children included.
pub fn children_cpu_time() -> io::Result<Duration> {
    let text = std::fs::read_to_string("/proc/self/stat")?;
    children_in(&text, rustix::param::clock_ticks_per_second())
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "not the format of /proc/self/stat"))
}

/// Fields 16 and 17 of `proc_pid_stat(5)`; the command, field 2, may hold spaces and brackets.
fn children_in(text: &str, ticks_per_second: u64) -> Option<Duration> {
    let mut fields = text.rsplit_once(") ")?.1.split_ascii_whitespace().skip(13);
    let mut ticks = || fields.next()?.parse::<u64>().ok();
    let ticks = ticks()?.checked_add(ticks()?)?;
    Some(Duration::from_micros(ticks.saturating_mul(1_000_000u64.checked_div(ticks_per_second)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse() {
        let times = CpuTimes::parse("cpu  13530 1 3368 99961 349 2 55 23 0 0\ncpu0 1 2\n", 100).unwrap();
        assert_eq!(times.user, Duration::from_millis(135_300));
        assert_eq!(times.irq, Duration::from_millis(570));
        assert_eq!(times.steal, Duration::from_millis(230));
        assert_eq!(CpuTimes::parse("cpu 1 2 3 4", 100).unwrap().steal, Duration::ZERO);
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 100 200 0 0 3 4 50 6 20 0 1 0 100";
        assert_eq!(children_in(stat, 100), Some(Duration::from_millis(560)));
        assert_eq!(children_in("7 (a) S 1", 100), None);
        for bad in ["", "cpu0 1 2 3 4", "cpu 1 x 3"] {
            assert_eq!(CpuTimes::parse(bad, 100), None, "{bad:?}");
        }
    }
}
