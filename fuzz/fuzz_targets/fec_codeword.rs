#![no_main]

#[path = "checks/dm_verity.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|data: &[u8]| checks::fec_codeword(data));
