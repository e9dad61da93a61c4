//! SM4 in bit slices: no table and no branch that depends on a key or on data, on any CPU.
//!
//! Thirty-two blocks at a time. The words stay words for the linear part; for the S-box, bit `i` of 64 bytes is
//! gathered in plane `i` of each of two 64-bit words, which compilers turn into one 128-bit vector.

use core::array;
use core::ops::{BitAnd, BitXor, Not};

use super::ROUNDS;
use crate::gf256;
use crate::modes::Block;

/// 64-bit words that are processed side by side.
const WORDS: usize = 2;
/// Blocks that are processed together.
const BATCH: usize = 16 * WORDS;

#[derive(Clone, Copy)]
struct Word([u64; WORDS]);

impl BitXor for Word {
    type Output = Self;
    #[inline(always)]
    fn bitxor(self, other: Self) -> Self {
        Word(array::from_fn(|i| self.0[i] ^ other.0[i]))
    }
}

impl BitAnd for Word {
    type Output = Self;
    #[inline(always)]
    fn bitand(self, other: Self) -> Self {
        Word(array::from_fn(|i| self.0[i] & other.0[i]))
    }
}

impl Not for Word {
    type Output = Self;
    #[inline(always)]
    fn not(self) -> Self {
        Word(array::from_fn(|i| !self.0[i]))
    }
}

/// Encrypts, or with the keys in reverse decrypts, any number of blocks.
pub(super) fn crypt(keys: &[u32; ROUNDS], blocks: &mut [Block]) {
    for batch in blocks.chunks_mut(BATCH) {
        let mut x = [[0u32; BATCH]; 4];
        for (i, block) in batch.iter().enumerate() {
            for (row, bytes) in x.iter_mut().zip(block.as_chunks::<4>().0) {
                row[i] = u32::from_be_bytes(*bytes);
            }
        }
        let [mut a, mut b, mut c, mut d] = x;
        for key in keys.as_chunks::<4>().0 {
            round(&mut a, &b, &c, &d, key[0]);
            round(&mut b, &c, &d, &a, key[1]);
            round(&mut c, &d, &a, &b, key[2]);
            round(&mut d, &a, &b, &c, key[3]);
        }
        for (i, block) in batch.iter_mut().enumerate() {
            for (bytes, row) in block.as_chunks_mut::<4>().0.iter_mut().zip([&d, &c, &b, &a]) {
                *bytes = row[i].to_be_bytes();
            }
        }
    }
}

#[inline(always)]
fn round(a: &mut [u32; BATCH], b: &[u32; BATCH], c: &[u32; BATCH], d: &[u32; BATCH], key: u32) {
    let mut t: [u32; BATCH] = array::from_fn(|i| b[i] ^ c[i] ^ d[i] ^ key);
    sub_words(&mut t);
    for (a, t) in a.iter_mut().zip(t) {
        *a ^= t ^ t.rotate_left(2) ^ t.rotate_left(10) ^ t.rotate_left(18) ^ t.rotate_left(24);
    }
}

/// The S-box on every byte. The position of a byte does not matter, as long as it ends up in the same place.
#[inline(always)]
fn sub_words(t: &mut [u32; BATCH]) {
    let word = |i: usize| u64::from(t[2 * i]) | u64::from(t[2 * i + 1]) << 32;
    let mut planes: [Word; 8] = array::from_fn(|i| Word(array::from_fn(|half| word(8 * half + i))));
    transpose(&mut planes);
    planes = sbox(planes);
    transpose(&mut planes);
    for (i, Word(words)) in planes.iter().enumerate() {
        for (half, word) in words.iter().enumerate() {
            t[2 * (8 * half + i)] = *word as u32;
            t[2 * (8 * half + i) + 1] = (word >> 32) as u32;
        }
    }
}

/// The S-box on the four bytes of a word.
pub(super) fn sub_word(word: u32) -> u32 {
    let mut words = [0; BATCH];
    words[0] = word;
    sub_words(&mut words);
    words[0]
}

/// Swaps bit `j` of the bytes of word `i` with bit `i` of the bytes of word `j`; its own inverse.
#[inline(always)]
fn transpose(q: &mut [Word; 8]) {
    #[inline(always)]
    fn swap<const BY: usize, const MASK: u64>(q: &mut [Word; 8], low: usize) {
        let high = low + BY;
        for half in 0..WORDS {
            let (a, b) = (q[low].0[half], q[high].0[half]);
            let difference = ((a >> BY) ^ b) & MASK;
            q[low].0[half] = a ^ (difference << BY);
            q[high].0[half] = b ^ difference;
        }
    }
    for i in [0, 2, 4, 6] {
        swap::<1, 0x5555_5555_5555_5555>(q, i);
    }
    for i in [0, 1, 4, 5] {
        swap::<2, 0x3333_3333_3333_3333>(q, i);
    }
    for i in [0, 1, 2, 3] {
        swap::<4, 0x0f0f_0f0f_0f0f_0f0f>(q, i);
    }
}

