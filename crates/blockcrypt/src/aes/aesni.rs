//! AES with AES-NI: one block per register.

#![allow(unsafe_code)]

use core::arch::x86_64::*;

use super::vector::{self, Vector, entry_points};
use super::x86::RoundKeys;
use super::{Block, MAX_ROUNDS};

/// One block.
#[derive(Clone, Copy)]
pub(super) struct Xmm(__m128i);

impl Vector for Xmm {
    const BLOCKS: usize = 1;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: good for 16 bytes; the load is unaligned.
        Xmm(unsafe { _mm_loadu_si128(from.cast()) })
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: good for 16 bytes; the store is unaligned.
        unsafe { _mm_storeu_si128(to.cast(), self.0) }
    }
    #[inline(always)]
    unsafe fn splat(from: *const Block) -> Self {
        // SAFETY: a block has 16 bytes.
        unsafe { Self::load(from.cast()) }
    }
    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        // SAFETY: the caller has SSE2.
        Xmm(unsafe { _mm_xor_si128(self.0, other.0) })
    }
    #[inline(always)]
    unsafe fn xor3(self, a: Self, b: Self) -> Self {
        // SAFETY: the caller has SSE2.
        unsafe { self.xor(a.xor(b)) }
    }
    #[inline(always)]
    unsafe fn encrypt_round(self, key: Self) -> Self {
        // SAFETY: the caller has AES-NI.
        Xmm(unsafe { _mm_aesenc_si128(self.0, key.0) })
    }
    #[inline(always)]
    unsafe fn encrypt_last_round(self, key: Self) -> Self {
        // SAFETY: the caller has AES-NI.
        Xmm(unsafe { _mm_aesenclast_si128(self.0, key.0) })
    }
    #[inline(always)]
    unsafe fn decrypt_round(self, key: Self) -> Self {
        // SAFETY: the caller has AES-NI.
        Xmm(unsafe { _mm_aesdec_si128(self.0, key.0) })
    }
    #[inline(always)]
    unsafe fn decrypt_last_round(self, key: Self) -> Self {
        // SAFETY: the caller has AES-NI.
        Xmm(unsafe { _mm_aesdeclast_si128(self.0, key.0) })
    }

    #[inline(always)]
    unsafe fn tweak(first: Self, i: usize, before: Self) -> Self {
        if i == 0 {
            return first;
        }
        // SAFETY: the caller has SSE2.
        unsafe {
            // The top bit of each half, spread over the other half: the carry between them, and the reduction.
            let signs = _mm_srai_epi32::<31>(_mm_shuffle_epi32::<0b01_01_11_11>(before.0));
            let back = _mm_and_si128(signs, _mm_set_epi64x(1, 0x87));
            Xmm(_mm_xor_si128(_mm_add_epi64(before.0, before.0), back))
        }
    }

    #[inline(always)]
    unsafe fn next_flight(self) -> Self {
        // SAFETY: the caller has PCLMULQDQ.
        unsafe {
            // A shift by a byte; what falls out comes back times the modulus.
            let carry = _mm_srli_si128::<15>(self.0);
            let back = _mm_clmulepi64_si128::<0>(carry, _mm_set_epi64x(0, 0x87));
            Xmm(_mm_xor_si128(_mm_slli_si128::<1>(self.0), back))
        }
    }

    #[inline(always)]
    unsafe fn shift_in(self, before: Self) -> Self {
        before
    }
}

entry_points!(Xmm, Xmm, "aes,pclmulqdq,ssse3,sse4.1");

/// The S-box on each byte of a word.
///
/// # Safety
///
/// AES-NI.
#[target_feature(enable = "aes")]
pub(super) unsafe fn sub_word(word: u32) -> u32 {
    // With four equal columns the shift of rows changes nothing.
    let word = _mm_set1_epi32(word.cast_signed());
    _mm_cvtsi128_si32(_mm_aesenclast_si128(word, _mm_setzero_si128())).cast_unsigned()
}

/// The keys of the equivalent inverse cipher from those of the cipher.
///
/// # Safety
///
/// AES-NI.
#[target_feature(enable = "aes")]
pub(super) unsafe fn invert_keys(encryption: &[Block], decryption: &mut [Block; MAX_ROUNDS + 1]) {
    let last = encryption.len() - 1;
    for (i, (key, inverse)) in encryption.iter().rev().zip(decryption).enumerate() {
        *inverse = *key;
        if i != 0 && i != last {
            // SAFETY: both pointers are of whole blocks, the accesses unaligned.
            unsafe {
                let mixed = _mm_aesimc_si128(_mm_loadu_si128(key.as_ptr().cast()));
                _mm_storeu_si128(inverse.as_mut_ptr().cast(), mixed);
            }
        }
    }
}
