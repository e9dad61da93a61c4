//! Adiantum against its authors' vectors, and at every CPU level against two independent implementations: the
//! `adiantum` crate, and the paper's construction put together from RustCrypto's ciphers.

mod common;

use adiantum::Cipher;
use aes::Aes256;
use aes::cipher::{BlockCipherEncrypt, KeyInit, KeyIvInit, StreamCipher};
use chacha20::{XChaCha12, XChaCha20};
use common::{Bytes, levels};
use poly1305::Poly1305;
use postread_blockcrypt::Platform;
use postread_blockcrypt::adiantum::{Adiantum, Stream};
use postread_blockcrypt::error::{KeyError, LengthError};
use proptest::prelude::*;

fn cipher(rounds: u32, key: &[u8], level: Platform) -> Adiantum {
    let stream = match rounds {
        12 => Stream::XChaCha12,
        20 => Stream::XChaCha20,
        _ => panic!("no Adiantum of {rounds} rounds"),
    };
    Adiantum::with_platform(stream, key, level).expect("32 bytes")
}

#[test]
fn the_authors_vectors() {
    let mut seen = 0;
    for line in include_str!("vectors/adiantum.txt").lines().filter(|line| !line.starts_with('#')) {
        let fields: Vec<&str> = line.split(' ').collect();
        let [rounds, key, tweak, plain, wanted] = fields[..] else { panic!("five fields in {line}") };
        let bytes = |field: &str| if field == "-" { Vec::new() } else { hex::decode(field).expect("hexadecimal") };
        let (tweak, plain, wanted) = (bytes(tweak), bytes(plain), bytes(wanted));
        for level in levels() {
            let cipher = cipher(rounds.parse().expect("a number"), &bytes(key), level);
            let mut data = plain.clone();
            cipher.encrypt(&tweak, &mut data).expect("long enough");
            assert_eq!(data, wanted, "{level}: {} rounds, {} bytes, tweak of {}", rounds, plain.len(), tweak.len());
            cipher.decrypt(&tweak, &mut data).expect("long enough");
            assert_eq!(data, plain, "{level}: back again");
        }
        seen += 1;
    }
    assert_eq!(seen, 28);
}

/// The kernel pads the IV to 32 bytes; dm-crypt's counts sectors of 512 bytes, whatever its own are.
#[test]
fn dm_crypts_sectors() {
    let mut seen = 0;
    for line in include_str!("vectors/adiantum-dm-crypt.txt").lines().filter(|line| !line.starts_with('#')) {
        let fields: Vec<&str> = line.split(' ').collect();
        let [key, unit, index, sealed, wanted] = fields[..] else { panic!("five fields in {line}") };
        let bytes = |field: &str| hex::decode(field).expect("hexadecimal");
        let (unit, index): (usize, u64) = (unit.parse().expect("a number"), index.parse().expect("a number"));
        for level in levels() {
            let mut data = bytes(sealed);
            cipher(12, &bytes(key), level).decrypt_units(&mut data, unit, index, 1).expect("a unit");
            assert!(data == bytes(wanted), "{level}: unit of {unit} bytes, index {index}");
        }
        seen += 1;
    }
    assert_eq!(seen, 2);
}