/// The S-box on planes, the least significant bit first.
///
/// SM4's S-box is an inversion in GF(2^8) between two affine maps, so it is AES's between two others: its linear layers
/// before and after the inversion are merged with those maps, with the common sums found by Paar's greedy method.
#[rustfmt::skip]
#[inline(always)]
#[allow(clippy::many_single_char_names, clippy::too_many_lines)]
fn sbox<W: Copy + BitXor<Output = W> + BitAnd<Output = W> + Not<Output = W>>([u0, u1, u2, u3, u4, u5, u6, u7]: [W; 8]) -> [W; 8] {
    let a0 = u2 ^ u4;
    let a1 = u0 ^ u3;
    let a2 = u1 ^ a1;
    let a3 = u7 ^ a0;
    let a4 = u5 ^ a2;
    let a5 = u2 ^ u6;
    let a6 = u5 ^ a3;
    let a7 = u4 ^ u7;
    let a8 = u5 ^ a0;
    let a9 = u6 ^ a7;
    let a10 = u3 ^ u7;
    let a11 = u1 ^ a6;
    let a12 = u6 ^ a11;
    let a13 = a4 ^ a5;
    let a14 = u6 ^ a1;
    let a15 = u5 ^ a10;
    let a16 = a2 ^ a7;
    let a17 = u1 ^ a5;
    let a18 = u1 ^ a10;
    let a19 = u1 ^ a9;
    let a20 = a0 ^ a2;
    let a21 = a3 ^ a14;
    let a22 = u7 ^ a2;
    let a23 = u6 ^ a6;
    let a24 = a4 ^ a9;
    let a25 = u3 ^ a8;
    let a26 = a1 ^ a8;
    let a27 = a0 ^ a4;
    let a28 = u0 ^ a3;
    let a29 = u2 ^ u7;
    let a30 = u0 ^ a19;
    let x7 = a18;
    let y1 = !a15;
    let y2 = a17;
    let y3 = a4;
    let y4 = a21;
    let y5 = a5;
    let y6 = !a25;
    let y7 = !a28;
    let y8 = a13;
    let y9 = a16;
    let y10 = a3;
    let y11 = !a20;
    let y12 = a12;
    let y13 = u1;
    let y14 = a23;
    let y15 = !a11;
    let y16 = a26;
    let y17 = !a22;
    let y18 = !a30;
    let y19 = a24;
    let y20 = !a29;
    let y21 = a27;
    let [z0, z1, z2, z3, z4, z5, z6, z7, z8, z9, z10, z11, z12, z13, z14, z15, z16, z17] =
        gf256::invert(x7, [y1, y2, y3, y4, y5, y6, y7, y8, y9, y10, y11, y12, y13, y14, y15, y16, y17, y18, y19, y20, y21]);
    let b0 = z9 ^ z15;
    let b1 = z6 ^ z10;
    let b2 = z13 ^ b1;
    let b3 = z0 ^ z1;
    let b4 = z14 ^ b2;
    let b5 = z5 ^ z8;
    let b6 = z4 ^ b4;
    let b7 = z17 ^ b0;
    let b8 = b3 ^ b5;
    let b9 = z16 ^ b8;
    let b10 = b0 ^ b9;
    let b11 = z11 ^ b6;
    let b12 = z3 ^ z7;
    let b13 = z7 ^ b3;
    let b14 = z5 ^ b11;
    let b15 = b7 ^ b13;
    let b16 = z10 ^ b10;
    let b17 = b7 ^ b12;
    let b18 = z12 ^ z16;
    let b19 = b1 ^ b10;
    let b20 = z7 ^ b14;
    let b21 = z0 ^ b20;
    let b22 = z13 ^ b18;
    let b23 = z2 ^ b21;
    let b24 = b8 ^ b11;
    let b25 = z11 ^ b7;
    let b26 = b6 ^ b17;
    let b27 = z15 ^ b22;
    let b28 = b12 ^ b16;
    let b29 = b4 ^ b15;
    let b30 = z4 ^ b19;
    [!b28, !b24, b26, b25, !b30, b29, !b23, !b27]
}
