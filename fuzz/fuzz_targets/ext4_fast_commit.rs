#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| postread_fsimage::ext4::fuzz::fast_commit(data));
