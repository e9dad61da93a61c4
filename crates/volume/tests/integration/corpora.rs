//! The fuzz targets' corpora, replayed.

#[path = "../../../../fuzz/fuzz_targets/checks/volume.rs"]
mod checks;

use std::fs;
use std::path::Path;

/// Runs `check` on every file of a corpus, and on each of them cut short at many places.
fn replay(target: &str, check: fn(&[u8])) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let mut files = 0;
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        println!("{}", path.display());
        let bytes = fs::read(path).unwrap();
        check(&bytes);
        for len in (0..bytes.len()).step_by(1 + bytes.len() / 1000) {
            check(&bytes[..len]);
        }
        files += 1;
    }
    assert!(files > 1, "the corpus of {target} is missing");
}

#[test]
fn lvm() {
    replay("lvm", checks::lvm);
}

#[test]
fn lvm_metadata() {
    replay("lvm_metadata", checks::lvm_metadata);
}

#[test]
fn super_partition() {
    replay("super_partition", checks::super_partition);
}
