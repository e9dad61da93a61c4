//! HCTR2 (Crowley, Huckleberry, Biggers: "Length-preserving encryption with HCTR2", 2021) over AES: a wide-block mode,
//! in which every bit of a message and its tweak affects all of the ciphertext. fscrypt encrypts names with
//! AES-256-HCTR2.

use alloc::boxed::Box;
use core::fmt;

use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::Platform;
use crate::aes::{self, AesKey, Block};
use crate::error::{KeyError, LengthError, check_key_length};
use crate::polyval::{HashKey, State};

/// AES-HCTR2, AES-128 to AES-256 by the length of the key. Zeroized when dropped.
#[derive(Clone)]
pub struct AesHctr2 {
    key: AesKey,
    /// POLYVAL's key, E(0).
    hash: HashKey,
    mask: Box<Mask>,
    platform: Platform,
}

/// L = E(1).
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
struct Mask(Block);

/// Counters that are encrypted at a time.
const COUNTERS: usize = 16;

impl AesHctr2 {
    /// Key lengths in bytes. fscrypt's mode has 32.
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
    /// As [`AesHctr2::new`].
    pub fn with_platform(key: &[u8], platform: Platform) -> Result<Self, KeyError> {
        check_key_length(key, Self::KEY_LENGTHS)?;
        let platform = platform.or_detected();
        let key = AesKey::new(key, platform);
        let mut schedule = [0u128.to_le_bytes(), 1u128.to_le_bytes()];
        key.encrypt_blocks(&mut schedule);
        let this =
            Self { key, hash: HashKey::new(&schedule[0], platform), mask: Box::new(Mask(schedule[1])), platform };
        schedule.zeroize();
        Ok(this)
    }

    /// Encrypts a message of at least 16 bytes in place, under a tweak of any length (fscrypt: the IV, 32 bytes).
    ///
    /// # Errors
    ///
    /// [`LengthError::TooShort`] below 16 bytes.
    pub fn encrypt(&self, tweak: &[u8], message: &mut [u8]) -> Result<(), LengthError> {
        let len = message.len();
        let (first, rest) = message.split_first_chunk_mut().ok_or(LengthError::TooShort { len, min: 16 })?;
        let tweak_hash = self.hash_tweak(tweak, rest.len());
        let mut middle = xor(*first, hash_message(tweak_hash.clone(), rest));
        let before = middle;
        self.key.encrypt_block(&mut middle);
        self.xctr(xor(xor(before, middle), self.mask.0), rest);
        *first = xor(middle, hash_message(tweak_hash, rest));
        Ok(())
    }

    /// Decrypts a message of at least 16 bytes in place; see [`AesHctr2::encrypt`].
    ///
    /// # Errors
    ///
    /// [`LengthError::TooShort`] below 16 bytes.
    pub fn decrypt(&self, tweak: &[u8], message: &mut [u8]) -> Result<(), LengthError> {
        let len = message.len();
        let (first, rest) = message.split_first_chunk_mut().ok_or(LengthError::TooShort { len, min: 16 })?;
        let tweak_hash = self.hash_tweak(tweak, rest.len());
        let mut middle = xor(*first, hash_message(tweak_hash.clone(), rest));
        let before = middle;
        self.key.decrypt_block(&mut middle);
        self.xctr(xor(xor(before, middle), self.mask.0), rest);
        *first = xor(middle, hash_message(tweak_hash, rest));
        Ok(())
    }

    /// The hash of what comes before the message: the tweak's length in bits, doubled, plus 2, or 3 where the message
    /// will be padded; then the tweak, padded with zeros.
    fn hash_tweak(&self, tweak: &[u8], rest: usize) -> State<'_> {
        let padded = u128::from(!rest.is_multiple_of(16));
        let mut hash = self.hash.start();
        let length = (tweak.len() as u128 * 16 + 2 + padded).to_le_bytes();
        let (blocks, tail) = tweak.as_chunks::<16>();
        if let ([first, second], []) = (blocks, tail) {
            // The IV of fscrypt.
            hash.update(&[length, *first, *second]);
            return hash;
        }
        hash.update(&[length]);
        hash.update(blocks);
        if !tail.is_empty() {
            let mut last = [0; 16];
            last[..tail.len()].copy_from_slice(tail);
            hash.update(&[last]);
        }
        hash
    }

    /// XCTR: XORs the data with E(nonce ^ 1), E(nonce ^ 2), ...
    fn xctr(&self, nonce: Block, data: &mut [u8]) {
        let nonce = u128::from_le_bytes(nonce);
        let mut count = 0u128;
        let mut counters = [[0; 16]; COUNTERS];
        let mut fill = |counters: &mut [Block]| {
            for counter in counters {
                count += 1;
                *counter = (nonce ^ count).to_le_bytes();
            }
        };
        let (blocks, tail) = data.as_chunks_mut::<16>();
        for blocks in blocks.chunks_mut(COUNTERS) {
            let counters = &mut counters[..blocks.len()];
            fill(counters);
            self.key.xor_key_stream(blocks, counters);
        }
        if !tail.is_empty() {
            let mut last = [0; 16];
            last[..tail.len()].copy_from_slice(tail);
            fill(&mut counters[..1]);
            self.key.xor_key_stream(core::slice::from_mut(&mut last), &mut counters[..1]);
            tail.copy_from_slice(&last[..tail.len()]);
        }
    }
}

/// Hashes the message after the tweak; one that is not a multiple of a block is padded with a 1 and zeros.
fn hash_message(mut hash: State<'_>, message: &[u8]) -> Block {
    let (blocks, tail) = message.as_chunks::<16>();
    hash.update(blocks);
    if !tail.is_empty() {
        let mut last = [0; 16];
        last[..tail.len()].copy_from_slice(tail);
        last[tail.len()] = 1;
        hash.update(&[last]);
    }
    hash.finish()
}

fn xor(a: Block, b: Block) -> Block {
    (u128::from_ne_bytes(a) ^ u128::from_ne_bytes(b)).to_ne_bytes()
}

impl fmt::Debug for AesHctr2 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AesHctr2").field("platform", &self.platform).finish_non_exhaustive()
    }
}
