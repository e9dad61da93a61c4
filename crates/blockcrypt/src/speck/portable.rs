//! Speck128 in plain Rust: the reference for the other levels. Additions, rotations and XORs only.

use super::ROUNDS;
use crate::modes::Block;

/// Blocks processed side by side, so that their rounds overlap.
const LANES: usize = 4;

#[inline(always)]
pub(super) fn round(x: &mut u64, y: &mut u64, key: u64) {
    *x = x.rotate_right(8).wrapping_add(*y) ^ key;
    *y = y.rotate_left(3) ^ *x;
}

#[inline(always)]
fn unround(x: &mut u64, y: &mut u64, key: u64) {
    *y = (*y ^ *x).rotate_right(3);
    *x = (*x ^ key).wrapping_sub(*y).rotate_left(8);
}

pub(super) fn encrypt(keys: &[u64; ROUNDS], blocks: &mut [Block]) {
    lanes(blocks, |x, y| {
        for key in keys {
            for (x, y) in x.iter_mut().zip(y.iter_mut()) {
                round(x, y, *key);
            }
        }
    });
}

pub(super) fn decrypt(keys: &[u64; ROUNDS], blocks: &mut [Block]) {
    lanes(blocks, |x, y| {
        for key in keys.iter().rev() {
            for (x, y) in x.iter_mut().zip(y.iter_mut()) {
                unround(x, y, *key);
            }
        }
    });
}

/// Runs `crypt` on the words of [`LANES`] blocks at a time.
#[inline(always)]
fn lanes(blocks: &mut [Block], crypt: impl Fn(&mut [u64; LANES], &mut [u64; LANES])) {
    for batch in blocks.chunks_mut(LANES) {
        let (mut x, mut y) = ([0; LANES], [0; LANES]);
        for (i, block) in batch.iter().enumerate() {
            let block = u128::from_le_bytes(*block);
            (x[i], y[i]) = ((block >> 64) as u64, block as u64);
        }
        crypt(&mut x, &mut y);
        for (i, block) in batch.iter_mut().enumerate() {
            *block = (u128::from(x[i]) << 64 | u128::from(y[i])).to_le_bytes();
        }
    }
}
