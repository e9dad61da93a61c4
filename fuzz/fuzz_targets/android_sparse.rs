#![no_main]

use std::sync::Arc;

use postread_io::ReadAt;
use postread_volume::SparseImage;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if let Ok(image) = SparseImage::open(Arc::new(data.to_vec())) {
        let end = ReadAt::len(&image).unwrap_or(0);
        for offset in [0, end / 2, end.saturating_sub(1), end] {
            let _ = image.read_at(&mut [0; 512], offset);
            let _ = image.map(offset);
        }
    }
});
