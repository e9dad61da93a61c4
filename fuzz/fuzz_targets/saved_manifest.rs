#![no_main]

#[path = "checks/fscrypt.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|data: &[u8]| checks::saved_manifest(data));
