//! Speck128 at level AVX2: four blocks in a pair of vectors, four pairs at a time.

#![allow(unsafe_code)]

use core::arch::x86_64::*;

use super::ROUNDS;
use crate::Platform;
use crate::modes::Block;

/// Blocks in a pair of vectors, one of `x` and one of `y`.
const LANES: usize = 4;
/// Pairs side by side.
const PAIRS: usize = 4;
type Pair = (__m256i, __m256i);

/// Shows that the CPU has AVX2.
#[derive(Clone, Copy)]
pub(super) struct Token(());

impl Token {
    pub(super) fn new(platform: Platform) -> Option<Self> {
        (platform.or_detected() >= Platform::Avx2).then_some(Token(()))
    }
}

/// Encrypts whole pairs of vectors; returns the blocks that fill none.
pub(super) fn encrypt<'a>(_: Token, keys: &[u64; ROUNDS], blocks: &'a mut [Block]) -> &'a mut [Block] {
    // SAFETY: there is a token only where the CPU has the instructions.
    unsafe { crypt::<true>(keys, blocks) }
}

/// Decrypts whole pairs of vectors; returns the blocks that fill none.
pub(super) fn decrypt<'a>(_: Token, keys: &[u64; ROUNDS], blocks: &'a mut [Block]) -> &'a mut [Block] {
    // SAFETY: there is a token only where the CPU has the instructions.
    unsafe { crypt::<false>(keys, blocks) }
}

#[target_feature(enable = "avx2")]
fn crypt<'a, const ENCRYPT: bool>(keys: &[u64; ROUNDS], blocks: &'a mut [Block]) -> &'a mut [Block] {
    let (batches, rest) = blocks.as_chunks_mut::<{ LANES * PAIRS }>();
    for batch in batches {
        pairs::<ENCRYPT, PAIRS>(keys, batch.as_chunks_mut().0);
    }
    let (lanes, rest) = rest.as_chunks_mut::<LANES>();
    for lanes in lanes {
        pairs::<ENCRYPT, 1>(keys, core::slice::from_mut(lanes));
    }
    rest
}

/// `N` pairs; it does not matter which lane a block is in, as long as it is stored to its own place.
#[inline]
#[target_feature(enable = "avx2")]
fn pairs<const ENCRYPT: bool, const N: usize>(keys: &[u64; ROUNDS], blocks: &mut [[Block; LANES]]) {
    let mut pairs: [Pair; N] = core::array::from_fn(|i| {
        let at = blocks[i].as_ptr().cast::<__m256i>();
        // SAFETY: the blocks are as long as two vectors.
        let (a, b) = unsafe { (_mm256_loadu_si256(at), _mm256_loadu_si256(at.add(1))) };
        (_mm256_unpackhi_epi64(a, b), _mm256_unpacklo_epi64(a, b))
    });
    if ENCRYPT {
        for key in keys {
            let key = _mm256_set1_epi64x(*key as i64);
            for (x, y) in &mut pairs {
                *x = _mm256_xor_si256(_mm256_add_epi64(rotate_right_8(*x), *y), key);
                *y = _mm256_xor_si256(rotate_left_3(*y), *x);
            }
        }
    } else {
        for key in keys.iter().rev() {
            let key = _mm256_set1_epi64x(*key as i64);
            for (x, y) in &mut pairs {
                *y = rotate_right_3(_mm256_xor_si256(*y, *x));
                *x = rotate_left_8(_mm256_sub_epi64(_mm256_xor_si256(*x, key), *y));
            }
        }
    }
    for ((x, y), blocks) in pairs.into_iter().zip(blocks) {
        let at = blocks.as_mut_ptr().cast::<__m256i>();
        // SAFETY: the blocks are as long as two vectors.
        unsafe {
            _mm256_storeu_si256(at, _mm256_unpacklo_epi64(y, x));
            _mm256_storeu_si256(at.add(1), _mm256_unpackhi_epi64(y, x));
        }
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn rotate_right_8(x: __m256i) -> __m256i {
    let order = _mm_set_epi8(8, 15, 14, 13, 12, 11, 10, 9, 0, 7, 6, 5, 4, 3, 2, 1);
    _mm256_shuffle_epi8(x, _mm256_broadcastsi128_si256(order))
}

#[inline]
#[target_feature(enable = "avx2")]
fn rotate_left_8(x: __m256i) -> __m256i {
    let order = _mm_set_epi8(14, 13, 12, 11, 10, 9, 8, 15, 6, 5, 4, 3, 2, 1, 0, 7);
    _mm256_shuffle_epi8(x, _mm256_broadcastsi128_si256(order))
}

#[inline]
#[target_feature(enable = "avx2")]
fn rotate_left_3(x: __m256i) -> __m256i {
    _mm256_or_si256(_mm256_slli_epi64::<3>(x), _mm256_srli_epi64::<61>(x))
}

#[inline]
#[target_feature(enable = "avx2")]
fn rotate_right_3(x: __m256i) -> __m256i {
    _mm256_or_si256(_mm256_srli_epi64::<3>(x), _mm256_slli_epi64::<61>(x))
}
