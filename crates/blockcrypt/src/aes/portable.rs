//! AES in bit slices: no table and no branch that depends on a key or on data, on any CPU.
//!
//! Four blocks at a time: bit `i` of every byte lies in plane `i`, so that the S-box is a circuit of XOR and AND over
//! whole words, the one of Boyar and Peralta ("A small depth-16 circuit for the AES S-box", 2011). The order of bytes
//! within a word is the one of BearSSL's `aes_ct64` (Thomas Pornin, MIT): four blocks in 64 bits, a row of the state
//! in 16 bits, a column of it in 4.

use alloc::boxed::Box;
use core::array;

use zeroize::{Zeroize, ZeroizeOnDrop};

use super::{Block, MAX_ROUNDS};
use crate::gf256;

/// Blocks that are processed together.
pub(super) const BATCH: usize = 4;

type Planes = [u64; 8];

/// Round keys in bit slices, each in the place of all four blocks of a word.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub(super) struct SlicedKeys {
    keys: [Planes; MAX_ROUNDS + 1],
    rounds: usize,
}

impl SlicedKeys {
    /// From the round keys of the cipher, `rounds + 1` of them.
    pub(super) fn new(keys: &[Block]) -> Box<Self> {
        let mut sliced = Box::new(SlicedKeys { keys: [[0; 8]; MAX_ROUNDS + 1], rounds: keys.len() - 1 });
        for (slot, key) in sliced.keys.iter_mut().zip(keys) {
            *slot = slice(&[*key; BATCH]);
        }
        sliced
    }

    /// Encrypts up to [`BATCH`] blocks.
    pub(super) fn encrypt(&self, blocks: &mut [Block]) {
        self.with_planes(blocks, |q| {
            self.add_round_key(q, 0);
            for round in 1..self.rounds {
                sub_bytes(q);
                shift_rows(q);
                mix_columns(q);
                self.add_round_key(q, round);
            }
            sub_bytes(q);
            shift_rows(q);
            self.add_round_key(q, self.rounds);
        });
    }

    /// Decrypts up to [`BATCH`] blocks.
    pub(super) fn decrypt(&self, blocks: &mut [Block]) {
        self.with_planes(blocks, |q| {
            self.add_round_key(q, self.rounds);
            for round in (1..self.rounds).rev() {
                inverse_shift_rows(q);
                inverse_sub_bytes(q);
                self.add_round_key(q, round);
                inverse_mix_columns(q);
            }
            inverse_shift_rows(q);
            inverse_sub_bytes(q);
            self.add_round_key(q, 0);
        });
    }

    fn with_planes(&self, blocks: &mut [Block], rounds: impl FnOnce(&mut Planes)) {
        let mut batch = [[0; 16]; BATCH];
        batch[..blocks.len()].copy_from_slice(blocks);
        let mut planes = slice(&batch);
        rounds(&mut planes);
        unslice(planes, &mut batch);
        blocks.copy_from_slice(&batch[..blocks.len()]);
    }

    #[inline(always)]
    fn add_round_key(&self, q: &mut Planes, round: usize) {
        for (plane, &key) in q.iter_mut().zip(&self.keys[round]) {
            *plane ^= key;
        }
    }
}

/// The S-box on each byte of a word: what key expansion needs.
pub(super) fn sub_word(word: u32) -> u32 {
    let mut block = [0; 16];
    block[..4].copy_from_slice(&word.to_le_bytes());
    let mut batch = [[0; 16]; BATCH];
    batch[0] = block;
    let mut planes = slice(&batch);
    sub_bytes(&mut planes);
    unslice(planes, &mut batch);
    u32::from_le_bytes([batch[0][0], batch[0][1], batch[0][2], batch[0][3]])
}

/// Four columns of a block spread over two words: even bytes and odd bytes.
#[inline(always)]
fn interleave(block: &Block) -> (u64, u64) {
    let column = |i: usize| {
        let x = u64::from(u32::from_le_bytes([block[4 * i], block[4 * i + 1], block[4 * i + 2], block[4 * i + 3]]));
        let x = (x | (x << 16)) & 0x0000_ffff_0000_ffff;
        (x | (x << 8)) & 0x00ff_00ff_00ff_00ff
    };
    (column(0) | (column(2) << 8), column(1) | (column(3) << 8))
}

