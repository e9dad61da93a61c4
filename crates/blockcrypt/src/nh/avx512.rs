//! NH at level AVX-512: four units per step, the last ones under a mask.

#![allow(unsafe_code)]

use super::{MESSAGE, UNIT, WORDS};
use crate::Platform;
use core::arch::x86_64::*;

pub(super) fn hash(key: &[u32; WORDS], message: &[u8]) -> [u64; 4] {
    assert!(Platform::detect() >= Platform::Avx512);
    // SAFETY: a level is only ever given to a key after `or_detected`, so the CPU has AVX-512 F and BW.
    unsafe { hash_avx512(key, message) }
}

#[target_feature(enable = "avx512f,avx512bw")]
fn hash_avx512(key: &[u32; WORDS], message: &[u8]) -> [u64; 4] {
    assert!(message.len() <= MESSAGE);
    let mut sums = [_mm512_setzero_si512(); 4];
    let (fours, rest) = message.as_chunks::<{ 4 * UNIT }>();
    for (i, four) in fours.iter().enumerate() {
        // SAFETY: `four` is at least 64 bytes long.
        let m = unsafe { _mm512_loadu_si512(four.as_ptr().cast()) };
        let m = _mm512_shuffle_epi32::<0b11_01_10_00>(m);
        for (pass, sum) in sums.iter_mut().enumerate() {
            // SAFETY: at most 16 fours fit in a message, so the load ends at word 16 * 15 + 4 * 3 + 16 = WORDS.
            let k = unsafe { _mm512_loadu_si512(key.as_ptr().add(16 * i + 4 * pass).cast()) };
            let s = _mm512_add_epi32(m, k);
            *sum = _mm512_add_epi64(*sum, _mm512_mul_epu32(s, _mm512_srli_epi64::<32>(s)));
        }
    }
    if !rest.is_empty() {
        // Zeros pad the last unit; beyond it the key is masked out too, so that the products there are zero.
        let bytes: __mmask64 = u64::MAX >> (64 - rest.len());
        let words: __mmask16 = u16::MAX >> (16 - 4 * rest.len().div_ceil(UNIT));
        // SAFETY: the mask covers the bytes of `rest` only.
        let m = unsafe { _mm512_maskz_loadu_epi8(bytes, rest.as_ptr().cast()) };
        let m = _mm512_shuffle_epi32::<0b11_01_10_00>(m);
        for (pass, sum) in sums.iter_mut().enumerate() {
            // SAFETY: `rest` follows at most 15 fours, so even an unmasked load would end within the key.
            let k = unsafe { _mm512_maskz_loadu_epi32(words, key.as_ptr().add(16 * fours.len() + 4 * pass).cast()) };
            let s = _mm512_add_epi32(m, k);
            *sum = _mm512_add_epi64(*sum, _mm512_mul_epu32(s, _mm512_srli_epi64::<32>(s)));
        }
    }
    sums.map(|sum| _mm512_reduce_add_epi64(sum) as u64)
}
