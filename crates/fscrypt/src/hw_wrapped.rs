//! Hardware-wrapped keys, emulated from the raw key that only hardware would see.
//!
//! The hardware derives from it, by NIST SP 800-108 in counter mode with AES-256-CMAC, an inline encryption key for
//! contents and a software secret that replaces the master key for everything else. The labels and contexts depend on
//! the hardware; they are those that Android's vendor test suite (`kernel/encryption/utils.cpp`, Apache-2.0) and
//! xfstests (`fscrypt-crypt-util`, for SM8650) check devices with.

use aes::cipher::{BlockCipherEncrypt, KeyInit};
use zeroize::Zeroizing;

/// Which derivation a device's hardware does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HwKdf {
    /// Android's `v1`.
    V1,
    /// Android's `legacykdf`, which earlier devices have.
    Legacy,
    /// Android's `rearranged`.
    Rearranged,
    /// Qualcomm SM8650 as in xfstests.
    Sm8650,
}

const QUALCOMM_LABEL: &[u8] = &[0, 0, 0x40, 0, 0, 0, 0, 0, 0, 0, 0x20];
const ZERO_LABEL: &[u8] = &[0; 32];

impl HwKdf {
    /// Every derivation, for trying which one a key identifier fits.
    pub const ALL: [HwKdf; 4] = [HwKdf::V1, HwKdf::Legacy, HwKdf::Rearranged, HwKdf::Sm8650];

    /// The key that inline encryption hardware encrypts contents with, AES-256-XTS.
    pub fn inline_encryption_key(self, raw: &[u8; 32]) -> Zeroizing<[u8; 64]> {
        let (label, context): (&[u8], &[u8]) = match self {
            HwKdf::V1 => (QUALCOMM_LABEL, b"inline encryption key\0\0\0\0\0\0\x02\x43\0\x82\x50\0\0\0\0"),
            HwKdf::Legacy => (QUALCOMM_LABEL, b"inline encryption key\0\0\0\0\0\0\x01\x43\0\x82\x18\0\0\0\0"),
            HwKdf::Sm8650 => (QUALCOMM_LABEL, b"inline encryption key\0\0\0\0\0\0\x03\x43\0\x82\x50\0\0\0\0"),
            HwKdf::Rearranged => (ZERO_LABEL, b"inline encryption storagekey ctx\0\0\0\0\0\x10\x70\x18\x72\0\0\0\0"),
        };
        self.derive(raw, label, context)
    }

    /// The secret that replaces the master key for names, identifiers and inode hashes.
    pub fn software_secret(self, raw: &[u8; 32]) -> Zeroizing<[u8; 32]> {
        let (label, context): (&[u8], &[u8]) = match self {
            HwKdf::V1 | HwKdf::Legacy => (QUALCOMM_LABEL, b"raw secret\0\0\0\0\0\0\0\0\0\x02\x17\0\x80\x50\0\0\0\0"),
            HwKdf::Sm8650 => (QUALCOMM_LABEL, b"raw secret\0\0\0\0\0\0\0\0\0\x03\x17\0\x80\x50\0\0\0\0"),
            HwKdf::Rearranged => (ZERO_LABEL, b"derive raw secret context abcdef"),
        };
        self.derive(raw, label, context)
    }

    fn derive<const N: usize>(self, raw: &[u8; 32], label: &[u8], context: &[u8]) -> Zeroizing<[u8; N]> {
        let mac = Cmac::new(raw);
        let mut out = Zeroizing::new([0; N]);
        for (counter, block) in (1u32..).zip(out.chunks_exact_mut(16)) {
            let mut input = counter.to_be_bytes().to_vec();
            input.extend_from_slice(label);
            input.push(0);
            input.extend_from_slice(context);
            input.extend_from_slice(&(N as u32 * 8).to_be_bytes());
            if self == HwKdf::Rearranged {
                // This hardware takes the input's 16-byte pieces from the end.
                input = input.rchunks(16).flatten().copied().collect();
            }
            block.copy_from_slice(&mac.sum(&input));
        }
        out
    }
}

