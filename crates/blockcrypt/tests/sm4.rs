//! SM4 against its standard's examples, and its modes at every CPU level against somebody else's SM4 (see
//! `common/oracle.rs`).

mod common;

use common::oracle::{self, Cipher};
use common::{Bytes, length_classes, levels};
use cts::{Decrypt as _, Encrypt as _};
use postread_blockcrypt::sm4::{Sm4CbcCts, Sm4Xts};
use postread_blockcrypt::{KeyError, LengthError, Platform};
use proptest::prelude::*;
use sm4::Sm4;
use sm4::cipher::{InnerIvInit, KeyInit};

/// Blocks that some level or mode works on at once.
const LANES: &[usize] = &[4, 16, 32, 64];

/// GB/T 32907-2016, appendix A, example 1: a message of one block, under CBC with a zero IV.
#[test]
fn standard_example_1() {
    let key = hex::decode("0123456789abcdeffedcba9876543210").unwrap();
    for level in levels() {
        let cipher = Sm4CbcCts::with_platform(&key, level).unwrap();
        let mut block = key.clone();
        cipher.encrypt(&[0; 16], &mut block).unwrap();
        assert_eq!(hex::encode(&block), "681edf34d206965e86b3e94f536e4246", "{level}");
        cipher.decrypt(&[0; 16], &mut block).unwrap();
        assert_eq!(block, key, "{level}");
    }
}

/// Example 2: the same, a million times over.
#[test]
fn standard_example_2() {
    let key = hex::decode("0123456789abcdeffedcba9876543210").unwrap();
    let cipher = Sm4CbcCts::new(&key).unwrap();
    let mut block = key.clone();
    for _ in 0..1_000_000 {
        cipher.encrypt(&[0; 16], &mut block).unwrap();
    }
    assert_eq!(hex::encode(&block), "595298c7c6fd271f0402f804c33d3f66");
}

/// All 256 values of every byte of a word go through the S-box: the blocks are counters in each position.
#[test]
fn every_byte_value_in_every_place() {
    let key = Bytes(1).take(32);
    let mut plain = vec![0; 16 * 256 * 16];
    for (i, block) in plain.chunks_exact_mut(16).enumerate() {
        block[i % 16] = (i / 16) as u8;
    }
    for level in levels() {
        check_xts(level, &key, &plain, 4096, 0, 1);
    }
}

fn xts_oracle(key: &[u8], plain: &[u8], unit_size: usize, first: u64, step: u64) -> Vec<u8> {
    let (data, tweak) = key.split_at(16);
    let xts = xts_mode::Xts128::new(Sm4::new_from_slice(data).unwrap(), Sm4::new_from_slice(tweak).unwrap());
    let mut out = plain.to_vec();
    for (i, unit) in out.chunks_exact_mut(unit_size).enumerate() {
        let index = first.wrapping_add(step.wrapping_mul(i as u64));
        xts.encrypt_sector(unit, u128::from(index).to_le_bytes().into());
    }
    out
}

/// XTS as IEEE 1619 writes it over the oracle's SM4: a second opinion that shares no code with the first.
fn xts_by_the_book(key: &[u8], plain: &[u8], index: u64) -> Vec<u8> {
    let ecb = |key: &[u8], data: &[u8]| oracle::encrypt(Cipher::Sm4Ecb, key, None, data);
    let mut tweak = u128::from_le_bytes(ecb(&key[16..], &u128::from(index).to_le_bytes()).try_into().unwrap());
    let mut out = Vec::new();
    for block in plain.chunks_exact(16) {
        let masked = u128::from_le_bytes(block.try_into().unwrap()) ^ tweak;
        let cipher = u128::from_le_bytes(ecb(&key[..16], &masked.to_le_bytes()).try_into().unwrap());
        out.extend_from_slice(&(cipher ^ tweak).to_le_bytes());
        tweak = tweak << 1 ^ if tweak >> 127 == 1 { 0x87 } else { 0 };
    }
    out
}

fn check_xts(level: Platform, key: &[u8], plain: &[u8], unit_size: usize, first: u64, step: u64) {
    let want = xts_oracle(key, plain, unit_size, first, step);
    let xts = Sm4Xts::with_platform(key, level).unwrap();
    let mut data = plain.to_vec();
    xts.encrypt_units(&mut data, unit_size, first, step).unwrap();
    assert!(data == want, "{level}: {} bytes, units of {unit_size}", plain.len());
    xts.decrypt_units(&mut data, unit_size, first, step).unwrap();
    assert!(data == plain, "{level}: {} bytes, units of {unit_size}: back again", plain.len());
}

#[test]
fn xts_units() {
    for level in levels() {
        for (seed, (_, blocks)) in length_classes(LANES).into_iter().enumerate() {
            let mut bytes = Bytes(seed as u64);
            let (key, plain) = (bytes.take(32), bytes.take(3 * 16 * blocks.max(1)));
            check_xts(level, &key, &plain, 16 * blocks.max(1), bytes.next_u64(), 1 + bytes.next_u64() % 9);
        }
        let mut bytes = Bytes(99);
        let (key, plain) = (bytes.take(32), bytes.take(2 * 65536));
        for unit_size in [16, 512, 4096, 65536] {
            check_xts(level, &key, &plain, unit_size, u64::MAX, 1);
        }
    }
}

