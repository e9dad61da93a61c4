//! Little-endian and big-endian fields, and conversions between integers that lose nothing.
//!
//! The functions that read fields panic past the end: callers check the length of the whole structure first.

/// The `N` bytes at `at`.
pub(crate) fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    match bytes[at..].first_chunk() {
        Some(field) => *field,
        None => panic!("{N} bytes at {at} of {}", bytes.len()),
    }
}

/// A little-endian `u16` at `at`.
pub(crate) fn le16(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(array(bytes, at))
}

/// A little-endian `u32` at `at`.
pub(crate) fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array(bytes, at))
}

/// A big-endian `u16` at `at`.
pub(crate) fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(array(bytes, at))
}

/// A big-endian `u32` at `at`.
pub(crate) fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(array(bytes, at))
}

/// A big-endian `u64` at `at`.
pub(crate) fn be64(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(array(bytes, at))
}

/// Little-endian `u32`s, one after the other; an incomplete last one is left out.
pub(crate) fn le32s(bytes: &[u8]) -> impl Iterator<Item = u32> + '_ {
    bytes.chunks_exact(4).map(|word| le32(word, 0))
}

/// `low` and `high` halves as one `u64`.
pub(crate) fn join(low: u32, high: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

const _: () = assert!(usize::BITS >= u32::BITS && usize::BITS <= u64::BITS);

/// A `u32` as a length or an index.
#[expect(clippy::as_conversions, reason = "a usize has at least 32 bits, which is asserted above")]
pub(crate) const fn to_usize(value: u32) -> usize {
    value as usize
}

/// A length or an index as a `u64`.
#[expect(clippy::as_conversions, reason = "a usize has at most 64 bits, which is asserted above")]
pub(crate) const fn to_u64(value: usize) -> u64 {
    value as u64
}

/// The low 32 bits.
#[expect(clippy::as_conversions, reason = "the high bits are cut off on purpose")]
pub(crate) const fn low32(value: u64) -> u32 {
    value as u32
}

/// The low 16 bits.
#[expect(clippy::as_conversions, reason = "the high bits are cut off on purpose")]
pub(crate) const fn low16(value: u32) -> u16 {
    value as u16
}

/// The low 8 bits.
#[expect(clippy::as_conversions, reason = "the high bits are cut off on purpose")]
pub(crate) const fn low8(value: u32) -> u8 {
    value as u8
}
