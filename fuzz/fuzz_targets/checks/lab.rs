//! What must hold of any workload and any trace.
#![allow(dead_code)] // Each target uses one of them.

use postread_lab::{filemap, workload};

/// A workload that parses is written such that it parses to the same.
pub(crate) fn workload(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(apps) = workload::parse(text) {
        assert_eq!(workload::parse(&workload::format(&apps)).as_ref(), Ok(&apps));
    }
}

/// The kernel's events: whatever is in them, ranges are whole pages and not empty.
pub(crate) fn trace(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    for event in filemap::parse(text) {
        assert!(event.start < event.end && event.start % 4096 == 0);
    }
}
