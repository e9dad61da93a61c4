//! Runs the corpora of the fuzz targets of fscrypt and the lab: each input whole, and cut short at every length.

#[path = "../../fuzz/fuzz_targets/checks/fscrypt.rs"]
mod fscrypt;
#[path = "../../fuzz/fuzz_targets/checks/lab.rs"]
mod lab;

use std::path::Path;

fn replay(target: &str, check: fn(&[u8])) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(target);
    let mut files = 0;
    for entry in std::fs::read_dir(&dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display())) {
        let path = entry.unwrap().path();
        println!("{}", path.display());
        let bytes = std::fs::read(path).unwrap();
        (0..=bytes.len()).for_each(|length| check(&bytes[..length]));
        files += 1;
    }
    assert!(files > 1, "the corpus of {target} is missing");
}

#[test]
fn contexts() {
    replay("fscrypt_context", fscrypt::context);
}

#[test]
fn names() {
    replay("fscrypt_name", fscrypt::name);
}

#[test]
fn fscrypt_tool() {
    replay("fscrypt_tool", fscrypt::tool);
}

#[test]
fn saved_manifests() {
    replay("saved_manifest", fscrypt::saved_manifest);
}

#[test]
fn workloads() {
    replay("lab_workload", lab::workload);
}

#[test]
fn traces() {
    replay("lab_trace", lab::trace);
}
