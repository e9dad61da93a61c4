//! AES over many blocks at once: the kernels that the modes of operation use, one file per CPU level.
//!
//! A mode describes its work to a level as one pass over blocks and the same number of *masks* (tweaks, chained
//! ciphertext, counters), so that XORs happen while a block is in a register. Every level accepts any number of blocks.

#[cfg(all(target_arch = "x86_64", not(postread_portable)))]
mod aesni;
mod portable;
#[cfg(any(not(all(target_arch = "x86_64", not(postread_portable))), test))]
mod rustcrypto;
#[cfg(all(target_arch = "x86_64", not(postread_portable)))]
mod vaes256;
#[cfg(all(target_arch = "x86_64", not(postread_portable)))]
mod vaes512;
#[cfg(all(target_arch = "x86_64", not(postread_portable)))]
mod vector;
#[cfg(all(target_arch = "x86_64", not(postread_portable)))]
mod x86;

use alloc::boxed::Box;

use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::Platform;
use portable::SlicedKeys;

/// One block of the cipher.
pub(crate) type Block = [u8; 16];

/// CBC encryptions that run side by side.
const CHAINS: usize = 8;

/// Key lengths of AES in bytes.
pub(crate) const KEY_LENGTHS: &[usize] = &[16, 24, 32];

/// The rounds of AES-256.
const MAX_ROUNDS: usize = 14;

/// An expanded AES key for one CPU level. Zeroized when dropped; nothing prints it.
#[derive(Clone)]
pub(crate) struct AesKey {
    keys: Keys,
}

/// The round keys are boxed so that moving a key does not leave a copy of it.
#[derive(Clone)]
enum Keys {
    Portable(Box<SlicedKeys>),
    #[cfg(all(target_arch = "x86_64", not(postread_portable)))]
    X86(x86::X86Key),
    /// The `aes` crate's instructions, which no level turns off: [`Platform::Portable`] is the only level there.
    #[cfg(not(all(target_arch = "x86_64", not(postread_portable))))]
    Crate(rustcrypto::CrateKey),
}

/// Calls a method of the x86-64 key; elsewhere does the same in steps over all blocks.
macro_rules! dispatch {
    ($self:ident, $method:ident $(::<$generic:tt>)? ($($argument:expr),*), $otherwise:expr) => {
        match &$self.keys {
            #[cfg(all(target_arch = "x86_64", not(postread_portable)))]
            Keys::X86(key) => key.$method $(::<$generic>)? ($($argument),*),
            _ => $otherwise,
        }
    };
}

impl AesKey {
    /// Expands a key of 16, 24 or 32 bytes.
    ///
    /// # Panics
    ///
    /// On any other length, which the modes have already refused.
    pub(crate) fn new(key: &[u8], platform: Platform) -> Self {
        #[cfg(all(target_arch = "x86_64", not(postread_portable)))]
        if let Some(key) = x86::X86Key::new(key, platform) {
            return AesKey { keys: Keys::X86(key) };
        }
        #[cfg(not(all(target_arch = "x86_64", not(postread_portable))))]
        if let Some(key) = rustcrypto::CrateKey::new(key) {
            return AesKey { keys: Keys::Crate(key) };
        }
        let _ = platform;
        let mut schedule = Schedule::new();
        schedule.expand(key, portable::sub_word);
        AesKey { keys: Keys::Portable(SlicedKeys::new(schedule.encryption())) }
    }

    /// Encrypts each block by itself.
    pub(crate) fn encrypt_blocks(&self, blocks: &mut [Block]) {
        match &self.keys {
            Keys::Portable(keys) => blocks.chunks_mut(portable::BATCH).for_each(|batch| keys.encrypt(batch)),
            #[cfg(all(target_arch = "x86_64", not(postread_portable)))]
            Keys::X86(key) => key.encrypt_blocks(blocks),
            #[cfg(not(all(target_arch = "x86_64", not(postread_portable))))]
            Keys::Crate(key) => key.encrypt_blocks(blocks),
        }
    }

    /// Decrypts each block by itself.
    pub(crate) fn decrypt_blocks(&self, blocks: &mut [Block]) {
        match &self.keys {
            Keys::Portable(keys) => blocks.chunks_mut(portable::BATCH).for_each(|batch| keys.decrypt(batch)),
            #[cfg(all(target_arch = "x86_64", not(postread_portable)))]
            Keys::X86(key) => key.decrypt_blocks(blocks),
            #[cfg(not(all(target_arch = "x86_64", not(postread_portable))))]
            Keys::Crate(key) => key.decrypt_blocks(blocks),
        }
    }

    /// Encrypts one block.
    pub(crate) fn encrypt_block(&self, block: &mut Block) {
        self.encrypt_blocks(core::slice::from_mut(block));
    }

    /// Decrypts one block.
    pub(crate) fn decrypt_block(&self, block: &mut Block) {
        self.decrypt_blocks(core::slice::from_mut(block));
    }

    /// `E(block ^ mask) ^ mask`: the body of XTS.
    pub(crate) fn xex_encrypt(&self, blocks: &mut [Block], masks: &[Block]) {
        dispatch!(self, xex_encrypt(blocks, masks), {
            xor(blocks, masks);
            self.encrypt_blocks(blocks);
            xor(blocks, masks);
        });
    }

