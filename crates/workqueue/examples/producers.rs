//! How the rate of an unbound queue grows with its lists: empty items from several producers, at each affinity scope.
//!
//! Run `cargo run --release --example producers -- [PRODUCERS] [ITEMS]`. Scope `cpu` gives each CPU a pool of its own,
//! `system` gives all CPUs one pool. Within a pool each CPU has a list.

use std::thread;
use std::time::Instant;

use postread_workqueue::{AffnScope, Workqueue, WqAttrs, WqFlags};

/// Items per second, in millions.
fn rate(wq: &Workqueue, producers: usize, items: usize) -> f64 {
    let start = Instant::now();
    thread::scope(|s| {
        for _ in 0..producers {
            s.spawn(|| (0..items / producers).for_each(|_| assert!(wq.spawn(|| {}))));
        }
    });
    wq.flush().expect("the main thread is no worker");
    items as f64 / start.elapsed().as_secs_f64() / 1e6
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let cpus = thread::available_parallelism()?.get();
    let producers = arguments.next().map_or(Ok(cpus), |n| n.parse())?;
    let items = arguments.next().map_or(Ok(200_000), |n| n.parse())?;
    let scopes = [AffnScope::System, AffnScope::Numa, AffnScope::Cache, AffnScope::CacheShard, AffnScope::Cpu];
    let queues = scopes.map(|scope| -> Result<_, Box<dyn std::error::Error>> {
        let wq = Workqueue::alloc("producers", WqFlags::UNBOUND, 0)?;
        wq.apply_attrs(&WqAttrs::new().affn_scope(scope))?;
        Ok((scope, wq))
    });
    let queues = queues.into_iter().collect::<Result<Vec<_>, _>>()?;
    println!("{cpus} CPUs, {producers} producers, {items} empty items, millions per second (median of 5)");
    let mut rates = vec![Vec::new(); queues.len()];
    for round in 0..6 {
        for ((_, wq), rates) in queues.iter().zip(&mut rates) {
            let rate = rate(wq, producers, items);
            if round > 0 {
                rates.push(rate);
            }
        }
    }
    for ((scope, wq), rates) in queues.iter().zip(&mut rates) {
        rates.sort_by(f64::total_cmp);
        println!("{:>12}: {} pools, {:.2}", format!("{scope:?}"), wq.stats().pools.len(), rates[rates.len() / 2]);
    }
    Ok(())
}
