//! dm-crypt mappings and LUKS headers, without device-mapper and without root.
//!
//! A [`Mapping`] corresponds to a `crypt` target of the kernel: a [`CipherSpec`], a key, and how sectors are numbered.
//! It decrypts and encrypts runs of sectors in place. The module [`luks`] reads LUKS1 and LUKS2 headers, and turns a
//! passphrase or a key file into a mapping. [`Decrypted`] is the mapped device, to be read at any byte.
//!
//! ```
//! use postread_dmcrypt::{CipherSpec, Mapping};
//!
//! let spec: CipherSpec = "aes-xts-plain64".parse()?;
//! let mapping = Mapping::new(&spec, &(0..64).collect::<Vec<u8>>())?.with_sector_size(4096)?;
//! let mut data = vec![7; 2 * 4096];
//! mapping.encrypt(&mut data, 16)?; // counted in sectors of 512 bytes, as device-mapper does
//! mapping.decrypt(&mut data[4096..], 24)?;
//! assert_eq!(data[4096..], [7; 4096]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod cipher;
mod decrypted;
mod hash;
mod iv;
pub mod luks;
mod mapping;
mod mapping_spec;
mod spec;

pub use cipher::KeyError;
pub use decrypted::Decrypted;
pub use hash::{HashAlg, UnknownHash};
pub use mapping::{Mapping, MappingError, SectorError};
pub use mapping_spec::{MappingSpec, MappingSpecError};
pub use spec::{CipherAlg, CipherSpec, IvMode, Mode, SpecError};
