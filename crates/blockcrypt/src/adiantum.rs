//! Adiantum (Crowley and Biggers, "Adiantum: length-preserving encryption for entry-level processors", 2018): a
//! tweakable wide-block cipher, in which every bit of a data unit depends on every other. fscrypt's mode 9 and
//! dm-crypt's `xchacha12,aes-adiantum-plain64` and `xchacha20,...`.
//!
//! All of a unit but its last 16 bytes is hashed (NH, then Poly1305), and the hash is added to those 16 bytes. AES-256
//! encrypts them. The result is the nonce of an XChaCha stream that encrypts the rest. Finally the hash of the
//! ciphertext is subtracted.
//!
//! ```
//! use postread_blockcrypt::adiantum::{Adiantum, Stream};
//!
//! let cipher = Adiantum::new(Stream::XChaCha12, &[7; 32])?;
//! let mut sectors = vec![0; 3 * 4096];
//! cipher.encrypt_units(&mut sectors, 4096, 100, 1)?;
//! cipher.decrypt_units(&mut sectors[4096..], 4096, 101, 1)?;
//! assert!(sectors[4096..].iter().all(|&byte| byte == 0));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use alloc::boxed::Box;
use core::fmt;

use zeroize::{Zeroize, Zeroizing};

use crate::Platform;
use crate::aes::AesKey;
use crate::chacha::{self, DoubleRounds, Key};
use crate::error::{KeyError, LengthError, check_key_length};
use crate::nh::{self, NhKey};
use crate::poly1305::{Poly1305, PolyKey};
use crate::units::{check_units, data_unit_methods};

/// A tweak as the kernel passes it: a data unit's IV, padded with zeros.
pub type Tweak = [u8; 32];
/// Bytes at a unit's end that AES encrypts: the shortest unit.
const BLOCK: usize = 16;
/// Units processed together, as long as they add up to at most [`GROUP_BYTES`].
const GROUP: usize = 8;
/// Small enough that hashed data is still in the L1 cache when it is encrypted.
const GROUP_BYTES: usize = 16 << 10;

/// The stream cipher within Adiantum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stream {
    /// XChaCha of 12 rounds, what fscrypt uses: the kernel's `adiantum(xchacha12,aes)`.
    XChaCha12,
    /// XChaCha of 20 rounds: the kernel's `adiantum(xchacha20,aes)`.
    XChaCha20,
}

/// An Adiantum key, with AES-256. Zeroized when dropped.
pub struct Adiantum {
    stream: Stream,
    platform: Platform,
    /// Boxed so that moving a key does not leave a copy of it.
    keys: Box<Keys>,
}

/// Each part zeroizes itself.
struct Keys {
    stream: Zeroizing<Key>,
    block: AesKey,
    tweak_hash: PolyKey,
    message_hash: PolyKey,
    nh: NhKey,
}

impl fmt::Debug for Adiantum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Adiantum")
            .field("stream", &self.stream)
            .field("platform", &self.platform)
            .finish_non_exhaustive()
    }
}

impl Adiantum {
    /// Key lengths in bytes.
    pub const KEY_LENGTHS: &'static [usize] = &[32];

    /// A key for the default CPU level.
    ///
    /// # Errors
    ///
    /// [`KeyError::Length`] unless `key` has 32 bytes.
    pub fn new(stream: Stream, key: &[u8]) -> Result<Self, KeyError> {
        Self::with_platform(stream, key, Platform::default())
    }

