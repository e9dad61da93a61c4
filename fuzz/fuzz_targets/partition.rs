#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let _ = postread_volume::partition::read(data);
    let _ = postread_volume::detect(data);
});
