//! ChaCha at level AES-NI, whose CPUs have SSSE3: four blocks at a time, a word of each in a vector.

#![allow(unsafe_code)]

use super::{BLOCK, CONSTANTS, DoubleRounds, Key};
use crate::Platform;
use core::arch::x86_64::*;

const LANES: usize = 4;

/// XORs `data` with the stream from block `counter` on, a multiple of four; `start` is the state less its counter.
pub(super) fn xor_stream(double_rounds: DoubleRounds, start: &[u32; 16], counter: u64, data: &mut [u8]) {
    assert!(Platform::detect() >= Platform::AesNi);
    // SAFETY: a level is only ever given to a key after `or_detected`, so the CPU has SSSE3.
    unsafe { xor_stream_ssse3(double_rounds, start, counter, data) }
}

#[target_feature(enable = "ssse3")]
fn xor_stream_ssse3(double_rounds: DoubleRounds, start: &[u32; 16], mut counter: u64, data: &mut [u8]) {
    let (batches, rest) = data.as_chunks_mut::<{ LANES * BLOCK }>();
    for batch in batches {
        xor_batch(double_rounds, start, counter, batch);
        counter = counter.wrapping_add(LANES as u64);
    }
    if !rest.is_empty() {
        let mut padded = [0; LANES * BLOCK];
        padded[..rest.len()].copy_from_slice(rest);
        xor_batch(double_rounds, start, counter, &mut padded);
        rest.copy_from_slice(&padded[..rest.len()]);
    }
}

#[inline]
#[target_feature(enable = "ssse3")]
fn rotate<const LEFT: i32, const RIGHT: i32>(x: __m128i) -> __m128i {
    _mm_or_si128(_mm_slli_epi32::<LEFT>(x), _mm_srli_epi32::<RIGHT>(x))
}

#[inline]
#[target_feature(enable = "ssse3")]
fn quarter_round(x: &mut [__m128i; 16], a: usize, b: usize, c: usize, d: usize) {
    let by_16 = _mm_set_epi8(13, 12, 15, 14, 9, 8, 11, 10, 5, 4, 7, 6, 1, 0, 3, 2);
    let by_8 = _mm_set_epi8(14, 13, 12, 15, 10, 9, 8, 11, 6, 5, 4, 7, 2, 1, 0, 3);
    x[a] = _mm_add_epi32(x[a], x[b]);
    x[d] = _mm_shuffle_epi8(_mm_xor_si128(x[d], x[a]), by_16);
    x[c] = _mm_add_epi32(x[c], x[d]);
    x[b] = rotate::<12, 20>(_mm_xor_si128(x[b], x[c]));
    x[a] = _mm_add_epi32(x[a], x[b]);
    x[d] = _mm_shuffle_epi8(_mm_xor_si128(x[d], x[a]), by_8);
    x[c] = _mm_add_epi32(x[c], x[d]);
    x[b] = rotate::<7, 25>(_mm_xor_si128(x[b], x[c]));
}

#[inline]
#[target_feature(enable = "ssse3")]
fn permute(double_rounds: DoubleRounds, x: &mut [__m128i; 16]) {
    for _ in 0..double_rounds {
        quarter_round(x, 0, 4, 8, 12);
        quarter_round(x, 1, 5, 9, 13);
        quarter_round(x, 2, 6, 10, 14);
        quarter_round(x, 3, 7, 11, 15);
        quarter_round(x, 0, 5, 10, 15);
        quarter_round(x, 1, 6, 11, 12);
        quarter_round(x, 2, 7, 8, 13);
        quarter_round(x, 3, 4, 9, 14);
    }
}

/// HChaCha of four nonces under one key.
pub(super) fn hchacha(double_rounds: DoubleRounds, key: &Key, nonces: &[[u8; 16]; LANES]) -> [Key; LANES] {
    assert!(Platform::detect() >= Platform::AesNi);
    // SAFETY: a level is only ever given to a key after `or_detected`, so the CPU has SSSE3.
    unsafe { hchacha_ssse3(double_rounds, key, nonces) }
}

#[target_feature(enable = "ssse3")]
fn hchacha_ssse3(double_rounds: DoubleRounds, key: &Key, nonces: &[[u8; 16]; LANES]) -> [Key; LANES] {
    // SAFETY: each nonce points to at least 16 readable bytes.
    let nonces = core::array::from_fn(|i| unsafe { _mm_loadu_si128(nonces[i].as_ptr().cast()) });
    let nonces = transpose(&nonces);
    let mut x: [__m128i; 16] = core::array::from_fn(|i| match i {
        0..4 => _mm_set1_epi32(CONSTANTS[i] as i32),
        4..12 => _mm_set1_epi32(key[i - 4] as i32),
        _ => nonces[i - 12],
    });
    permute(double_rounds, &mut x);
    let first = transpose(&[x[0], x[1], x[2], x[3]]);
    let second = transpose(&[x[12], x[13], x[14], x[15]]);
    let mut keys = [[0; 8]; LANES];
    for (i, key) in keys.iter_mut().enumerate() {
        let at = key.as_mut_ptr().cast::<__m128i>();
        // SAFETY: `key` is at least 32 bytes long.
        unsafe {
            _mm_storeu_si128(at, first[i]);
            _mm_storeu_si128(at.add(1), second[i]);
        }
    }
    keys
}

/// Four blocks. `counter` is a multiple of four, so the lanes' numbers never carry into its upper half.
#[inline]
#[target_feature(enable = "ssse3")]
fn xor_batch(double_rounds: DoubleRounds, start: &[u32; 16], counter: u64, batch: &mut [u8; LANES * BLOCK]) {
    debug_assert_eq!(counter % LANES as u64, 0);
    let mut first: [__m128i; 16] = core::array::from_fn(|i| _mm_set1_epi32(start[i] as i32));
    first[12] = _mm_add_epi32(_mm_set1_epi32(counter as i32), _mm_set_epi32(3, 2, 1, 0));
    first[13] = _mm_set1_epi32((counter >> 32) as i32);
    let mut x = first;
    permute(double_rounds, &mut x);
    let words: [__m128i; 16] = core::array::from_fn(|i| _mm_add_epi32(x[i], first[i]));
    let rows = words.as_chunks::<4>().0;
    let rows: [[__m128i; 4]; 4] = core::array::from_fn(|i| transpose(&rows[i]));
    for (i, block) in batch.as_chunks_mut::<BLOCK>().0.iter_mut().enumerate() {
        for (quarter, row) in block.as_chunks_mut::<16>().0.iter_mut().zip(&rows) {
            let at = quarter.as_mut_ptr().cast::<__m128i>();
            // SAFETY: `quarter` is at least 16 bytes long.
            unsafe { _mm_storeu_si128(at, _mm_xor_si128(_mm_loadu_si128(at), row[i])) }
        }
    }
}

/// Four vectors of one word of four blocks become four blocks' four words.
#[inline]
#[target_feature(enable = "ssse3")]
fn transpose(&[a, b, c, d]: &[__m128i; 4]) -> [__m128i; 4] {
    let (ab0, ab2) = (_mm_unpacklo_epi32(a, b), _mm_unpackhi_epi32(a, b));
    let (cd0, cd2) = (_mm_unpacklo_epi32(c, d), _mm_unpackhi_epi32(c, d));
    [
        _mm_unpacklo_epi64(ab0, cd0),
        _mm_unpackhi_epi64(ab0, cd0),
        _mm_unpacklo_epi64(ab2, cd2),
        _mm_unpackhi_epi64(ab2, cd2),
    ]
}
