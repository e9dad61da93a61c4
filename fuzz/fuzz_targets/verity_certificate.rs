#![no_main]

#[path = "checks/verity.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|data: &[u8]| checks::certificate(data));