#[inline(always)]
fn deinterleave(q0: u64, q1: u64) -> Block {
    let column = |x: u64| {
        let x = x & 0x00ff_00ff_00ff_00ff;
        let x = (x | (x >> 8)) & 0x0000_ffff_0000_ffff;
        ((x | (x >> 16)) as u32).to_le_bytes()
    };
    let mut block = [0; 16];
    block[..4].copy_from_slice(&column(q0));
    block[4..8].copy_from_slice(&column(q1));
    block[8..12].copy_from_slice(&column(q0 >> 8));
    block[12..].copy_from_slice(&column(q1 >> 8));
    block
}

/// Transposes 8x8 bits between the planes; its own inverse.
#[inline(always)]
fn transpose(q: &mut Planes) {
    #[inline(always)]
    fn swap<const SHIFT: u32>(q: &mut Planes, a: usize, b: usize, low: u64) {
        let (x, y) = (q[a], q[b]);
        q[a] = (x & low) | ((y & low) << SHIFT);
        q[b] = ((x & !low) >> SHIFT) | (y & !low);
    }
    for (a, b) in [(0, 1), (2, 3), (4, 5), (6, 7)] {
        swap::<1>(q, a, b, 0x5555_5555_5555_5555);
    }
    for (a, b) in [(0, 2), (1, 3), (4, 6), (5, 7)] {
        swap::<2>(q, a, b, 0x3333_3333_3333_3333);
    }
    for (a, b) in [(0, 4), (1, 5), (2, 6), (3, 7)] {
        swap::<4>(q, a, b, 0x0f0f_0f0f_0f0f_0f0f);
    }
}

#[inline(always)]
fn slice(blocks: &[Block; BATCH]) -> Planes {
    let mut q = [0; 8];
    for i in 0..BATCH {
        (q[i], q[i + 4]) = interleave(&blocks[i]);
    }
    transpose(&mut q);
    q
}

#[inline(always)]
fn unslice(mut q: Planes, blocks: &mut [Block; BATCH]) {
    transpose(&mut q);
    for i in 0..BATCH {
        blocks[i] = deinterleave(q[i], q[i + 4]);
    }
}

/// The S-box circuit: 32 ANDs, the rest XORs and NOTs; the names are the paper's.
#[inline(always)]
fn sub_bytes(q: &mut Planes) {
    let [x7, x6, x5, x4, x3, x2, x1, x0] = *q;

    // The top linear layer.
    let y14 = x3 ^ x5;
    let y13 = x0 ^ x6;
    let y9 = x0 ^ x3;
    let y8 = x0 ^ x5;
    let t0 = x1 ^ x2;
    let y1 = t0 ^ x7;
    let y4 = y1 ^ x3;
    let y12 = y13 ^ y14;
    let y2 = y1 ^ x0;
    let y5 = y1 ^ x6;
    let y3 = y5 ^ y8;
    let t1 = x4 ^ y12;
    let y15 = t1 ^ x5;
    let y20 = t1 ^ x1;
    let y6 = y15 ^ x7;
    let y10 = y15 ^ t0;
    let y11 = y20 ^ y9;
    let y7 = x7 ^ y11;
    let y17 = y10 ^ y11;
    let y19 = y10 ^ y8;
    let y16 = t0 ^ y11;
    let y21 = y13 ^ y16;
    let y18 = x0 ^ y16;

    // The inversion in GF(2^8).
    let [z0, z1, z2, z3, z4, z5, z6, z7, z8, z9, z10, z11, z12, z13, z14, z15, z16, z17] = gf256::invert(
        x7,
        [y1, y2, y3, y4, y5, y6, y7, y8, y9, y10, y11, y12, y13, y14, y15, y16, y17, y18, y19, y20, y21],
    );

    // The bottom linear layer.
    let t46 = z15 ^ z16;
    let t47 = z10 ^ z11;
    let t48 = z5 ^ z13;
    let t49 = z9 ^ z10;
    let t50 = z2 ^ z12;
    let t51 = z2 ^ z5;
    let t52 = z7 ^ z8;
    let t53 = z0 ^ z3;
    let t54 = z6 ^ z7;
    let t55 = z16 ^ z17;
    let t56 = z12 ^ t48;
    let t57 = t50 ^ t53;
    let t58 = z4 ^ t46;
    let t59 = z3 ^ t54;
    let t60 = t46 ^ t57;
    let t61 = z14 ^ t57;
    let t62 = t52 ^ t58;
    let t63 = t49 ^ t58;
    let t64 = z4 ^ t59;
    let t65 = t61 ^ t62;
    let t66 = z1 ^ t63;
    let s0 = t59 ^ t63;
    let s6 = t56 ^ !t62;
    let s7 = t48 ^ !t60;
    let t67 = t64 ^ t65;
    let s3 = t53 ^ t66;
    let s4 = t51 ^ t66;
    let s5 = t47 ^ t65;
    let s1 = t64 ^ !s3;
    let s2 = t55 ^ !t67;

    *q = [s7, s6, s5, s4, s3, s2, s1, s0];
}