    /// `D(block ^ mask) ^ mask`.
    pub(crate) fn xex_decrypt(&self, blocks: &mut [Block], masks: &[Block]) {
        dispatch!(self, xex_decrypt(blocks, masks), {
            xor(blocks, masks);
            self.decrypt_blocks(blocks);
            xor(blocks, masks);
        });
    }

    /// `D(block) ^ mask`: the decryption of CBC, the masks being the chain.
    pub(crate) fn decrypt_xor(&self, blocks: &mut [Block], masks: &[Block]) {
        dispatch!(self, decrypt_xor(blocks, masks), {
            self.decrypt_blocks(blocks);
            xor(blocks, masks);
        });
    }

    /// `block ^ E(counter)`. The counters are unspecified afterwards.
    pub(crate) fn xor_key_stream(&self, blocks: &mut [Block], counters: &mut [Block]) {
        dispatch!(self, xor_key_stream(blocks, counters), {
            self.encrypt_blocks(counters);
            xor(blocks, counters);
        });
    }

    /// XTS with the tweaks computed in registers, one unit for each of the encrypted IVs. Returns `false` and does
    /// nothing if the level has no such code for the size: then use [`AesKey::xex_encrypt`] or `xex_decrypt`.
    pub(crate) fn xts_units<const ENCRYPT: bool>(&self, units: &mut [u8], unit_size: usize, tweaks: &[Block]) -> bool {
        dispatch!(self, xts_units::<ENCRYPT>(units, unit_size, tweaks), {
            let _ = (units, unit_size, tweaks);
            false
        })
    }

    /// CBC decryption with the chain read from the data itself, one unit for each IV. Returns `false` and does nothing
    /// if the level has no such code for the size: then use [`AesKey::decrypt_xor`].
    pub(crate) fn cbc_decrypt_units(&self, units: &mut [u8], unit_size: usize, ivs: &[Block]) -> bool {
        dispatch!(self, cbc_decrypt_units(units, unit_size, ivs), {
            let _ = (units, unit_size, ivs);
            false
        })
    }

    /// Encrypts as many chains as there are IVs, each over a unit of `unit_size` bytes, side by side.
    pub(crate) fn cbc_encrypt(&self, units: &mut [u8], unit_size: usize, ivs: &[Block]) {
        for (units, ivs) in units.chunks_mut(CHAINS * unit_size).zip(ivs.chunks(CHAINS)) {
            let mut chains = [[0; 16]; CHAINS];
            let chains = &mut chains[..ivs.len()];
            chains.copy_from_slice(ivs);
            for block in (0..unit_size).step_by(16) {
                for (chain, unit) in chains.iter_mut().zip(units.chunks(unit_size)) {
                    for (a, b) in chain.iter_mut().zip(&unit[block..]) {
                        *a ^= b;
                    }
                }
                self.encrypt_blocks(chains);
                for (chain, unit) in chains.iter().zip(units.chunks_mut(unit_size)) {
                    unit[block..block + 16].copy_from_slice(chain);
                }
            }
        }
    }
}

fn xor(blocks: &mut [Block], masks: &[Block]) {
    debug_assert_eq!(blocks.len(), masks.len());
    for (block, mask) in blocks.iter_mut().zip(masks) {
        *block = (u128::from_ne_bytes(*block) ^ u128::from_ne_bytes(*mask)).to_ne_bytes();
    }
}

/// The key schedule of FIPS 197, 5.2.
#[derive(Zeroize, ZeroizeOnDrop)]
struct Schedule {
    keys: [Block; MAX_ROUNDS + 1],
    rounds: usize,
}

impl Schedule {
    const fn new() -> Self {
        Schedule { keys: [[0; 16]; MAX_ROUNDS + 1], rounds: 0 }
    }

    /// Fills the schedule from a key; `sub_word` is the S-box on four bytes.
    fn expand(&mut self, key: &[u8], sub_word: impl Fn(u32) -> u32) {
        let key_words = key.len() / 4;
        self.rounds = match key.len() {
            16 | 24 | 32 => key_words + 6,
            other => panic!("an AES key of {other} bytes"),
        };
        let words = self.keys.as_flattened_mut().as_chunks_mut::<4>().0;
        words.as_flattened_mut()[..key.len()].copy_from_slice(key);
        let mut round_constant = 1u8;
        let mut last = u32::from_le_bytes(words[key_words - 1]);
        for i in key_words..4 * (self.rounds + 1) {
            if i % key_words == 0 {
                last = sub_word(last.rotate_right(8)) ^ u32::from(round_constant);
                round_constant = (round_constant << 1) ^ ((round_constant >> 7) * 0x1b);
            } else if key_words == 8 && i % 8 == 4 {
                last = sub_word(last);
            }
            last ^= u32::from_le_bytes(words[i - key_words]);
            words[i] = last.to_le_bytes();
        }
    }

    /// The round keys of the cipher, in order.
    fn encryption(&self) -> &[Block] {
        &self.keys[..=self.rounds]
    }
}
