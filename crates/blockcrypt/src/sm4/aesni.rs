//! SM4 at level AES-NI: four blocks per vector, four vectors at a time. AES's last round contains AES's S-box, which is
//! SM4's between two affine maps; each map is two shuffles, one per half of a byte.

#![allow(unsafe_code)]

use core::arch::x86_64::*;

use super::ROUNDS;
use crate::Platform;
use crate::modes::Block;

/// Shows that the CPU has AES-NI, SSSE3 and SSE4.1.
#[derive(Clone, Copy)]
pub(super) struct Token(());

impl Token {
    pub(super) fn new(platform: Platform) -> Option<Self> {
        (platform.or_detected() >= Platform::AesNi).then_some(Token(()))
    }
}

/// Encrypts, or with the keys in reverse decrypts, any number of blocks.
pub(super) fn crypt(_: Token, keys: &[u32; ROUNDS], blocks: &mut [Block]) {
    // SAFETY: there is a token only where the CPU has the instructions.
    unsafe { crypt_aesni(keys, blocks) }
}

#[target_feature(enable = "aes,ssse3,sse4.1")]
fn crypt_aesni(keys: &[u32; ROUNDS], blocks: &mut [Block]) {
    let (batches, rest) = blocks.as_chunks_mut::<16>();
    for batch in batches {
        batch_of::<4, 16>(keys, batch);
    }
    let (fours, rest) = rest.as_chunks_mut::<4>();
    for four in fours {
        batch_of::<1, 4>(keys, four);
    }
    if !rest.is_empty() {
        let mut padded = [[0; 16]; 4];
        padded[..rest.len()].copy_from_slice(rest);
        batch_of::<1, 4>(keys, &mut padded);
        rest.copy_from_slice(&padded[..rest.len()]);
    }
}

/// Four words of four blocks.
type Group = [__m128i; 4];

/// `BLOCKS` is four times `GROUPS`.
#[inline]
#[target_feature(enable = "aes,ssse3,sse4.1")]
fn batch_of<const GROUPS: usize, const BLOCKS: usize>(keys: &[u32; ROUNDS], blocks: &mut [Block; BLOCKS]) {
    const { assert!(BLOCKS == 4 * GROUPS) };
    let big_endian = _mm_set_epi8(12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3);
    let mut x: [Group; GROUPS] = core::array::from_fn(|group| {
        transpose(core::array::from_fn(|i| {
            // SAFETY: a block is 16 bytes.
            let block = unsafe { _mm_loadu_si128(blocks[4 * group + i].as_ptr().cast()) };
            _mm_shuffle_epi8(block, big_endian)
        }))
    });
    for key in keys.as_chunks::<4>().0 {
        for (i, key) in key.iter().enumerate() {
            let key = _mm_set1_epi32(*key as i32);
            for x in &mut x {
                let t =
                    _mm_xor_si128(_mm_xor_si128(x[(i + 1) % 4], x[(i + 2) % 4]), _mm_xor_si128(x[(i + 3) % 4], key));
                x[i] = _mm_xor_si128(x[i], linear(sub_bytes(t)));
            }
        }
    }
    for (group, [a, b, c, d]) in x.into_iter().enumerate() {
        for (i, block) in transpose([d, c, b, a]).into_iter().enumerate() {
            let block = _mm_shuffle_epi8(block, big_endian);
            // SAFETY: a block is 16 bytes.
            unsafe { _mm_storeu_si128(blocks[4 * group + i].as_mut_ptr().cast(), block) }
        }
    }
}

#[inline]
#[target_feature(enable = "sse2")]
fn transpose([a, b, c, d]: Group) -> Group {
    let (ab0, ab2) = (_mm_unpacklo_epi32(a, b), _mm_unpackhi_epi32(a, b));
    let (cd0, cd2) = (_mm_unpacklo_epi32(c, d), _mm_unpackhi_epi32(c, d));
    [
        _mm_unpacklo_epi64(ab0, cd0),
        _mm_unpackhi_epi64(ab0, cd0),
        _mm_unpacklo_epi64(ab2, cd2),
        _mm_unpackhi_epi64(ab2, cd2),
    ]
}

/// An affine map as the images of the low and of the high halves of a byte.
#[inline]
#[target_feature(enable = "ssse3")]
fn affine(x: __m128i, low: u128, high: u128) -> __m128i {
    let table = |table: u128| _mm_set_epi64x((table >> 64) as i64, table as i64);
    let nibble = _mm_set1_epi8(0x0f);
    _mm_xor_si128(
        _mm_shuffle_epi8(table(low), _mm_and_si128(x, nibble)),
        _mm_shuffle_epi8(table(high), _mm_and_si128(_mm_srli_epi16::<4>(x), nibble)),
    )
}

#[inline]
#[target_feature(enable = "aes,ssse3")]
fn sub_bytes(x: __m128i) -> __m128i {
    // The maps to AES's S-box and from it: the same as in `portable::sbox`, checked by the same test on all bytes.
    let x = affine(x, 0x9814_a824_1d91_2da1_078b_37bb_820e_b23e, 0x3fe3_11cd_fa26_d408_37eb_19c5_f22e_dc00);
    let x = _mm_aesenclast_si128(x, _mm_setzero_si128());
    // The last round also shifted the rows.
    let x = _mm_shuffle_epi8(x, _mm_set_epi8(3, 6, 9, 12, 15, 2, 5, 8, 11, 14, 1, 4, 7, 10, 13, 0));
    affine(x, 0x47ff_8d35_79c1_b30b_2098_ea52_1ea6_d46c, 0xed0d_bd5d_7090_20c0_2dcd_7d9d_b050_e000)
}

/// `x ^ (x <<< 2) ^ (x <<< 10) ^ (x <<< 18) ^ (x <<< 24)`, where all rotations but one are by whole bytes.
#[inline]
#[target_feature(enable = "ssse3")]
fn linear(x: __m128i) -> __m128i {
    let by_8 = _mm_set_epi8(14, 13, 12, 15, 10, 9, 8, 11, 6, 5, 4, 7, 2, 1, 0, 3);
    let by_16 = _mm_set_epi8(13, 12, 15, 14, 9, 8, 11, 10, 5, 4, 7, 6, 1, 0, 3, 2);
    let by_24 = _mm_set_epi8(12, 15, 14, 13, 8, 11, 10, 9, 4, 7, 6, 5, 0, 3, 2, 1);
    let inner = _mm_xor_si128(x, _mm_xor_si128(_mm_shuffle_epi8(x, by_8), _mm_shuffle_epi8(x, by_16)));
    let inner = _mm_or_si128(_mm_slli_epi32::<2>(inner), _mm_srli_epi32::<30>(inner));
    _mm_xor_si128(inner, _mm_xor_si128(x, _mm_shuffle_epi8(x, by_24)))
}
