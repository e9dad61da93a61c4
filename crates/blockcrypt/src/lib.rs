//! The hot loops of storage integrity and encryption: SHA-2 over many blocks, AES-XTS, CBC-CTS, ESSIV, HCTR2, Adiantum, SM4 and Speck.
#![no_std]
extern crate alloc;
#[cfg(any(feature = "std", test))]
extern crate std;

pub mod adiantum;
mod aes;
pub mod cbc;
mod chacha;
pub mod cts;
pub mod error;
pub mod essiv;
mod gf128;
pub mod hash;
pub mod hctr2;
#[doc = include_str!("../LEVELS.md")]
pub mod levels {}
pub mod modes;
mod nh;
pub mod platform;
mod poly1305;
mod polyval;
mod sha256;
#[cfg(target_arch = "x86_64")]
mod sha2_avx512;
mod sha2_many;
mod sha512;
pub mod sm4;
#[cfg(feature = "historical")]
pub mod speck;
mod units;
pub mod xts;

pub use error::{KeyError, LengthError};
pub use platform::Platform;
pub use units::MAX_UNIT_SIZE;
