//! The fuzz target's corpus, replayed.

#[path = "../../../fuzz/fuzz_targets/checks/nbd.rs"]
mod checks;

use std::fs;
use std::path::Path;

#[test]
fn nbd_session() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/nbd_session");
    let mut files = 0;
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        println!("{}", path.display());
        let bytes = fs::read(path).unwrap();
        checks::nbd_session(&bytes);
        for len in (0..bytes.len()).step_by(1 + bytes.len() / 200) {
            checks::nbd_session(&bytes[..len]);
            let mut changed = bytes.clone();
            changed[len] ^= 0x81;
            checks::nbd_session(&changed);
        }
        files += 1;
    }
    assert!(files > 1, "the corpus is missing");
}
