//! SHA-256 of 16 messages at once, a 32-bit lane of a 512-bit register each, and of 8 in 256-bit registers.

#![allow(unsafe_code)]

use core::arch::x86_64::*;

use super::avx2::{load_state8, store_state8, transpose8};
use super::{BLOCK, K};
use crate::Platform;
use crate::sha2_avx512::{sha2_round, sha2_rounds, sha2_rounds_256, sha2_rounds_512};

/// Advances `state` (`state[word][lane]`) over the whole blocks of `inputs`, which are equally long.
pub(crate) fn compress16(state: &mut [[u32; 16]; 8], inputs: &[&[u8]; 16]) {
    assert!(Platform::detect() >= Platform::Avx512);
    // SAFETY: the CPU has the instructions of the level.
    unsafe { compress16_avx512(state, inputs) }
}

/// Advances `state` (`state[word][lane]`) over the whole blocks of `inputs`, which are equally long.
pub(crate) fn compress8(state: &mut [[u32; 8]; 8], inputs: &[&[u8]; 8]) {
    assert!(Platform::detect() >= Platform::Avx512);
    // SAFETY: the CPU has the instructions of the level.
    unsafe { compress8_avx512(state, inputs) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn compress16_avx512(state: &mut [[u32; 16]; 8], inputs: &[&[u8]; 16]) {
    let len = inputs[0].len();
    assert!(inputs.iter().all(|input| input.len() == len) && len.is_multiple_of(BLOCK));
    let mut s = [_mm512_setzero_si512(); 8];
    for (s, word) in s.iter_mut().zip(&*state) {
        // SAFETY: 64 bytes that may be read, at any alignment.
        *s = unsafe { _mm512_loadu_si512(word.as_ptr().cast()) };
    }
    if len == 0 {
        return;
    }
    let mut next = load16(inputs, 0);
    for at in (0..len).step_by(BLOCK) {
        let w = next;
        // Loading and turning the next blocks before the rounds of these hides both behind them.
        next = load16(inputs, (at + BLOCK).min(len - BLOCK));
        let start = s;
        // SAFETY: reads the 64 constants behind `K`, changes nothing but its operands, and the CPU has AVX-512 F.
        unsafe {
            sha2_rounds_512!(("d" "4" "{{1to16}}" ["6" "11" "25"] ["2" "13" "22"] ["17" "19" "10"] ["7" "18" "3"]),
                s, w, K.as_ptr(), "3");
        }
        for (s, start) in s.iter_mut().zip(&start) {
            *s = _mm512_add_epi32(*s, *start);
        }
    }
    for (word, s) in state.iter_mut().zip(s) {
        // SAFETY: 64 bytes that may be written, at any alignment.
        unsafe { _mm512_storeu_si512(word.as_mut_ptr().cast(), s) };
    }
}

#[target_feature(enable = "avx2,avx512f,avx512bw,avx512dq,avx512vl")]
fn compress8_avx512(state: &mut [[u32; 8]; 8], inputs: &[&[u8]; 8]) {
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
        // SAFETY: reads the 64 constants behind `K`, changes nothing but its operands, and the CPU has AVX-512 VL.
        unsafe {
            sha2_rounds_256!(("d" "4" "{{1to8}}" ["6" "11" "25"] ["2" "13" "22"] ["17" "19" "10"] ["7" "18" "3"]),
                s, w, K.as_ptr(), "3");
        }
        for (s, start) in s.iter_mut().zip(&start) {
            *s = _mm256_add_epi32(*s, *start);
        }
    }
    store_state8(s, state);
}

/// The message words of the block at `at` of each input.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn load16(inputs: &[&[u8]; 16], at: usize) -> [__m512i; 16] {
    let mut rows = [_mm512_setzero_si512(); 16];
    for (row, input) in rows.iter_mut().zip(inputs) {
        // Blocks of 4 KiB put all 16 rows into one set of an 8-way cache: each line is read once and whole.
        let block: &[u8; BLOCK] = input[at..].first_chunk().expect("a whole block");
        // SAFETY: 64 bytes that may be read, at any alignment.
        *row = unsafe { _mm512_loadu_si512(block.as_ptr().cast()) };
    }
    transpose16(rows)
}

/// From a block a row to a big-endian word a row.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn transpose16(mut rows: [__m512i; 16]) -> [__m512i; 16] {
    let swap = _mm512_broadcast_i32x4(_mm_set_epi64x(0x0c0d0e0f_08090a0b, 0x04050607_00010203));
    for row in &mut rows {
        *row = _mm512_shuffle_epi8(*row, swap);
    }
    // Pairs of words, then of double words, within 128 bits; then the 128-bit parts.
    let mut t = rows;
    for i in 0..8 {
        t[2 * i] = _mm512_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]);
    }
    let mut u = t;
    for i in 0..4 {
        u[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
        u[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
        u[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
        u[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
    }
    let mut v = u;
    for half in [0, 8] {
        for i in half..half + 4 {
            v[i] = _mm512_shuffle_i32x4::<0x88>(u[i], u[i + 4]);
            v[i + 4] = _mm512_shuffle_i32x4::<0xdd>(u[i], u[i + 4]);
        }
    }
    let mut w = v;
    for i in 0..8 {
        w[i] = _mm512_shuffle_i32x4::<0x88>(v[i], v[i + 8]);
        w[i + 8] = _mm512_shuffle_i32x4::<0xdd>(v[i], v[i + 8]);
    }
    w
}
