//! Published vectors of the AES modes, at every CPU level.

mod common;

use common::levels;
use hex::decode;
use postread_blockcrypt::cbc::AesCbc;
use postread_blockcrypt::cts::AesCbcCts;
use postread_blockcrypt::essiv::AesCbcEssiv;
use postread_blockcrypt::hctr2::AesHctr2;
use postread_blockcrypt::xts::AesXts;
use postread_blockcrypt::{KeyError, LengthError};

/// The lines of a file of vectors, in fields; at least `at_least` of them, so that a truncated file fails.
fn vectors(text: &'static str, at_least: usize) -> Vec<[&'static str; 4]> {
    let fields = |line: &'static str| line.split(' ').collect::<Vec<_>>().try_into().expect("four fields");
    let lines: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).map(fields).collect();
    assert!(lines.len() >= at_least, "{} vectors", lines.len());
    lines
}

/// IEEE 1619 and NIST: tweaks of 16 bytes, and data unit sequence numbers.
#[test]
fn xts() {
    let mut all = vectors(include_str!("vectors/xts-ieee1619.txt"), 4);
    all.extend(vectors(include_str!("vectors/xts-nist.txt"), 128));
    for level in levels() {
        for [key, tweak, plain, cipher] in &all {
            let (plain, cipher) = (decode(plain).unwrap(), decode(cipher).unwrap());
            let xts = AesXts::with_platform(&decode(key).unwrap(), level).unwrap();
            let mut data = plain.clone();
            let size = data.len();
            if let Some(number) = tweak.strip_prefix('n') {
                let number: u64 = number.parse().unwrap();
                xts.encrypt_units(&mut data, size, number, 1).unwrap();
                assert_eq!(data, cipher, "{level}, {key}");
                xts.decrypt_units(&mut data, size, number, 1).unwrap();
            } else {
                let tweak: [u8; 16] = decode(tweak).unwrap().try_into().unwrap();
                xts.encrypt_units_with(&mut data, size, |_| tweak).unwrap();
                assert_eq!(data, cipher, "{level}, {key}");
                xts.decrypt_units_with(&mut data, size, |_| tweak).unwrap();
            }
            assert_eq!(data, plain, "{level}, {key}");
        }
    }
}

#[test]
fn cbc() {
    for level in levels() {
        for [key, iv, plain, cipher] in vectors(include_str!("vectors/cbc-nist.txt"), 60) {
            let (plain, cipher) = (decode(plain).unwrap(), decode(cipher).unwrap());
            let iv: [u8; 16] = decode(iv).unwrap().try_into().unwrap();
            let cbc = AesCbc::with_platform(&decode(key).unwrap(), level).unwrap();
            let mut data = plain.clone();
            let size = data.len();
            cbc.encrypt_units_with(&mut data, size, |_| iv).unwrap();
            assert_eq!(data, cipher, "{level}, {key}");
            cbc.decrypt_units_with(&mut data, size, |_| iv).unwrap();
            assert_eq!(data, plain, "{level}, {key}");
        }
    }
}

/// RFC 3962, appendix B: the key "chicken teriyaki", no IV, prefixes of one message.
#[test]
fn cts() {
    let message = b"I would like the General Gau's Chicken, please, and wonton soup.";
    let ciphertexts = [
        "c6353568f2bf8cb4d8a580362da7ff7f97",
        "fc00783e0efdb2c1d445d4c8eff7ed2297687268d6ecccc0c07b25e25ecfe5",
        "39312523a78662d5be7fcbcc98ebf5a897687268d6ecccc0c07b25e25ecfe584",
        "97687268d6ecccc0c07b25e25ecfe584b3fffd940c16a18c1b5549d2f838029e39312523a78662d5be7fcbcc98ebf5",
        "97687268d6ecccc0c07b25e25ecfe5849dad8bbb96c4cdc03bc103e1a194bbd839312523a78662d5be7fcbcc98ebf5a8",
        "97687268d6ecccc0c07b25e25ecfe58439312523a78662d5be7fcbcc98ebf5a84807efe836ee89a526730dbc2f7bc840\
         9dad8bbb96c4cdc03bc103e1a194bbd8",
    ];
    for level in levels() {
        let cts = AesCbcCts::with_platform(b"chicken teriyaki", level).unwrap();
        for cipher in ciphertexts {
            let cipher = decode(cipher).unwrap();
            let plain = &message[..cipher.len()];
            let mut data = plain.to_vec();
            cts.encrypt(&[0; 16], &mut data).unwrap();
            assert_eq!(data, cipher, "{level}");
            cts.decrypt(&[0; 16], &mut data).unwrap();
            assert_eq!(data, plain, "{level}");
        }
    }
}

