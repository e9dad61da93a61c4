//! CBC with ciphertext stealing as the kernel's `cts(cbc(aes))` does it: what fscrypt encrypts names with.
//!
//! The last two blocks are always swapped when the message is longer than a block, also when it is a multiple of the
//! block (CBC-CS3 of the addendum to NIST SP 800-38A, RFC 3962). A message of one block is plain CBC.

use core::fmt;

use crate::Platform;
use crate::cbc::AesCbc;
use crate::error::{KeyError, LengthError};

/// AES-CBC-CTS, AES-128 to AES-256 by the length of the key. Zeroized when dropped.
#[derive(Clone)]
pub struct AesCbcCts {
    cbc: AesCbc,
}

impl AesCbcCts {
    /// Key lengths in bytes.
    pub const KEY_LENGTHS: &'static [usize] = AesCbc::KEY_LENGTHS;

    /// A key for the default CPU level.
    ///
    /// # Errors
    ///
    /// [`KeyError::Length`] where it is not 16, 24 or 32 bytes.
    pub fn new(key: &[u8]) -> Result<Self, KeyError> {
        Ok(Self { cbc: AesCbc::new(key)? })
    }

    /// A key for a given CPU level.
    ///
    /// # Errors
    ///
    /// As [`AesCbcCts::new`].
    pub fn with_platform(key: &[u8], platform: Platform) -> Result<Self, KeyError> {
        Ok(Self { cbc: AesCbc::with_platform(key, platform)? })
    }

    /// Encrypts a message of at least 16 bytes in place.
    ///
    /// # Errors
    ///
    /// [`LengthError::TooShort`] below 16 bytes.
    pub fn encrypt(&self, iv: &[u8; 16], message: &mut [u8]) -> Result<(), LengthError> {
        let head = head_length(message)?;
        let (head, tail) = message.split_at_mut(head);
        self.cbc.key.cbc_encrypt(head, head.len(), &[*iv]);
        if tail.is_empty() {
            return Ok(());
        }
        // Ciphertext is stolen from the last whole block: the part that pads the tail is recovered from the tail's own
        // block.
        let before = head.last_chunk_mut::<16>().expect("at least one block");
        let mut last = *before;
        for (a, b) in last.iter_mut().zip(&*tail) {
            *a ^= b;
        }
        self.cbc.key.encrypt_block(&mut last);
        tail.copy_from_slice(&before[..tail.len()]);
        *before = last;
        Ok(())
    }

    /// Decrypts a message of at least 16 bytes in place.
    ///
    /// # Errors
    ///
    /// [`LengthError::TooShort`] below 16 bytes.
    pub fn decrypt(&self, iv: &[u8; 16], message: &mut [u8]) -> Result<(), LengthError> {
        let head = head_length(message)?;
        let (head, tail) = message.split_at_mut(head);
        if !tail.is_empty() {
            let before = head.last_chunk_mut::<16>().expect("at least one block");
            let mut last = *before;
            self.cbc.key.decrypt_block(&mut last);
            before[..tail.len()].copy_from_slice(tail);
            before[tail.len()..].copy_from_slice(&last[tail.len()..]);
            for ((plain, chained), cipher) in tail.iter_mut().zip(&last).zip(&before[..]) {
                *plain = chained ^ cipher;
            }
        }
        self.cbc.decrypt_batch(head, head.len(), &[*iv]);
        Ok(())
    }
}

/// The bytes before the last block or piece of a block, all of a message of one block.
fn head_length(message: &[u8]) -> Result<usize, LengthError> {
    match message.len() {
        len @ 0..16 => Err(LengthError::TooShort { len, min: 16 }),
        16 => Ok(16),
        len => Ok((len - 1) / 16 * 16),
    }
}

impl fmt::Debug for AesCbcCts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AesCbcCts").field("cbc", &self.cbc).finish()
    }
}
