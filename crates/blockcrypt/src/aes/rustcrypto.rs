//! AES of the `aes` crate, for CPUs other than x86-64 whose AES instructions it supports and detects itself: AArch64.

use alloc::boxed::Box;

use ::aes::cipher::{Array, BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};
use ::aes::{Aes128, Aes192, Aes256};

use super::Block;

/// A key of the `aes` crate, which zeroizes it.
#[derive(Clone)]
pub(super) enum CrateKey {
    Aes128(Box<Aes128>),
    Aes192(Box<Aes192>),
    Aes256(Box<Aes256>),
}

impl CrateKey {
    /// Expands a key; `None` if the crate would use portable code too, or if AES has no keys of this length.
    pub(super) fn new(key: &[u8]) -> Option<Self> {
        if !::aes::hardware_accelerated() {
            return None;
        }
        Some(match key.len() {
            16 => CrateKey::Aes128(Box::new(Aes128::new_from_slice(key).ok()?)),
            24 => CrateKey::Aes192(Box::new(Aes192::new_from_slice(key).ok()?)),
            32 => CrateKey::Aes256(Box::new(Aes256::new_from_slice(key).ok()?)),
            _ => return None,
        })
    }

    pub(super) fn encrypt_blocks(&self, blocks: &mut [Block]) {
        let blocks = Array::cast_slice_from_core_mut(blocks);
        match self {
            CrateKey::Aes128(key) => key.encrypt_blocks(blocks),
            CrateKey::Aes192(key) => key.encrypt_blocks(blocks),
            CrateKey::Aes256(key) => key.encrypt_blocks(blocks),
        }
    }

    pub(super) fn decrypt_blocks(&self, blocks: &mut [Block]) {
        let blocks = Array::cast_slice_from_core_mut(blocks);
        match self {
            CrateKey::Aes128(key) => key.decrypt_blocks(blocks),
            CrateKey::Aes192(key) => key.decrypt_blocks(blocks),
            CrateKey::Aes256(key) => key.decrypt_blocks(blocks),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Platform;
    use crate::aes::AesKey;

    /// Matches the portable code for each key length, with block counts around the batch size of both.
    #[test]
    fn agrees_with_portable() {
        for key_length in [16, 24, 32] {
            let key: alloc::vec::Vec<u8> = (0..key_length).map(|i| i * 7 + 5).collect();
            let Some(theirs) = CrateKey::new(&key) else {
                std::println!("this CPU has no AES instructions that the aes crate knows");
                return;
            };
            let ours = AesKey::new(&key, Platform::Portable);
            for count in [0, 1, 7, 8, 9, 63, 64, 65] {
                let mut a: alloc::vec::Vec<Block> = (0..count).map(|i| [i as u8 ^ key_length; 16]).collect();
                let (plain, mut b) = (a.clone(), a.clone());
                theirs.encrypt_blocks(&mut a);
                ours.encrypt_blocks(&mut b);
                assert_eq!(a, b, "{count} blocks, key of {key_length}");
                theirs.decrypt_blocks(&mut a);
                assert_eq!(a, plain, "{count} blocks, key of {key_length}");
            }
        }
    }
}
