//! SHA-256 of 16 messages at once, each in a 32-bit lane of a 512-bit register, and of 8 in 256-bit registers.

#![allow(unsafe_code)]

use core::arch::x86_64::*;

use super::avx2::{load_state8, store_state8, transpose8};
use super::{BLOCK, K};
use crate::Platform;
use crate::sha2_avx512::{nothing, sha2_round, sha2_rounds, sha2_rounds_256, sha2_rounds_512};

/// [`transpose16`] of the next blocks, in parts that run between the first rounds of the current ones, so that loads
/// and shuffles fill slots that the rounds leave free. It works in memory, because the rounds use all registers but
/// eight, and in place, four rows and then four columns at a time. With blocks of 4 KiB all 16 rows map to one set of
/// an 8-way cache, where prefetched lines do not survive, so each line is read once and whole.
macro_rules! turn16 {
    // Pairs of words, then of double words, within 128 bits.
    (@rows $a:literal $b:literal $c:literal $d:literal) => {
        concat!(
            "vmovdqa64 zmm31, [{m} + 64*16]\n",
            "mov {row}, [{rows} + 8*", $a, "]\n",
            "vmovdqu64 zmm24, [{row} + {next}]\n",
            "mov {row}, [{rows} + 8*", $b, "]\n",
            "vmovdqu64 zmm25, [{row} + {next}]\n",
            "mov {row}, [{rows} + 8*", $c, "]\n",
            "vmovdqu64 zmm26, [{row} + {next}]\n",
            "mov {row}, [{rows} + 8*", $d, "]\n",
            "vmovdqu64 zmm27, [{row} + {next}]\n",
            "vpshufb zmm24, zmm24, zmm31\n",
            "vpshufb zmm25, zmm25, zmm31\n",
            "vpshufb zmm26, zmm26, zmm31\n",
            "vpshufb zmm27, zmm27, zmm31\n",
            "vpunpckldq zmm28, zmm24, zmm25\n",
            "vpunpckhdq zmm29, zmm24, zmm25\n",
            "vpunpckldq zmm30, zmm26, zmm27\n",
            "vpunpckhdq zmm31, zmm26, zmm27\n",
            "vpunpcklqdq zmm24, zmm28, zmm30\n",
            "vpunpckhqdq zmm25, zmm28, zmm30\n",
            "vpunpcklqdq zmm26, zmm29, zmm31\n",
            "vpunpckhqdq zmm27, zmm29, zmm31\n",
            "vmovdqa64 [{m} + 64*", $a, "], zmm24\n",
            "vmovdqa64 [{m} + 64*", $b, "], zmm25\n",
            "vmovdqa64 [{m} + 64*", $c, "], zmm26\n",
            "vmovdqa64 [{m} + 64*", $d, "], zmm27\n",
        )
    };
    // The 128-bit parts.
    (@columns $a:literal $b:literal $c:literal $d:literal) => {
        concat!(
            "vmovdqa64 zmm24, [{m} + 64*", $a, "]\n",
            "vmovdqa64 zmm25, [{m} + 64*", $b, "]\n",
            "vmovdqa64 zmm26, [{m} + 64*", $c, "]\n",
            "vmovdqa64 zmm27, [{m} + 64*", $d, "]\n",
            "vshufi64x2 zmm28, zmm24, zmm25, 0x88\n",
            "vshufi64x2 zmm29, zmm24, zmm25, 0xdd\n",
            "vshufi64x2 zmm30, zmm26, zmm27, 0x88\n",
            "vshufi64x2 zmm31, zmm26, zmm27, 0xdd\n",
            "vshufi64x2 zmm24, zmm28, zmm30, 0x88\n",
            "vshufi64x2 zmm25, zmm29, zmm31, 0x88\n",
            "vshufi64x2 zmm26, zmm28, zmm30, 0xdd\n",
            "vshufi64x2 zmm27, zmm29, zmm31, 0xdd\n",
            "vmovdqa64 [{m} + 64*", $a, "], zmm24\n",
            "vmovdqa64 [{m} + 64*", $b, "], zmm25\n",
            "vmovdqa64 [{m} + 64*", $c, "], zmm26\n",
            "vmovdqa64 [{m} + 64*", $d, "], zmm27\n",
        )
    };
    (0) => {
        ""
    };
    (1) => {
        concat!(turn16!(@rows 0 1 2 3))
    };
    (2) => {
        ""
    };
    (3) => {
        concat!(turn16!(@rows 4 5 6 7))
    };
    (4) => {
        ""
    };
    (5) => {
        concat!(turn16!(@rows 8 9 10 11))
    };
    (6) => {
        ""
    };
    (7) => {
        concat!(turn16!(@rows 12 13 14 15))
    };
    (8) => {
        ""
    };
    (9) => {
        concat!(turn16!(@columns 0 4 8 12))
    };
    (10) => {
        ""
    };
    (11) => {
        concat!(turn16!(@columns 1 5 9 13))
    };
    (12) => {
        ""
    };
    (13) => {
        concat!(turn16!(@columns 2 6 10 14))
    };
    (14) => {
        ""
    };
    (15) => {
        concat!(turn16!(@columns 3 7 11 15))
    };
}

