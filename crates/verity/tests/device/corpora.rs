//! The fuzz targets' corpora, replayed.

#[path = "../../../../fuzz/fuzz_targets/checks/dm_verity.rs"]
mod checks;

use std::fs;
use std::path::Path;

/// Runs `check` on every file of a corpus, and on each of them cut short anywhere.
fn replay(target: &str, check: fn(&[u8])) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let mut files = 0;
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        println!("{}", path.display());
        let bytes = fs::read(path).unwrap();
        check(&bytes);
        for len in 0..bytes.len() {
            check(&bytes[..len]);
        }
        files += 1;
    }
    assert!(files > 1, "the corpus of {target} is missing");
}

#[test]
fn dm_verity_superblock() {
    replay("dm_verity_superblock", checks::superblock);
}

#[test]
fn avb() {
    replay("avb", checks::avb);
}

#[test]
fn fec_codeword() {
    replay("fec_codeword", checks::fec_codeword);
}
