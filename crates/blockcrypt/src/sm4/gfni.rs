//! SM4 at level AVX-512 with GFNI: sixteen blocks per vector, two vectors at a time. GFNI inverts in AES's field
//! between two affine maps, which is all of SM4's S-box once the maps go through the isomorphism of the two fields.

#![allow(unsafe_code)]

use core::arch::x86_64::*;

use super::ROUNDS;
use crate::Platform;
use crate::modes::Block;
use crate::platform::Feature;

/// Shows that the CPU has AVX-512 F and BW, and GFNI.
#[derive(Clone, Copy)]
pub(super) struct Token(());

impl Token {
    pub(super) fn new(platform: Platform) -> Option<Self> {
        let platform = platform.or_detected();
        (platform >= Platform::Avx512 && platform.has(Feature::Gfni)).then_some(Token(()))
    }
}

/// Encrypts, or with the keys in reverse decrypts, any number of blocks.
pub(super) fn crypt(_: Token, keys: &[u32; ROUNDS], blocks: &mut [Block]) {
    // SAFETY: there is a token only where the CPU has the instructions.
    unsafe { crypt_gfni(keys, blocks) }
}

#[target_feature(enable = "avx512f,avx512bw,gfni")]
fn crypt_gfni(keys: &[u32; ROUNDS], blocks: &mut [Block]) {
    let (batches, rest) = blocks.as_chunks_mut::<32>();
    for batch in batches {
        batch_of::<2, 32>(keys, batch);
    }
    let (sixteens, rest) = rest.as_chunks_mut::<16>();
    for sixteen in sixteens {
        batch_of::<1, 16>(keys, sixteen);
    }
    if !rest.is_empty() {
        let mut padded = [[0; 16]; 16];
        padded[..rest.len()].copy_from_slice(rest);
        batch_of::<1, 16>(keys, &mut padded);
        rest.copy_from_slice(&padded[..rest.len()]);
    }
}

/// Four words of sixteen blocks.
type Group = [__m512i; 4];

/// `BLOCKS` is sixteen times `GROUPS`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,gfni")]
fn batch_of<const GROUPS: usize, const BLOCKS: usize>(keys: &[u32; ROUNDS], blocks: &mut [Block; BLOCKS]) {
    const { assert!(BLOCKS == 16 * GROUPS) };
    let big_endian = _mm512_broadcast_i32x4(_mm_set_epi8(12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3));
    let mut x: [Group; GROUPS] = core::array::from_fn(|group| {
        transpose(core::array::from_fn(|i| {
            let four = &blocks[16 * group + 4 * i..][..4];
            // SAFETY: the four blocks are 64 bytes.
            _mm512_shuffle_epi8(unsafe { _mm512_loadu_si512(four.as_ptr().cast()) }, big_endian)
        }))
    });
    for key in keys.as_chunks::<4>().0 {
        for (i, key) in key.iter().enumerate() {
            let key = _mm512_set1_epi32(*key as i32);
            for x in &mut x {
                let t = _mm512_xor_si512(xor3(x[(i + 1) % 4], x[(i + 2) % 4], x[(i + 3) % 4]), key);
                let s = sub_bytes(t);
                let inner = _mm512_rol_epi32::<2>(xor3(s, _mm512_rol_epi32::<8>(s), _mm512_rol_epi32::<16>(s)));
                x[i] = xor3(x[i], inner, _mm512_xor_si512(s, _mm512_rol_epi32::<24>(s)));
            }
        }
    }
    for (group, [a, b, c, d]) in x.into_iter().enumerate() {
        for (i, four) in transpose([d, c, b, a]).into_iter().enumerate() {
            let at = &mut blocks[16 * group + 4 * i..][..4];
            // SAFETY: the four blocks are 64 bytes.
            unsafe { _mm512_storeu_si512(at.as_mut_ptr().cast(), _mm512_shuffle_epi8(four, big_endian)) }
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn xor3(a: __m512i, b: __m512i, c: __m512i) -> __m512i {
    _mm512_ternarylogic_epi32::<0x96>(a, b, c)
}

/// The maps of `aesni`, as matrices: row `i` is byte `7 - i`.
#[inline]
#[target_feature(enable = "avx512f,gfni")]
fn sub_bytes(x: __m512i) -> __m512i {
    let x = _mm512_gf2p8affine_epi64_epi8::<0x3e>(x, _mm512_set1_epi64(0x4c28_7db9_1a22_505d));
    _mm512_gf2p8affineinv_epi64_epi8::<0xd3>(x, _mm512_set1_epi64(0xf3ab_34a9_74a6_b589_u64 as i64))
}

/// Word `i` of each block to vector `i`, within each 128-bit lane; its own inverse.
#[inline]
#[target_feature(enable = "avx512f")]
fn transpose([a, b, c, d]: Group) -> Group {
    let (ab0, ab2) = (_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    let (cd0, cd2) = (_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
    [
        _mm512_unpacklo_epi64(ab0, cd0),
        _mm512_unpackhi_epi64(ab0, cd0),
        _mm512_unpacklo_epi64(ab2, cd2),
        _mm512_unpackhi_epi64(ab2, cd2),
    ]
}
