//! Traces of a real kernel: see `traces/README.md`. What was planted there dominates, and next to nothing is unexplained.

use std::process::Command;

use postread_ledger::{Ledger, Part, Totals, account, text};
use postread_tests::{require_tool, run};

fn recorded(name: &str, function: &str) -> Option<(Ledger, Totals)> {
    let zstd = require_tool("zstd")?;
    let file = format!("{}/tests/traces/{name}.zst", env!("CARGO_MANIFEST_DIR"));
    let output = run(Command::new(zstd).args(["-dcq", &file]));
    let text = String::from_utf8(output.stdout).expect("text");
    let ledger = account(&text::parse(&text), |name| name == function);
    let totals = ledger.totals();
    assert_eq!((ledger.lost_events, ledger.censored), (0, 0), "{name}");
    for item in &ledger.items {
        assert_eq!(item.wait.total_ns(), item.started_ns - item.queued_ns, "{name}: {item:?}");
    }
    assert!(totals.items >= 80, "{name}: {totals:?}");
    assert!(totals.parts.get(Part::Unexplained) * 50 <= totals.wait_ns, "{name}: {totals:?}");
    Some((ledger, totals))
}

fn percent(totals: &Totals, parts: &[Part]) -> u64 {
    parts.iter().map(|part| totals.parts.get(*part)).sum::<u64>() * 100 / totals.wait_ns
}

const BEHIND_ITEM: [Part; 3] = [Part::BehindRunning, Part::BehindPreempted, Part::BehindBlocked];

#[test]
fn one_cpu_means_max_active_1_which_throttles() {
    let Some((_, totals)) = recorded("crypt-one-cpu", "decrypt_work") else { return };
    assert!(percent(&totals, &[Part::Throttled]) >= 95, "{totals:?}");
}

#[test]
fn a_hog_on_the_completing_cpu_keeps_workers_runnable() {
    let Some((ledger, totals)) = recorded("verity-hog", "verity_work") else { return };
    // Of what max_active does not hold back already.
    let left = totals.wait_ns - totals.parts.get(Part::Throttled);
    assert!(totals.parts.get(Part::BehindApp) * 100 >= left * 70, "{totals:?}");
    // A bound worker may use no other CPU.
    assert_eq!(totals.idle_elsewhere_ns, 0);
    let Some((quiet, _)) = recorded("verity-bound", "verity_work") else { return };
    assert!(ledger.runnable_ns.workers > 20 * quiet.runnable_ns.workers);
}

#[test]
fn bound_items_wait_behind_items_and_unbound_ones_in_the_run_queue() {
    let Some((bound, at_bound)) = recorded("crypt-bound", "decrypt_work") else { return };
    let Some((unbound, at_unbound)) = recorded("crypt-unbound", "decrypt_work") else { return };
    let own_queue = [&BEHIND_ITEM[..], &[Part::Throttled]].concat();
    assert!(percent(&at_bound, &own_queue) >= 95, "{at_bound:?}");
    assert!(at_bound.parts.runnable_ns() * 10 < at_unbound.parts.runnable_ns());
    // The figure of the patches says bound, what items wait says unbound.
    assert!(unbound.runnable_ns.workers > 10 * bound.runnable_ns.workers);
    assert!(at_unbound.wait_ns < at_bound.wait_ns);
    // Unbound workers move, bound ones do not.
    assert!(at_unbound.migrated > 0 && at_unbound.started_elsewhere > 0);
    assert_eq!((at_bound.migrated, at_bound.started_elsewhere), (0, 0));
}
