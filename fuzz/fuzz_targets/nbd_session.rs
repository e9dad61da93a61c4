#![no_main]

#[path = "checks/nbd.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|data: &[u8]| checks::nbd_session(data));
