//! fscrypt: policies, contexts, key derivation, file contents and names, bit-compatible with Linux.
//!
//! Nothing here does I/O. A file system reader (`postread-fsimage`) finds an inode's context, raw names and extents;
//! this crate turns them and a master key into plaintext:
//!
//! ```
//! use postread_fscrypt::{Context, ContentsKey, InodeFacts, Keyring, MasterKey};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut keyring = Keyring::new();
//! keyring.add(MasterKey::new(&[0x42; 64])?);
//!
//! // The extended attribute of an encrypted file (index 9, name "c").
//! # let identifier = MasterKey::new(&[0x42; 64])?.identifier();
//! # let attribute = [&[2, 1, 4, 3, 0, 0, 0, 0], identifier.as_bytes(), &[7; 16]].concat();
//! let context = Context::parse(&attribute)?;
//! let master = keyring.find(&context.policy)?;
//!
//! let facts = InodeFacts { ino: 12, fs_uuid: [0; 16], block_size: 4096 };
//! let key = ContentsKey::derive(master, &context, &facts)?;
//! let mut block = vec![0; 4096]; // ciphertext of the file's third block
//! key.decrypt(&mut block, 2)?;
//! # Ok(())
//! # }
//! ```
//!
//! | mode | contents | names | checked against |
//! |---|---|---|---|
//! | AES-256-XTS, AES-256-CTS | x | x | images made by Linux |
//! | AES-128-CBC-ESSIV, AES-128-CTS | x | x | images made by Linux |
//! | Adiantum | x | x | images made by Linux |
//! | AES-256-HCTR2 | | x | its authors' vectors; no kernel at hand offers it |
//! | SM4-XTS, SM4-CTS | x | x | OpenSSL and published vectors; no kernel at hand offers it |

mod contents;
mod context;
mod dirhash;
mod error;
pub mod fscrypt_tool;
pub mod homed;
mod hw_wrapped;
mod iv;
mod keyring;
mod master_key;
mod mode;
mod name_evidence;
mod names;
mod no_key_name;
mod wiped;

pub use contents::{ContentsKey, InodeFacts};
pub use context::{Context, IvScheme, KeySpecifier, NONCE_SIZE, Policy};
pub use dirhash::dirhash;
pub use error::{ContextError, DataError, KeyError};
pub use hw_wrapped::HwKdf;
pub use keyring::{Keyring, MissingKey};
pub use master_key::MasterKey;
pub use mode::Mode;
pub use name_evidence::NameEvidence;
pub use names::{CIPHERTEXT_MIN, NAME_MAX, NameKey, symlink_ciphertext};
pub use no_key_name::{NO_KEY_NAME_MAX, NoKeyName, no_key_name};
