//! File names and symbolic link targets: `fs/crypto/fname.c` and `hooks.c`.

use std::fmt;

use postread_blockcrypt::Platform;
use postread_blockcrypt::adiantum::{Adiantum, Stream};
use postread_blockcrypt::cts::AesCbcCts;
use postread_blockcrypt::hctr2::AesHctr2;
use postread_blockcrypt::sm4::Sm4CbcCts;

use crate::contents::{InodeFacts, cipher_key_error};
use crate::iv::IvBase;
use crate::wiped::wiping;
use crate::{Context, DataError, KeyError, MasterKey, Mode};

/// The longest name, plain or encrypted.
pub const NAME_MAX: usize = 255;
/// The shortest ciphertext: a cipher block.
pub const CIPHERTEXT_MIN: usize = 16;

enum Cipher {
    AesCts(AesCbcCts),
    Sm4Cts(Sm4CbcCts),
    Adiantum(Adiantum),
    AesHctr2(AesHctr2),
}

/// The key of a directory's entries, or of a symbolic link's target.
pub struct NameKey {
    /// In a box, as moving it would leave a copy.
    cipher: Box<Cipher>,
    iv: IvBase,
    padding: usize,
}

impl NameKey {
    /// Derives the key of a directory (for the names in it) or of a symbolic link (for its target).
    pub fn derive(master: &MasterKey, context: &Context, facts: &InodeFacts) -> Result<NameKey, KeyError> {
        Self::derive_with_platform(master, context, facts, Platform::default())
    }

    /// The same, for a CPU level that is given.
    pub fn derive_with_platform(
        master: &MasterKey,
        context: &Context,
        facts: &InodeFacts,
        platform: Platform,
    ) -> Result<NameKey, KeyError> {
        let mode = context.policy.names;
        let key = master.encryption_key(context, &facts.fs_uuid, mode, false)?;
        let cipher = wiping(|| Self::cipher(mode, &key, platform))?;
        Ok(NameKey { cipher, iv: IvBase::new(master, context, facts.ino)?, padding: context.policy.padding() })
    }

    fn cipher(mode: Mode, key: &[u8], platform: Platform) -> Result<Box<Cipher>, KeyError> {
        let refused = cipher_key_error(mode);
        Ok(Box::new(match mode {
            Mode::Aes256Cts | Mode::Aes128Cts => {
                Cipher::AesCts(AesCbcCts::with_platform(key, platform).map_err(refused)?)
            }
            Mode::Sm4Cts => Cipher::Sm4Cts(Sm4CbcCts::with_platform(key, platform).map_err(refused)?),
            Mode::Adiantum => {
                Cipher::Adiantum(Adiantum::with_platform(Stream::XChaCha12, key, platform).map_err(refused)?)
            }
            Mode::Aes256Hctr2 => Cipher::AesHctr2(AesHctr2::with_platform(key, platform).map_err(refused)?),
            Mode::Aes256Xts | Mode::Aes128CbcEssiv | Mode::Sm4Xts => return Err(KeyError::NotForNames(mode)),
        }))
    }

    /// Decrypts a name as a directory entry stores it. `.` and `..` are stored plain: don't pass them.
    ///
    /// A wrong key produces other bytes, since names have no checksum. A name that is not padded with NULs is an error;
    /// for a better check see [`NameEvidence`](crate::NameEvidence).
    pub fn decrypt_name(&self, ciphertext: &[u8]) -> Result<Vec<u8>, DataError> {
        if ciphertext.len() > NAME_MAX {
            return Err(DataError::NameTooLong(ciphertext.len()));
        }
        self.decrypt(ciphertext)
    }

    /// Encrypts a name as a directory entry stores it: padded with NULs to a multiple of the policy's padding, 16
    /// bytes at least and 255 at most.
    pub fn encrypt_name(&self, name: &[u8]) -> Result<Vec<u8>, DataError> {
        if name.len() > NAME_MAX {
            return Err(DataError::NameTooLong(name.len()));
        }
        self.encrypt(name, NAME_MAX)
    }

