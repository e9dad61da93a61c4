//! Contents of regular files, a run of data units at a time.

use std::fmt;

use postread_blockcrypt::Platform;
use postread_blockcrypt::adiantum::{Adiantum, Stream};
use postread_blockcrypt::essiv::AesCbcEssiv;
use postread_blockcrypt::sm4::Sm4Xts;
use postread_blockcrypt::xts::AesXts;

use crate::iv::IvBase;
use crate::wiped::wiping;
use crate::{Context, DataError, KeyError, MasterKey, Mode};

/// The facts about an inode that go into keys and IVs.
#[derive(Clone, Copy, Debug)]
pub struct InodeFacts {
    /// Inode number.
    pub ino: u64,
    /// The file system's UUID.
    pub fs_uuid: [u8; 16],
    /// Bytes of a file system block.
    pub block_size: usize,
}

enum Cipher {
    AesXts(AesXts),
    AesCbcEssiv(AesCbcEssiv),
    Sm4Xts(Sm4Xts),
    Adiantum(Adiantum),
}

/// The key of a regular file's contents.
pub struct ContentsKey {
    /// In a box, as moving it would leave a copy.
    cipher: Box<Cipher>,
    iv: IvBase,
    unit_size: usize,
}

/// A refusal of the cipher. The length is the mode's, so that equal halves of an XTS key are all that is left.
pub(crate) fn cipher_key_error(mode: Mode) -> impl Fn(postread_blockcrypt::KeyError) -> KeyError {
    move |_| KeyError::WeakXts(mode)
}

impl ContentsKey {
    /// Derives the key of a regular file.
    pub fn derive(master: &MasterKey, context: &Context, facts: &InodeFacts) -> Result<ContentsKey, KeyError> {
        Self::derive_with_platform(master, context, facts, Platform::default())
    }

    /// The same, for a CPU level that is given.
    pub fn derive_with_platform(
        master: &MasterKey,
        context: &Context,
        facts: &InodeFacts,
        platform: Platform,
    ) -> Result<ContentsKey, KeyError> {
        let mode = context.policy.contents;
        let key = master.encryption_key(context, &facts.fs_uuid, mode, true)?;
        let cipher = wiping(|| Self::cipher(mode, &key, platform))?;
        let unit_size = context.policy.data_unit_size(facts.block_size);
        if unit_size > facts.block_size {
            return Err(KeyError::DataUnit { unit: unit_size, block: facts.block_size });
        }
        Ok(ContentsKey { cipher, iv: IvBase::new(master, context, facts.ino)?, unit_size })
    }

    fn cipher(mode: Mode, key: &[u8], platform: Platform) -> Result<Box<Cipher>, KeyError> {
        let refused = cipher_key_error(mode);
        Ok(Box::new(match mode {
            Mode::Aes256Xts => Cipher::AesXts(AesXts::with_platform(key, platform).map_err(refused)?),
            Mode::Aes128CbcEssiv => Cipher::AesCbcEssiv(AesCbcEssiv::with_platform(key, platform).map_err(refused)?),
            Mode::Sm4Xts => Cipher::Sm4Xts(Sm4Xts::with_platform(key, platform).map_err(refused)?),
            Mode::Adiantum => {
                Cipher::Adiantum(Adiantum::with_platform(Stream::XChaCha12, key, platform).map_err(refused)?)
            }
            // A parsed context pairs no other mode with contents; one built by hand may.
            Mode::Aes256Cts | Mode::Aes128Cts | Mode::Sm4Cts | Mode::Aes256Hctr2 => {
                return Err(KeyError::NotForContents(mode));
            }
        }))
    }

    /// Bytes of a data unit: what is decrypted starts and ends at multiples of it.
    pub fn data_unit_size(&self) -> usize {
        self.unit_size
    }

    /// Decrypts whole data units in place; `first_unit` is the index of the first: its byte offset in the file divided
    /// by the unit's size. Metadata past the end of the file, such as fs-verity's, continues the count.
    pub fn decrypt(&self, data: &mut [u8], first_unit: u64) -> Result<(), DataError> {
        self.check(data.len(), first_unit)?;
        let (unit, iv) = (self.unit_size, &self.iv);
        let done = match &*self.cipher {
            Cipher::AesXts(cipher) => cipher.decrypt_units_with(data, unit, |i| iv.short(first_unit + i)),
            Cipher::AesCbcEssiv(cipher) => cipher.decrypt_units_with(data, unit, |i| iv.short(first_unit + i)),
            Cipher::Sm4Xts(cipher) => cipher.decrypt_units_with(data, unit, |i| iv.short(first_unit + i)),
            Cipher::Adiantum(cipher) => cipher.decrypt_units_with(data, unit, |i| iv.long(first_unit + i)),
        };
        done.map_err(|_| DataError::Unaligned { length: data.len(), unit })
    }

    /// Encrypts whole data units in place; see [`ContentsKey::decrypt`].
    pub fn encrypt(&self, data: &mut [u8], first_unit: u64) -> Result<(), DataError> {
        self.check(data.len(), first_unit)?;
        let (unit, iv) = (self.unit_size, &self.iv);
        let done = match &*self.cipher {
            Cipher::AesXts(cipher) => cipher.encrypt_units_with(data, unit, |i| iv.short(first_unit + i)),
            Cipher::AesCbcEssiv(cipher) => cipher.encrypt_units_with(data, unit, |i| iv.short(first_unit + i)),
            Cipher::Sm4Xts(cipher) => cipher.encrypt_units_with(data, unit, |i| iv.short(first_unit + i)),
            Cipher::Adiantum(cipher) => cipher.encrypt_units_with(data, unit, |i| iv.long(first_unit + i)),
        };
        done.map_err(|_| DataError::Unaligned { length: data.len(), unit })
    }

    fn check(&self, length: usize, first_unit: u64) -> Result<(), DataError> {
        if !length.is_multiple_of(self.unit_size) {
            return Err(DataError::Unaligned { length, unit: self.unit_size });
        }
        self.iv.check(first_unit, (length / self.unit_size) as u64)
    }
}

impl fmt::Debug for ContentsKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ContentsKey").field("unit_size", &self.unit_size).finish_non_exhaustive()
    }
}
