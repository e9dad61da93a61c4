//! AES with VAES on 512-bit registers: four blocks each.

#![allow(unsafe_code)]

use core::arch::x86_64::*;

use super::Block;
use super::aesni::Xmm;
use super::vector::{self, Vector, entry_points};
use super::x86::RoundKeys;

/// Four blocks.
#[derive(Clone, Copy)]
pub(super) struct Zmm(__m512i);

impl Vector for Zmm {
    const BLOCKS: usize = 4;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: good for 64 bytes; the load is unaligned.
        Zmm(unsafe { _mm512_loadu_si512(from.cast()) })
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: good for 64 bytes; the store is unaligned.
        unsafe { _mm512_storeu_si512(to.cast(), self.0) }
    }
    #[inline(always)]
    unsafe fn splat(from: *const Block) -> Self {
        // SAFETY: a block has 16 bytes; the load is unaligned.
        Zmm(unsafe { _mm512_broadcast_i32x4(_mm_loadu_si128(from.cast())) })
    }
    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        // SAFETY: the caller has AVX-512 F.
        Zmm(unsafe { _mm512_xor_si512(self.0, other.0) })
    }
    #[inline(always)]
    unsafe fn xor3(self, a: Self, b: Self) -> Self {
        // SAFETY: the caller has AVX-512 F.
        Zmm(unsafe { xor3(self.0, a.0, b.0) })
    }
    #[inline(always)]
    unsafe fn encrypt_round(self, key: Self) -> Self {
        // SAFETY: the caller has VAES.
        Zmm(unsafe { _mm512_aesenc_epi128(self.0, key.0) })
    }
    #[inline(always)]
    unsafe fn encrypt_last_round(self, key: Self) -> Self {
        // SAFETY: the caller has VAES.
        Zmm(unsafe { _mm512_aesenclast_epi128(self.0, key.0) })
    }
    #[inline(always)]
    unsafe fn decrypt_round(self, key: Self) -> Self {
        // SAFETY: the caller has VAES.
        Zmm(unsafe { _mm512_aesdec_epi128(self.0, key.0) })
    }
    #[inline(always)]
    unsafe fn decrypt_last_round(self, key: Self) -> Self {
        // SAFETY: the caller has VAES.
        Zmm(unsafe { _mm512_aesdeclast_epi128(self.0, key.0) })
    }

    #[inline(always)]
    unsafe fn tweak(first: Self, i: usize, _before: Self) -> Self {
        // SAFETY: the caller has AVX-512 F and BW and VPCLMULQDQ.
        unsafe {
            // Both halves shift by the block's number at once, each block by its own; what falls out of the low half
            // goes to the high one, what falls out of the high half comes back times the modulus.
            let n = 4 * i as i64;
            let left = _mm512_set_epi64(n + 3, n + 3, n + 2, n + 2, n + 1, n + 1, n, n);
            let right = _mm512_sub_epi64(_mm512_set1_epi64(64), left);
            let out = _mm512_srlv_epi64(first.0, right);
            let back = _mm512_clmulepi64_epi128::<0x01>(out, _mm512_set1_epi64(0x87));
            Zmm(xor3(_mm512_sllv_epi64(first.0, left), _mm512_bslli_epi128::<8>(out), back))
        }
    }

    #[inline(always)]
    unsafe fn next_flight(self) -> Self {
        // SAFETY: the caller has AVX-512 F and BW and VPCLMULQDQ.
        unsafe {
            // A shift by four bytes; what falls out comes back times the modulus.
            let carry = _mm512_bsrli_epi128::<12>(self.0);
            let back = _mm512_clmulepi64_epi128::<0>(carry, _mm512_set1_epi64(0x87));
            Zmm(_mm512_xor_si512(_mm512_bslli_epi128::<4>(self.0), back))
        }
    }

    #[inline(always)]
    unsafe fn shift_in(self, before: Self) -> Self {
        // SAFETY: the caller has AVX-512 F.
        Zmm(unsafe { _mm512_alignr_epi64::<6>(self.0, before.0) })
    }
}

/// `a ^ b ^ c` in one instruction.
///
/// # Safety
///
/// AVX-512 F.
#[inline(always)]
unsafe fn xor3(a: __m512i, b: __m512i, c: __m512i) -> __m512i {
    // SAFETY: the caller has AVX-512 F.
    unsafe { _mm512_ternarylogic_epi64::<0b1001_0110>(a, b, c) }
}

entry_points!(Zmm, Xmm, "aes,pclmulqdq,avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq");
