//! fscrypt policies, contexts, key derivation, file contents and names.

mod context;
mod error;
pub mod fscrypt_tool;
mod hw_wrapped;
mod master_key;
mod mode;
mod no_key_name;

pub use context::{Context, IvScheme, KeySpecifier, NONCE_SIZE, Policy};
pub use error::{ContextError, DataError, KeyError};
pub use hw_wrapped::HwKdf;
pub use master_key::MasterKey;
pub use mode::Mode;
pub use no_key_name::{NO_KEY_NAME_MAX, NoKeyName, no_key_name};
