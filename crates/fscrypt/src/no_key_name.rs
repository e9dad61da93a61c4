//! No-key names: what Linux shows for an encrypted name when its key is missing.
//!
//! `struct fscrypt_nokey_name` of `fs/crypto/fname.c` (since 5.10): two 32-bit directory hash values, up to 149 bytes
//! of the ciphertext, and where it is longer the SHA-256 of the rest; in base64url without padding.

use sha2::{Digest, Sha256};

/// Ciphertext bytes that a no-key name carries as they are.
const PLAIN_BYTES: usize = 149;
/// The longest no-key name, in characters.
pub const NO_KEY_NAME_MAX: usize = 252;

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// The no-key name of a ciphertext name.
///
/// `hash` and `minor_hash` are what the file system indexes the name by: on ext4 with `dir_index` the htree hash of the
/// ciphertext (or the hash stored next to a casefolded name), on f2fs its name hash and 0, and 0 and 0 for link targets
/// and for directories without an index.
pub fn no_key_name(hash: u32, minor_hash: u32, ciphertext: &[u8]) -> String {
    let (plain, rest) = ciphertext.split_at(ciphertext.len().min(PLAIN_BYTES));
    let mut bytes = Vec::with_capacity(8 + PLAIN_BYTES + 32);
    bytes.extend_from_slice(&hash.to_le_bytes());
    bytes.extend_from_slice(&minor_hash.to_le_bytes());
    bytes.extend_from_slice(plain);
    if !rest.is_empty() {
        bytes.extend_from_slice(&Sha256::digest(rest));
    }
    base64url(&bytes)
}

/// A parsed no-key name, to look up its entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoKeyName {
    /// The directory hash.
    pub hash: u32,
    /// The minor hash.
    pub minor_hash: u32,
    /// The ciphertext, or its first 149 bytes.
    pub bytes: Vec<u8>,
    /// SHA-256 of the bytes after those, if the ciphertext is longer.
    pub rest: Option<[u8; 32]>,
}

impl NoKeyName {
    /// Parses a no-key name; `None` if the text is none.
    pub fn parse(name: &str) -> Option<NoKeyName> {
        let bytes = from_base64url(name)?;
        // Shorter than the hashes and one byte, or longer than all fields: no such name can exist.
        if bytes.len() <= 8 || bytes.len() > 8 + PLAIN_BYTES + 32 {
            return None;
        }
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let (hash, minor_hash, rest) = (word(0), word(4), &bytes[8..]);
        if rest.len() <= PLAIN_BYTES {
            return Some(NoKeyName { hash, minor_hash, bytes: rest.to_vec(), rest: None });
        }
        let (plain, digest) = rest.split_at(PLAIN_BYTES);
        Some(NoKeyName { hash, minor_hash, bytes: plain.to_vec(), rest: Some(digest.try_into().ok()?) })
    }

    /// Whether this is the no-key name of that ciphertext.
    pub fn matches(&self, ciphertext: &[u8]) -> bool {
        match &self.rest {
            None => self.bytes == ciphertext,
            Some(digest) => {
                ciphertext.len() > PLAIN_BYTES
                    && ciphertext[..PLAIN_BYTES] == self.bytes[..]
                    && Sha256::digest(&ciphertext[PLAIN_BYTES..])[..] == digest[..]
            }
        }
    }
}

fn base64url(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let mut group = [0; 4];
        group[1..=chunk.len()].copy_from_slice(chunk);
        let group = u32::from_be_bytes(group);
        for i in 0..=chunk.len() {
            out.push(char::from(ALPHABET[(group >> (18 - 6 * i)) as usize & 63]));
        }
    }
    out
}

fn from_base64url(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len() / 4 * 3);
    for chunk in text.as_bytes().chunks(4) {
        let mut group = 0u32;
        for &byte in chunk {
            group = group << 6 | ALPHABET.iter().position(|&a| a == byte)? as u32;
        }
        group <<= 6 * (4 - chunk.len());
        let bytes = group.to_be_bytes();
        // One character alone encodes nothing, and bits after the last byte must be zero.
        let length = chunk.len().checked_sub(1).filter(|&n| n > 0)?;
        if bytes[1 + length..].iter().any(|&b| b != 0) {
            return None;
        }
        out.extend_from_slice(&bytes[1..=length]);
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64url_as_rfc_4648_has_it() {
        for (plain, text) in [
            ("", ""),
            ("f", "Zg"),
            ("fo", "Zm8"),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg"),
            ("fooba", "Zm9vYmE"),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64url(plain.as_bytes()), text);
            assert_eq!(from_base64url(text).unwrap(), plain.as_bytes());
        }
        assert_eq!(base64url(&[0xfb, 0xff]), "-_8");
        for bad in ["A", "AAAAA", "Zh", "Zm9", "a+b/", "Zg==", "Z g"] {
            assert_eq!(from_base64url(bad), None, "{bad}");
        }
    }

    #[test]
    fn long_names_are_cut_and_hashed_behind_the_cut() {
        for length in [1, 16, 148, 149, 150, 255] {
            let ciphertext: Vec<u8> = (0..length).map(|i| i as u8).collect();
            let name = no_key_name(1, 2, &ciphertext);
            assert!(name.len() <= NO_KEY_NAME_MAX);
            let parsed = NoKeyName::parse(&name).unwrap();
            assert_eq!((parsed.hash, parsed.minor_hash, parsed.rest.is_some()), (1, 2, length > 149));
            assert!(parsed.matches(&ciphertext));
            let mut other = ciphertext.clone();
            *other.last_mut().unwrap() ^= 1;
            assert!(!parsed.matches(&other), "{length}");
        }
    }
}
