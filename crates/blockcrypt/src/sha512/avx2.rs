//! SHA-512 of 4 messages at once, each in a 64-bit lane of a 256-bit register.

#![allow(unsafe_code)]

use core::arch::x86_64::*;

use super::{BLOCK, K};
use crate::Platform;

/// Advances `state` (`state[word][lane]`) over the whole blocks of `inputs`, which are equally long.
pub(crate) fn compress(state: &mut [[u64; 4]; 8], inputs: &[&[u8]; 4]) {
    assert!(Platform::detect() >= Platform::Avx2);
    // SAFETY: the CPU has the instructions of the level.
    unsafe { compress_avx2(state, inputs) }
}

#[target_feature(enable = "avx2")]
fn compress_avx2(state: &mut [[u64; 4]; 8], inputs: &[&[u8]; 4]) {
    let len = inputs[0].len();
    assert!(inputs.iter().all(|input| input.len() == len) && len.is_multiple_of(BLOCK));
    let mut s = load_state4(state);
    for at in (0..len).step_by(BLOCK) {
        let mut w = [_mm256_setzero_si256(); 16];
        for (row, input) in inputs.iter().enumerate() {
            // SAFETY: `at + 128 <= len`, the length of each input.
            unsafe {
                w[row] = _mm256_loadu_si256(input.as_ptr().add(at).cast());
                w[4 + row] = _mm256_loadu_si256(input.as_ptr().add(at + 32).cast());
                w[8 + row] = _mm256_loadu_si256(input.as_ptr().add(at + 64).cast());
                w[12 + row] = _mm256_loadu_si256(input.as_ptr().add(at + 96).cast());
            }
        }
        w = transpose4(w);
        let start = s;
        for (turn, k) in K.as_chunks::<16>().0.iter().enumerate() {
            for i in 0..16 {
                if turn > 0 {
                    let (w1, w14) = (w[(i + 1) % 16], w[(i + 14) % 16]);
                    let small0 = xor3(ror::<1, 63>(w1), ror::<8, 56>(w1), _mm256_srli_epi64::<7>(w1));
                    let small1 = xor3(ror::<19, 45>(w14), ror::<61, 3>(w14), _mm256_srli_epi64::<6>(w14));
                    w[i] = add(add(w[i], w[(i + 9) % 16]), add(small0, small1));
                }
                let [a, b, c, d, e, f, g, h] = s;
                let big1 = xor3(ror::<14, 50>(e), ror::<18, 46>(e), ror::<41, 23>(e));
                let choose = _mm256_xor_si256(g, _mm256_and_si256(e, _mm256_xor_si256(f, g)));
                let t1 = add(add(add(h, _mm256_set1_epi64x(k[i] as i64)), add(w[i], choose)), big1);
                let big0 = xor3(ror::<28, 36>(a), ror::<34, 30>(a), ror::<39, 25>(a));
                let majority = _mm256_or_si256(_mm256_and_si256(a, b), _mm256_and_si256(c, _mm256_or_si256(a, b)));
                s = [add(t1, add(big0, majority)), a, b, c, add(d, t1), e, f, g];
            }
        }
        for (s, start) in s.iter_mut().zip(&start) {
            *s = add(*s, *start);
        }
    }
    store_state4(s, state);
}

#[inline]
#[target_feature(enable = "avx2")]
fn add(a: __m256i, b: __m256i) -> __m256i {
    _mm256_add_epi64(a, b)
}

#[inline]
#[target_feature(enable = "avx2")]
fn xor3(a: __m256i, b: __m256i, c: __m256i) -> __m256i {
    _mm256_xor_si256(_mm256_xor_si256(a, b), c)
}

/// Rotates right by `R`; `L` is the rest to 64.
#[inline]
#[target_feature(enable = "avx2")]
fn ror<const R: i32, const L: i32>(x: __m256i) -> __m256i {
    const { assert!(R + L == 64) };
    _mm256_or_si256(_mm256_srli_epi64::<R>(x), _mm256_slli_epi64::<L>(x))
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn load_state4(state: &[[u64; 4]; 8]) -> [__m256i; 8] {
    let mut s = [_mm256_setzero_si256(); 8];
    for (s, word) in s.iter_mut().zip(state) {
        // SAFETY: 32 bytes that may be read, at any alignment.
        *s = unsafe { _mm256_loadu_si256(word.as_ptr().cast()) };
    }
    s
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn store_state4(s: [__m256i; 8], state: &mut [[u64; 4]; 8]) {
    for (word, s) in state.iter_mut().zip(s) {
        // SAFETY: 32 bytes that may be written, at any alignment.
        unsafe { _mm256_storeu_si256(word.as_mut_ptr().cast(), s) };
    }
}

/// From a quarter of a block per row (all first quarters, then all second ones, ...) to one big-endian word per row.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn transpose4(mut rows: [__m256i; 16]) -> [__m256i; 16] {
    let swap = _mm256_broadcastsi128_si256(_mm_set_epi64x(0x08090a0b_0c0d0e0f, 0x00010203_04050607));
    for row in &mut rows {
        *row = _mm256_shuffle_epi8(*row, swap);
    }
    let mut w = rows;
    for quarter in [0, 4, 8, 12] {
        let r = &rows[quarter..quarter + 4];
        let (low01, high01) = (_mm256_unpacklo_epi64(r[0], r[1]), _mm256_unpackhi_epi64(r[0], r[1]));
        let (low23, high23) = (_mm256_unpacklo_epi64(r[2], r[3]), _mm256_unpackhi_epi64(r[2], r[3]));
        w[quarter] = _mm256_permute2x128_si256::<0x20>(low01, low23);
        w[quarter + 1] = _mm256_permute2x128_si256::<0x20>(high01, high23);
        w[quarter + 2] = _mm256_permute2x128_si256::<0x31>(low01, low23);
        w[quarter + 3] = _mm256_permute2x128_si256::<0x31>(high01, high23);
    }
    w
}
