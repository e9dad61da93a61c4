//! The fuzz targets' corpora, replayed.

#[path = "../../../../fuzz/fuzz_targets/checks/verity.rs"]
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
fn descriptor() {
    replay("verity_descriptor", checks::descriptor);
}

#[test]
fn signature() {
    replay("verity_signature", checks::signature);
}

#[test]
fn certificate() {
    replay("verity_certificate", checks::certificate);
}

#[test]
fn digest_list() {
    replay("digest_list", checks::digest_list);
}

#[test]
fn rescue_map() {
    replay("rescue_map", checks::rescue_map);
}
