//! The IVs of data units: `fscrypt_generate_iv` of `fs/crypto/crypto.c`.

use siphasher::sip::SipHasher24;
use std::hash::Hasher;

use crate::wiped::wiping;
use crate::{Context, DataError, IvScheme, KeyError, MasterKey};

/// The common part of all IVs of one inode.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IvBase {
    /// The IV of index 0; the longest, 32 bytes.
    zero: [u8; 32],
    scheme: IvScheme,
    /// `IV_INO_LBLK_32`: the hashed inode number.
    hashed_ino: u32,
}

impl IvBase {
    pub(crate) fn new(master: &MasterKey, context: &Context, ino: u64) -> Result<IvBase, KeyError> {
        let scheme = context.policy.iv_scheme();
        let mut zero = [0; 32];
        let mut hashed_ino = 0;
        match scheme {
            IvScheme::PerFileKey => {}
            IvScheme::DirectKey => zero[8..24].copy_from_slice(&context.nonce),
            IvScheme::InoLblk64 => {
                let ino = u32::try_from(ino).map_err(|_| KeyError::InodeNumber(ino))?;
                zero[4..8].copy_from_slice(&ino.to_le_bytes());
            }
            IvScheme::InoLblk32 => {
                u32::try_from(ino).map_err(|_| KeyError::InodeNumber(ino))?;
                hashed_ino = wiping(|| {
                    let mut hasher = SipHasher24::new_with_key(&master.inode_hash_key());
                    hasher.write(&ino.to_le_bytes());
                    hasher.finish() as u32
                });
            }
        }
        Ok(IvBase { zero, scheme, hashed_ino })
    }

    /// Whether a run of `units` units from `first` has indexes that the IV can hold.
    pub(crate) fn check(&self, first: u64, units: u64) -> Result<(), DataError> {
        let last = first.checked_add(units.saturating_sub(1)).ok_or(DataError::Index { index: first })?;
        match self.scheme {
            IvScheme::InoLblk64 | IvScheme::InoLblk32 if u32::try_from(last).is_err() => {
                Err(DataError::Index { index: last })
            }
            _ => Ok(()),
        }
    }

    /// The IV of a data unit, padded to 32 bytes.
    pub(crate) fn long(&self, index: u64) -> [u8; 32] {
        let mut iv = self.zero;
        match self.scheme {
            IvScheme::PerFileKey | IvScheme::DirectKey => iv[..8].copy_from_slice(&index.to_le_bytes()),
            IvScheme::InoLblk64 => iv[..4].copy_from_slice(&(index as u32).to_le_bytes()),
            // The sum wraps within 32 bits, also in the middle of a file.
            IvScheme::InoLblk32 => {
                iv[..4].copy_from_slice(&self.hashed_ino.wrapping_add(index as u32).to_le_bytes());
            }
        }
        iv
    }

    /// The IV of a data unit, of a mode with 16 bytes.
    pub(crate) fn short(&self, index: u64) -> [u8; 16] {
        let mut iv = [0; 16];
        iv.copy_from_slice(&self.long(index)[..16]);
        iv
    }
}
