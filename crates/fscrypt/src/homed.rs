//! The key slots of systemd-homed: a directory's master key, wrapped with a passphrase, in the extended attributes
//! `trusted.fscrypt_slotN` of the directory.
//!
//! Source of the format: systemd's `src/home/homework-fscrypt.c`. A slot is `SALT:KEY`, both in base64. The first 256
//! bits of PBKDF2-HMAC-SHA512 with 65535 rounds are the key of AES-256-CTR, whose counter begins at 0.

use aes::cipher::{BlockCipherEncrypt, KeyInit};
use hmac::{Hmac, Mac};
use sha2::Sha512;
use zeroize::Zeroizing;

use crate::wiped::wiping;

const ROUNDS: u32 = 0xffff;

/// A slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HomedSlot {
    salt: Vec<u8>,
    encrypted: Vec<u8>,
}

impl HomedSlot {
    /// Parses a slot's attribute.
    pub fn parse(value: &[u8]) -> Option<HomedSlot> {
        let colon = value.iter().position(|&b| b == b':')?;
        let (salt, encrypted) = (base64(&value[..colon])?, base64(&value[colon + 1..])?);
        (!salt.is_empty() && !encrypted.is_empty()).then_some(HomedSlot { salt, encrypted })
    }

    /// Decrypts the slot with a passphrase: gives the master key if the passphrase is right. The slot cannot verify
    /// that: compare the key's descriptor with that of the directory's policy.
    pub fn unlock(&self, passphrase: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        wiping(|| self.decrypt(passphrase))
    }

    fn decrypt(&self, passphrase: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        let derived = pbkdf2_sha512(passphrase, &self.salt)?;
        let aes = aes::Aes256::new_from_slice(&derived[..32]).ok()?;
        let mut key = Zeroizing::new(self.encrypted.clone());
        for (counter, chunk) in (0u128..).zip(key.chunks_mut(16)) {
            let mut block = counter.to_be_bytes().into();
            aes.encrypt_block(&mut block);
            for (byte, stream) in chunk.iter_mut().zip(block.iter()) {
                *byte ^= stream;
            }
        }
        Some(key)
    }
}

/// The first block of PBKDF2-HMAC-SHA512 (RFC 8018).
fn pbkdf2_sha512(passphrase: &[u8], salt: &[u8]) -> Option<Zeroizing<[u8; 64]>> {
    let keyed = <Hmac<Sha512> as KeyInit>::new_from_slice(passphrase).ok()?;
    let mut mac = keyed.clone();
    mac.update(salt);
    mac.update(&1u32.to_be_bytes());
    let mut round = Zeroizing::new([0; 64]);
    round.copy_from_slice(&mac.finalize().into_bytes());
    let mut sum = round.clone();
    for _ in 1..ROUNDS {
        let mut mac = keyed.clone();
        mac.update(&round[..]);
        round.copy_from_slice(&mac.finalize().into_bytes());
        for (byte, other) in sum.iter_mut().zip(round.iter()) {
            *byte ^= other;
        }
    }
    Some(sum)
}

/// Standard base64, with or without padding.
fn base64(text: &[u8]) -> Option<Vec<u8>> {
    let text = text.strip_suffix(b"==").or_else(|| text.strip_suffix(b"=")).unwrap_or(text);
    let mut out = Vec::with_capacity(text.len() / 4 * 3 + 2);
    for group in text.chunks(4) {
        let mut bits = 0u32;
        for &c in group {
            let value = match c {
                b'A'..=b'Z' => c - b'A',
                b'a'..=b'z' => c - b'a' + 26,
                b'0'..=b'9' => c - b'0' + 52,
                b'+' => 62,
                b'/' => 63,
                _ => return None,
            };
            bits = bits << 6 | u32::from(value);
        }
        let bytes = (bits << (6 * (4 - group.len()))).to_be_bytes();
        let len = match group.len() {
            4 => 3,
            3 => 2,
            2 => 1,
            _ => return None,
        };
        out.extend_from_slice(&bytes[1..=len]);
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_of_rfc_4648() {
        let cases: [(&str, &str); 7] = [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ];
        for (plain, coded) in cases {
            assert_eq!(base64(coded.as_bytes()).as_deref(), Some(plain.as_bytes()));
        }
        assert_eq!(base64(b"a"), None);
        assert_eq!(base64(b"ab-c"), None);
    }

    /// Made with OpenSSL: `openssl kdf -keylen 32 -kdfopt digest:SHA512 -kdfopt pass:correct -kdfopt hexsalt:000102...1f
    /// -kdfopt iter:65535 PBKDF2`, then `openssl enc -aes-256-ctr -iv 0`.
    #[test]
    fn a_slot_made_with_openssl_opens() {
        let slot = HomedSlot::parse(SLOT.as_bytes()).unwrap();
        assert_eq!(hex::encode(&slot.unlock(b"correct").unwrap()[..]), hex::encode((0..64).collect::<Vec<u8>>()));
        assert_ne!(slot.unlock(b"wrong").unwrap()[0], 0);
        for bad in ["", ":", "AAAA", "AAAA:", "!:AAAA"] {
            assert_eq!(HomedSlot::parse(bad.as_bytes()), None);
        }
    }

    const SLOT: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=:eGZkVLJSiRuztWKLU+4pdvgk68LcyNsLJd9iLkMc6LSW41TPbyFrj40uqOQlDtSjrRXLtQzBKjSp4YedOWlEGQ==";
}
