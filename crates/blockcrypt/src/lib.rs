//! The hot loops of storage integrity and encryption: SHA-2 over many blocks, AES-XTS, CBC-CTS, ESSIV, HCTR2, Adiantum, SM4 and Speck.
//!
//! Verification costs a digest of every 4 KiB block and decryption a cipher over every data unit. This crate does both
//! many blocks at a time, on one core, in place, without I/O, threads, or memory allocated per block. It knows nothing
//! about formats: other crates implement fs-verity, dm-verity, fscrypt and dm-crypt.
//!
//! | module | what | for |
//! |---|---|---|
//! | [`hash`] | SHA-256 and SHA-512 of many messages with a common prefix or suffix; SHA-1, BLAKE2b-256 | fs-verity, dm-verity |
//! | [`xts`] | AES-XTS over runs of data units | fscrypt contents, dm-crypt, LUKS |
//! | [`cbc`], [`essiv`] | AES-CBC over runs of units, and with encrypted sector numbers as IVs | fscrypt AES-128, old dm-crypt |
//! | [`cts`] | AES-CBC with ciphertext stealing, the last two blocks always swapped | fscrypt names |
//! | [`hctr2`] | AES-HCTR2 | fscrypt names |
//! | [`adiantum`] | Adiantum with XChaCha12 and XChaCha20 | fscrypt and dm-crypt without AES instructions |
//! | [`sm4`] | SM4 in XTS and CBC-CTS | fscrypt |
//! | `speck` (feature `historical`) | Speck128/256 in XTS and CBC-CTS | what fscrypt offered before Linux 4.20 |
//!
//! A key or hasher is made for a CPU level, a [`Platform`]: the detected one by default, lowered by the environment
//! variable `POSTREAD_CPU`. A level is an upper bound. The portable code is the reference that tests compare every
//! level with. It has no branch and no table look-up that depends on a key or on data. Keys are zeroized when dropped
//! and don't print.
//!
//! ```
//! use postread_blockcrypt::hash::{BlockHasher, HashAlg};
//! use postread_blockcrypt::xts::AesXts;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Eight data units of 4 KiB as they were read from the disk, from unit 40 of the file on.
//! let mut data = vec![0x5a; 8 * 4096];
//! let key: Vec<u8> = (0..64).collect();
//! AesXts::new(&key)?.decrypt_units(&mut data, 4096, 40, 1)?;
//!
//! // Their digests, to compare with the Merkle tree's: fs-verity pads the salt to the compression block.
//! let hasher = BlockHasher::new(HashAlg::Sha256).with_prefix(&[0x11; 64]);
//! let mut digests = [0; 8 * 32];
//! hasher.hash_blocks(&data, 4096, &mut digests);
//! # Ok(())
//! # }
//! ```
//!
//! Features: `std` (default) only reads the environment; without it the crate is `no_std` with `alloc`. `ciphers`
//! (default) is everything that takes a key; without it the crate only hashes and has few dependencies. `blake2`
//! (default) is BLAKE2b.
//! `historical` adds Speck.
//!
//! Figures and comparisons: `benches/run blockcrypt_hash blockcrypt_cipher`.
#![no_std]
extern crate alloc;
#[cfg(any(feature = "std", test))]
extern crate std;

#[cfg(feature = "ciphers")]
pub mod adiantum;
#[cfg(feature = "ciphers")]
mod aes;
#[cfg(feature = "ciphers")]
pub mod cbc;
#[cfg(feature = "ciphers")]
mod chacha;
#[cfg(feature = "ciphers")]
pub mod cts;
#[cfg(feature = "ciphers")]
pub mod error;
#[cfg(feature = "ciphers")]
pub mod essiv;
#[cfg(feature = "ciphers")]
mod gf128;
#[cfg(feature = "ciphers")]
mod gf256;
pub mod hash;
#[cfg(feature = "ciphers")]
pub mod hctr2;
#[doc = include_str!("../LEVELS.md")]
pub mod levels {}
#[cfg(feature = "ciphers")]
pub mod modes;
#[cfg(feature = "ciphers")]
mod nh;
pub mod platform;
#[cfg(feature = "ciphers")]
mod poly1305;
#[cfg(feature = "ciphers")]
mod polyval;
mod sha256;
#[cfg(all(target_arch = "x86_64", not(postread_portable)))]
mod sha2_avx512;
mod sha2_many;
mod sha512;
#[cfg(feature = "ciphers")]
pub mod sm4;
#[cfg(feature = "historical")]
pub mod speck;
#[cfg(feature = "ciphers")]
mod units;
#[cfg(feature = "ciphers")]
pub mod xts;

#[cfg(feature = "ciphers")]
pub use error::{KeyError, LengthError};
pub use platform::Platform;
#[cfg(feature = "ciphers")]
pub use units::MAX_UNIT_SIZE;
