//! The AES modes against somebody else's (see `common/oracle.rs`): every CPU level, every length class.

mod common;

use aes::cipher::{BlockModeDecrypt, BlockModeEncrypt, InnerIvInit, KeyInit, KeyIvInit};
use aes::{Aes128, Aes192, Aes256};
use common::oracle::{self, Cipher};
use common::{Bytes, length_classes, levels};
use cts::{Decrypt as _, Encrypt as _};
use postread_blockcrypt::cbc::AesCbc;
use postread_blockcrypt::cts::AesCbcCts;
use postread_blockcrypt::essiv::AesCbcEssiv;
use postread_blockcrypt::xts::AesXts;
use proptest::prelude::*;

/// Blocks that some level or pass of ours works on at once.
const LANES: &[usize] = &[4, 8, 16, 32, 64];

/// Each unit by itself through the oracle.
fn oracle_units(cipher: Cipher, key: &[u8], data: &[u8], unit_size: usize, iv: impl Fn(u64) -> [u8; 16]) -> Vec<u8> {
    let unit = |(i, unit): (usize, &[u8])| oracle::encrypt(cipher, key, Some(&iv(i as u64)), unit);
    data.chunks(unit_size).enumerate().flat_map(unit).collect()
}

/// Runs of units: sizes around the lanes with a few units each, then counts of units around the batches of IVs.
fn runs() -> Vec<(String, usize, usize)> {
    let sizes = length_classes(LANES).into_iter().filter(|&(_, blocks)| blocks > 0);
    let mut runs: Vec<_> = sizes.map(|(name, blocks)| (format!("3 units of {name} blocks"), blocks * 16, 3)).collect();
    for unit_size in [16, 32, 112, 512, 528] {
        for (name, units) in length_classes(&[32]) {
            runs.push((format!("{name} units of {unit_size} bytes"), unit_size, units));
        }
    }
    runs.extend([4096, 8192, 65536].map(|size| (format!("2 units of {size} bytes"), size, 2)));
    runs
}

#[test]
fn xts_units() {
    for level in levels() {
        for (key_length, cipher) in [(32, Cipher::Aes128Xts), (64, Cipher::Aes256Xts)] {
            for (seed, (name, unit_size, units)) in runs().into_iter().enumerate() {
                let mut bytes = Bytes(seed as u64);
                let (key, plain) = (bytes.take(key_length), bytes.take(unit_size * units));
                let (first, step) = (bytes.next_u64(), 1 + bytes.next_u64() % 128);
                let iv = |unit: u64| u128::from(first.wrapping_add(unit * step)).to_le_bytes();
                let want = oracle_units(cipher, &key, &plain, unit_size, iv);

                let xts = AesXts::with_platform(&key, level).unwrap();
                let mut data = plain.clone();
                xts.encrypt_units(&mut data, unit_size, first, step).unwrap();
                assert!(data == want, "encrypt, {level}, {name}, key of {key_length}, seed {seed}");
                xts.decrypt_units(&mut data, unit_size, first, step).unwrap();
                assert!(data == plain, "decrypt, {level}, {name}, key of {key_length}, seed {seed}");
            }
        }
    }
}

/// AES-192-XTS, which OpenSSL lacks.
#[test]
fn xts_192_and_128_bit_ivs() {
    for level in levels() {
        for (seed, (name, blocks)) in length_classes(LANES).into_iter().enumerate() {
            let mut bytes = Bytes(seed as u64);
            let (key, plain, base) = (bytes.take(48), bytes.take(3 * 16 * blocks.max(1)), bytes.block());
            let iv = |unit: u64| (u128::from_le_bytes(base).wrapping_add(u128::from(unit))).to_le_bytes();
            let unit_size = plain.len() / 3;
            let [a, b] = [0, 24].map(|at| Aes192::new_from_slice(&key[at..at + 24]).unwrap());
            let oracle = xts_mode::Xts128::new(a, b);
            let mut want = plain.clone();
            for (i, unit) in want.chunks_mut(unit_size).enumerate() {
                oracle.encrypt_sector(unit, iv(i as u64).into());
            }

            let xts = AesXts::with_platform(&key, level).unwrap();
            let mut data = plain.clone();
            xts.encrypt_units_with(&mut data, unit_size, iv).unwrap();
            assert!(data == want, "encrypt, {level}, {name} blocks, seed {seed}");
            xts.decrypt_units_with(&mut data, unit_size, iv).unwrap();
            assert!(data == plain, "decrypt, {level}, {name} blocks, seed {seed}");
        }
    }
}

#[test]
fn cbc_units() {
    let ciphers = [(16, Cipher::Aes128Cbc), (24, Cipher::Aes192Cbc), (32, Cipher::Aes256Cbc)];
    for level in levels() {
        for (key_length, cipher) in ciphers {
            for (seed, (name, unit_size, units)) in runs().into_iter().enumerate() {
                let mut bytes = Bytes(seed as u64);
                let (key, plain, base) = (bytes.take(key_length), bytes.take(unit_size * units), bytes.next_u64());
                let iv = |unit: u64| (u128::from(base).wrapping_mul(u128::from(unit + 1))).to_le_bytes();
                let want = oracle_units(cipher, &key, &plain, unit_size, iv);

                let cbc = AesCbc::with_platform(&key, level).unwrap();
                let mut data = plain.clone();
                cbc.encrypt_units_with(&mut data, unit_size, iv).unwrap();
                assert!(data == want, "encrypt, {level}, {name}, key of {key_length}, seed {seed}");
                cbc.decrypt_units_with(&mut data, unit_size, iv).unwrap();
                assert!(data == plain, "decrypt, {level}, {name}, key of {key_length}, seed {seed}");
            }
        }
    }
}