/// AES-256-CMAC (RFC 4493, with a 256-bit key): 30 lines here against two more crates.
struct Cmac {
    aes: aes::Aes256,
    subkey: u128,
}

impl Cmac {
    fn new(key: &[u8; 32]) -> Cmac {
        let aes = aes::Aes256::new(key.into());
        let zero = encrypt(&aes, 0);
        Cmac { aes, subkey: double(zero) }
    }

    fn sum(&self, message: &[u8]) -> [u8; 16] {
        let full = message.len().saturating_sub(1) / 16;
        let (head, last) = message.split_at(full * 16);
        let mut state = 0;
        for block in head.chunks_exact(16) {
            state = encrypt(&self.aes, state ^ u128::from_be_bytes(block.try_into().expect("chunks are blocks")));
        }
        let mut padded = [0; 16];
        padded[..last.len()].copy_from_slice(last);
        let mut subkey = self.subkey;
        if last.len() < 16 {
            padded[last.len()] = 0x80;
            subkey = double(subkey);
        }
        encrypt(&self.aes, state ^ u128::from_be_bytes(padded) ^ subkey).to_be_bytes()
    }
}

fn encrypt(aes: &aes::Aes256, block: u128) -> u128 {
    let mut block = block.to_be_bytes().into();
    aes.encrypt_block(&mut block);
    u128::from_be_bytes(block.into())
}

/// Doubling in GF(2^128), big-endian, without a branch on the secret.
fn double(value: u128) -> u128 {
    (value << 1) ^ (0x87 & (value >> 127).wrapping_neg())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// NIST SP 800-38B, AES-256: lengths 0, 16, 40 and 64.
    #[test]
    fn cmac_vectors() {
        let key: [u8; 32] = hex::decode("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
            .unwrap()
            .try_into()
            .unwrap();
        let message = hex::decode(concat!(
            "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51",
            "30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710"
        ))
        .unwrap();
        let mac = Cmac::new(&key);
        for (length, wanted) in [
            (0, "028962f61b7bf89efc6b551f4667d983"),
            (16, "28a7023f452e8f82bd4bf28d8c37c35c"),
            (40, "aaf3d8f1de5640c232f5b169b9c911e6"),
            (64, "e1992190549f6ed5696a2c056c315410"),
        ] {
            assert_eq!(hex::encode(mac.sum(&message[..length])), wanted, "{length}");
        }
    }

    /// The vectors of Android's test suite: a master key of zeros.
    #[test]
    fn androids_vectors() {
        let raw = [0; 32];
        for (kdf, key, secret) in [
            (
                HwKdf::V1,
                "cbe5db40215a3d386d61e54ef2f8a7814b00bacf35b316f88e68e89a47abbab4\
                 834c27dac8a91ae1c3304f31b5f2202c14989661bafccc56cf6212d8b1f72691",
                "e26fb19b4fb6266fc7c5fc9654efad643cfebc64c097341155195595c28d5ec9",
            ),
            (
                HwKdf::Legacy,
                "6361f802b37aa64a075784bede2341f1d9236e646c70460f15b37ce5ff43a54f\
                 15d95693343d528b67372a7f383ed8e7c45ed0899e02825453c9419aafa3695f",
                "e26fb19b4fb6266fc7c5fc9654efad643cfebc64c097341155195595c28d5ec9",
            ),
            (
                HwKdf::Rearranged,
                "dba0a67e471be39fd1ec289945f52145df12937a0b42915f7c711feb47403e6a\
                 e5b7b52968a8cc635d10ab8b8724ef5dec6236d81a1b387808c407ce01c56388",
                "4ef06e6aa984104667863f15087c12bbfb8e4715145bc06b5982abd4198385b4",
            ),
        ] {
            assert_eq!(hex::encode(&kdf.inline_encryption_key(&raw)[..]), key, "{kdf:?}");
            assert_eq!(hex::encode(&kdf.software_secret(&raw)[..]), secret, "{kdf:?}");
        }
    }
}
