//! Shows workqueues live in a terminal, as the kernel's `tools/workqueue/wq_monitor.py` does, with latencies beside.
//!
//! ```text
//! cargo run --release -p postread-workqueue --example wq_monitor [SECONDS]
//! ```
//!
//! The queues are busy with made-up work: short items on every CPU, bursts, items that wait, one that hogs a CPU, timers.
//! A program of your own calls the same `stats()` for its queues.

use std::hint::spin_loop;
use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use postread_workqueue::{Config, DelayedWork, Hist, Pools, Workqueue, WqFlags, WqStats, blocking};

fn compute(time: Duration) {
    let begin = Instant::now();
    while begin.elapsed() < time {
        spin_loop();
    }
}

/// Queues work until it is stopped.
fn busy(queues: &[Workqueue], stop: &AtomicBool) {
    let [verify, decrypt, reads, journal] = queues else { return };
    let tick = DelayedWork::new({
        let journal = journal.clone();
        move |work| {
            compute(Duration::from_micros(200));
            let again = DelayedWork::from(work.clone());
            journal.queue_delayed(&again, Duration::from_millis(50));
        }
    });
    journal.queue_delayed(&tick, Duration::from_millis(50));
    let mut round = 0u32;
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..20 {
            verify.spawn(|| compute(Duration::from_micros(20)));
        }
        if round.is_multiple_of(10) {
            for _ in 0..100 {
                decrypt.spawn(|| compute(Duration::from_micros(80)));
            }
        }
        reads.spawn(|| blocking(|| thread::sleep(Duration::from_millis(3))));
        if round.is_multiple_of(200) {
            // Held up by this one, the items behind it make the monitor wake another worker.
            verify.spawn(|| compute(Duration::from_millis(40)));
        }
        round += 1;
        thread::sleep(Duration::from_millis(5));
    }
    let _ = tick.cancel_sync();
}

fn time(value: Option<Duration>) -> String {
    match value {
        Some(value) => format!("{value:.1?}"),
        None => "-".into(),
    }
}

fn latency(hist: &Hist) -> String {
    format!("{} {}", time(hist.p50()), time(hist.p99()))
}

/// One row: totals as `wq_monitor.py` has them, latencies of the last second.
fn row(total: &WqStats, last: &WqStats) -> String {
    format!(
        "{:<12} {:>9} {:>6} {:>8.1} {:>6} {:>7} {:>6} {:>7} {:>8}   {:<18} {:<18}",
        total.name,
        total.executed,
        total.in_flight,
        total.cpu_time.as_secs_f64(),
        total.cpu_hogs,
        if total.flags.contains(WqFlags::PERCPU) { total.managed_wakeups } else { total.repatriated },
        total.maydays,
        total.rescued,
        last.executed,
        latency(&last.queue_to_start),
        latency(&last.run),
    )
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let seconds = match std::env::args().nth(1) {
        Some(text) => text.parse::<u32>()?,
        None => u32::MAX,
    };
    let pools = Pools::new(Config::new())?;
    let queues = [
        pools.alloc("verify", WqFlags::PERCPU | WqFlags::HIGHPRI, 0)?,
        pools.alloc("decrypt", WqFlags::UNBOUND, 0)?,
        pools.alloc("reads", WqFlags::UNBOUND | WqFlags::MEM_RECLAIM, 8)?,
        pools.alloc_ordered("journal", WqFlags::empty())?,
    ];
    let stop = Arc::new(AtomicBool::new(false));
    let work = thread::spawn({
        let (queues, stop) = (queues.clone(), Arc::clone(&stop));
        move || busy(&queues, &stop)
    });
    let mut out = std::io::stdout();
    let terminal = out.is_terminal();
    let mut before: Vec<WqStats> = queues.iter().map(Workqueue::stats).collect();
    for _ in 0..seconds {
        thread::sleep(Duration::from_secs(1));
        let now: Vec<WqStats> = queues.iter().map(Workqueue::stats).collect();
        let mut page = String::new();
        if terminal {
            page.push_str("\x1b[H\x1b[J");
        }
        page.push_str(
            "queue            total   infl  CPU (s)  hogs CMW/RPR mayday rescued  per sec   queue p50 p99      run p50 p99\n",
        );
        for (total, before) in now.iter().zip(&before) {
            page.push_str(&row(total, &(total - before)));
            page.push('\n');
        }
        for pool in pools.stats() {
            page.push_str(&format!("{pool}\n"));
        }
        for report in pools.reports().iter().rev().take(3) {
            page.push_str(&format!("{report}\n"));
        }
        if out.write_all(page.as_bytes()).and_then(|()| out.flush()).is_err() {
            break;
        }
        before = now;
    }
    stop.store(true, Ordering::Relaxed);
    work.join().map_err(|_| "the worker thread panicked")?;
    Ok(())
}