    /// A key for a given CPU level.
    ///
    /// # Errors
    ///
    /// As [`Adiantum::new`].
    pub fn with_platform(stream: Stream, key: &[u8], platform: Platform) -> Result<Self, KeyError> {
        check_key_length(key, Self::KEY_LENGTHS)?;
        let platform = platform.or_detected();
        let mut bytes = Zeroizing::new([0; 32]);
        bytes.copy_from_slice(key);
        let stream_key = Zeroizing::new(chacha::key_words(&bytes));
        // The other keys are the stream of the nonce 1: for AES, for the two Poly1305s, for NH.
        let mut derived = Zeroizing::new([0; 32 + 16 + 16 + nh::KEY]);
        xchacha(platform, stream.double_rounds(), &stream_key, 1, 0, &mut derived[..]);
        let (block, rest) = derived.split_at(32);
        let (tweak_hash, rest) = rest.split_first_chunk().expect("the sizes are constants");
        let (message_hash, rest) = rest.split_first_chunk().expect("the sizes are constants");
        let (nh, _) = rest.split_first_chunk().expect("the sizes are constants");
        let keys = Box::new(Keys {
            stream: stream_key,
            block: AesKey::new(block, platform),
            tweak_hash: PolyKey::new(tweak_hash),
            message_hash: PolyKey::new(message_hash),
            nh: NhKey::new(nh),
        });
        Ok(Self { stream, platform, keys })
    }

    /// Encrypts one data unit of 16 bytes or more in place, under a tweak of any length (the kernel's has 32 bytes).
    ///
    /// # Errors
    ///
    /// [`LengthError::TooShort`] below 16 bytes.
    pub fn encrypt(&self, tweak: &[u8], unit: &mut [u8]) -> Result<(), LengthError> {
        self.check(unit)?;
        self.crypt::<true>(tweak, unit);
        Ok(())
    }

    /// Decrypts one data unit; the inverse of [`Adiantum::encrypt`].
    ///
    /// # Errors
    ///
    /// [`LengthError::TooShort`] below 16 bytes.
    pub fn decrypt(&self, tweak: &[u8], unit: &mut [u8]) -> Result<(), LengthError> {
        self.check(unit)?;
        self.crypt::<false>(tweak, unit);
        Ok(())
    }

    data_unit_methods!(
        "Adiantum",
        Tweak,
        index,
        "The tweak of a unit is its index, little-endian and padded to 32 bytes (fscrypt's `DIRECT_KEY` policies have the \
         file's nonce behind the index)",
        "16 to 65536"
    );

    fn check(&self, unit: &[u8]) -> Result<(), LengthError> {
        if unit.len() < BLOCK { Err(LengthError::TooShort { len: unit.len(), min: BLOCK }) } else { Ok(()) }
    }

    fn units<const ENCRYPT: bool>(
        &self,
        data: &mut [u8],
        unit_size: usize,
        mut tweak: impl FnMut(u64) -> Tweak,
    ) -> Result<(), LengthError> {
        check_units(data.len(), unit_size, BLOCK, 1)?;
        let group = (GROUP_BYTES / unit_size).clamp(1, GROUP);
        let mut first = 0;
        for units in data.chunks_mut(group * unit_size) {
            self.group::<ENCRYPT>(units, unit_size, |i| self.hash_tweak(unit_size - BLOCK, &tweak(first + i)));
            first += group as u64;
        }
        Ok(())
    }

    /// One unit of at least 16 bytes.
    fn crypt<const ENCRYPT: bool>(&self, tweak: &[u8], unit: &mut [u8]) {
        let size = unit.len();
        self.group::<ENCRYPT>(unit, size, |_| self.hash_tweak(size - BLOCK, tweak));
    }

