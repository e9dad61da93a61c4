//! NH in plain Rust: the reference for the other levels.

use super::{UNIT, WORDS};

pub(super) fn hash(key: &[u32; WORDS], message: &[u8]) -> [u64; 4] {
    let mut sums = [0; 4];
    let (units, rest) = message.as_chunks::<UNIT>();
    for (i, unit) in units.iter().enumerate() {
        add(&mut sums, &key[4 * i..], unit);
    }
    if !rest.is_empty() {
        let mut last = [0; UNIT];
        last[..rest.len()].copy_from_slice(rest);
        add(&mut sums, &key[4 * units.len()..], &last);
    }
    sums
}

/// Adds one unit's products; `key` begins at the unit's own key words.
#[inline(always)]
fn add(sums: &mut [u64; 4], key: &[u32], unit: &[u8; UNIT]) {
    let m: [u32; 4] =
        core::array::from_fn(|i| u32::from_le_bytes([unit[4 * i], unit[4 * i + 1], unit[4 * i + 2], unit[4 * i + 3]]));
    let product = |a: u32, b: u32| u64::from(a) * u64::from(b);
    let (keys, _) = key[..UNIT].as_chunks::<4>();
    for (sum, k) in sums.iter_mut().zip(keys) {
        *sum = sum
            .wrapping_add(product(m[0].wrapping_add(k[0]), m[2].wrapping_add(k[1])))
            .wrapping_add(product(m[1].wrapping_add(k[2]), m[3].wrapping_add(k[3])));
    }
}
