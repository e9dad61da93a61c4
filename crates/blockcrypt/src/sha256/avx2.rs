//! SHA-256 of 8 messages at once, each in a 32-bit lane of a 256-bit register.

#![allow(unsafe_code)]

use core::arch::x86_64::*;

use super::{BLOCK, K};
use crate::Platform;

/// Advances `state` (`state[word][lane]`) over the whole blocks of `inputs`, which are equally long.
pub(crate) fn compress(state: &mut [[u32; 8]; 8], inputs: &[&[u8]; 8]) {
    assert!(Platform::detect() >= Platform::Avx2);
    // SAFETY: the CPU has the instructions of the level.
    unsafe { compress_avx2(state, inputs) }
}

#[target_feature(enable = "avx2")]
fn compress_avx2(state: &mut [[u32; 8]; 8], inputs: &[&[u8]; 8]) {
    let len = inputs[0].len();
    assert!(inputs.iter().all(|input| input.len() == len) && len.is_multiple_of(BLOCK));
    let mut s = load_state8(state);
    for at in (0..len).step_by(BLOCK) {
        let mut w = [_mm256_setzero_si256(); 16];
        for (row, input) in inputs.iter().enumerate() {
            // SAFETY: `at + 64 <= len`, the length of each input.
            unsafe {
                w[row] = _mm256_loadu_si256(input.as_ptr().add(at).cast());
                w[8 + row] = _mm256_loadu_si256(input.as_ptr().add(at + 32).cast());
            }
        }
        w = transpose8(w);
        let start = s;
        for (turn, k) in K.as_chunks::<16>().0.iter().enumerate() {
            for i in 0..16 {
                if turn > 0 {
                    let (w1, w14) = (w[(i + 1) % 16], w[(i + 14) % 16]);
                    let small0 = xor3(ror::<7, 25>(w1), ror::<18, 14>(w1), _mm256_srli_epi32::<3>(w1));
                    let small1 = xor3(ror::<17, 15>(w14), ror::<19, 13>(w14), _mm256_srli_epi32::<10>(w14));
                    w[i] = add(add(w[i], w[(i + 9) % 16]), add(small0, small1));
                }
                let [a, b, c, d, e, f, g, h] = s;
                let big1 = xor3(ror::<6, 26>(e), ror::<11, 21>(e), ror::<25, 7>(e));
                let choose = _mm256_xor_si256(g, _mm256_and_si256(e, _mm256_xor_si256(f, g)));
                let t1 = add(add(add(h, _mm256_set1_epi32(k[i] as i32)), add(w[i], choose)), big1);
                let big0 = xor3(ror::<2, 30>(a), ror::<13, 19>(a), ror::<22, 10>(a));
                let majority = _mm256_or_si256(_mm256_and_si256(a, b), _mm256_and_si256(c, _mm256_or_si256(a, b)));
                s = [add(t1, add(big0, majority)), a, b, c, add(d, t1), e, f, g];
            }
        }
        for (s, start) in s.iter_mut().zip(&start) {
            *s = add(*s, *start);
        }
    }
    store_state8(s, state);
}

#[inline]
#[target_feature(enable = "avx2")]
fn add(a: __m256i, b: __m256i) -> __m256i {
    _mm256_add_epi32(a, b)
}

#[inline]
#[target_feature(enable = "avx2")]
fn xor3(a: __m256i, b: __m256i, c: __m256i) -> __m256i {
    _mm256_xor_si256(_mm256_xor_si256(a, b), c)
}

/// Rotates right by `R`; `L` is the rest to 32.
#[inline]
#[target_feature(enable = "avx2")]
fn ror<const R: i32, const L: i32>(x: __m256i) -> __m256i {
    const { assert!(R + L == 32) };
    _mm256_or_si256(_mm256_srli_epi32::<R>(x), _mm256_slli_epi32::<L>(x))
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn load_state8(state: &[[u32; 8]; 8]) -> [__m256i; 8] {
    let mut s = [_mm256_setzero_si256(); 8];
    for (s, word) in s.iter_mut().zip(state) {
        // SAFETY: 32 bytes that may be read, at any alignment.
        *s = unsafe { _mm256_loadu_si256(word.as_ptr().cast()) };
    }
    s
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn store_state8(s: [__m256i; 8], state: &mut [[u32; 8]; 8]) {
    for (word, s) in state.iter_mut().zip(s) {
        // SAFETY: 32 bytes that may be written, at any alignment.
        unsafe { _mm256_storeu_si256(word.as_mut_ptr().cast(), s) };
    }
}

/// From half a block per row (the first halves, then the second ones) to one big-endian word per row.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn transpose8(mut rows: [__m256i; 16]) -> [__m256i; 16] {
    let swap = _mm256_broadcastsi128_si256(_mm_set_epi64x(0x0c0d0e0f_08090a0b, 0x04050607_00010203));
    for row in &mut rows {
        *row = _mm256_shuffle_epi8(*row, swap);
    }
    let mut w = rows;
    for half in [0, 8] {
        let r = &rows[half..half + 8];
        // Pairs of words, then of double words, within 128 bits; then the 128-bit parts.
        let mut t = [_mm256_setzero_si256(); 8];
        for i in 0..4 {
            t[2 * i] = _mm256_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
            t[2 * i + 1] = _mm256_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
        }
        let mut u = t;
        for i in [0, 4] {
            u[i] = _mm256_unpacklo_epi64(t[i], t[i + 2]);
            u[i + 1] = _mm256_unpackhi_epi64(t[i], t[i + 2]);
            u[i + 2] = _mm256_unpacklo_epi64(t[i + 1], t[i + 3]);
            u[i + 3] = _mm256_unpackhi_epi64(t[i + 1], t[i + 3]);
        }
        for i in 0..4 {
            w[half + i] = _mm256_permute2x128_si256::<0x20>(u[i], u[i + 4]);
            w[half + 4 + i] = _mm256_permute2x128_si256::<0x31>(u[i], u[i + 4]);
        }
    }
    w
}
