#![no_main]

#[path = "checks/dmcrypt.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|data: &[u8]| checks::luks1(data));
