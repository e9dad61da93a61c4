//! Speck128/256 (Beaulieu and others, "The Simon and Speck Families of Lightweight Block Ciphers", 2013), historical:
//! what fscrypt offered as modes 7 and 8 in Linux 4.18 and 4.19 and then removed, and what its queue policy was
//! measured with. Those mode numbers mean SM4 since Linux 5.19. For old images and experiments only.
//!
//! Byte order as in Linux: words are little-endian, the first word of a block is `y`, the first word of a key is the
//! first round key.

#[cfg(all(target_arch = "x86_64", not(postread_portable)))]
mod avx2;
#[cfg(all(target_arch = "x86_64", not(postread_portable)))]
mod avx512;
mod portable;

use alloc::boxed::Box;

use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::Platform;
use crate::modes::{Block, BlockCipher, CbcCts, Sealed, Xts};

/// Speck128/256-XTS: keys of 64 bytes. fscrypt's former mode 7.
pub type SpeckXts = Xts<Speck128_256>;
/// Speck128/256-CBC-CTS: keys of 32 bytes. fscrypt's former mode 8.
pub type SpeckCbcCts = CbcCts<Speck128_256>;

const ROUNDS: usize = 34;

/// An expanded Speck128/256 key for one CPU level. Zeroized when dropped; nothing prints it.
#[allow(non_camel_case_types)]
pub struct Speck128_256 {
    keys: Box<RoundKeys>,
    level: Level,
    platform: Platform,
}

/// Boxed so that moving a key does not leave a copy of it.
#[derive(Zeroize, ZeroizeOnDrop)]
struct RoundKeys([u64; ROUNDS]);

#[derive(Clone, Copy)]
enum Level {
    Portable,
    #[cfg(all(target_arch = "x86_64", not(postread_portable)))]
    Avx2(avx2::Token),
    #[cfg(all(target_arch = "x86_64", not(postread_portable)))]
    Avx512(avx512::Token),
}

impl Level {
    fn best(platform: Platform) -> Self {
        #[cfg(all(target_arch = "x86_64", not(postread_portable)))]
        {
            if let Some(token) = avx512::Token::new(platform) {
                return Level::Avx512(token);
            }
            if let Some(token) = avx2::Token::new(platform) {
                return Level::Avx2(token);
            }
        }
        let _ = platform;
        Level::Portable
    }
}

impl Sealed for Speck128_256 {
    fn encrypt_blocks(&self, blocks: &mut [Block]) {
        let RoundKeys(keys) = &*self.keys;
        let rest = match self.level {
            Level::Portable => blocks,
            #[cfg(all(target_arch = "x86_64", not(postread_portable)))]
            Level::Avx2(token) => avx2::encrypt(token, keys, blocks),
            #[cfg(all(target_arch = "x86_64", not(postread_portable)))]
            Level::Avx512(token) => avx512::encrypt(token, keys, blocks),
        };
        portable::encrypt(keys, rest);
    }

    fn decrypt_blocks(&self, blocks: &mut [Block]) {
        let RoundKeys(keys) = &*self.keys;
        let rest = match self.level {
            Level::Portable => blocks,
            #[cfg(all(target_arch = "x86_64", not(postread_portable)))]
            Level::Avx2(token) => avx2::decrypt(token, keys, blocks),
            #[cfg(all(target_arch = "x86_64", not(postread_portable)))]
            Level::Avx512(token) => avx512::decrypt(token, keys, blocks),
        };
        portable::decrypt(keys, rest);
    }

    fn new(key: &[u8], platform: Platform) -> Self {
        let mut keys = Box::new(RoundKeys([0; ROUNDS]));
        let word = |i: usize| u64::from_le_bytes(core::array::from_fn(|byte| key[8 * i + byte]));
        let (mut k, mut l) = (word(0), [word(1), word(2), word(3)]);
        for (i, slot) in keys.0.iter_mut().enumerate() {
            *slot = k;
            let l = &mut l[i % 3];
            portable::round(l, &mut k, i as u64);
        }
        k.zeroize();
        l.zeroize();
        Self { keys, level: Level::best(platform), platform }
    }

    fn platform(&self) -> Platform {
        self.platform
    }
}

impl BlockCipher for Speck128_256 {
    const NAME: &'static str = "Speck128/256";
    const KEY_LENGTHS: &'static [usize] = &[32];
    const XTS_KEY_LENGTHS: &'static [usize] = &[64];
}

impl core::fmt::Debug for Speck128_256 {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Speck128_256").field("platform", &self.platform).finish_non_exhaustive()
    }
}