#[test]
fn hctr2() {
    for level in levels() {
        for [key, tweak, plain, cipher] in vectors(include_str!("vectors/hctr2.txt"), 105) {
            let (plain, cipher) = (decode(plain).unwrap(), decode(cipher).unwrap());
            let tweak = decode(tweak.trim_matches('-')).unwrap();
            let hctr2 = AesHctr2::with_platform(&decode(key).unwrap(), level).unwrap();
            let mut data = plain.clone();
            hctr2.encrypt(&tweak, &mut data).unwrap();
            assert_eq!(data, cipher, "{level}, {key}");
            hctr2.decrypt(&tweak, &mut data).unwrap();
            assert_eq!(data, plain, "{level}, {key}");
        }
    }
}

/// What the kernel refuses is refused: wrong lengths, and XTS keys of equal halves (IEEE 1619's vector 1 has one).
#[test]
fn keys_refused() {
    for length in (0..=65).filter(|length| ![32, 48, 64].contains(length)) {
        let wanted = KeyError::Length { found: length, wanted: &[32, 48, 64] };
        assert_eq!(AesXts::new(&vec![1; length]).unwrap_err(), wanted);
    }
    for length in [32, 48, 64] {
        assert_eq!(AesXts::new(&vec![0; length]).unwrap_err(), KeyError::EqualHalves);
        for different in 0..length {
            let mut key = vec![0x5a; length];
            key[different] ^= 0x80;
            assert!(AesXts::new(&key).is_ok());
        }
    }
    for length in (0..=33).filter(|length| ![16, 24, 32].contains(length)) {
        let (key, wanted) = (vec![1; length], KeyError::Length { found: length, wanted: &[16, 24, 32] });
        assert_eq!(AesCbc::new(&key).unwrap_err(), wanted);
        assert_eq!(AesCbcCts::new(&key).unwrap_err(), wanted);
        assert_eq!(AesCbcEssiv::new(&key).unwrap_err(), wanted);
        assert_eq!(AesHctr2::new(&key).unwrap_err(), wanted);
    }
    let wanted = "a key of 3 bytes; the cipher takes 16 or 24 or 32";
    assert_eq!(AesCbc::new(&[1; 3]).unwrap_err().to_string(), wanted);
}

/// Lengths that a mode cannot process are errors that leave the data alone.
#[test]
fn lengths_refused() {
    let key: Vec<u8> = (0..64).collect();
    let (xts, cbc) = (AesXts::new(&key).unwrap(), AesCbc::new(&key[..32]).unwrap());
    let (cts, hctr2) = (AesCbcCts::new(&key[..32]).unwrap(), AesHctr2::new(&key[..32]).unwrap());
    for (len, unit_size) in [(0, 0), (32, 0), (32, 8), (34, 17), (65552, 65552), (1 << 17, 1 << 17)] {
        let mut data = vec![7; len];
        let wanted = LengthError::UnitSize { found: unit_size, min: 16, max: 65536, multiple: 16 };
        assert_eq!(xts.encrypt_units(&mut data, unit_size, 0, 1), Err(wanted));
        assert_eq!(xts.decrypt_units(&mut data, unit_size, 0, 1), Err(wanted));
        assert_eq!(cbc.encrypt_units(&mut data, unit_size, 0, 1), Err(wanted));
        assert_eq!(cbc.decrypt_units(&mut data, unit_size, 0, 1), Err(wanted));
        assert_eq!(data, vec![7; len]);
    }
    for (len, unit_size) in [(1, 16), (31, 16), (4097, 4096), (4096, 8192)] {
        let mut data = vec![7; len];
        assert_eq!(xts.encrypt_units(&mut data, unit_size, 0, 1), Err(LengthError::PartialUnit { len, unit_size }));
        assert_eq!(cbc.decrypt_units(&mut data, unit_size, 0, 1), Err(LengthError::PartialUnit { len, unit_size }));
        assert_eq!(data, vec![7; len]);
    }
    for len in 0..16 {
        let mut data = vec![7; len];
        let wanted = Err(LengthError::TooShort { len, min: 16 });
        assert_eq!(cts.encrypt(&[0; 16], &mut data), wanted);
        assert_eq!(cts.decrypt(&[0; 16], &mut data), wanted);
        assert_eq!(hctr2.encrypt(&[], &mut data), wanted);
        assert_eq!(hctr2.decrypt(&[], &mut data), wanted);
        assert_eq!(data, vec![7; len]);
    }
}

/// Nothing of a key is printed.
#[test]
fn debug_has_no_secrets() {
    let key: Vec<u8> = (0x80..0xc0).collect();
    let shown = [
        format!("{:?}", AesXts::new(&key).unwrap()),
        format!("{:?}", AesCbc::new(&key[..32]).unwrap()),
        format!("{:?}", AesCbcCts::new(&key[..32]).unwrap()),
        format!("{:?}", AesCbcEssiv::new(&key[..16]).unwrap()),
        format!("{:?}", AesHctr2::new(&key[..32]).unwrap()),
    ];
    for text in shown {
        let digits = text.chars().filter(char::is_ascii_digit).count();
        assert!(text.contains("platform") && digits <= 4, "{text}");
    }
}
