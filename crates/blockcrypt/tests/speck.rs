//! Speck128/256 against its paper's vector and the kernel's XTS vector, and at every CPU level against the modes of
//! RustCrypto over a Speck written here from the paper.

#![cfg(feature = "historical")]

mod common;

use common::{Bytes, length_classes, levels};
use postread_blockcrypt::speck::{SpeckCbcCts, SpeckXts};
use postread_blockcrypt::{KeyError, LengthError, Platform};
use proptest::prelude::*;

/// Blocks that some level or mode works on at once.
const LANES: &[usize] = &[4, 8, 16, 32, 64];

/// The paper's appendix C, Speck128/256, its printed words read backwards as the authors told Linux.
#[test]
fn paper_vector() {
    let key: Vec<u8> = (0..32).collect();
    for level in levels() {
        let cipher = SpeckCbcCts::with_platform(&key, level).unwrap();
        let mut block = *b"pooner. In those";
        cipher.encrypt(&[0; 16], &mut block).unwrap();
        assert_eq!(hex::encode(block), "438f189c8db4ee4e3ef5c00504010941", "{level}");
        cipher.decrypt(&[0; 16], &mut block).unwrap();
        assert_eq!(block, *b"pooner. In those", "{level}");
    }
}

/// What Linux 4.17 to 4.19 checked its `xts(speck128)` with, of the vectors those of a 512-bit key.
#[test]
fn kernel_xts_vector() {
    let key = hex::decode(
        "27182818284590452353602874713526624977572470936999595749669676273141592653589793238462643383279502884197169399375105820974944592",
    )
    .unwrap();
    let plain: Vec<u8> = (0..512).map(|i| i as u8).collect();
    let want = hex::decode(include_str!("vectors/speck128-256-xts.txt").trim_end()).unwrap();
    for level in levels() {
        let xts = SpeckXts::with_platform(&key, level).unwrap();
        let mut data = plain.clone();
        xts.encrypt_units(&mut data, 512, 0xff, 1).unwrap();
        assert_eq!(data, want, "{level}");
        xts.decrypt_units(&mut data, 512, 0xff, 1).unwrap();
        assert_eq!(data, plain, "{level}");
    }
}

/// The paper's cipher, a block at a time.
struct Paper([u64; 34]);

impl Paper {
    fn new(key: &[u8]) -> Self {
        let word = |i: usize| u64::from_le_bytes(key[8 * i..][..8].try_into().unwrap());
        let mut k = vec![word(0)];
        let mut l = vec![word(1), word(2), word(3)];
        for i in 0..33 {
            let next = k[i].wrapping_add(l[i].rotate_right(8)) ^ i as u64;
            l.push(next);
            k.push(k[i].rotate_left(3) ^ next);
        }
        Paper(k.try_into().unwrap())
    }

    fn encrypt(&self, block: u128) -> u128 {
        let (mut x, mut y) = ((block >> 64) as u64, block as u64);
        for k in self.0 {
            x = x.rotate_right(8).wrapping_add(y) ^ k;
            y = y.rotate_left(3) ^ x;
        }
        u128::from(x) << 64 | u128::from(y)
    }
}

fn blocks(bytes: &[u8]) -> impl Iterator<Item = u128> + '_ {
    bytes.chunks(16).map(|block| {
        let mut padded = [0; 16];
        padded[..block.len()].copy_from_slice(block);
        u128::from_le_bytes(padded)
    })
}

fn xts_by_the_book(key: &[u8], plain: &[u8], unit_size: usize, first: u64, step: u64) -> Vec<u8> {
    let (data, tweak) = (Paper::new(&key[..32]), Paper::new(&key[32..]));
    let mut out = Vec::new();
    for (i, unit) in plain.chunks(unit_size).enumerate() {
        let index = first.wrapping_add(step.wrapping_mul(i as u64));
        let mut tweak = tweak.encrypt(u128::from(index));
        for block in blocks(unit) {
            out.extend_from_slice(&(data.encrypt(block ^ tweak) ^ tweak).to_le_bytes());
            tweak = tweak << 1 ^ if tweak >> 127 == 1 { 0x87 } else { 0 };
        }
    }
    out
}

