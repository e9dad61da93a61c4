//! The policy `auto`: properties over simulated machines, and what it does in an engine.

mod common;

use std::sync::Arc;

use common::{Protected, memory, watchdog};
use postread::auto::sim::{Machine, Outcome, SimBio, SimPolicy, simulate};
use postread::auto::{Costs, Situation, Way};
use postread::{Engine, EngineConfig, QueuePolicy};
use postread_io::{PreadConfig, PreadOptions, PreadPool, ReadAt, Source};

/// SplitMix64: Steele, Lea, Flood, 2014.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

fn machine(random: &mut Random) -> Machine {
    let cpus = [1, 2, 3, 4, 8, 16, 64, 128][random.below(8) as usize];
    let slow = random.below(2) == 1;
    let speeds = (0..cpus).map(|cpu| if slow && cpu % 2 == 1 { 400 } else { 1000 }).collect();
    Machine { speeds, handoff_ns: [2_000, 5_000, 20_000][random.below(3) as usize], next_ns: 300 }
}

/// Bios of changing cost and load: bursts from one CPU or from all, and pauses.
fn load(random: &mut Random, machine: &Machine) -> Vec<SimBio> {
    let cpus = machine.speeds.len() as u64;
    let mut now = 0;
    let mut bios = Vec::new();
    while bios.len() < 600 {
        let one_cpu = (random.below(2) == 0).then(|| random.below(cpus) as usize);
        let cost = [500, 1_200, 5_000, 20_000, 75_000][random.below(5) as usize];
        // The share of the machine that the phase wants, in percent.
        let busy = [5, 30, 70, 95][random.below(4) as usize];
        let able = if one_cpu.is_some() { 1 } else { cpus };
        let gap = (cost * 100 / busy / able).max(1);
        let reads = random.below(2) == 0;
        for _ in 0..=random.below(80) {
            now += random.below(2 * gap) + 1;
            let cpu = one_cpu.unwrap_or_else(|| random.below(cpus) as usize);
            let reader = reads.then(|| random.below(cpus) as usize);
            bios.push(SimBio { at_ns: now, cpu, work_ns: cost / 2 + random.below(cost), reader });
        }
        now += random.below(200_000);
    }
    bios
}

fn fixed(machine: &Machine, bios: &[SimBio]) -> Vec<Outcome> {
    [Way::Inline, Way::Bound, Way::Unbound].map(|way| simulate(machine, bios, SimPolicy::Fixed(way))).into()
}

/// Every bio ends, whatever the machine and the load; no more unbound items run than there are CPUs; the same input gives
/// the same outcome.
#[test]
fn nothing_starves_and_no_limit_is_passed() {
    for seed in 0..400 {
        let random = &mut Random(seed);
        let machine = machine(random);
        let bios = load(random, &machine);
        let outcome = simulate(&machine, &bios, SimPolicy::Auto);
        assert!(outcome.latencies_ns.iter().all(|&ns| ns > 0), "seed {seed}");
        assert_eq!(outcome.ways.iter().sum::<u64>(), bios.len() as u64);
        assert!(outcome.most_unbound <= machine.speeds.len(), "seed {seed}");
        assert_eq!(outcome, simulate(&machine, &bios, SimPolicy::Auto), "seed {seed}");
    }
}

