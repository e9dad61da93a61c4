//! NH at level AVX2: two units per step.

#![allow(unsafe_code)]

use super::{MESSAGE, UNIT, WORDS};
use crate::Platform;
use core::arch::x86_64::*;

pub(super) fn hash(key: &[u32; WORDS], message: &[u8]) -> [u64; 4] {
    assert!(Platform::detect() >= Platform::Avx2);
    // SAFETY: a level is only ever given to a key after `or_detected`, so the CPU has AVX2.
    unsafe { hash_avx2(key, message) }
}

#[target_feature(enable = "avx2")]
fn hash_avx2(key: &[u32; WORDS], message: &[u8]) -> [u64; 4] {
    assert!(message.len() <= MESSAGE);
    let mut sums = [_mm256_setzero_si256(); 4];
    let (pairs, rest) = message.as_chunks::<{ 2 * UNIT }>();
    for (i, pair) in pairs.iter().enumerate() {
        // SAFETY: `pair` is at least 32 bytes long.
        let m = unsafe { _mm256_loadu_si256(pair.as_ptr().cast()) };
        let m = _mm256_shuffle_epi32::<0b11_01_10_00>(m);
        for (pass, sum) in sums.iter_mut().enumerate() {
            // SAFETY: at most 32 pairs fit in a message, so the load ends at word 8 * 31 + 4 * 3 + 8 = WORDS.
            let k = unsafe { _mm256_loadu_si256(key.as_ptr().add(8 * i + 4 * pass).cast()) };
            let s = _mm256_add_epi32(m, k);
            *sum = _mm256_add_epi64(*sum, _mm256_mul_epu32(s, _mm256_srli_epi64::<32>(s)));
        }
    }
    let mut low: [__m128i; 4] = core::array::from_fn(|pass| {
        _mm_add_epi64(_mm256_castsi256_si128(sums[pass]), _mm256_extracti128_si256::<1>(sums[pass]))
    });
    for (i, unit) in rest.chunks(UNIT).enumerate() {
        let mut padded = [0u8; UNIT];
        padded[..unit.len()].copy_from_slice(unit);
        // SAFETY: `padded` is at least 16 bytes long.
        let m = unsafe { _mm_loadu_si128(padded.as_ptr().cast()) };
        let m = _mm_shuffle_epi32::<0b11_01_10_00>(m);
        for (pass, sum) in low.iter_mut().enumerate() {
            let k = &key[8 * pairs.len() + 4 * (i + pass)..][..4];
            // SAFETY: `k` is at least 16 bytes long.
            let k = unsafe { _mm_loadu_si128(k.as_ptr().cast()) };
            let s = _mm_add_epi32(m, k);
            *sum = _mm_add_epi64(*sum, _mm_mul_epu32(s, _mm_srli_epi64::<32>(s)));
        }
    }
    low.map(|sum| (_mm_cvtsi128_si64(sum) as u64).wrapping_add(_mm_extract_epi64::<1>(sum) as u64))
}
