#![no_main]

#[path = "checks/volume.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|data: &[u8]| checks::lvm(data));