/// ESSIV made of the oracle's SHA-256, AES-256-ECB and AES-CBC.
#[test]
fn essiv_units() {
    for level in levels() {
        for (key_length, cipher) in [(16, Cipher::Aes128Cbc), (32, Cipher::Aes256Cbc)] {
            for (seed, (name, unit_size, units)) in runs().into_iter().enumerate() {
                let mut bytes = Bytes(seed as u64);
                let (key, plain, first) = (bytes.take(key_length), bytes.take(unit_size * units), bytes.next_u64());
                let salt = oracle::digest(postread_blockcrypt::hash::HashAlg::Sha256, &[&key]);
                let iv = |unit: u64| {
                    let index = u128::from(first.wrapping_add(8 * unit)).to_le_bytes();
                    let iv = oracle::encrypt(Cipher::Aes256Ecb, &salt, None, &index);
                    iv.try_into().unwrap()
                };
                let want = oracle_units(cipher, &key, &plain, unit_size, iv);

                let essiv = AesCbcEssiv::with_platform(&key, level).unwrap();
                let mut data = plain.clone();
                essiv.encrypt_units(&mut data, unit_size, first, 8).unwrap();
                assert!(data == want, "encrypt, {level}, {name}, key of {key_length}, seed {seed}");
                essiv.decrypt_units(&mut data, unit_size, first, 8).unwrap();
                assert!(data == plain, "decrypt, {level}, {name}, key of {key_length}, seed {seed}");
            }
        }
    }
}

/// CBC-CS3 of the `cts` crate, at every length from a block to beyond the widest level.
#[test]
fn cts_messages() {
    for level in levels() {
        for len in (16..=96).chain(495..=560).chain(1020..=1060) {
            let mut bytes = Bytes(len as u64);
            let (key, iv, plain) = (bytes.take(32), bytes.block(), bytes.take(len));
            let mut want = plain.clone();
            if len == 16 {
                // One block is plain CBC.
                want = oracle::encrypt(Cipher::Aes256Cbc, &key, Some(&iv), &plain);
            } else {
                let cipher = Aes256::new_from_slice(&key).unwrap();
                cts::CbcCs3::inner_iv_init(&cipher, &iv.into()).encrypt(&mut want).unwrap();
                let mut back = want.clone();
                cts::CbcCs3::inner_iv_init(&cipher, &iv.into()).decrypt(&mut back).unwrap();
                assert!(back == plain);
            }

            let cts = AesCbcCts::with_platform(&key, level).unwrap();
            let mut data = plain.clone();
            cts.encrypt(&iv, &mut data).unwrap();
            assert!(data == want, "encrypt, {level}, {len} bytes");
            cts.decrypt(&iv, &mut data).unwrap();
            assert!(data == plain, "decrypt, {level}, {len} bytes");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Any size and count of units, any index and step, at a level of the strategy's choosing.
    #[test]
    fn any_run(seed: u64, blocks in 1usize..200, units in 0usize..40, level in 0usize..4, first: u64, step: u64) {
        let levels = levels();
        let level = levels[level % levels.len()];
        let unit_size = 16 * blocks;
        let mut bytes = Bytes(seed);
        let (key, plain) = (bytes.take(64), bytes.take(unit_size * units));
        let iv = |unit: u64| u128::from(first.wrapping_add(unit.wrapping_mul(step))).to_le_bytes();

        let want = oracle_units(Cipher::Aes256Xts, &key, &plain, unit_size, iv);
        let xts = AesXts::with_platform(&key, level).unwrap();
        let mut data = plain.clone();
        xts.encrypt_units(&mut data, unit_size, first, step).unwrap();
        prop_assert!(data == want, "XTS encrypt, {}", level);
        xts.decrypt_units(&mut data, unit_size, first, step).unwrap();
        prop_assert!(data == plain, "XTS decrypt, {}", level);

        let mut want = plain.clone();
        for (unit, i) in want.chunks_mut(unit_size).zip(0..) {
            let mut oracle = cbc::Encryptor::<Aes128>::new_from_slices(&key[..16], &iv(i)).unwrap();
            for block in unit.chunks_exact_mut(16) {
                oracle.encrypt_block(block.try_into().unwrap());
            }
        }
        let ours = AesCbc::with_platform(&key[..16], level).unwrap();
        ours.encrypt_units(&mut data, unit_size, first, step).unwrap();
        prop_assert!(data == want, "CBC encrypt, {}", level);
        for (unit, i) in want.chunks_mut(unit_size).zip(0..) {
            let mut oracle = cbc::Decryptor::<Aes128>::new_from_slices(&key[..16], &iv(i)).unwrap();
            for block in unit.chunks_exact_mut(16) {
                oracle.decrypt_block(block.try_into().unwrap());
            }
        }
        prop_assert!(want == plain);
        ours.decrypt_units(&mut data, unit_size, first, step).unwrap();
        prop_assert!(data == plain, "CBC decrypt, {}", level);
    }
}
