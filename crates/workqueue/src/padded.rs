//! Keeps neighbours in separate cache lines.

/// Aligned to a pair of cache lines, which are fetched together.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Padded<T>(pub(crate) T);
