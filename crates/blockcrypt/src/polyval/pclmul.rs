//! POLYVAL with PCLMULQDQ: up to eight products are added up before one reduction.

#![allow(unsafe_code)]

use core::arch::x86_64::*;

use alloc::boxed::Box;

use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::Platform;
use crate::aes::Block;

/// Blocks between two reductions.
const GROUP: usize = 8;

/// H^8, H^7, ..., H, each product times x^-128 as POLYVAL's are. Proof that the CPU has PCLMULQDQ.
#[derive(Clone)]
pub(crate) struct Powers(Box<PowersInMemory>);

#[derive(Clone, Zeroize, ZeroizeOnDrop)]
struct PowersInMemory([Block; GROUP]);

impl Powers {
    /// The powers of a hash key; `None` if `platform` or the CPU does not allow it.
    pub(super) fn new(key: &Block, platform: Platform) -> Option<Self> {
        if platform.or_detected() < Platform::AesNi {
            return None;
        }
        let mut powers = Powers(Box::new(PowersInMemory([[0; 16]; GROUP])));
        powers.0.0[GROUP - 1] = *key;
        for i in (0..GROUP - 1).rev() {
            // H^(n+1) is the hash of the one block H^n.
            let (mut sum, block) = ([0; 16], powers.0.0[i + 1]);
            powers.update(&mut sum, &[block]);
            powers.0.0[i] = sum;
        }
        Some(powers)
    }

    /// Adds blocks to a hash.
    pub(super) fn update(&self, sum: &mut Block, blocks: &[Block]) {
        // SAFETY: the level was found on this CPU.
        unsafe { update(&self.0.0, sum, blocks) }
    }
}

/// # Safety
///
/// PCLMULQDQ.
#[target_feature(enable = "pclmulqdq,sse2")]
unsafe fn update(powers: &[Block; GROUP], sum: &mut Block, blocks: &[Block]) {
    let mut total = load(sum);
    // The short group comes first, so that every later one uses all powers.
    let (short, rest) = blocks.split_at(blocks.len() % GROUP);
    for group in core::iter::once(short).chain(rest.chunks_exact(GROUP)) {
        if group.is_empty() {
            continue;
        }
        let (mut low, mut middle, mut high) = (_mm_setzero_si128(), _mm_setzero_si128(), _mm_setzero_si128());
        for (block, power) in group.iter().zip(&powers[GROUP - group.len()..]) {
            let (a, b) = (_mm_xor_si128(load(block), total), load(power));
            total = _mm_setzero_si128();
            low = _mm_xor_si128(low, _mm_clmulepi64_si128::<0x00>(a, b));
            high = _mm_xor_si128(high, _mm_clmulepi64_si128::<0x11>(a, b));
            let cross = _mm_xor_si128(_mm_clmulepi64_si128::<0x01>(a, b), _mm_clmulepi64_si128::<0x10>(a, b));
            middle = _mm_xor_si128(middle, cross);
        }
        low = _mm_xor_si128(low, _mm_slli_si128::<8>(middle));
        high = _mm_xor_si128(high, _mm_srli_si128::<8>(middle));
        // Times x^-128 modulo x^128 + x^127 + x^126 + x^121 + 1, in two steps of 64 bits: the low half times
        // x^63 + x^62 + x^57 goes to the other half, and is itself added 128 bits up.
        let modulus = _mm_set_epi64x(0xc200_0000_0000_0000_u64.cast_signed(), 0);
        for _ in 0..2 {
            let folded = _mm_clmulepi64_si128::<0x10>(low, modulus);
            low = _mm_xor_si128(_mm_shuffle_epi32::<0b01_00_11_10>(low), folded);
        }
        total = _mm_xor_si128(high, low);
    }
    // SAFETY: a block has 16 bytes; the store is unaligned.
    unsafe { _mm_storeu_si128(sum.as_mut_ptr().cast(), total) }
}

#[inline]
#[target_feature(enable = "sse2")]
fn load(block: &Block) -> __m128i {
    // SAFETY: a block has 16 bytes; the load is unaligned.
    unsafe { _mm_loadu_si128(block.as_ptr().cast()) }
}
