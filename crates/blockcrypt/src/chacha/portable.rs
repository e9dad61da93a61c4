//! ChaCha in plain Rust: the reference for the other levels. Four blocks at a time in arrays that a compiler may put
//! into vectors.

use super::{BLOCK, CONSTANTS, DoubleRounds, Key};

const LANES: usize = 4;
type Lanes = [u32; LANES];

#[inline(always)]
fn add(a: Lanes, b: Lanes) -> Lanes {
    core::array::from_fn(|i| a[i].wrapping_add(b[i]))
}

#[inline(always)]
fn xor_rotate<const LEFT: u32>(a: Lanes, b: Lanes) -> Lanes {
    core::array::from_fn(|i| (a[i] ^ b[i]).rotate_left(LEFT))
}

#[inline(always)]
fn quarter_round(x: &mut [Lanes; 16], a: usize, b: usize, c: usize, d: usize) {
    x[a] = add(x[a], x[b]);
    x[d] = xor_rotate::<16>(x[d], x[a]);
    x[c] = add(x[c], x[d]);
    x[b] = xor_rotate::<12>(x[b], x[c]);
    x[a] = add(x[a], x[b]);
    x[d] = xor_rotate::<8>(x[d], x[a]);
    x[c] = add(x[c], x[d]);
    x[b] = xor_rotate::<7>(x[b], x[c]);
}

/// XORs `data` with the stream from block `counter` on; `start` is the state less its counter.
pub(super) fn xor_stream(double_rounds: DoubleRounds, start: &[u32; 16], mut counter: u64, data: &mut [u8]) {
    for batch in data.chunks_mut(LANES * BLOCK) {
        let mut first: [Lanes; 16] = start.map(|word| [word; LANES]);
        let blocks: [u64; LANES] = core::array::from_fn(|lane| counter.wrapping_add(lane as u64));
        first[12] = blocks.map(|block| block as u32);
        first[13] = blocks.map(|block| (block >> 32) as u32);
        let mut x = first;
        for _ in 0..double_rounds {
            quarter_round(&mut x, 0, 4, 8, 12);
            quarter_round(&mut x, 1, 5, 9, 13);
            quarter_round(&mut x, 2, 6, 10, 14);
            quarter_round(&mut x, 3, 7, 11, 15);
            quarter_round(&mut x, 0, 5, 10, 15);
            quarter_round(&mut x, 1, 6, 11, 12);
            quarter_round(&mut x, 2, 7, 8, 13);
            quarter_round(&mut x, 3, 4, 9, 14);
        }
        let mut stream = [0; LANES * BLOCK];
        for (i, (x, first)) in x.iter().zip(&first).enumerate() {
            for (block, word) in stream.as_chunks_mut::<BLOCK>().0.iter_mut().zip(add(*x, *first)) {
                block[4 * i..4 * i + 4].copy_from_slice(&word.to_le_bytes());
            }
        }
        for (byte, stream) in batch.iter_mut().zip(&stream) {
            *byte ^= stream;
        }
        counter = counter.wrapping_add(LANES as u64);
    }
}

#[inline(always)]
fn quarter_round_one(x: &mut [u32; 16], a: usize, b: usize, c: usize, d: usize) {
    x[a] = x[a].wrapping_add(x[b]);
    x[d] = (x[d] ^ x[a]).rotate_left(16);
    x[c] = x[c].wrapping_add(x[d]);
    x[b] = (x[b] ^ x[c]).rotate_left(12);
    x[a] = x[a].wrapping_add(x[b]);
    x[d] = (x[d] ^ x[a]).rotate_left(8);
    x[c] = x[c].wrapping_add(x[d]);
    x[b] = (x[b] ^ x[c]).rotate_left(7);
}

/// The first and last rows of the permutation of `key` and `nonce`, without ChaCha's final addition.
pub(super) fn hchacha(double_rounds: DoubleRounds, key: &Key, nonce: &[u8; 16]) -> Key {
    let mut x = [0; 16];
    x[..4].copy_from_slice(&CONSTANTS);
    x[4..12].copy_from_slice(key);
    for (word, bytes) in x[12..].iter_mut().zip(nonce.as_chunks::<4>().0) {
        *word = u32::from_le_bytes(*bytes);
    }
    for _ in 0..double_rounds {
        quarter_round_one(&mut x, 0, 4, 8, 12);
        quarter_round_one(&mut x, 1, 5, 9, 13);
        quarter_round_one(&mut x, 2, 6, 10, 14);
        quarter_round_one(&mut x, 3, 7, 11, 15);
        quarter_round_one(&mut x, 0, 5, 10, 15);
        quarter_round_one(&mut x, 1, 6, 11, 12);
        quarter_round_one(&mut x, 2, 7, 8, 13);
        quarter_round_one(&mut x, 3, 4, 9, 14);
    }
    [x[0], x[1], x[2], x[3], x[12], x[13], x[14], x[15]]
}
