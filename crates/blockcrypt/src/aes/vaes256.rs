//! AES with VAES on 256-bit registers: two blocks each.

#![allow(unsafe_code)]

use core::arch::x86_64::*;

use super::Block;
use super::aesni::Xmm;
use super::vector::{self, Vector, entry_points};
use super::x86::RoundKeys;

/// Two blocks.
#[derive(Clone, Copy)]
pub(super) struct Ymm(__m256i);

impl Vector for Ymm {
    const BLOCKS: usize = 2;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: good for 32 bytes; the load is unaligned.
        Ymm(unsafe { _mm256_loadu_si256(from.cast()) })
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: good for 32 bytes; the store is unaligned.
        unsafe { _mm256_storeu_si256(to.cast(), self.0) }
    }
    #[inline(always)]
    unsafe fn splat(from: *const Block) -> Self {
        // SAFETY: a block has 16 bytes; the load is unaligned.
        Ymm(unsafe { _mm256_broadcastsi128_si256(_mm_loadu_si128(from.cast())) })
    }
    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        // SAFETY: the caller has AVX2.
        Ymm(unsafe { _mm256_xor_si256(self.0, other.0) })
    }
    #[inline(always)]
    unsafe fn xor3(self, a: Self, b: Self) -> Self {
        // SAFETY: the caller has AVX2.
        unsafe { self.xor(a.xor(b)) }
    }
    #[inline(always)]
    unsafe fn encrypt_round(self, key: Self) -> Self {
        // SAFETY: the caller has VAES.
        Ymm(unsafe { _mm256_aesenc_epi128(self.0, key.0) })
    }
    #[inline(always)]
    unsafe fn encrypt_last_round(self, key: Self) -> Self {
        // SAFETY: the caller has VAES.
        Ymm(unsafe { _mm256_aesenclast_epi128(self.0, key.0) })
    }
    #[inline(always)]
    unsafe fn decrypt_round(self, key: Self) -> Self {
        // SAFETY: the caller has VAES.
        Ymm(unsafe { _mm256_aesdec_epi128(self.0, key.0) })
    }
    #[inline(always)]
    unsafe fn decrypt_last_round(self, key: Self) -> Self {
        // SAFETY: the caller has VAES.
        Ymm(unsafe { _mm256_aesdeclast_epi128(self.0, key.0) })
    }

    #[inline(always)]
    unsafe fn tweak(first: Self, i: usize, _before: Self) -> Self {
        // SAFETY: the caller has AVX2 and VPCLMULQDQ.
        unsafe {
            // Both halves shift by the block's number at once, each block by its own; what falls out of the low half
            // goes to the high one, what falls out of the high half comes back times the modulus.
            let n = 2 * i as i64;
            let left = _mm256_set_epi64x(n + 1, n + 1, n, n);
            let right = _mm256_sub_epi64(_mm256_set1_epi64x(64), left);
            let out = _mm256_srlv_epi64(first.0, right);
            let carried = _mm256_xor_si256(_mm256_sllv_epi64(first.0, left), _mm256_slli_si256::<8>(out));
            Ymm(_mm256_xor_si256(carried, _mm256_clmulepi64_epi128::<0x01>(out, _mm256_set1_epi64x(0x87))))
        }
    }

    #[inline(always)]
    unsafe fn next_flight(self) -> Self {
        // SAFETY: the caller has AVX2 and VPCLMULQDQ.
        unsafe {
            // A shift by two bytes; what falls out comes back times the modulus.
            let carry = _mm256_srli_si256::<14>(self.0);
            let back = _mm256_clmulepi64_epi128::<0>(carry, _mm256_set1_epi64x(0x87));
            Ymm(_mm256_xor_si256(_mm256_slli_si256::<2>(self.0), back))
        }
    }

    #[inline(always)]
    unsafe fn shift_in(self, before: Self) -> Self {
        // SAFETY: the caller has AVX2.
        Ymm(unsafe { _mm256_permute2x128_si256::<0x21>(before.0, self.0) })
    }
}

entry_points!(Ymm, Xmm, "aes,pclmulqdq,avx2,vaes,vpclmulqdq");