    /// Decrypts a symbolic link's target from what the inode or its block holds: `struct fscrypt_symlink_data`, a
    /// little-endian 16-bit length and that much ciphertext.
    pub fn decrypt_symlink(&self, stored: &[u8]) -> Result<Vec<u8>, DataError> {
        let ciphertext = symlink_ciphertext(stored)?;
        let target = self.decrypt(ciphertext)?;
        if target.is_empty() {
            return Err(DataError::EmptySymlink);
        }
        Ok(target)
    }

    /// Encrypts a symbolic link's target into `struct fscrypt_symlink_data`, at most `max` bytes in all.
    pub fn encrypt_symlink(&self, target: &[u8], max: usize) -> Result<Vec<u8>, DataError> {
        // The kernel includes a NUL after the target, so there is always one.
        let room = max.checked_sub(3).ok_or(DataError::NameTooLong(target.len()))?;
        if target.len() > room {
            return Err(DataError::NameTooLong(target.len()));
        }
        let ciphertext = self.encrypt(target, room)?;
        let length = u16::try_from(ciphertext.len()).map_err(|_| DataError::NameTooLong(target.len()))?;
        Ok([&length.to_le_bytes()[..], &ciphertext].concat())
    }

    fn decrypt(&self, ciphertext: &[u8]) -> Result<Vec<u8>, DataError> {
        let mut name = self.decrypt_padded(ciphertext)?;
        // Padding is NULs, and no name holds one.
        if let Some(end) = name.iter().position(|&byte| byte == 0) {
            if name[end..].iter().any(|&byte| byte != 0) {
                return Err(DataError::Padding);
            }
            name.truncate(end);
        }
        Ok(name)
    }

    /// Lengths are padded to a multiple of this.
    pub(crate) fn padding(&self) -> usize {
        self.padding
    }

    /// Decrypts a name, and keeps its padding.
    pub(crate) fn decrypt_padded(&self, ciphertext: &[u8]) -> Result<Vec<u8>, DataError> {
        if ciphertext.len() < CIPHERTEXT_MIN {
            return Err(DataError::NameTooShort(ciphertext.len()));
        }
        let mut name = ciphertext.to_vec();
        let done = match &*self.cipher {
            Cipher::AesCts(cipher) => cipher.decrypt(&self.iv.short(0), &mut name),
            Cipher::Sm4Cts(cipher) => cipher.decrypt(&self.iv.short(0), &mut name),
            Cipher::Adiantum(cipher) => cipher.decrypt(&self.iv.long(0), &mut name),
            Cipher::AesHctr2(cipher) => cipher.decrypt(&self.iv.long(0), &mut name),
        };
        done.map_err(|_| DataError::NameTooShort(ciphertext.len()))?;
        Ok(name)
    }

    fn encrypt(&self, name: &[u8], max: usize) -> Result<Vec<u8>, DataError> {
        let padded = name.len().max(CIPHERTEXT_MIN).next_multiple_of(self.padding).min(max);
        if padded < CIPHERTEXT_MIN {
            return Err(DataError::NameTooShort(padded));
        }
        let mut out = name.to_vec();
        out.resize(padded, 0);
        let done = match &*self.cipher {
            Cipher::AesCts(cipher) => cipher.encrypt(&self.iv.short(0), &mut out),
            Cipher::Sm4Cts(cipher) => cipher.encrypt(&self.iv.short(0), &mut out),
            Cipher::Adiantum(cipher) => cipher.encrypt(&self.iv.long(0), &mut out),
            Cipher::AesHctr2(cipher) => cipher.encrypt(&self.iv.long(0), &mut out),
        };
        done.map_err(|_| DataError::NameTooShort(padded))?;
        Ok(out)
    }
}

/// The ciphertext within `struct fscrypt_symlink_data`. Without the key it is what a no-key link target shows.
pub fn symlink_ciphertext(stored: &[u8]) -> Result<&[u8], DataError> {
    let (length, rest) =
        stored.split_first_chunk::<2>().ok_or(DataError::Symlink { stored: stored.len(), claimed: 0 })?;
    let claimed = usize::from(u16::from_le_bytes(*length));
    rest.get(..claimed).filter(|_| claimed > 0).ok_or(DataError::Symlink { stored: stored.len(), claimed })
}

impl fmt::Debug for NameKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NameKey").field("padding", &self.padding).finish_non_exhaustive()
    }
}