#[test]
fn xts_is_that_of_ieee_1619() {
    let mut bytes = Bytes(7);
    let (key, plain) = (bytes.take(32), bytes.take(4096));
    let want = xts_by_the_book(&key, &plain, 0x0123_4567);
    for level in levels() {
        let mut data = plain.clone();
        Sm4Xts::with_platform(&key, level).unwrap().encrypt_units(&mut data, 4096, 0x0123_4567, 1).unwrap();
        assert!(data == want, "{level}");
    }
}

fn check_cts(level: Platform, key: &[u8], iv: &[u8; 16], plain: &[u8]) {
    let mut want = plain.to_vec();
    if plain.len() == 16 {
        want = oracle::encrypt(Cipher::Sm4Cbc, key, Some(iv), plain);
    } else {
        cts::CbcCs3::inner_iv_init(Sm4::new_from_slice(key).unwrap(), iv.into()).encrypt(&mut want).unwrap();
    }
    let cipher = Sm4CbcCts::with_platform(key, level).unwrap();
    let mut data = plain.to_vec();
    cipher.encrypt(iv, &mut data).unwrap();
    assert!(data == want, "{level}: {} bytes", plain.len());
    cipher.decrypt(iv, &mut data).unwrap();
    assert!(data == plain, "{level}: {} bytes: back again", plain.len());
    if plain.len() > 16 {
        cts::CbcCs3::inner_iv_init(Sm4::new_from_slice(key).unwrap(), iv.into()).decrypt(&mut want).unwrap();
        assert!(want == plain, "the oracle's own inverse");
    }
}

/// Whole blocks around each number of lanes, each less a byte, plus one and plus fifteen; all lengths of names.
#[test]
fn cts_messages() {
    for level in levels() {
        let mut lengths: Vec<usize> = (16..=255).collect();
        for (_, blocks) in length_classes(LANES) {
            lengths.extend([16 * blocks + 15, 16 * blocks + 16, 16 * blocks + 17, 16 * blocks + 31]);
        }
        lengths.extend([4095, 4096, 4097]);
        for len in lengths.into_iter().filter(|&len| len >= 16) {
            let mut bytes = Bytes(len as u64);
            check_cts(level, &bytes.take(16), &bytes.block(), &bytes.take(len));
        }
    }
}

/// CBC itself is the oracle's: all but the last two blocks of a message.
#[test]
fn cbc_is_the_oracles() {
    let mut bytes = Bytes(3);
    let (key, iv, plain) = (bytes.take(16), bytes.block(), bytes.take(4096));
    let want = oracle::encrypt(Cipher::Sm4Cbc, &key, Some(&iv), &plain);
    for level in levels() {
        let mut data = plain.clone();
        Sm4CbcCts::with_platform(&key, level).unwrap().encrypt(&iv, &mut data).unwrap();
        assert!(data[..4064] == want[..4064], "{level}");
        assert!(data[4064..4080] == want[4080..] && data[4080..] == want[4064..4080], "{level}: swapped");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_message(
        key in any::<[u8; 32]>(),
        iv in any::<[u8; 16]>(),
        plain in proptest::collection::vec(any::<u8>(), 16..2100),
        first in any::<u64>(),
        step in any::<u64>(),
    ) {
        prop_assume!(key[..16] != key[16..]);
        for level in levels() {
            check_cts(level, &key[..16], &iv, &plain);
            let whole = plain.len() / 16 * 16;
            check_xts(level, &key, &plain[..whole], whole, first, step);
        }
    }
}

#[test]
fn refusals() {
    for len in [0, 15, 16, 31, 33, 64] {
        let key = Bytes(5).take(len);
        assert_eq!(Sm4Xts::new(&key).err(), Some(KeyError::Length { found: len, wanted: &[32] }));
    }
    for len in [0, 15, 17, 32] {
        assert_eq!(Sm4CbcCts::new(&vec![1; len]).err(), Some(KeyError::Length { found: len, wanted: &[16] }));
    }
    assert_eq!(Sm4Xts::new(&[7; 32]).err(), Some(KeyError::EqualHalves));
    let xts = Sm4Xts::new(&Bytes(6).take(32)).unwrap();
    let mut data = [1; 64];
    assert!(matches!(xts.encrypt_units(&mut data, 24, 0, 1), Err(LengthError::UnitSize { found: 24, .. })));
    assert!(matches!(xts.decrypt_units(&mut data, 0, 0, 1), Err(LengthError::UnitSize { found: 0, .. })));
    assert!(matches!(xts.encrypt_units(&mut data, 48, 0, 1), Err(LengthError::PartialUnit { .. })));
    let cts = Sm4CbcCts::new(&[9; 16]).unwrap();
    assert_eq!(cts.encrypt(&[0; 16], &mut data[..15]), Err(LengthError::TooShort { len: 15, min: 16 }));
    assert_eq!(cts.decrypt(&[0; 16], &mut []), Err(LengthError::TooShort { len: 0, min: 16 }));
    assert!(data.iter().all(|&byte| byte == 1), "a refusal changes nothing");
    assert_eq!(xts.encrypt_units(&mut [], 4096, 0, 1), Ok(()));
}

#[test]
fn debug_shows_no_key() {
    let xts = Sm4Xts::with_platform(&Bytes(8).take(32), Platform::Portable).unwrap();
    assert_eq!(format!("{xts:?}"), "Xts { cipher: \"SM4\", platform: Portable, .. }");
    let cts = Sm4CbcCts::with_platform(&[1; 16], Platform::Portable).unwrap();
    assert_eq!(format!("{cts:?}"), "CbcCts { cipher: \"SM4\", platform: Portable, .. }");
}