    /// Up to [`GROUP`] units of at least 16 bytes, step by step: AES and HChaCha process one block per unit, which
    /// takes as long for one unit as for several. `tweak_hash` is called once for each unit, in order.
    fn group<const ENCRYPT: bool>(&self, units: &mut [u8], size: usize, mut tweak_hash: impl FnMut(u64) -> u128) {
        let count = units.len() / size;
        let mut tweaks = [0u128; GROUP];
        let mut middles = [[0; BLOCK]; GROUP];
        let mut keys = [[0; 8]; GROUP];
        let (tweaks, middles, keys) = (&mut tweaks[..count], &mut middles[..count], &mut keys[..count]);
        let hash = |bulk: &[u8]| self.keys.nh.poly1305(self.platform, &self.keys.message_hash, bulk);

        for (i, (unit, (tweak, middle))) in
            units.chunks_exact(size).zip(tweaks.iter_mut().zip(&mut *middles)).enumerate()
        {
            let (bulk, last) = unit.split_last_chunk::<BLOCK>().expect("the length has been checked");
            *tweak = tweak_hash(i as u64);
            *middle = u128::from_le_bytes(*last).wrapping_add(*tweak).wrapping_add(hash(bulk)).to_le_bytes();
        }
        if ENCRYPT {
            self.keys.block.encrypt_blocks(middles);
        }
        let rounds = self.stream.double_rounds();
        chacha::hchacha_many(self.platform, rounds, &self.keys.stream, middles, keys);
        if !ENCRYPT {
            self.keys.block.decrypt_blocks(middles);
        }
        for (unit, ((tweak, middle), key)) in units.chunks_exact_mut(size).zip(tweaks.iter().zip(&*middles).zip(&*keys))
        {
            let (bulk, last) = unit.split_last_chunk_mut::<BLOCK>().expect("the length has been checked");
            chacha::xor_stream(self.platform, rounds, key, 1, bulk);
            *last = u128::from_le_bytes(*middle).wrapping_sub(*tweak).wrapping_sub(hash(bulk)).to_le_bytes();
        }
        keys.as_flattened_mut().zeroize();
    }

    /// The hash of the unit's length in bits and the tweak.
    fn hash_tweak(&self, bulk_len: usize, tweak: &[u8]) -> u128 {
        let mut poly = Poly1305::new(&self.keys.tweak_hash);
        poly.block(8 * bulk_len as u128);
        poly.message(tweak);
        poly.finish()
    }
}

impl Stream {
    const fn double_rounds(self) -> DoubleRounds {
        match self {
            Stream::XChaCha12 => 6,
            Stream::XChaCha20 => 10,
        }
    }
}

/// XORs `data` with the XChaCha stream of a nonce in its two parts: 16 bytes for HChaCha and eight for ChaCha.
fn xchacha(platform: Platform, rounds: DoubleRounds, key: &Key, nonce: u128, rest: u64, data: &mut [u8]) {
    let mut key = chacha::hchacha(rounds, key, &nonce.to_le_bytes());
    chacha::xor_stream(platform, rounds, &key, rest, data);
    key.zeroize();
}

/// The tweaks of a run of indexes.
fn index(first: u64, step: u64) -> impl FnMut(u64) -> Tweak {
    move |unit| {
        let mut tweak = [0; 32];
        tweak[..8].copy_from_slice(&first.wrapping_add(unit.wrapping_mul(step)).to_le_bytes());
        tweak
    }
}

/// The parts by themselves, for the benchmark that compares the whole with them. Not part of the public API.
#[doc(hidden)]
pub mod parts {
    use super::{Platform, Poly1305, PolyKey, Stream, chacha, nh};

    /// XORs `data` with the ChaCha stream of `key`, nonce 1.
    pub fn xor_stream(platform: Platform, stream: Stream, key: &[u8; 32], data: &mut [u8]) {
        chacha::xor_stream(platform.or_detected(), stream.double_rounds(), &chacha::key_words(key), 1, data);
    }

    /// The first half of the hash of a message: an NH hash of each 1024 bytes.
    #[allow(missing_debug_implementations)]
    pub struct Nh(nh::NhKey, Platform);

    impl Nh {
        /// A key for a CPU level.
        pub fn new(key: &[u8; nh::KEY], platform: Platform) -> Self {
            Self(nh::NhKey::new(key), platform.or_detected())
        }

        /// Calls `out` with each hash.
        pub fn hashes(&self, message: &[u8], out: impl FnMut([u64; 4])) {
            message.chunks(nh::MESSAGE).map(|piece| self.0.hash(self.1, piece)).for_each(out);
        }
    }

    /// The second half of the hash of a message.
    pub fn poly1305(r: &[u8; 16], hashes: &[u128]) -> u128 {
        let key = PolyKey::new(r);
        let mut poly = Poly1305::new(&key);
        hashes.iter().for_each(|&block| poly.block(block));
        poly.finish()
    }
}
