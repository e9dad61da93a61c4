//! AES-CBC with encrypted IVs: `aes-cbc-essiv:sha256` of dm-crypt and AES-128-CBC-ESSIV of fscrypt.
//!
//! The IV of a unit is its index, as a little-endian 64-bit number padded to a block, encrypted with AES-256 under the
//! SHA-256 of the key (Linux, Documentation/admin-guide/device-mapper/dm-crypt.rst and filesystems/fscrypt.rst).

use core::fmt;

use sha2::{Digest, Sha256};
use zeroize::Zeroize;

use crate::Platform;
use crate::aes::AesKey;
use crate::cbc::AesCbc;
use crate::error::{KeyError, LengthError};
use crate::units::{check_units, data_unit_methods, for_each_batch, le64};

/// AES-CBC-ESSIV with SHA-256. Zeroized when dropped.
#[derive(Clone)]
pub struct AesCbcEssiv {
    cbc: AesCbc,
    iv: AesKey,
    platform: Platform,
}

impl AesCbcEssiv {
    /// Key lengths in bytes. fscrypt's mode has 16.
    pub const KEY_LENGTHS: &'static [usize] = AesCbc::KEY_LENGTHS;

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
    /// As [`AesCbcEssiv::new`].
    pub fn with_platform(key: &[u8], platform: Platform) -> Result<Self, KeyError> {
        let platform = platform.or_detected();
        let cbc = AesCbc::with_platform(key, platform)?;
        let mut salt: [u8; 32] = Sha256::digest(key).into();
        let iv = AesKey::new(&salt, platform);
        salt.zeroize();
        Ok(Self { cbc, iv, platform })
    }

    data_unit_methods!(
        "AesCbcEssiv",
        [u8; 16],
        le64,
        "The IV of a unit is its encrypted index",
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
            self.iv.encrypt_blocks(ivs);
            if ENCRYPT {
                self.cbc.encrypt_batch(units, unit_size, ivs);
            } else {
                self.cbc.decrypt_batch(units, unit_size, ivs);
            }
        });
        Ok(())
    }
}

impl fmt::Debug for AesCbcEssiv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AesCbcEssiv").field("platform", &self.platform).finish_non_exhaustive()
    }
}
