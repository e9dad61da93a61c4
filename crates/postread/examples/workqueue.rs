//! Sizes of files, asked for on a workqueue by at most four workers at once: `workqueue PATH...`.

use postread::workqueue::{Workqueue, WqFlags};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let wq = Workqueue::alloc("sizes", WqFlags::UNBOUND, 4)?;
    for path in std::env::args().skip(1) {
        wq.spawn(move || match std::fs::metadata(&path) {
            Ok(metadata) => println!("{} {path}", metadata.len()),
            Err(error) => println!("{path}: {error}"),
        });
    }
    wq.flush()?;
    println!("{}", wq.stats());
    Ok(())
}