/// Encryption as section 3 of the paper writes it, over other people's ciphers. NH is the paper's loop.
fn by_the_paper(rounds: u32, key: &[u8], tweak: &[u8], unit: &mut [u8]) {
    let stream = |nonce: &[u8], data: &mut [u8]| {
        let mut padded = [0; 24];
        padded[..nonce.len()].copy_from_slice(nonce);
        padded[nonce.len()] = 1;
        match rounds {
            12 => XChaCha12::new_from_slices(key, &padded).expect("lengths").apply_keystream(data),
            _ => XChaCha20::new_from_slices(key, &padded).expect("lengths").apply_keystream(data),
        }
    };
    let mut keys = [0; 32 + 32 + 1072];
    stream(&[], &mut keys);
    // A zero pad makes the tag the polynomial's value modulo 2^128.
    let poly = |r: &[u8], message: &[u8]| {
        let mut poly_key = [0; 32];
        poly_key[..16].copy_from_slice(r);
        let tag = Poly1305::new_from_slice(&poly_key).expect("32 bytes").compute_unpadded(message);
        u128::from_le_bytes(tag.as_slice().try_into().expect("16 bytes"))
    };
    let words = |bytes: &[u8]| -> Vec<u32> {
        bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().expect("4 bytes"))).collect()
    };
    let nh_key = words(&keys[64..]);
    let hash = |bulk: &[u8]| {
        let mut head = (8 * bulk.len() as u128).to_le_bytes().to_vec();
        head.extend_from_slice(tweak);
        let mut hashes = Vec::new();
        for message in bulk.chunks(1024) {
            let mut message = message.to_vec();
            message.resize(message.len().next_multiple_of(16), 0);
            let message = words(&message);
            for pass in 0..4 {
                let mut sum = 0u64;
                for i in (0..message.len()).step_by(4) {
                    for j in [i, i + 1] {
                        let factor = |at: usize| u64::from(message[at].wrapping_add(nh_key[at + 4 * pass]));
                        sum = sum.wrapping_add(factor(j) * factor(j + 2));
                    }
                }
                hashes.extend_from_slice(&sum.to_le_bytes());
            }
        }
        poly(&keys[32..48], &head).wrapping_add(poly(&keys[48..64], &hashes))
    };
    let (bulk, last) = unit.split_at_mut(unit.len() - 16);
    let mut middle = u128::from_le_bytes((&*last).try_into().expect("16 bytes")).wrapping_add(hash(bulk)).to_le_bytes();
    Aes256::new_from_slice(&keys[..32]).expect("32 bytes").encrypt_block((&mut middle).into());
    stream(&middle, bulk);
    last.copy_from_slice(&u128::from_le_bytes(middle).wrapping_sub(hash(bulk)).to_le_bytes());
}

/// Lengths at the edges: of the AES block, of NH's unit and of its message; of ChaCha's block and of each level's
/// lanes (4, 8, 16 blocks behind the 16 bytes that AES encrypts); of pages; of fscrypt's and dm-crypt's largest units.
fn edge_lengths() -> Vec<usize> {
    let mut lengths = vec![16, 17, 31, 32, 33, 47, 48, 49];
    for edge in [64, 256, 512, 1024, 2048, 4080, 4096, 65520] {
        for len in [edge - 1, edge, edge + 1, edge + 15, edge + 16, edge + 17] {
            lengths.push(len);
        }
    }
    lengths
}

fn pattern(len: usize, seed: u64) -> Vec<u8> {
    Bytes(seed).take(len)
}

fn agrees(rounds: u32, key: &[u8], tweak: &[u8], plain: &[u8]) {
    let mut wanted = plain.to_vec();
    by_the_paper(rounds, key, tweak, &mut wanted);
    if plain.len() <= 4096 && plain.len().is_multiple_of(16) && tweak.len() <= 32 {
        let mut theirs = plain.to_vec();
        match rounds {
            12 => Cipher::<XChaCha12, Aes256>::new_from_slice(key).expect("32 bytes").encrypt(&mut theirs, tweak),
            _ => Cipher::<XChaCha20, Aes256>::new_from_slice(key).expect("32 bytes").encrypt(&mut theirs, tweak),
        }
        assert!(theirs == wanted, "the oracles differ at {} bytes", plain.len());
    }
    for level in levels() {
        let cipher = cipher(rounds, key, level);
        let mut data = plain.to_vec();
        cipher.encrypt(tweak, &mut data).expect("long enough");
        assert!(data == wanted, "{level}: {rounds} rounds, {} bytes, tweak of {}", plain.len(), tweak.len());
        cipher.decrypt(tweak, &mut data).expect("long enough");
        assert!(data == plain, "{level}: {rounds} rounds, {} bytes: back again", plain.len());
    }
}

#[test]
fn every_edge_of_length() {
    let key = pattern(32, 1);
    for rounds in [12, 20] {
        for len in edge_lengths() {
            agrees(rounds, &key, &pattern(32, 2), &pattern(len, 3));
        }
    }
}

#[test]
fn every_edge_of_tweak() {
    let key = pattern(32, 4);
    for len in [0, 1, 8, 15, 16, 17, 24, 31, 32, 33] {
        agrees(12, &key, &pattern(len, 5), &pattern(4096, 6));
    }
}

/// Carries of the additions modulo 2^128 and of NH's sums.
#[test]
fn all_ones() {
    agrees(12, &[0xff; 32], &[0xff; 32], &[0xff; 4096]);
    agrees(12, &[0; 32], &[0; 32], &[0; 4096]);
}

