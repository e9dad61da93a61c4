//! What else the machine did during an experiment.

use std::time::{Duration, Instant};

use postread_sys::procstat::{self, CpuTimes};

/// Begun with the experiment.
pub(crate) struct Meanwhile {
    begun: Instant,
    times: CpuTimes,
    own: Duration,
}

/// What came of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Disturbance {
    /// Time that the hypervisor took, in milliseconds.
    pub(crate) steal_ms: f64,
    /// Share of the machine's CPUs that others used, in percent.
    pub(crate) other_cpu_percent: f64,
}

fn own_cpu_time() -> Duration {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(t.tv_sec).unwrap_or(0), u32::try_from(t.tv_nsec).unwrap_or(0))
}

impl Meanwhile {
    pub(crate) fn begin() -> Meanwhile {
        let times = procstat::cpu_times().unwrap_or_default();
        Meanwhile { begun: Instant::now(), times, own: own_cpu_time() }
    }

    pub(crate) fn end(&self) -> Disturbance {
        let times = procstat::cpu_times().unwrap_or_default().since(&self.times);
        let busy = times.user + times.nice + times.system + times.irq;
        let others = busy.saturating_sub(own_cpu_time().saturating_sub(self.own));
        let cpus = postread_sys::online_cpus().map_or(1, |cpus| cpus.len().max(1));
        let all = self.begun.elapsed().as_secs_f64() * cpus as f64;
        Disturbance {
            steal_ms: times.steal.as_secs_f64() * 1000.0,
            other_cpu_percent: if all > 0.0 { others.as_secs_f64() / all * 100.0 } else { 0.0 },
        }
    }
}