/// CBC over the zero-padded message, the last two blocks swapped, the tail cut off.
fn cts_by_the_book(key: &[u8], iv: &[u8; 16], plain: &[u8]) -> Vec<u8> {
    let cipher = Paper::new(key);
    let mut chain = u128::from_le_bytes(*iv);
    let mut out: Vec<[u8; 16]> = blocks(plain)
        .map(|block| {
            chain = cipher.encrypt(block ^ chain);
            chain.to_le_bytes()
        })
        .collect();
    if let [.., a, b] = &mut out[..] {
        std::mem::swap(a, b);
    }
    let mut out = out.concat();
    out.truncate(plain.len());
    out
}

fn check_xts(level: Platform, key: &[u8], plain: &[u8], unit_size: usize, first: u64, step: u64) {
    let want = xts_by_the_book(key, plain, unit_size, first, step);
    let xts = SpeckXts::with_platform(key, level).unwrap();
    let mut data = plain.to_vec();
    xts.encrypt_units(&mut data, unit_size, first, step).unwrap();
    assert!(data == want, "{level}: {} bytes, units of {unit_size}", plain.len());
    xts.decrypt_units(&mut data, unit_size, first, step).unwrap();
    assert!(data == plain, "{level}: {} bytes, units of {unit_size}: back again", plain.len());
}

fn check_cts(level: Platform, key: &[u8], iv: &[u8; 16], plain: &[u8]) {
    let want = cts_by_the_book(key, iv, plain);
    let cipher = SpeckCbcCts::with_platform(key, level).unwrap();
    let mut data = plain.to_vec();
    cipher.encrypt(iv, &mut data).unwrap();
    assert!(data == want, "{level}: {} bytes", plain.len());
    cipher.decrypt(iv, &mut data).unwrap();
    assert!(data == plain, "{level}: {} bytes: back again", plain.len());
}

#[test]
fn xts_units() {
    for level in levels() {
        for (seed, (_, blocks)) in length_classes(LANES).into_iter().enumerate() {
            let mut bytes = Bytes(seed as u64);
            let (key, plain) = (bytes.take(64), bytes.take(3 * 16 * blocks.max(1)));
            check_xts(level, &key, &plain, 16 * blocks.max(1), bytes.next_u64(), 1 + bytes.next_u64() % 9);
        }
        let mut bytes = Bytes(99);
        let (key, plain) = (bytes.take(64), bytes.take(2 * 65536));
        for unit_size in [16, 512, 4096, 65536] {
            check_xts(level, &key, &plain, unit_size, u64::MAX, 1);
        }
    }
}

#[test]
fn cts_messages() {
    for level in levels() {
        let mut lengths: Vec<usize> = (16..=255).collect();
        for (_, blocks) in length_classes(LANES) {
            lengths.extend([16 * blocks + 15, 16 * blocks + 16, 16 * blocks + 17, 16 * blocks + 31]);
        }
        for len in lengths.into_iter().filter(|&len| len >= 16) {
            let mut bytes = Bytes(len as u64);
            check_cts(level, &bytes.take(32), &bytes.block(), &bytes.take(len));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_message(
        key in proptest::collection::vec(any::<u8>(), 64),
        iv in any::<[u8; 16]>(),
        plain in proptest::collection::vec(any::<u8>(), 16..2100),
        first in any::<u64>(),
        step in any::<u64>(),
    ) {
        prop_assume!(key[..32] != key[32..]);
        for level in levels() {
            check_cts(level, &key[..32], &iv, &plain);
            let whole = plain.len() / 16 * 16;
            check_xts(level, &key, &plain[..whole], whole, first, step);
        }
    }
}

#[test]
fn refusals() {
    for len in [0, 32, 48, 63, 65] {
        let key = Bytes(5).take(len);
        assert_eq!(SpeckXts::new(&key).err(), Some(KeyError::Length { found: len, wanted: &[64] }));
    }
    for len in [0, 16, 24, 31, 33, 64] {
        assert_eq!(SpeckCbcCts::new(&vec![1; len]).err(), Some(KeyError::Length { found: len, wanted: &[32] }));
    }
    assert_eq!(SpeckXts::new(&[7; 64]).err(), Some(KeyError::EqualHalves));
    let cts = SpeckCbcCts::new(&[9; 32]).unwrap();
    assert_eq!(cts.encrypt(&[0; 16], &mut [0; 15]), Err(LengthError::TooShort { len: 15, min: 16 }));
}

#[test]
fn debug_shows_no_key() {
    let xts = SpeckXts::with_platform(&Bytes(8).take(64), Platform::Portable).unwrap();
    assert_eq!(format!("{xts:?}"), "Xts { cipher: \"Speck128/256\", platform: Portable, .. }");
}