/// Against the best fixed policy of each load, chosen afterwards: no loss over all, and a bounded one on each. (The
/// largest are saturated machines with slow CPUs, where the model makes a reader that was woken wait behind everything on
/// its CPU, which no scheduler does.)
#[test]
fn the_loss_against_the_best_fixed_policy_is_bounded() {
    let (mut auto_sum, mut best_sum) = (0.0, 0.0);
    let mut worst: (f64, u64) = (0.0, 0);
    for seed in 0..400 {
        let random = &mut Random(seed);
        let machine = machine(random);
        let bios = load(random, &machine);
        let auto = simulate(&machine, &bios, SimPolicy::Auto);
        let best = fixed(&machine, &bios).iter().map(Outcome::mean_ns).min().expect("three");
        let ratio = auto.mean_ns() as f64 / (best + machine.handoff_ns) as f64;
        if ratio > worst.0 {
            worst = (ratio, seed);
        }
        auto_sum += auto.mean_ns() as f64 / best as f64;
        best_sum += 1.0;
    }
    println!("mean of auto / best fixed: {:.3}; worst {worst:?}", auto_sum / best_sum);
    assert!(worst.0 < 1.75, "seed {}: {:.3} of the best fixed policy and a hand-off", worst.1, worst.0);
    assert!(auto_sum / best_sum < 1.0, "{}", auto_sum / best_sum);
}

/// What the function predicts for the way that it takes is what the model charges, where nothing else happens.
#[test]
fn predictions_hold_on_an_idle_machine() {
    let machine = Machine::equal(4);
    for (work_ns, reader) in [(1_000, None), (4_999, None), (50_000, None), (50_000, Some(2))] {
        let bio = SimBio { at_ns: 1, cpu: 1, work_ns, reader };
        let situation = Situation {
            steps_ns: work_ns,
            handoff_ns: machine.handoff_ns,
            idle_worker: true,
            other_cpus: true,
            reader_sleeps: reader.is_some(),
            ..Situation::default()
        };
        let costs: Costs = situation.costs();
        let outcome = simulate(&machine, &[bio], SimPolicy::Auto);
        let way = situation.decide();
        assert_eq!(outcome.latencies_ns[0], costs.of(way), "{way:?}");
    }
}

/// Takes a moment for each read, off the caller's CPU.
struct Slow(Vec<u8>);

impl ReadAt for Slow {
    fn len(&self) -> std::io::Result<u64> {
        ReadAt::len(&self.0)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> std::io::Result<usize> {
        std::thread::sleep(std::time::Duration::from_micros(200));
        self.0.read_at(buf, offset)
    }
}

/// What is counted in an engine adds up, and small and large bios go different ways.
#[test]
fn an_engine_counts_ways_predictions_and_epochs() {
    watchdog("auto", || {
        let engine = Engine::new(EngineConfig::new().policy(QueuePolicy::Auto)).expect("engine");
        let p = Arc::new(Protected::of_len(8 << 20));
        let pool = PreadPool::new(PreadConfig::new()).expect("pool");
        let source: Arc<dyn Source> = Arc::new(pool.read_at(Arc::new(Slow(p.data.clone())), PreadOptions::default()));
        let file = p.open_over(&engine, source, memory(&p.tree));
        for _ in 0..6 {
            assert!(common::read_all(&file).expect("good") == p.data);
        }
        let reader = file.reader();
        let mut buf = [0; 4096];
        for n in 0..500_u64 {
            let at = n * 7_919 % 2047 * 4096;
            assert_eq!(reader.read_at(&mut buf, at).expect("good"), 4096);
            assert!(buf[..] == p.data[at as usize..][..4096]);
        }
        file.close();
        let stats = engine.stats();
        let auto = stats.auto.expect("it is the policy");
        let decided: u64 = auto.ways.iter().map(|way| way.bios).sum::<u64>() + auto.taken_back;
        assert!(decided > 0 && decided <= stats.bios + stats.hash_bios, "{auto:?}");
        assert!(auto.handoff_ns > 0);
        assert!(auto.control.epochs >= 3, "{auto:?}");
        for way in auto.ways.iter().filter(|way| way.bios > 0) {
            assert!(way.predicted_ns > 0 && way.measured_ns > 0, "{way:?}");
            assert!(way.error_ns >= way.measured_ns.abs_diff(way.predicted_ns), "{way:?}");
        }
        assert_eq!(engine.stats().auto.map(|now| now.since(&auto).taken_back), Some(0));
    });
}
