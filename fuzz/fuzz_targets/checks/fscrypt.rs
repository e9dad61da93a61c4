//! What must hold of any input to the parsers of fscrypt's structures.
#![allow(dead_code)] // Each target uses one of them.

use postread_fscrypt::fscrypt_tool::{Protector, ToolPolicy};
use postread_fscrypt::{Context, NoKeyName, no_key_name, symlink_ciphertext};
use postread_saved::manifest::{Entry, Header, Kind, Trailer, inode_of};

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

/// A manifest of saved ciphertext: a line that parses is written such that it parses to the same, and what it says is
/// what restoring relies on. Each line is read as the first one, as an
/// entry, and as the last one.
pub(crate) fn saved_manifest(data: &[u8]) {
    let mut block_size = 4096;
    for line in data.split(|byte| *byte == b'\n') {
        if let Ok(header) = Header::parse(line) {
            assert_eq!(Header::parse(&header.to_line()).as_ref(), Ok(&header));
            assert!(header.block_size.is_power_of_two());
            block_size = header.block_size;
        }
        if let Ok(trailer) = Trailer::parse(line) {
            assert_eq!(Trailer::parse(&trailer.to_line()).as_ref(), Ok(&trailer));
            assert!(Header::parse(line).is_err() && Entry::parse(line, block_size).is_err());
        }
        if let Ok(entry) = Entry::parse(line, block_size) {
            assert_eq!(inode_of(line), Some(entry.inode));
            assert!(!entry.kind.is_device() || entry.device.is_some());
            assert_eq!(Entry::parse(&entry.to_line(), block_size).as_ref(), Ok(&entry));
            let mut before = 0;
            for (start, length) in &entry.data {
                assert!(*start >= before && *length > 0 && (start | length) % u64::from(block_size) == 0);
                before = start + length;
            }
            assert_eq!(entry.saved_len(), before);
            assert!(i64::try_from(before).is_ok());
            assert!(entry.kind != Kind::File || i64::try_from(entry.size).is_ok());
        }
    }
}
