//! The fuzz targets' corpora, replayed.

#[path = "../../../../fuzz/fuzz_targets/checks/dmcrypt.rs"]
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
        for len in 0..bytes.len().min(1200) {
            check(&bytes[..len]);
        }
        files += 1;
    }
    assert!(files > 1, "the corpus of {target} is missing");
}

#[test]
fn luks1() {
    replay("luks1", checks::luks1);
}

#[test]
fn luks2() {
    replay("luks2", checks::luks2);
}

#[test]
fn luks2_json() {
    replay("luks2_json", checks::luks2_json);
}

#[test]
fn cipher_spec() {
    replay("cipher_spec", checks::cipher_spec);
}
