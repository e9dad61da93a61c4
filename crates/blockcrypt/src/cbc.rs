//! AES-CBC (NIST SP 800-38A) over runs of data units, each with its own IV.

use core::fmt;

use crate::Platform;
use crate::aes::{self, AesKey, Block};
use crate::error::{KeyError, LengthError, check_key_length};
use crate::units::{check_units, data_unit_methods, for_each_batch, le64};

/// AES-128, AES-192 or AES-256 in CBC mode, by the length of the key. Zeroized when dropped.
///
/// Decryption is parallel. Encryption within a unit cannot be; several units of a run are encrypted side by side.
#[derive(Clone)]
pub struct AesCbc {
    pub(crate) key: AesKey,
    platform: Platform,
}

/// Blocks of chain copied at a time, to be XORed with the data.
const CHAIN: usize = 64;

impl AesCbc {
    /// Key lengths in bytes.
    pub const KEY_LENGTHS: &'static [usize] = aes::KEY_LENGTHS;

    /// A key for the default CPU level.
    ///
    /// # Errors
    ///
    /// [`KeyError::Length`] where it is not 16, 24 or 32 bytes.
    pub fn new(key: &[u8]) -> Result<Self, KeyError> {
        Self::with_platform(key, Platform::default())
    }

    /// A key for a given CPU level.
    ///
    /// # Errors
    ///
    /// As [`AesCbc::new`].
    pub fn with_platform(key: &[u8], platform: Platform) -> Result<Self, KeyError> {
        check_key_length(key, Self::KEY_LENGTHS)?;
        let platform = platform.or_detected();
        Ok(Self { key: AesKey::new(key, platform), platform })
    }

    data_unit_methods!(
        "AesCbc",
        [u8; 16],
        le64,
        "The IV of a unit is its index as a little-endian 64-bit number (`plain64`)",
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
            if ENCRYPT {
                self.encrypt_batch(units, unit_size, ivs);
            } else {
                self.decrypt_batch(units, unit_size, ivs);
            }
        });
        Ok(())
    }

    /// Encrypts as many units as there are IVs.
    pub(crate) fn encrypt_batch(&self, units: &mut [u8], unit_size: usize, ivs: &mut [Block]) {
        self.key.cbc_encrypt(units, unit_size, ivs);
    }

    /// Decrypts as many units as there are IVs.
    pub(crate) fn decrypt_batch(&self, units: &mut [u8], unit_size: usize, ivs: &[Block]) {
        if self.key.cbc_decrypt_units(units, unit_size, ivs) {
            return;
        }
        let unit_blocks = unit_size / 16;
        let mut chain = [[0; 16]; CHAIN];
        let mut next_iv = ivs.iter();
        let (mut previous, mut left_in_unit) = ([0; 16], 0);
        for blocks in units.as_chunks_mut::<16>().0.chunks_mut(CHAIN) {
            for (link, block) in chain.iter_mut().zip(&*blocks) {
                if left_in_unit == 0 {
                    (previous, left_in_unit) = (*next_iv.next().expect("one IV per unit"), unit_blocks);
                }
                *link = previous;
                previous = *block;
                left_in_unit -= 1;
            }
            self.key.decrypt_xor(blocks, &chain[..blocks.len()]);
        }
    }
}

impl fmt::Debug for AesCbc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AesCbc").field("platform", &self.platform).finish_non_exhaustive()
    }
}
