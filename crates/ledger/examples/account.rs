//! Accounts for the items of traces: `account FUNCTION FILE...`, each file the text of a tracefs `trace`.

use postread_ledger::{Part, account, text};

fn main() -> std::io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some((function, files)) = arguments.split_first() else {
        println!("account FUNCTION FILE...");
        return Ok(());
    };
    for file in files {
        let ledger = account(&text::parse(&std::fs::read_to_string(file)?), |name| name.contains(function.as_str()));
        let totals = ledger.totals();
        let ms = |ns: u64| ns as f64 / 1e6;
        println!("{file}: {} items, {} censored, {} events lost", totals.items, ledger.censored, ledger.lost_events);
        println!(
            "  wait {:.3} ms, p50 {:.3}, p99 {:.3}",
            ms(totals.wait_ns),
            ms(totals.wait_p50_ns),
            ms(totals.wait_p99_ns)
        );
        for part in Part::ALL {
            let ns = totals.parts.get(part);
            println!(
                "  {:36} {:10.3} ms {:5.1} %",
                part.label(),
                ms(ns),
                100.0 * ns as f64 / totals.wait_ns.max(1) as f64
            );
        }
        println!(
            "  of P2 runnable {:.3} ms; of P5 with an idle CPU {:.3} ms",
            ms(totals.absorbed_runnable_ns),
            ms(totals.idle_elsewhere_ns)
        );
        println!(
            "  {} behind items, {} migrated, {} started elsewhere",
            totals.items_behind_item, totals.migrated, totals.started_elsewhere
        );
        println!("  inside {:?}\n  delivery {:?}", totals.inside, totals.delivery);
        println!(
            "  runnable {:?} = {:.3} ms\n  running {:?}",
            ledger.runnable_ns,
            ms(ledger.runnable_ns.total()),
            ledger.running_ns
        );
    }
    Ok(())
}
