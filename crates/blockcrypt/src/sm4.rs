//! SM4 (GB/T 32907-2016), for fscrypt's modes 7 and 8 since Linux 5.19: XTS as in IEEE 1619 (not the bit order of GB/T
//! 17964), and CBC-CTS.
//!
//! No level indexes memory with a secret: the S-box is a circuit over bit slices in the portable code, and register
//! instructions at the other levels.

#[cfg(all(target_arch = "x86_64", not(postread_portable)))]
mod aesni;
#[cfg(all(target_arch = "x86_64", not(postread_portable)))]
mod gfni;
mod portable;

use alloc::boxed::Box;

use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::Platform;
use crate::modes::{Block, BlockCipher, CbcCts, Sealed, Xts};

/// SM4-XTS: keys of 32 bytes. fscrypt's mode 7.
pub type Sm4Xts = Xts<Sm4>;
/// SM4-CBC-CTS: keys of 16 bytes. fscrypt's mode 8.
pub type Sm4CbcCts = CbcCts<Sm4>;

const ROUNDS: usize = 32;

/// An expanded SM4 key for one CPU level. Zeroized when dropped; nothing prints it.
pub struct Sm4 {
    keys: Box<RoundKeys>,
    level: Level,
    platform: Platform,
}

/// Boxed so that moving a key does not leave a copy of it.
#[derive(Zeroize, ZeroizeOnDrop)]
struct RoundKeys {
    encrypt: [u32; ROUNDS],
    decrypt: [u32; ROUNDS],
}

#[derive(Clone, Copy)]
enum Level {
    Portable,
    #[cfg(all(target_arch = "x86_64", not(postread_portable)))]
    AesNi(aesni::Token),
    #[cfg(all(target_arch = "x86_64", not(postread_portable)))]
    Gfni(gfni::Token),
}

impl Level {
    fn best(platform: Platform) -> Self {
        #[cfg(all(target_arch = "x86_64", not(postread_portable)))]
        {
            if let Some(token) = gfni::Token::new(platform) {
                return Level::Gfni(token);
            }
            if let Some(token) = aesni::Token::new(platform) {
                return Level::AesNi(token);
            }
        }
        let _ = platform;
        Level::Portable
    }

    fn crypt(self, keys: &[u32; ROUNDS], blocks: &mut [Block]) {
        match self {
            Level::Portable => portable::crypt(keys, blocks),
            #[cfg(all(target_arch = "x86_64", not(postread_portable)))]
            Level::AesNi(token) => aesni::crypt(token, keys, blocks),
            #[cfg(all(target_arch = "x86_64", not(postread_portable)))]
            Level::Gfni(token) => gfni::crypt(token, keys, blocks),
        }
    }
}

impl Sealed for Sm4 {
    fn encrypt_blocks(&self, blocks: &mut [Block]) {
        self.level.crypt(&self.keys.encrypt, blocks);
    }

    /// Decryption is encryption with the round keys in reverse.
    fn decrypt_blocks(&self, blocks: &mut [Block]) {
        self.level.crypt(&self.keys.decrypt, blocks);
    }

    fn new(key: &[u8], platform: Platform) -> Self {
        let mut keys = Box::new(RoundKeys { encrypt: [0; ROUNDS], decrypt: [0; ROUNDS] });
        expand(key, &mut keys);
        Self { keys, level: Level::best(platform), platform }
    }

    fn platform(&self) -> Platform {
        self.platform
    }
}

impl BlockCipher for Sm4 {
    const NAME: &'static str = "SM4";
    const KEY_LENGTHS: &'static [usize] = &[16];
    const XTS_KEY_LENGTHS: &'static [usize] = &[32];
}

impl core::fmt::Debug for Sm4 {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Sm4").field("platform", &self.platform).finish_non_exhaustive()
    }
}

/// The key schedule: GB/T 32907-2016, 7.3.
fn expand(key: &[u8], keys: &mut RoundKeys) {
    const FK: [u32; 4] = [0xa3b1_bac6, 0x56aa_3350, 0x677d_9197, 0xb270_22dc];
    let mut k: [u32; 4] = core::array::from_fn(|i| {
        u32::from_be_bytes([key[4 * i], key[4 * i + 1], key[4 * i + 2], key[4 * i + 3]]) ^ FK[i]
    });
    for round in 0..ROUNDS {
        // Byte j of the constant CK of round i is 7 (4 i + j) modulo 256.
        let ck = u32::from_be_bytes(core::array::from_fn(|j| (7 * (4 * round + j)) as u8));
        let t = portable::sub_word(k[1] ^ k[2] ^ k[3] ^ ck);
        let next = k[0] ^ t ^ t.rotate_left(13) ^ t.rotate_left(23);
        keys.encrypt[round] = next;
        keys.decrypt[ROUNDS - 1 - round] = next;
        k = [k[1], k[2], k[3], next];
    }
    k.zeroize();
}
