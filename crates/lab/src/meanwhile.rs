//! What else the machine did during an experiment.

use std::time::{Duration, Instant};

use postread_sys::procstat::{self, CpuTimes};

use crate::error::LabError;

/// Begun with the experiment.
pub(crate) struct Meanwhile {
    begun: Instant,
    times: CpuTimes,
    own: Duration,
    children: bool,
}

/// A run during which others used more of the CPUs than this, in percent, is repeated.
const BUSY_PERCENT: f64 = 15.0;
/// Or during which the hypervisor took more than this share of the time, in percent.
const STEAL_PERCENT: f64 = 5.0;

/// Which runs count: a disturbed one is repeated, as long as not too many are.
#[derive(Debug)]
pub(crate) struct Quiet {
    /// Repetitions that are left.
    left: usize,
    /// Runs that were repeated.
    pub(crate) repeated: usize,
    /// Runs that count although they were disturbed.
    pub(crate) disturbed: usize,
    /// Of the runs that count.
    pub(crate) steal_ms: f64,
    others: Vec<f64>,
}

impl Quiet {
    /// For an experiment of this many runs: up to a quarter as many repetitions.
    pub(crate) fn new(runs: usize) -> Quiet {
        Quiet { left: runs / 4, repeated: 0, disturbed: 0, steal_ms: 0.0, others: Vec::new() }
    }

    /// Repeats `run` until nothing else disturbs it, at most three times.
    pub(crate) fn run<T>(&mut self, mut run: impl FnMut() -> Result<T, LabError>) -> Result<T, LabError> {
        for attempt in 0.. {
            let meanwhile = Meanwhile::begin();
            let value = run()?;
            let took_ms = meanwhile.begun.elapsed().as_secs_f64() * 1000.0;
            let found = meanwhile.end();
            // A tick is 10 ms: in less than a few of them nothing can be seen.
            let bad = took_ms > 40.0
                && (found.other_cpu_percent > BUSY_PERCENT || found.steal_ms > took_ms * STEAL_PERCENT / 100.0 + 10.0);
            if bad && self.left > 0 && attempt < 2 {
                self.left -= 1;
                self.repeated += 1;
                continue;
            }
            self.disturbed += usize::from(bad);
            self.steal_ms += found.steal_ms;
            self.others.push(found.other_cpu_percent);
            return Ok(value);
        }
        Err(LabError::Engine("no run".into()))
    }

    pub(crate) fn report(&self) -> Disturbances {
        Disturbances {
            repeated: self.repeated,
            disturbed: self.disturbed,
            runs: self.others.len(),
            steal_ms: self.steal_ms,
            other_cpu_percent: crate::statistics::median(&self.others),
        }
    }
}

/// What disturbed an experiment.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct Disturbances {
    /// Runs that count.
    pub runs: usize,
    /// Runs that were repeated since others used the machine meanwhile.
    pub repeated: usize,
    /// Runs that count although others did.
    pub disturbed: usize,
    /// Time that the hypervisor took during the runs that count, in milliseconds.
    pub steal_ms: f64,
    /// Share of the CPUs that others used during them, in percent: the median over runs.
    pub other_cpu_percent: f64,
}

/// The outcome.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Disturbance {
    /// Time that the hypervisor took, in milliseconds.
    pub(crate) steal_ms: f64,
    /// Share of the machine's CPUs that others used, in percent.
    pub(crate) other_cpu_percent: f64,
}

fn own_cpu_time(children: bool) -> Duration {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let own = Duration::new(u64::try_from(t.tv_sec).unwrap_or(0), u32::try_from(t.tv_nsec).unwrap_or(0));
    if children { own + procstat::children_cpu_time().unwrap_or_default() } else { own }
}

impl Meanwhile {
    pub(crate) fn begin() -> Meanwhile {
        Meanwhile::start(false)
    }

    /// What the children of this process use that have ended by then is not another program's.
    pub(crate) fn begin_with_children() -> Meanwhile {
        Meanwhile::start(true)
    }

    fn start(children: bool) -> Meanwhile {
        let times = procstat::cpu_times().unwrap_or_default();
        Meanwhile { begun: Instant::now(), times, own: own_cpu_time(children), children }
    }

    pub(crate) fn end(&self) -> Disturbance {
        let times = procstat::cpu_times().unwrap_or_default().since(&self.times);
        let busy = times.user + times.nice + times.system + times.irq;
        let others = busy.saturating_sub(own_cpu_time(self.children).saturating_sub(self.own));
        let cpus = postread_sys::online_cpus().map_or(1, |cpus| cpus.len().max(1));
        let all = self.begun.elapsed().as_secs_f64() * cpus as f64;
        Disturbance {
            steal_ms: times.steal.as_secs_f64() * 1000.0,
            other_cpu_percent: if all > 0.0 { others.as_secs_f64() / all * 100.0 } else { 0.0 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// A run that another process disturbs is repeated, and one that nothing disturbs is not. Which of the two it was on the
    /// machine that runs this test does not matter: the numbers agree.
    #[test]
    fn disturbed_runs_are_repeated_and_counted() {
        let mut quiet = Quiet::new(8);
        let ran = Cell::new(0);
        for _ in 0..3 {
            quiet
                .run(|| {
                    ran.set(ran.get() + 1);
                    Ok(())
                })
                .unwrap();
        }
        // Too short for anything to be seen.
        assert_eq!((ran.get(), quiet.report().runs, quiet.report().repeated), (3, 3, 0));
        quiet.run(|| Err::<(), _>(LabError::Engine("x".into()))).unwrap_err();
        // Spun for long enough by a child, which is another program as far as this one knows.
        let mut hog = std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let mut busy = Quiet::new(8);
        let begun = Instant::now();
        busy.run(|| {
            std::thread::sleep(Duration::from_millis(200));
            Ok(())
        })
        .unwrap();
        let _ = hog.kill();
        let _ = hog.wait();
        let report = busy.report();
        assert_eq!(report.runs, 1);
        // Two repetitions are the most; where there are so many CPUs that one hog is nothing, there are none.
        assert!(report.repeated <= 2 && begun.elapsed() >= Duration::from_millis(200));
        let cpus = postread_sys::online_cpus().unwrap().len();
        if cpus <= 2 {
            assert_eq!((report.repeated, report.disturbed), (2, 1), "{report:?}");
        }
    }
}
