//! XTS and CBC-CTS over the other 128-bit block ciphers: SM4 and Speck128/256. (AES has kernels of its own, which do
//! the mode's XORs while a block is in a register.)

use core::fmt;

use crate::Platform;
use crate::error::{KeyError, LengthError, check_key_length};
use crate::units::{check_units, data_unit_methods, for_each_batch, le64};
use crate::xts::{split_key, with_tweaks};

/// A block of the ciphers.
pub(crate) type Block = [u8; 16];

mod sealed {
    /// The modes accept only ciphers of this crate.
    #[allow(unnameable_types)]
    pub trait Sealed {
        /// Encrypts each block by itself; every level accepts any number of blocks.
        fn encrypt_blocks(&self, blocks: &mut [super::Block]);
        /// Decrypts each block by itself.
        fn decrypt_blocks(&self, blocks: &mut [super::Block]);
        /// A key for a CPU level, of a length that has been checked.
        fn new(key: &[u8], platform: super::Platform) -> Self;
        /// The CPU level that the key was made for.
        fn platform(&self) -> super::Platform;
    }
}
pub(crate) use sealed::Sealed;

/// A block cipher of this crate that [`Xts`] and [`CbcCts`] run on.
pub trait BlockCipher: Sealed {
    /// Its name.
    const NAME: &'static str;
    /// Key lengths in bytes.
    const KEY_LENGTHS: &'static [usize];
    /// Key lengths in bytes of its XTS: twice those.
    const XTS_KEY_LENGTHS: &'static [usize];
}

/// XTS (IEEE 1619-2018) over runs of data units.
///
/// Units are 16 to 65536 bytes, multiples of 16: no ciphertext stealing, which no file system or block device uses.
pub struct Xts<C: BlockCipher> {
    data: C,
    tweak: C,
}

impl<C: BlockCipher> Xts<C> {
    /// A key for the default CPU level: the key of the data, then the key of the tweaks.
    ///
    /// # Errors
    ///
    /// [`KeyError::Length`] where it is not one of the cipher's `XTS_KEY_LENGTHS`, [`KeyError::EqualHalves`] where its
    /// halves are equal.
    pub fn new(key: &[u8]) -> Result<Self, KeyError> {
        Self::with_platform(key, Platform::default())
    }

    /// A key for a given CPU level.
    ///
    /// # Errors
    ///
    /// As [`Xts::new`].
    pub fn with_platform(key: &[u8], platform: Platform) -> Result<Self, KeyError> {
        let (data, tweak) = split_key(key, C::XTS_KEY_LENGTHS)?;
        let platform = platform.or_detected();
        Ok(Self { data: C::new(data, platform), tweak: C::new(tweak, platform) })
    }

    data_unit_methods!(
        "Xts",
        [u8; 16],
        le64,
        "The tweak of a unit is its index as a little-endian number",
        "16 to 65536 in steps of 16"
    );

    fn units<const ENCRYPT: bool>(
        &self,
        data: &mut [u8],
        unit_size: usize,
        iv: impl FnMut(u64) -> [u8; 16],
    ) -> Result<(), LengthError> {
        check_units(data.len(), unit_size, 16, 16)?;
        for_each_batch(data, unit_size, iv, |ivs, units| {
            self.tweak.encrypt_blocks(ivs);
            with_tweaks(units, unit_size, ivs, |blocks, tweaks| {
                xor(blocks, tweaks);
                if ENCRYPT {
                    self.data.encrypt_blocks(blocks)
                } else {
                    self.data.decrypt_blocks(blocks)
                }
                xor(blocks, tweaks);
            });
        });
        Ok(())
    }
}

impl<C: BlockCipher> fmt::Debug for Xts<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Xts").field("cipher", &C::NAME).field("platform", &self.data.platform()).finish_non_exhaustive()
    }
}

/// CBC with ciphertext stealing as the kernel's `cts` template does it: the last two blocks are always swapped when
/// the message is longer than a block (CBC-CS3 of the addendum to NIST SP 800-38A). A message of one block is plain
/// CBC.
pub struct CbcCts<C: BlockCipher> {
    cipher: C,
}

/// Blocks that are decrypted together.
const CHAIN: usize = 32;

