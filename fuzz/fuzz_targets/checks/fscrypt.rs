//! What must hold of any input to the parsers of fscrypt's structures.
#![allow(dead_code)] // Each target uses one of them.

use postread_fscrypt::fscrypt_tool::{Protector, ToolPolicy};
use postread_fscrypt::{Context, NoKeyName, no_key_name, symlink_ciphertext};

/// A context that parses is written as it was.
pub(crate) fn context(data: &[u8]) {
    if let Ok(context) = Context::parse(data) {
        assert_eq!(context.to_bytes(), data);
    }
}

/// A no-key name that parses stands for the ciphertext that it was made of; a link's ciphertext lies within its bytes.
pub(crate) fn name(data: &[u8]) {
    if let Some(parsed) = std::str::from_utf8(data).ok().and_then(NoKeyName::parse)
        && parsed.rest.is_none()
    {
        assert_eq!(no_key_name(parsed.hash, parsed.minor_hash, &parsed.bytes).as_bytes(), data);
    }
    if let Ok(ciphertext) = symlink_ciphertext(data) {
        assert!(ciphertext.len() + 2 <= data.len());
    }
}

/// Metadata of the fscrypt tool: any bytes, read as a protector and as a policy.
pub(crate) fn tool(data: &[u8]) {
    if let Ok(protector) = Protector::parse(data) {
        assert!(!protector.descriptor.is_empty());
        // Never a wrong key taken for the right one.
        assert!(protector.unlock_with_raw_key(&[0x5a; 32]).is_err());
    }
    if let Ok(policy) = ToolPolicy::parse(data) {
        assert!(!policy.key_descriptor.is_empty());
    }
}
