//! ChaCha at level AVX-512: sixteen blocks at a time, a word of each in a vector. Up to eight last blocks go to the
//! AVX2 code.

#![allow(unsafe_code)]

use super::{BLOCK, DoubleRounds, avx2};
use crate::Platform;
use core::arch::x86_64::*;

const LANES: usize = 16;

/// XORs `data` with the stream from block 0 on; `start` is the state less its counter.
pub(super) fn xor_stream(double_rounds: DoubleRounds, start: &[u32; 16], data: &mut [u8]) {
    assert!(Platform::detect() >= Platform::Avx512);
    // SAFETY: a level is only ever given to a key after `or_detected`, so the CPU has AVX-512 F and BW.
    unsafe { xor_stream_avx512(double_rounds, start, data) }
}

#[target_feature(enable = "avx512f,avx512bw")]
fn xor_stream_avx512(double_rounds: DoubleRounds, start: &[u32; 16], data: &mut [u8]) {
    let mut counter = 0u64;
    for batch in data.chunks_mut(LANES * BLOCK) {
        if batch.len() <= LANES / 2 * BLOCK {
            return avx2::xor_stream(double_rounds, start, counter, batch);
        }
        xor_batch(double_rounds, start, counter, batch);
        counter = counter.wrapping_add(LANES as u64);
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn quarter_round(x: &mut [__m512i; 16], a: usize, b: usize, c: usize, d: usize) {
    x[a] = _mm512_add_epi32(x[a], x[b]);
    x[d] = _mm512_rol_epi32::<16>(_mm512_xor_si512(x[d], x[a]));
    x[c] = _mm512_add_epi32(x[c], x[d]);
    x[b] = _mm512_rol_epi32::<12>(_mm512_xor_si512(x[b], x[c]));
    x[a] = _mm512_add_epi32(x[a], x[b]);
    x[d] = _mm512_rol_epi32::<8>(_mm512_xor_si512(x[d], x[a]));
    x[c] = _mm512_add_epi32(x[c], x[d]);
    x[b] = _mm512_rol_epi32::<7>(_mm512_xor_si512(x[b], x[c]));
}

/// Up to sixteen blocks. `counter` is a multiple of sixteen, so the lanes' numbers never carry into its upper half.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn xor_batch(double_rounds: DoubleRounds, start: &[u32; 16], counter: u64, batch: &mut [u8]) {
    debug_assert_eq!(counter % LANES as u64, 0);
    let lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    let mut first: [__m512i; 16] = core::array::from_fn(|i| _mm512_set1_epi32(start[i] as i32));
    first[12] = _mm512_add_epi32(_mm512_set1_epi32(counter as i32), lanes);
    first[13] = _mm512_set1_epi32((counter >> 32) as i32);
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
    let words: [__m512i; 16] = core::array::from_fn(|i| _mm512_add_epi32(x[i], first[i]));
    let stream = transpose(&words);
    for (block, stream) in batch.chunks_mut(BLOCK).zip(stream) {
        let at = block.as_mut_ptr().cast();
        if block.len() == BLOCK {
            // SAFETY: `block` is at least 64 bytes long.
            unsafe { _mm512_storeu_si512(at, _mm512_xor_si512(_mm512_loadu_si512(at), stream)) }
        } else {
            // Not empty, so the shift is below 64.
            let mask: __mmask64 = u64::MAX >> (BLOCK - block.len());
            let at = at.cast();
            // SAFETY: the mask covers the bytes of `block` only.
            unsafe { _mm512_mask_storeu_epi8(at, mask, _mm512_xor_si512(_mm512_maskz_loadu_epi8(mask, at), stream)) }
        }
    }
}

/// Sixteen vectors of one word of sixteen blocks become sixteen blocks.
#[inline]
#[target_feature(enable = "avx512f")]
fn transpose(x: &[__m512i; 16]) -> [__m512i; 16] {
    // Four words of four blocks, one in each 128-bit lane: vector r holds blocks r, 4 + r, 8 + r, 12 + r.
    let rows = |i: usize| {
        let (a, b, c, d) = (x[i], x[i + 1], x[i + 2], x[i + 3]);
        let (ab0, ab2) = (_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
        let (cd0, cd2) = (_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
        [
            _mm512_unpacklo_epi64(ab0, cd0),
            _mm512_unpackhi_epi64(ab0, cd0),
            _mm512_unpacklo_epi64(ab2, cd2),
            _mm512_unpackhi_epi64(ab2, cd2),
        ]
    };
    let quarters = [rows(0), rows(4), rows(8), rows(12)];
    let mut out = [_mm512_setzero_si512(); 16];
    for r in 0..4 {
        let [a, b, c, d] = quarters.map(|quarter| quarter[r]);
        // Lanes 0 and 1, then 2 and 3, of two quarters each.
        let (ab01, ab23) = (_mm512_shuffle_i32x4::<0b01_00_01_00>(a, b), _mm512_shuffle_i32x4::<0b11_10_11_10>(a, b));
        let (cd01, cd23) = (_mm512_shuffle_i32x4::<0b01_00_01_00>(c, d), _mm512_shuffle_i32x4::<0b11_10_11_10>(c, d));
        out[r] = _mm512_shuffle_i32x4::<0b10_00_10_00>(ab01, cd01);
        out[4 + r] = _mm512_shuffle_i32x4::<0b11_01_11_01>(ab01, cd01);
        out[8 + r] = _mm512_shuffle_i32x4::<0b10_00_10_00>(ab23, cd23);
        out[12 + r] = _mm512_shuffle_i32x4::<0b11_01_11_01>(ab23, cd23);
    }
    out
}