/// Advances `state` (`state[word][lane]`) over the whole blocks of `inputs`, which are equally long. Then continues
/// with `tail`, which is the same for all.
pub(crate) fn compress16(state: &mut [[u32; 16]; 8], inputs: &[&[u8]; 16], tail: &[u8]) {
    assert!(Platform::detect() >= Platform::Avx512);
    // SAFETY: the CPU has the instructions of the level.
    unsafe { compress16_avx512(state, inputs, tail) }
}

/// Advances `state` (`state[word][lane]`) over the whole blocks of `inputs`, which are equally long.
pub(crate) fn compress8(state: &mut [[u32; 8]; 8], inputs: &[&[u8]; 8]) {
    assert!(Platform::detect() >= Platform::Avx512);
    // SAFETY: the CPU has the instructions of the level.
    unsafe { compress8_avx512(state, inputs) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn compress16_avx512(state: &mut [[u32; 16]; 8], inputs: &[&[u8]; 16], tail: &[u8]) {
    let len = inputs[0].len();
    assert!(inputs.iter().all(|input| input.len() == len));
    assert!(len.is_multiple_of(BLOCK) && tail.len().is_multiple_of(BLOCK));
    let mut s = [_mm512_setzero_si512(); 8];
    for (s, word) in s.iter_mut().zip(&*state) {
        // SAFETY: 64 bytes that may be read, at any alignment.
        *s = unsafe { _mm512_loadu_si512(word.as_ptr().cast()) };
    }
    let (own, common) = (inputs.map(<[u8]>::as_ptr), [tail.as_ptr(); 16]);
    let first = if len > 0 { *inputs } else { [tail; 16] };
    if first[0].is_empty() {
        return;
    }
    let mut words = Words { w: load16(&first), swap: [byte_swap(); 1] };
    for at in (0..len + tail.len()).step_by(BLOCK) {
        let start = s;
        // Which blocks come next. Past the end the last ones are transposed again; the result is unused.
        let (rows, next) = match at + BLOCK {
            next if next < len => (&own, next),
            next if next < len + tail.len() => (&common, next - len),
            _ if tail.is_empty() => (&own, len - BLOCK),
            _ => (&common, tail.len() - BLOCK),
        };
        // SAFETY: reads the 64 constants of `K`, 64 bytes at `next`, which is a block's offset in each input or in the
        // tail, and `words`; writes the 16 words of `words` and its operands; and the CPU has AVX-512 F and BW.
        unsafe {
            sha2_rounds_512!(("d" "4" "{{1to16}}" ["6" "11" "25"] ["2" "13" "22"] ["17" "19" "10"] ["7" "18" "3"]),
                s, &raw mut words, K.as_ptr(), "3", turn16
                { rows = in(reg) rows.as_ptr(), next = in(reg) next, row = out(reg) _, });
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
        // SAFETY: reads the 64 constants of `K`, changes nothing but its operands, and the CPU has AVX-512 VL.
        unsafe {
            sha2_rounds_256!(("d" "4" "{{1to8}}" ["6" "11" "25"] ["2" "13" "22"] ["17" "19" "10"] ["7" "18" "3"]),
                s, w.as_ptr(), K.as_ptr(), "3", nothing);
        }
        for (s, start) in s.iter_mut().zip(&start) {
            *s = _mm256_add_epi32(*s, *start);
        }
    }
    store_state8(s, state);
}

/// The message words of 16 blocks, then what the assembly needs to transpose the next ones.
#[repr(C, align(64))]
struct Words {
    w: [__m512i; 16],
    swap: [__m512i; 1],
}

/// The message words of the first block of each input.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn load16(inputs: &[&[u8]; 16]) -> [__m512i; 16] {
    let mut rows = [_mm512_setzero_si512(); 16];
    for (row, input) in rows.iter_mut().zip(inputs) {
        let block: &[u8; BLOCK] = input.first_chunk().expect("a whole block");
        // SAFETY: 64 bytes that may be read, at any alignment.
        *row = unsafe { _mm512_loadu_si512(block.as_ptr().cast()) };
    }
    transpose16(rows)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn byte_swap() -> __m512i {
    _mm512_broadcast_i32x4(_mm_set_epi64x(0x0c0d0e0f_08090a0b, 0x04050607_00010203))
}

/// From one block per row to one big-endian word per row.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn transpose16(mut rows: [__m512i; 16]) -> [__m512i; 16] {
    for row in &mut rows {
        *row = _mm512_shuffle_epi8(*row, byte_swap());
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