/// With A the affine map of the S-box, S = A after inversion, so the inverse of S is A^-1 after S after A^-1.
#[inline(always)]
fn inverse_sub_bytes(q: &mut Planes) {
    inverse_affine(q);
    sub_bytes(q);
    inverse_affine(q);
}

/// Adds 0x63, then bit i becomes the sum of bits i+2, i+5 and i+7 (FIPS 197, 5.3.2).
#[inline(always)]
fn inverse_affine(q: &mut Planes) {
    let x = [!q[0], !q[1], q[2], q[3], q[4], !q[5], !q[6], q[7]];
    *q = array::from_fn(|i| x[(i + 2) % 8] ^ x[(i + 5) % 8] ^ x[(i + 7) % 8]);
}

/// Row r turns by r columns: rows 1 and 3 by one, then rows 2 and 3 by two.
#[inline(always)]
fn shift_rows(q: &mut Planes) {
    for x in q {
        let one =
            (*x & 0x0000_ffff_0000_ffff) | ((*x >> 4) & 0x0fff_0000_0fff_0000) | ((*x << 12) & 0xf000_0000_f000_0000);
        *x = turn_rows_2_and_3(one);
    }
}

#[inline(always)]
fn inverse_shift_rows(q: &mut Planes) {
    for x in q {
        let one =
            (*x & 0x0000_ffff_0000_ffff) | ((*x << 4) & 0xfff0_0000_fff0_0000) | ((*x >> 12) & 0x000f_0000_000f_0000);
        *x = turn_rows_2_and_3(one);
    }
}

/// By two columns, which is the same in both directions.
#[inline(always)]
fn turn_rows_2_and_3(x: u64) -> u64 {
    let differing = (x ^ (x >> 8)) & 0x00ff_00ff_0000_0000;
    x ^ differing ^ (differing << 8)
}

/// `a * x` in GF(2^8), on planes.
#[inline(always)]
fn times_x(a: &Planes) -> Planes {
    [a[7], a[0] ^ a[7], a[1], a[2] ^ a[7], a[3] ^ a[7], a[4], a[5], a[6]]
}

/// Each byte becomes 2a + 3b + c + d, with b, c and d the bytes below it in its column.
#[inline(always)]
fn mix_columns(q: &mut Planes) {
    let a = *q;
    let b = a.map(|x| x.rotate_right(16));
    let sum: Planes = array::from_fn(|i| a[i] ^ b[i]);
    let doubled = times_x(&sum);
    *q = array::from_fn(|i| doubled[i] ^ b[i] ^ sum[i].rotate_right(32));
}

/// The inverse matrix is that of `mix_columns` times (5 0 4 0), so each byte first becomes a + 4(a + c).
#[inline(always)]
fn inverse_mix_columns(q: &mut Planes) {
    let sum = q.map(|x| x ^ x.rotate_right(32));
    let fourfold = times_x(&times_x(&sum));
    *q = array::from_fn(|i| q[i] ^ fourfold[i]);
    mix_columns(q);
}
