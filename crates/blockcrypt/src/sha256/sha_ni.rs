//! SHA-256 of a few messages at once with SHA-NI: a single stream leaves the unit idle while each pair of rounds waits
//! for the previous pair.

#![allow(unsafe_code)]

use core::arch::x86_64::*;

use super::{BLOCK, K};
use crate::Platform;
use crate::platform::Feature;

/// Advances `state` (`state[word][message]`) over the whole blocks of `inputs`, which are equally long.
pub(crate) fn compress<const N: usize>(state: &mut [[u32; N]; 8], inputs: &[&[u8]; N]) {
    assert!(Platform::detect().has(Feature::Sha));
    // SAFETY: the CPU has the instructions.
    unsafe { compress_sha_ni(state, inputs) }
}

#[target_feature(enable = "sha,sse2,ssse3,sse4.1")]
fn compress_sha_ni<const N: usize>(state: &mut [[u32; N]; 8], inputs: &[&[u8]; N]) {
    let blocks = inputs.map(|input| {
        let (blocks, rest) = input.as_chunks::<BLOCK>();
        assert!(rest.is_empty());
        blocks
    });
    let count = blocks[0].len();
    assert!(blocks.iter().all(|blocks| blocks.len() == count));
    let swap = _mm_set_epi64x(0x0c0d0e0f_08090a0b, 0x04050607_00010203);
    let mut s = [[_mm_setzero_si128(); 2]; N];
    for (n, s) in s.iter_mut().enumerate() {
        *s = load_state(&state.map(|word| word[n]));
    }
    for at in 0..count {
        let mut block = [&blocks[0][at]; N];
        for (block, blocks) in block.iter_mut().zip(&blocks) {
            *block = &blocks[at];
        }
        let start = s;
        let mut w = [[_mm_setzero_si128(); 4]; N];
        // Four rounds of each message per turn; `w[n][$i % 4]` holds its message words. A macro, because a loop over
        // turns is not always unrolled, and then the words go through memory.
        macro_rules! turns {
            ($($i:literal)*) => {$(
                for n in 0..N {
                    if $i < 4 {
                        w[n][$i % 4] = _mm_shuffle_epi8(load_words(block[n], $i % 4), swap);
                    } else {
                        let [w0, w1, w2, w3] = [w[n][$i % 4], w[n][($i + 1) % 4], w[n][($i + 2) % 4], w[n][($i + 3) % 4]];
                        let sum = _mm_add_epi32(_mm_sha256msg1_epu32(w0, w1), _mm_alignr_epi8::<4>(w3, w2));
                        w[n][$i % 4] = _mm_sha256msg2_epu32(sum, w3);
                    }
                    let kw = _mm_add_epi32(w[n][$i % 4], load_constants($i));
                    s[n][1] = _mm_sha256rnds2_epu32(s[n][1], s[n][0], kw);
                    s[n][0] = _mm_sha256rnds2_epu32(s[n][0], s[n][1], _mm_shuffle_epi32::<0x0e>(kw));
                }
            )*};
        }
        turns!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
        for (s, start) in s.iter_mut().flatten().zip(start.iter().flatten()) {
            *s = _mm_add_epi32(*s, *start);
        }
    }
    for (n, s) in s.iter().enumerate() {
        for (word, out) in store_state(*s).iter().zip(&mut *state) {
            out[n] = *word;
        }
    }
}

/// Words `4 * i` to `4 * i + 3` of a block, as they lie in memory.
#[inline]
#[target_feature(enable = "sse2")]
fn load_words(block: &[u8; BLOCK], i: usize) -> __m128i {
    let quarter = &block.as_chunks::<16>().0[i];
    // SAFETY: 16 bytes that may be read, at any alignment.
    unsafe { _mm_loadu_si128(quarter.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "sse2")]
fn load_constants(i: usize) -> __m128i {
    let four = &K.as_chunks::<4>().0[i];
    // SAFETY: 16 bytes that may be read, at any alignment.
    unsafe { _mm_loadu_si128(four.as_ptr().cast()) }
}

/// The instructions expect the state as ABEF and CDGH, from the most significant word down.
#[inline]
#[target_feature(enable = "sse2")]
fn load_state(state: &[u32; 8]) -> [__m128i; 2] {
    let [a, b, c, d, e, f, g, h] = state.map(|word| word as i32);
    [_mm_set_epi32(a, b, e, f), _mm_set_epi32(c, d, g, h)]
}

#[inline]
#[target_feature(enable = "sse4.1")]
fn store_state([abef, cdgh]: [__m128i; 2]) -> [u32; 8] {
    [
        _mm_extract_epi32::<3>(abef) as u32,
        _mm_extract_epi32::<2>(abef) as u32,
        _mm_extract_epi32::<3>(cdgh) as u32,
        _mm_extract_epi32::<2>(cdgh) as u32,
        _mm_extract_epi32::<1>(abef) as u32,
        _mm_extract_epi32::<0>(abef) as u32,
        _mm_extract_epi32::<1>(cdgh) as u32,
        _mm_extract_epi32::<0>(cdgh) as u32,
    ]
}