impl<C: BlockCipher> CbcCts<C> {
    /// A key for the default CPU level.
    ///
    /// # Errors
    ///
    /// [`KeyError::Length`] where it is not one of the cipher's `KEY_LENGTHS`.
    pub fn new(key: &[u8]) -> Result<Self, KeyError> {
        Self::with_platform(key, Platform::default())
    }

    /// A key for a given CPU level.
    ///
    /// # Errors
    ///
    /// As [`CbcCts::new`].
    pub fn with_platform(key: &[u8], platform: Platform) -> Result<Self, KeyError> {
        check_key_length(key, C::KEY_LENGTHS)?;
        Ok(Self { cipher: C::new(key, platform.or_detected()) })
    }

    /// Encrypts a message of at least 16 bytes in place.
    ///
    /// # Errors
    ///
    /// [`LengthError::TooShort`] below 16 bytes.
    pub fn encrypt(&self, iv: &[u8; 16], message: &mut [u8]) -> Result<(), LengthError> {
        let (head, tail) = split(message)?;
        let mut chain = *iv;
        for block in head.iter_mut() {
            xor_bytes(&mut chain, block);
            self.cipher.encrypt_blocks(core::slice::from_mut(&mut chain));
            *block = chain;
        }
        if !tail.is_empty() {
            let before = head.last_mut().expect("at least one block");
            xor_bytes(&mut chain, tail);
            self.cipher.encrypt_blocks(core::slice::from_mut(&mut chain));
            tail.copy_from_slice(&before[..tail.len()]);
            *before = chain;
        }
        Ok(())
    }

    /// Decrypts a message of at least 16 bytes in place.
    ///
    /// # Errors
    ///
    /// [`LengthError::TooShort`] below 16 bytes.
    pub fn decrypt(&self, iv: &[u8; 16], message: &mut [u8]) -> Result<(), LengthError> {
        let (head, tail) = split(message)?;
        if !tail.is_empty() {
            // The block before the tail was encrypted last: it holds the tail, XORed with the block that the tail's
            // ciphertext is the start of, and the rest of that block.
            let before = head.last_mut().expect("at least one block");
            let mut last = *before;
            self.cipher.decrypt_blocks(core::slice::from_mut(&mut last));
            let (start, rest) = before.split_at_mut(tail.len());
            rest.copy_from_slice(&last[tail.len()..]);
            start.copy_from_slice(tail);
            for ((plain, chained), cipher) in tail.iter_mut().zip(&last).zip(&*before) {
                *plain = chained ^ cipher;
            }
        }
        let mut before = *iv;
        for blocks in head.chunks_mut(CHAIN) {
            let mut masks = [[0; 16]; CHAIN];
            let masks = &mut masks[..blocks.len()];
            masks[0] = before;
            masks[1..].copy_from_slice(&blocks[..blocks.len() - 1]);
            before = blocks[blocks.len() - 1];
            self.cipher.decrypt_blocks(blocks);
            xor(blocks, masks);
        }
        Ok(())
    }
}

impl<C: BlockCipher> fmt::Debug for CbcCts<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CbcCts")
            .field("cipher", &C::NAME)
            .field("platform", &self.cipher.platform())
            .finish_non_exhaustive()
    }
}

/// The whole blocks before the last block or piece of one, and that one; all of a message of one block.
fn split(message: &mut [u8]) -> Result<(&mut [Block], &mut [u8]), LengthError> {
    let head = match message.len() {
        len @ 0..16 => return Err(LengthError::TooShort { len, min: 16 }),
        16 => 16,
        len => (len - 1) / 16 * 16,
    };
    let (head, tail) = message.split_at_mut(head);
    Ok((head.as_chunks_mut().0, tail))
}

fn xor(blocks: &mut [Block], masks: &[Block]) {
    for (block, mask) in blocks.iter_mut().zip(masks) {
        *block = (u128::from_ne_bytes(*block) ^ u128::from_ne_bytes(*mask)).to_ne_bytes();
    }
}

/// XORs as many bytes as `other` has.
fn xor_bytes(block: &mut Block, other: &[u8]) {
    for (a, b) in block.iter_mut().zip(other) {
        *a ^= b;
    }
}
