//! The hot loops of storage integrity and encryption: SHA-2 over many blocks, AES-XTS, CBC-CTS, ESSIV, HCTR2, Adiantum, SM4 and Speck.
#![no_std]
extern crate alloc;
#[cfg(any(feature = "std", test))]
extern crate std;

pub mod hash;
pub mod platform;

pub use platform::Platform;
