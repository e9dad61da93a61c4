#![no_main]

#[path = "checks/lab.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|data: &[u8]| checks::workload(data));