#[test]
fn sixteen_mebibytes() {
    let len = 16 << 20;
    agrees(12, &pattern(32, 7), &pattern(32, 8), &pattern(len, 9));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn any_key_tweak_and_length(
        key in any::<[u8; 32]>(),
        tweak in proptest::collection::vec(any::<u8>(), 0..=32),
        plain in proptest::collection::vec(any::<u8>(), 16..6000),
        rounds in prop_oneof![Just(12), Just(20)],
    ) {
        agrees(rounds, &key, &tweak, &plain);
    }
}

/// A run is its units one by one: under the index, and under an index with a nonce behind it, which wraps.
#[test]
fn runs_of_units() {
    for level in levels() {
        let cipher = cipher(12, &pattern(32, 10), level);
        for (unit, count) in [(16, 5), (512, 9), (513, 3), (4096, 33), (65536, 2)] {
            let plain = pattern(unit * count, 11);
            for (first, step) in [(0, 1), (u64::MAX - 1, 1), (7, 8)] {
                let mut first_tweak = [0; 32];
                first_tweak[..8].copy_from_slice(&first.to_le_bytes());
                let mut nonce_tweak = first_tweak;
                nonce_tweak[8..24].copy_from_slice(&pattern(16, 12));
                for (first_tweak, plain_index) in [(first_tweak, true), (nonce_tweak, false)] {
                    let mut wanted = plain.clone();
                    let mut tweak = first_tweak;
                    for (i, data) in wanted.chunks_exact_mut(unit).enumerate() {
                        let index = first.wrapping_add(step * i as u64);
                        tweak[..8].copy_from_slice(&index.to_le_bytes());
                        cipher.encrypt(&tweak, data).expect("long enough");
                    }
                    let mut data = plain.clone();
                    if plain_index {
                        cipher.encrypt_units(&mut data, unit, first, step).expect("whole units");
                        assert!(data == wanted, "{level}: units of {unit} from {first} by {step}");
                        cipher.decrypt_units(&mut data, unit, first, step).expect("whole units");
                        assert!(data == plain, "{level}: back again");
                    }
                    let tweak = |i: u64| {
                        let mut tweak = first_tweak;
                        tweak[..8].copy_from_slice(&first.wrapping_add(step * i).to_le_bytes());
                        tweak
                    };
                    cipher.encrypt_units_with(&mut data, unit, tweak).expect("whole units");
                    assert!(data == wanted, "{level}: units of {unit} from tweak {first} by {step}");
                    cipher.decrypt_units_with(&mut data, unit, tweak).expect("whole units");
                    assert!(data == plain, "{level}: back again");
                }
            }
        }
    }
}

#[test]
fn refusals() {
    for len in [0, 16, 31, 33, 64] {
        let key = vec![0; len];
        assert_eq!(Adiantum::new(Stream::XChaCha12, &key).err(), Some(KeyError::Length { found: len, wanted: &[32] }));
        assert_eq!(Adiantum::new(Stream::XChaCha20, &key).err(), Some(KeyError::Length { found: len, wanted: &[32] }));
    }
    let cipher = cipher(12, &[0x5a; 32], Platform::default());
    let mut data = [1; 4096];
    assert_eq!(cipher.encrypt(&[], &mut data[..15]), Err(LengthError::TooShort { len: 15, min: 16 }));
    assert_eq!(cipher.decrypt(&[], &mut []), Err(LengthError::TooShort { len: 0, min: 16 }));
    assert!(matches!(cipher.encrypt_units(&mut data, 15, 0, 1), Err(LengthError::UnitSize { found: 15, .. })));
    assert!(matches!(cipher.encrypt_units(&mut data, 0, 0, 1), Err(LengthError::UnitSize { found: 0, .. })));
    assert!(matches!(cipher.decrypt_units(&mut data, 65537, 0, 1), Err(LengthError::UnitSize { found: 65537, .. })));
    assert!(matches!(cipher.encrypt_units(&mut data, 513, 0, 1), Err(LengthError::PartialUnit { .. })));
    assert!(data.iter().all(|&byte| byte == 1), "a refusal changes nothing");
    assert_eq!(cipher.encrypt_units(&mut [], 512, 0, 1), Ok(()));
}

#[test]
fn debug_shows_no_key() {
    let text = format!("{:?}", cipher(12, &[0x5a; 32], Platform::Portable));
    assert_eq!(text, "Adiantum { stream: XChaCha12, platform: Portable, .. }");
}
