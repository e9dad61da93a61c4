//! One start of an app: its threads read, think and compute, beside others that compute.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use postread::{Engine, Plan};
use rustix::time::{ClockId, clock_gettime};

use crate::error::LabError;
use crate::workload::{App, Read};

/// Replays the start of `app`, whose files are read as `plans` say, and returns how long it took: from when all threads
/// were ready until the last one had read all it wanted.
pub(crate) fn start_up(app: &App, engine: &Engine, plans: Vec<Plan>) -> Result<Duration, LabError> {
    let files: Vec<_> = plans.into_iter().map(|plan| engine.open(plan)).collect();
    let ready = Barrier::new(app.threads.len() + app.foreground_threads as usize + 1);
    let done = AtomicBool::new(false);
    let mut took = Duration::ZERO;
    let result = std::thread::scope(|scope| {
        for _ in 0..app.foreground_threads {
            scope.spawn(|| {
                ready.wait();
                while !done.load(Ordering::Relaxed) {
                    think(1000, app.foreground_permille);
                }
            });
        }
        let readers: Vec<_> = app
            .threads
            .iter()
            .map(|reads| {
                let (files, ready) = (&files, &ready);
                scope.spawn(move || {
                    let readers: Vec<_> = files.iter().map(postread::OpenFile::reader).collect();
                    let longest = reads.iter().map(|read| read.len).max().unwrap_or(0);
                    let mut buf = vec![0; longest as usize];
                    ready.wait();
                    for &Read { think_us, file, offset, len } in reads {
                        think(think_us, app.compute_permille);
                        let buf = &mut buf[..len as usize];
                        let n =
                            readers[file as usize].read_at(buf, offset).map_err(|e| LabError::Read(e.to_string()))?;
                        if n < buf.len() {
                            return Err(LabError::Read(format!("{n} of {len} bytes at {offset}")));
                        }
                    }
                    Ok(())
                })
            })
            .collect();
        ready.wait();
        let begin = Instant::now();
        let mut result = Ok(());
        for reader in readers {
            let read = reader.join().unwrap_or_else(|_| Err(LabError::Read("a reading thread panicked".into())));
            result = result.and(read);
        }
        took = begin.elapsed();
        done.store(true, Ordering::Relaxed);
        result
    });
    for file in &files {
        file.close();
    }
    result.map(|()| took)
}

/// Takes `us` microseconds when undisturbed: computes for a share of it, by the thread's own CPU time so that being
/// preempted takes nothing off, and sleeps for the rest.
pub(crate) fn think(us: u64, compute_permille: u32) {
    let compute = us * u64::from(compute_permille);
    let until = cpu_time_ns() + compute;
    let mut value = us | 1;
    while cpu_time_ns() < until {
        for _ in 0..200 {
            value = std::hint::black_box(value.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1));
        }
    }
    let sleep = us * 1000 - compute;
    if sleep > 0 {
        std::thread::sleep(Duration::from_nanos(sleep));
    }
}

fn cpu_time_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
