//! The workqueues beside the pools that a user would pick instead: rayon's `spawn`, tokio's `spawn_blocking`, and
//! `threadpool`. Each has as many threads as there are CPUs. (By default tokio makes up to 512, and is far slower.)

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::hint::black_box;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use postread_benches::{Better, Contestant, Group, Report, Series, median};
use postread_workqueue::{Work, Workqueue, WqFlags};
use rustix::time::{ClockId, clock_gettime};

/// Counts the allocations of threads that ask for it.
struct Counting;

thread_local! {
    static COUNT: Cell<bool> = const { Cell::new(false) };
}
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: hands everything to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if COUNT.get() {
            ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The pools.
#[derive(Clone)]
enum Pool {
    Ours(Workqueue),
    Rayon(Arc<rayon::ThreadPool>),
    Tokio(Arc<tokio::runtime::Runtime>),
    Threadpool(threadpool::ThreadPool),
}

impl Pool {
    fn spawn(&self, f: impl FnOnce() + Send + 'static) {
        match self {
            Pool::Ours(wq) => assert!(wq.spawn(f)),
            Pool::Rayon(pool) => pool.spawn(f),
            Pool::Tokio(runtime) => drop(runtime.spawn_blocking(f)),
            Pool::Threadpool(pool) => pool.execute(f),
        }
    }
}

fn pools(cpus: usize, ours: &[(&'static str, WqFlags)]) -> Vec<(&'static str, Pool)> {
    let ours = ours.iter().map(|&(name, flags)| (name, Pool::Ours(Workqueue::alloc(name, flags, 0).unwrap())));
    let rayon = rayon::ThreadPoolBuilder::new().num_threads(cpus).build().unwrap();
    let tokio = tokio::runtime::Builder::new_current_thread().max_blocking_threads(cpus).build().unwrap();
    let rivals = [
        ("rayon", Pool::Rayon(Arc::new(rayon))),
        ("tokio", Pool::Tokio(Arc::new(tokio))),
        ("threadpool", Pool::Threadpool(threadpool::ThreadPool::new(cpus))),
    ];
    ours.chain(rivals).collect()
}

const RIVALS: [&str; 3] = ["rayon", "tokio", "threadpool"];

/// The rival with the best median.
fn best_rival(group: &Group, better: Better) -> &'static str {
    let key = |name: &&'static str| group.series(name).median();
    let ordered = |a: &&'static str, b: &&'static str| key(a).total_cmp(&key(b));
    let best = match better {
        Better::Higher => RIVALS.into_iter().max_by(|a, b| ordered(a, b)),
        Better::Lower => RIVALS.into_iter().min_by(|a, b| ordered(a, b)),
    };
    best.expect("there are rivals")
}

/// On cache lines of its own, so that it disturbs no contestant's statics.
#[repr(align(128))]
struct Alone(AtomicUsize);

static DONE: Alone = Alone(AtomicUsize::new(0));

/// Millions of empty items a second, from `producers` threads that are not the pool's.
fn throughput(pool: &Pool, producers: usize, items: usize) -> f64 {
    DONE.0.store(0, Ordering::Relaxed);
    let start = Instant::now();
    thread::scope(|s| {
        for _ in 0..producers {
            s.spawn(|| {
                for _ in 0..items / producers {
                    pool.spawn(|| {
                        DONE.0.fetch_add(1, Ordering::Relaxed);
                    });
                }
            });
        }
    });
    while DONE.0.load(Ordering::Relaxed) < items / producers * producers {
        thread::sleep(Duration::from_micros(50));
    }
    items as f64 / start.elapsed().as_secs_f64() / 1e6
}

/// Nanoseconds an item of `items` closures, spawned by one thread and waited for: `spawn` and `flush`.
fn spawn_and_flush(wq: &Workqueue, items: usize) -> f64 {
    DONE.0.store(0, Ordering::Relaxed);
    let start = Instant::now();
    for _ in 0..items {
        wq.spawn(|| {
            DONE.0.fetch_add(1, Ordering::Relaxed);
        });
    }
    wq.flush().unwrap();
    let took = start.elapsed();
    assert_eq!(DONE.0.load(Ordering::Relaxed), items);
    took.as_nanos() as f64 / items as f64
}

/// The same with `rayon::scope`.
fn scope(pool: &rayon::ThreadPool, items: usize) -> f64 {
    DONE.0.store(0, Ordering::Relaxed);
    let start = Instant::now();
    pool.scope(|s| {
        for _ in 0..items {
            s.spawn(|_| {
                DONE.0.fetch_add(1, Ordering::Relaxed);
            });
        }
    });
    let took = start.elapsed();
    assert_eq!(DONE.0.load(Ordering::Relaxed), items);
    took.as_nanos() as f64 / items as f64
}

struct Latency {
    p50_us: f64,
    p99_us: f64,
    cpu_us: f64,
}

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// One item every 200 us: queue to start, and the process's CPU time an item.
fn latency(pool: &Pool, items: usize) -> Latency {
    let delays: Arc<Vec<AtomicU64>> = Arc::new((0..items).map(|_| AtomicU64::new(0)).collect());
    let cpu = cpu_time();
    let begin = Instant::now();
    for i in 0..items {
        let due = begin + Duration::from_micros(200) * i as u32;
        thread::sleep(due.saturating_duration_since(Instant::now()));
        let delays = Arc::clone(&delays);
        let queued = Instant::now();
        pool.spawn(move || delays[i].store(queued.elapsed().as_nanos() as u64, Ordering::Relaxed));
    }
    thread::sleep(Duration::from_millis(20));
    let cpu = cpu_time() - cpu;
    while delays.iter().any(|d| d.load(Ordering::Relaxed) == 0) {
        thread::sleep(Duration::from_millis(5));
    }
    let mut delays: Vec<u64> = delays.iter().map(|d| d.load(Ordering::Relaxed)).collect();
    delays.sort_unstable();
    Latency {
        p50_us: delays[items / 2] as f64 / 1e3,
        p99_us: delays[items * 99 / 100] as f64 / 1e3,
        cpu_us: cpu.as_secs_f64() * 1e6 / items as f64,
    }
}

/// Interleaved rounds of the latency measurement, as three groups: p50, p99, CPU time.
fn latencies(title: &str, pools: &[(&'static str, Pool)], rounds: usize, items: usize) -> [Group; 3] {
    let series = || -> Vec<Series> {
        pools.iter().map(|(name, _)| Series { name: (*name).into(), rounds: Vec::new() }).collect()
    };
    let (mut p50, mut p99, mut cpu) = (series(), series(), series());
    for round in 0..=rounds {
        for turn in 0..pools.len() {
            let who = (turn + round) % pools.len();
            let seen = latency(&pools[who].1, items);
            if round > 0 {
                p50[who].rounds.push(seen.p50_us);
                p99[who].rounds.push(seen.p99_us);
                cpu[who].rounds.push(seen.cpu_us);
            }
        }
    }
    let group = |what: &str, series| Group::from_series(format!("{title}: {what}"), "us", Better::Lower, series);
    [group("queue to start, p50", p50), group("queue to start, p99", p99), group("CPU time an item", cpu)]
}

/// One nice-0 thread on each CPU that never sleeps, for as long as this lives.
struct Hogs {
    stop: Arc<AtomicBool>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Hogs {
    fn start(cpus: &postread_sys::CpuSet) -> Hogs {
        let stop = Arc::new(AtomicBool::new(false));
        let threads = cpus
            .iter()
            .map(|cpu| {
                let stop = Arc::clone(&stop);
                thread::spawn(move || {
                    postread_sys::affinity::set_current(&[cpu].into_iter().collect()).unwrap();
                    while !stop.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                })
            })
            .collect();
        Hogs { stop, threads }
    }
}

impl Drop for Hogs {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Items of 50 us that keep their queue busy: each queues itself again, two for every CPU.
const HOG: Duration = Duration::from_micros(50);

/// Keeps `wq` full of 50 us items for as long as this lives.
struct HogItems {
    stop: Arc<AtomicBool>,
    wq: Workqueue,
}

impl HogItems {
    fn start(cpus: usize) -> HogItems {
        let wq = Workqueue::alloc("hogs", WqFlags::UNBOUND, 0).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        for _ in 0..2 * cpus {
            let (stop, queue) = (Arc::clone(&stop), wq.clone());
            let work = Work::new(move |work| {
                let end = Instant::now() + HOG;
                while Instant::now() < end {
                    std::hint::spin_loop();
                }
                if !stop.load(Ordering::Relaxed) {
                    queue.queue(work);
                }
            });
            assert!(wq.queue(&work));
        }
        HogItems { stop, wq }
    }
}

impl Drop for HogItems {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.wq.drain();
    }
}

/// How much a queue of 50 us items delays the items of another queue, of high priority, on the same CPUs.
fn cross_queue_noise(report: &mut Report) {
    let cpus = postread_sys::affinity::current().unwrap().len();
    let quiet = Pool::Ours(Workqueue::alloc("quiet", WqFlags::PERCPU | WqFlags::HIGHPRI, 0).unwrap());
    let contestants = vec![
        Contestant::new("alone", || latency(&quiet, 2500).p99_us),
        Contestant::new("beside 50 us items", || {
            let _hogs = HogItems::start(cpus);
            latency(&quiet, 2500).p99_us
        }),
    ];
    let group =
        Group::measure("High-priority items beside a queue of 50 us items: p99", "us", Better::Lower, 7, contestants);
    report.group(&group);
    let (alone, beside) = (&group.series("alone").rounds, &group.series("beside 50 us items").rounds);
    let added: Vec<f64> = alone.iter().zip(beside).map(|(a, b)| b - a).collect();
    report.limit("Added to the p99, a tenth of an item's run time", "us", median(&added), HOG.as_secs_f64() * 1e5);
}

/// Nanoseconds of one `queue` of a reused item while the worker is awake, and the allocations of all of them.
fn queueing(wq: &Workqueue, works: &[Work]) -> (f64, u64) {
    let (enter, entered) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let cpu = postread_sys::affinity::current().unwrap().first().unwrap();
    wq.spawn_on(cpu, move || {
        enter.send(()).unwrap();
        let _ = released.recv();
    })
    .unwrap();
    entered.recv().unwrap();
    ALLOCATIONS.store(0, Ordering::Relaxed);
    COUNT.set(true);
    let start = Instant::now();
    for work in works {
        black_box(wq.queue_on(cpu, work).unwrap());
    }
    let took = start.elapsed();
    COUNT.set(false);
    release.send(()).unwrap();
    wq.flush().unwrap();
    (took.as_nanos() as f64 / works.len() as f64, ALLOCATIONS.load(Ordering::Relaxed))
}

/// What the child process does: CPU time of 5 s in which nothing is queued to its 8 queues.
fn idle_child() {
    let flags =
        [WqFlags::PERCPU, WqFlags::UNBOUND, WqFlags::PERCPU | WqFlags::HIGHPRI, WqFlags::UNBOUND | WqFlags::HIGHPRI];
    let queues: Vec<Workqueue> =
        (0..8).map(|i| Workqueue::alloc(&format!("idle{i}"), flags[i % 4], 0).unwrap()).collect();
    for wq in &queues {
        (0..100).for_each(|_| assert!(wq.spawn(|| {})));
        wq.flush().unwrap();
    }
    thread::sleep(Duration::from_millis(200));
    let before = cpu_time();
    thread::sleep(Duration::from_secs(5));
    println!("{}", (cpu_time() - before).as_secs_f64() * 1e3);
}

fn main() -> ExitCode {
    if std::env::args().any(|a| a == "--idle-child") {
        idle_child();
        return ExitCode::SUCCESS;
    }
    let mut report = Report::new("workqueue");
    let cpus = postread_sys::affinity::current().unwrap();
    let rounds = 7;

    let all = pools(cpus.len(), &[("unbound", WqFlags::UNBOUND), ("bound", WqFlags::PERCPU)]);
    for (producers, items) in [(1, 200_000), (4, 200_000)] {
        let contestants =
            all.iter().map(|(name, pool)| Contestant::new(*name, move || throughput(pool, producers, items))).collect();
        let title = format!("Empty items, {producers} outside producer{}", if producers == 1 { "" } else { "s" });
        let group = Group::measure(title, "M items/s", Better::Higher, rounds, contestants);
        report.group(&group);
        if producers == 1 {
            report.bar(&group, "unbound", "rayon", 1.0);
        } else {
            report.bar(&group, "unbound", "tokio", 2.0);
            report.bar(&group, "unbound", "rayon", 2.0);
        }
        let (ratio, wanted) = (group.times_better("unbound", "rayon"), if producers == 1 { 1.0 } else { 2.0 });
        if ratio < wanted * 0.95 {
            report.note(&format!(
                "Missed beside rayon ({ratio:.2}x). An item costs about 190 ns of CPU time in all, rayon's 115: two stamps \
                 of the clock (10 ns each where the counter serves, 25 else), the counts for max_active, flush and \
                 statistics on both sides, two locks of a list, and a node of two cache lines where rayon writes two words \
                 into an array. Items beyond max_active also go through a second list, so that none passes another; a \
                 producer that is a time slice ahead of the workers sends nearly all of them there, and their nodes leave \
                 the caches. Twice rayon's rate would leave 60 ns for both sides."
            ));
        }
    }

    let items = 1_000_000;
    let rayon = rayon::ThreadPoolBuilder::new().num_threads(cpus.len()).build().unwrap();
    let wq = Workqueue::alloc("spawn_flush", WqFlags::UNBOUND, 0).unwrap();
    let contestants = vec![
        Contestant::new("unbound", || spawn_and_flush(&wq, items)),
        Contestant::new("rayon::scope", || scope(&rayon, items)),
    ];
    let group = Group::measure("Spawn and flush of 1e6 closures", "ns/item", Better::Lower, rounds, contestants);
    report.group(&group);
    report.bar(&group, "unbound", "rayon::scope", 0.5);
    drop((wq, rayon));

    let wq = Workqueue::alloc("scaling", WqFlags::UNBOUND, 0).unwrap();
    let pool = Pool::Ours(wq.clone());
    let contestants: Vec<Contestant<'_>> = [1, 2]
        .map(|producers| {
            let pool = &pool;
            let name = format!("{producers} producer{}", if producers == 1 { "" } else { "s" });
            Contestant::new(name, move || throughput(pool, producers, 200_000))
        })
        .into();
    let group = Group::measure("Empty items, scaling", "M items/s", Better::Higher, rounds, contestants);
    report.group(&group);
    report.bar(&group, "2 producers", "1 producer", 1.7);
    report.note(
        "One producer already keeps two CPUs busy: it has one, and the worker that runs its items has the other. A second \
         producer can only add what these two leave idle. On a machine with 2 CPUs the bar cannot be met.",
    );
    drop((wq, pool));

    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let groups = latencies("One item every 200 us, idle machine", &all, rounds, 2500);
    report.note(&format!(
        "The load averages before this group were {}: on a machine that is not idle, p99 tells how the scheduler treated \
         each pool's threads.",
        load.split(' ').take(3).collect::<Vec<_>>().join(" ")
    ));
    for group in &groups {
        report.group(group);
        report.bar(group, "unbound", best_rival(group, Better::Lower), 1.0);
    }
    drop(all);

    let flags = WqFlags::PERCPU | WqFlags::HIGHPRI;
    let all = pools(cpus.len(), &[("bound, high-priority", flags)]);
    if let (_, Pool::Ours(wq)) = &all[0] {
        let stats = wq.stats();
        let took = stats.pools[0].priority.map_or("none".into(), |p| p.to_string());
        let group = stats.group.map_or("unknown".into(), |g| g.to_string());
        report.note(&format!("High priority here means {took}, within the scheduling group: {group}."));
    }
    let hogs = Hogs::start(&cpus);
    let groups = latencies("One item every 200 us, a nice-0 hog on each CPU", &all, 5, 1000);
    drop(hogs);
    for group in &groups {
        report.group(group);
    }
    report.bar(&groups[1], "bound, high-priority", best_rival(&groups[1], Better::Lower), 1.0);
    report.bar(&groups[1], "bound, high-priority", "rayon", 5.0);
    drop(all);

    cross_queue_noise(&mut report);

    let wq = Workqueue::alloc("queueing", WqFlags::PERCPU, 0).unwrap();
    let works: Vec<Work> = (0..1000).map(|_| Work::new(|_| {})).collect();
    let seen: Vec<(f64, u64)> = (0..200).map(|_| queueing(&wq, &works)).skip(1).collect();
    let ns = median(&seen.iter().map(|s| s.0).collect::<Vec<_>>());
    report.note("\n### Queueing a reused item, a worker awake\n");
    report.limit("One queue() of a reused Work", "ns", ns, 100.0);
    let allocations: u64 = seen.iter().map(|s| s.1).sum();
    report.verdict("Allocations in 199000 of them: 0", &allocations.to_string(), allocations == 0);

    let child = std::env::current_exe().and_then(|exe| Command::new(exe).arg("--idle-child").output());
    let ms = child.ok().and_then(|out| String::from_utf8(out.stdout).ok()?.trim().parse::<f64>().ok());
    report.note("\n### An idle process\n");
    report.limit("CPU time of a process with 8 idle queues in 5 s", "ms", ms.unwrap_or(f64::INFINITY), 1.0);
    report.finish()
}
