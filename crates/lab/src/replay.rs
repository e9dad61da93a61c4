//! One start of an app: its threads read, think and compute while others compute.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

use postread::{Engine, Plan};
use postread_sys::thread_cpu_ns;

use postread_sys::schedstat::{SchedStat, ThreadStat};

use crate::arm::add;
use crate::error::{LabError, Tried};
use crate::measured::AppThreads;
use crate::workload::{App, Read};

/// Replays the start of `app`, whose files are read as `plans` say, and returns how long it took, from when all threads were
/// ready until the last one had read all it wanted, and what its threads used meanwhile.
pub(crate) fn start_up(app: &App, engine: &Engine, plans: Vec<Plan>) -> Result<(Duration, AppThreads), LabError> {
    let files: Vec<_> = plans.into_iter().map(|plan| engine.open(plan)).collect();
    let gate = Gate::default();
    let done = AtomicBool::new(false);
    let mut took = Duration::ZERO;
    let mut used = AppThreads::default();
    let result = std::thread::scope(|scope| {
        let starting = Starting(&gate);
        let computing = (0..app.foreground_threads)
            .map(|_| {
                let compute = || {
                    if !gate.wait() {
                        return SchedStat::default();
                    }
                    let before = own_stat();
                    while !done.load(Ordering::Relaxed) {
                        think(1000, app.foreground_permille);
                    }
                    own_stat().since(&before)
                };
                Builder::new().spawn_scoped(scope, compute).tried(|| "starting a computing thread".into())
            })
            .collect::<Result<Vec<_>, LabError>>()?;
        let readers = app
            .threads
            .iter()
            .map(|reads| {
                let (files, gate) = (&files, &gate);
                let replay = move || {
                    let readers: Vec<_> = files.iter().map(postread::OpenFile::reader).collect();
                    let longest = reads.iter().map(|read| read.len).max().unwrap_or(0);
                    let mut buf = vec![0; longest as usize];
                    if !gate.wait() {
                        return Ok(SchedStat::default());
                    }
                    let before = own_stat();
                    for &Read { think_us, file, offset, len } in reads {
                        think(think_us, app.compute_permille);
                        let buf = &mut buf[..len as usize];
                        let n =
                            readers[file as usize].read_at(buf, offset).map_err(|e| LabError::Read(e.to_string()))?;
                        if n < buf.len() {
                            return Err(LabError::Read(format!("{n} of {len} bytes at {offset}")));
                        }
                    }
                    Ok(own_stat().since(&before))
                };
                Builder::new().spawn_scoped(scope, replay).tried(|| "starting a reading thread".into())
            })
            .collect::<Result<Vec<_>, LabError>>()?;
        let begin = starting.open(readers.len() + app.foreground_threads as usize);
        let mut result = Ok(());
        for reader in readers {
            match reader.join().unwrap_or_else(|_| Err(LabError::Read("a reading thread panicked".into()))) {
                Ok(stat) => add(&mut used.readers, &stat),
                Err(error) => result = result.and(Err(error)),
            }
        }
        took = begin.elapsed();
        done.store(true, Ordering::Relaxed);
        for thread in computing {
            add(&mut used.foreground, &thread.join().unwrap_or_default());
        }
        result
    });
    for file in &files {
        file.close();
    }
    result.map(|()| (took, used))
}

/// The calling thread's counters; zeros where the kernel does not count.
fn own_stat() -> SchedStat {
    ThreadStat::current().and_then(|stat| stat.read()).unwrap_or_default()
}

/// Holds threads until all are ready, or until one could not be started: then no other may wait for it.
#[derive(Default)]
struct Gate {
    /// How many threads wait, and once it is known, whether they are to go on.
    state: Mutex<(usize, Option<bool>)>,
    changed: Condvar,
}

impl Gate {
    fn lock(&self) -> MutexGuard<'_, (usize, Option<bool>)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the gate opens; false if it never will.
    fn wait(&self) -> bool {
        let mut state = self.lock();
        state.0 += 1;
        self.changed.notify_all();
        loop {
            if let (_, Some(go_on)) = *state {
                return go_on;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The one who starts the threads. Dropped before it opened the gate, it sends those that wait away.
struct Starting<'a>(&'a Gate);

impl Starting<'_> {
    /// Opens the gate once `threads` wait at it, and returns when that was.
    fn open(self, threads: usize) -> Instant {
        let mut state = self.0.lock();
        while state.0 < threads {
            state = self.0.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.1 = Some(true);
        Instant::now()
    }
}

impl Drop for Starting<'_> {
    fn drop(&mut self) {
        self.0.lock().1.get_or_insert(false);
        self.0.changed.notify_all();
    }
}

/// Takes `us` microseconds when undisturbed: computes for a share of it, by the thread's own CPU time so that being
/// preempted takes nothing off, and sleeps for the rest.
pub(crate) fn think(us: u64, compute_permille: u32) {
    let compute = us * u64::from(compute_permille);
    let until = thread_cpu_ns() + compute;
    let mut value = us | 1;
    while thread_cpu_ns() < until {
        for _ in 0..200 {
            value = std::hint::black_box(value.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1));
        }
    }
    let sleep = us * 1000 - compute;
    if sleep > 0 {
        std::thread::sleep(Duration::from_nanos(sleep));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two threads wait at a gate while `start` handles it. Returns their results.
    fn told(start: impl FnOnce(Starting<'_>)) -> [bool; 2] {
        let gate = Gate::default();
        std::thread::scope(|scope| {
            let waiting = [(); 2].map(|()| scope.spawn(|| gate.wait()));
            start(Starting(&gate));
            waiting.map(|thread| thread.join().unwrap())
        })
    }

    #[test]
    fn threads_begin_together_or_go_away() {
        assert_eq!(
            told(|starting| {
                starting.open(2);
            }),
            [true; 2]
        );
        // A third one could not be started.
        assert_eq!(told(|starting| drop(starting)), [false; 2]);
    }
}
