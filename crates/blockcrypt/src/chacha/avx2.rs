//! ChaCha at level AVX2: eight blocks at a time, a word of each in a vector. Up to four last blocks go to the
//! SSSE3 code.

#![allow(unsafe_code)]

use super::{BLOCK, DoubleRounds, ssse3};
use crate::Platform;
use core::arch::x86_64::*;

const LANES: usize = 8;

/// XORs `data` with the stream from block `counter` on, a multiple of eight; `start` is the state less its counter.
pub(super) fn xor_stream(double_rounds: DoubleRounds, start: &[u32; 16], counter: u64, data: &mut [u8]) {
    assert!(Platform::detect() >= Platform::Avx2);
    // SAFETY: a level is only ever given to a key after `or_detected`, so the CPU has AVX2.
    unsafe { xor_stream_avx2(double_rounds, start, counter, data) }
}

#[target_feature(enable = "avx2")]
fn xor_stream_avx2(double_rounds: DoubleRounds, start: &[u32; 16], mut counter: u64, data: &mut [u8]) {
    let (batches, rest) = data.as_chunks_mut::<{ LANES * BLOCK }>();
    for batch in batches {
        xor_batch(double_rounds, start, counter, batch);
        counter = counter.wrapping_add(LANES as u64);
    }
    if rest.len() > LANES / 2 * BLOCK {
        let mut padded = [0; LANES * BLOCK];
        padded[..rest.len()].copy_from_slice(rest);
        xor_batch(double_rounds, start, counter, &mut padded);
        rest.copy_from_slice(&padded[..rest.len()]);
    } else if !rest.is_empty() {
        ssse3::xor_stream(double_rounds, start, counter, rest);
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn rotate<const LEFT: i32, const RIGHT: i32>(x: __m256i) -> __m256i {
    _mm256_or_si256(_mm256_slli_epi32::<LEFT>(x), _mm256_srli_epi32::<RIGHT>(x))
}

#[inline]
#[target_feature(enable = "avx2")]
fn quarter_round(x: &mut [__m256i; 16], a: usize, b: usize, c: usize, d: usize) {
    let by_16 = _mm256_broadcastsi128_si256(_mm_set_epi8(13, 12, 15, 14, 9, 8, 11, 10, 5, 4, 7, 6, 1, 0, 3, 2));
    let by_8 = _mm256_broadcastsi128_si256(_mm_set_epi8(14, 13, 12, 15, 10, 9, 8, 11, 6, 5, 4, 7, 2, 1, 0, 3));
    x[a] = _mm256_add_epi32(x[a], x[b]);
    x[d] = _mm256_shuffle_epi8(_mm256_xor_si256(x[d], x[a]), by_16);
    x[c] = _mm256_add_epi32(x[c], x[d]);
    x[b] = rotate::<12, 20>(_mm256_xor_si256(x[b], x[c]));
    x[a] = _mm256_add_epi32(x[a], x[b]);
    x[d] = _mm256_shuffle_epi8(_mm256_xor_si256(x[d], x[a]), by_8);
    x[c] = _mm256_add_epi32(x[c], x[d]);
    x[b] = rotate::<7, 25>(_mm256_xor_si256(x[b], x[c]));
}

/// Eight blocks. `counter` is a multiple of eight, so the lanes' numbers never carry into its upper half.
#[inline]
#[target_feature(enable = "avx2")]
fn xor_batch(double_rounds: DoubleRounds, start: &[u32; 16], counter: u64, batch: &mut [u8; LANES * BLOCK]) {
    debug_assert_eq!(counter % LANES as u64, 0);
    let mut first: [__m256i; 16] = core::array::from_fn(|i| _mm256_set1_epi32(start[i] as i32));
    first[12] = _mm256_add_epi32(_mm256_set1_epi32(counter as i32), _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0));
    first[13] = _mm256_set1_epi32((counter >> 32) as i32);
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
    let words: [__m256i; 16] = core::array::from_fn(|i| _mm256_add_epi32(x[i], first[i]));
    let (low, high) = words.split_at(8);
    let (low, high) = (transpose(low), transpose(high));
    for (block, (low, high)) in batch.as_chunks_mut::<BLOCK>().0.iter_mut().zip(low.into_iter().zip(high)) {
        let half = block.as_mut_ptr().cast::<__m256i>();
        // SAFETY: `block` is at least 64 bytes long.
        unsafe {
            _mm256_storeu_si256(half, _mm256_xor_si256(_mm256_loadu_si256(half), low));
            let half = half.add(1);
            _mm256_storeu_si256(half, _mm256_xor_si256(_mm256_loadu_si256(half), high));
        }
    }
}

/// Eight vectors of one word of eight blocks become eight blocks' eight words.
#[inline]
#[target_feature(enable = "avx2")]
fn transpose(x: &[__m256i]) -> [__m256i; 8] {
    let pair = |i: usize| {
        let (a, b, c, d) = (x[i], x[i + 1], x[i + 2], x[i + 3]);
        let (ab0, ab2) = (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
        let (cd0, cd2) = (_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
        [
            _mm256_unpacklo_epi64(ab0, cd0),
            _mm256_unpackhi_epi64(ab0, cd0),
            _mm256_unpacklo_epi64(ab2, cd2),
            _mm256_unpackhi_epi64(ab2, cd2),
        ]
    };
    let (first, second) = (pair(0), pair(4));
    core::array::from_fn(|block| {
        let (a, b) = (first[block % 4], second[block % 4]);
        if block < 4 { _mm256_permute2x128_si256::<0x20>(a, b) } else { _mm256_permute2x128_si256::<0x31>(a, b) }
    })
}
