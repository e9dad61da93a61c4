//! SHA-512 of 8 messages at once, each in a 64-bit lane of a 512-bit register, and of 4 in 256-bit registers.

#![allow(unsafe_code)]

use core::arch::x86_64::*;

use super::avx2::{load_state4, store_state4, transpose4};
use super::{BLOCK, K};
use crate::Platform;
use crate::sha2_avx512::{nothing, sha2_round, sha2_rounds, sha2_rounds_256, sha2_rounds_512};

/// Advances `state` (`state[word][lane]`) over the whole blocks of `inputs`, which are equally long.
pub(crate) fn compress8(state: &mut [[u64; 8]; 8], inputs: &[&[u8]; 8]) {
    assert!(Platform::detect() >= Platform::Avx512);
    // SAFETY: the CPU has the instructions of the level.
    unsafe { compress8_avx512(state, inputs) }
}

/// Advances `state` (`state[word][lane]`) over the whole blocks of `inputs`, which are equally long.
pub(crate) fn compress4(state: &mut [[u64; 4]; 8], inputs: &[&[u8]; 4]) {
    assert!(Platform::detect() >= Platform::Avx512);
    // SAFETY: the CPU has the instructions of the level.
    unsafe { compress4_avx512(state, inputs) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn compress8_avx512(state: &mut [[u64; 8]; 8], inputs: &[&[u8]; 8]) {
    let len = inputs[0].len();
    assert!(inputs.iter().all(|input| input.len() == len) && len.is_multiple_of(BLOCK));
    let mut s = [_mm512_setzero_si512(); 8];
    for (s, word) in s.iter_mut().zip(&*state) {
        // SAFETY: 64 bytes that may be read, at any alignment.
        *s = unsafe { _mm512_loadu_si512(word.as_ptr().cast()) };
    }
    for at in (0..len).step_by(BLOCK) {
        let mut w = [_mm512_setzero_si512(); 16];
        for (row, input) in inputs.iter().enumerate() {
            // SAFETY: `at + 128 <= len`, the length of each input.
            unsafe {
                w[row] = _mm512_loadu_si512(input.as_ptr().add(at).cast());
                w[8 + row] = _mm512_loadu_si512(input.as_ptr().add(at + 64).cast());
            }
        }
        w = transpose8(w);
        let start = s;
        // SAFETY: reads the 80 constants of `K`, changes nothing but its operands, and the CPU has AVX-512 F.
        unsafe {
            sha2_rounds_512!(("q" "8" "{{1to8}}" ["14" "18" "41"] ["28" "34" "39"] ["19" "61" "6"] ["1" "8" "7"]),
                s, w.as_ptr(), K.as_ptr(), "4", nothing);
        }
        for (s, start) in s.iter_mut().zip(&start) {
            *s = _mm512_add_epi64(*s, *start);
        }
    }
    for (word, s) in state.iter_mut().zip(s) {
        // SAFETY: 64 bytes that may be written, at any alignment.
        unsafe { _mm512_storeu_si512(word.as_mut_ptr().cast(), s) };
    }
}

#[target_feature(enable = "avx2,avx512f,avx512bw,avx512dq,avx512vl")]
fn compress4_avx512(state: &mut [[u64; 4]; 8], inputs: &[&[u8]; 4]) {
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
        // SAFETY: reads the 80 constants of `K`, changes nothing but its operands, and the CPU has AVX-512 VL.
        unsafe {
            sha2_rounds_256!(("q" "8" "{{1to4}}" ["14" "18" "41"] ["28" "34" "39"] ["19" "61" "6"] ["1" "8" "7"]),
                s, w.as_ptr(), K.as_ptr(), "4", nothing);
        }
        for (s, start) in s.iter_mut().zip(&start) {
            *s = _mm256_add_epi64(*s, *start);
        }
    }
    store_state4(s, state);
}

/// From half a block per row (the first halves, then the second ones) to one big-endian word per row.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn transpose8(mut rows: [__m512i; 16]) -> [__m512i; 16] {
    let swap = _mm512_broadcast_i32x4(_mm_set_epi64x(0x08090a0b_0c0d0e0f, 0x00010203_04050607));
    for row in &mut rows {
        *row = _mm512_shuffle_epi8(*row, swap);
    }
    let mut w = rows;
    for half in [0, 8] {
        let r = &rows[half..half + 8];
        // Pairs of words within 128 bits, then the 128-bit parts.
        let mut t = [_mm512_setzero_si512(); 8];
        for i in 0..4 {
            t[2 * i] = _mm512_unpacklo_epi64(r[2 * i], r[2 * i + 1]);
            t[2 * i + 1] = _mm512_unpackhi_epi64(r[2 * i], r[2 * i + 1]);
        }
        let mut u = t;
        for i in [0, 4] {
            for odd in [0, 1] {
                u[i + odd] = _mm512_shuffle_i64x2::<0x88>(t[i + odd], t[i + 2 + odd]);
                u[i + 2 + odd] = _mm512_shuffle_i64x2::<0xdd>(t[i + odd], t[i + 2 + odd]);
            }
        }
        for i in 0..4 {
            w[half + i] = _mm512_shuffle_i64x2::<0x88>(u[i], u[i + 4]);
            w[half + 4 + i] = _mm512_shuffle_i64x2::<0xdd>(u[i], u[i + 4]);
        }
    }
    w
}
