//! Speck128 at level AVX-512: eight blocks in a pair of vectors, four pairs at a time.

#![allow(unsafe_code)]

use core::arch::x86_64::*;

use super::ROUNDS;
use crate::Platform;
use crate::modes::Block;

/// Blocks in a pair of vectors, one of `x` and one of `y`.
const LANES: usize = 8;
/// Pairs side by side.
const PAIRS: usize = 4;
type Pair = (__m512i, __m512i);

/// Shows that the CPU has AVX-512 F.
#[derive(Clone, Copy)]
pub(super) struct Token(());

impl Token {
    pub(super) fn new(platform: Platform) -> Option<Self> {
        (platform.or_detected() >= Platform::Avx512).then_some(Token(()))
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

#[target_feature(enable = "avx512f")]
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
#[target_feature(enable = "avx512f")]
fn pairs<const ENCRYPT: bool, const N: usize>(keys: &[u64; ROUNDS], blocks: &mut [[Block; LANES]]) {
    let mut pairs: [Pair; N] = core::array::from_fn(|i| {
        let at = blocks[i].as_ptr().cast::<__m512i>();
        // SAFETY: the blocks are as long as two vectors.
        let (a, b) = unsafe { (_mm512_loadu_si512(at), _mm512_loadu_si512(at.add(1))) };
        (_mm512_unpackhi_epi64(a, b), _mm512_unpacklo_epi64(a, b))
    });
    if ENCRYPT {
        for key in keys {
            let key = _mm512_set1_epi64(*key as i64);
            for (x, y) in &mut pairs {
                *x = _mm512_xor_si512(_mm512_add_epi64(_mm512_ror_epi64::<8>(*x), *y), key);
                *y = _mm512_xor_si512(_mm512_rol_epi64::<3>(*y), *x);
            }
        }
    } else {
        for key in keys.iter().rev() {
            let key = _mm512_set1_epi64(*key as i64);
            for (x, y) in &mut pairs {
                *y = _mm512_ror_epi64::<3>(_mm512_xor_si512(*y, *x));
                *x = _mm512_rol_epi64::<8>(_mm512_sub_epi64(_mm512_xor_si512(*x, key), *y));
            }
        }
    }
    for ((x, y), blocks) in pairs.into_iter().zip(blocks) {
        let at = blocks.as_mut_ptr().cast::<__m512i>();
        // SAFETY: the blocks are as long as two vectors.
        unsafe {
            _mm512_storeu_si512(at, _mm512_unpacklo_epi64(y, x));
            _mm512_storeu_si512(at.add(1), _mm512_unpackhi_epi64(y, x));
        }
    }
}
