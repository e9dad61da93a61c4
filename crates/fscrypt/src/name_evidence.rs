//! Whether a key is the one that names and link targets were encrypted with, judged by what they decrypt to.
//!
//! A v1 policy names its key by 8 arbitrary bytes: any key can be given under them, and nothing in the image identifies
//! the right one. But names are padded with NULs (`fs/crypto/fname.c`: to a multiple of 4, 8, 16 or 32 bytes, 16 at
//! least), and nearly all names are text. Random bytes end in a NUL once in 256 times; 16 of them are valid UTF-8
//! without control characters less than once in 10,000 times.

use crate::{CIPHERTEXT_MIN, NameKey, symlink_ciphertext};

/// The most names that are looked at.
const NAMES_MAX: u32 = 64;

/// So many sound ones among at most twice as many don't come about by chance: six random names hold three that are
/// padded with a NUL once in 800,000 times.
const CONVINCING: u32 = 3;

/// The evidence of names and link targets about a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NameEvidence {
    names: u32,
    sound: u32,
}

/// Whether a decrypted name or target, padding included, looks like one: `unit` is what lengths are padded to a
/// multiple of. A target may hold slashes.
fn is_sound(padded: &[u8], unit: usize, slashes: bool) -> bool {
    let end = padded.iter().position(|&byte| byte == 0).unwrap_or(padded.len());
    let (name, padding) = padded.split_at(end);
    if name.is_empty() || (!slashes && name.contains(&b'/')) || padding.iter().any(|&byte| byte != 0) {
        return false;
    }
    // No more is padded than has to be.
    if padding.len() >= unit && padded.len() > CIPHERTEXT_MIN {
        return false;
    }
    !padding.is_empty() || std::str::from_utf8(name).is_ok_and(|name| !name.chars().any(char::is_control))
}

impl NameEvidence {
    /// No names yet.
    pub fn new() -> NameEvidence {
        NameEvidence::default()
    }

    /// Counts a name as a directory entry stores it, decrypted with the key in question. Anything that can't be
    /// ciphertext under any key does not count.
    pub fn add(&mut self, key: &NameKey, ciphertext: &[u8]) {
        if let Ok(padded) = key.decrypt_padded(ciphertext) {
            self.names += 1;
            self.sound += u32::from(is_sound(&padded, key.padding(), false));
        }
    }

    /// Counts a link's target as the inode or its block stores it, decrypted with the key in question. Anything that
    /// can't be a target under any key does not count.
    pub fn add_link(&mut self, key: &NameKey, stored: &[u8]) {
        if let Ok(padded) = symlink_ciphertext(stored).and_then(|ciphertext| key.decrypt_padded(ciphertext)) {
            self.names += 1;
            self.sound += u32::from(is_sound(&padded, key.padding(), true));
        }
    }

    /// How many look like names or targets.
    pub fn sound(&self) -> u32 {
        self.sound
    }

    /// Whether the key is the right one beyond chance, so that no more names have to be looked for.
    pub fn is_convincing(&self) -> bool {
        self.sound >= CONVINCING && self.verdict() == Some(true)
    }

    /// Whether more names add nothing.
    pub fn is_enough(&self) -> bool {
        self.names >= NAMES_MAX
    }

    /// Whether the key is the right one: half of the names look like names. None where there was no name.
    pub fn verdict(&self) -> Option<bool> {
        (self.names > 0).then_some(2 * self.sound >= self.names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Context, InodeFacts, MasterKey};

    #[test]
    fn what_looks_like_a_name() {
        for sound in [&b"a\0\0\0"[..], b"\xff\xfe\0\0", b"sixteen-bytes-ok", "größe-von-allem".as_bytes()] {
            assert!(is_sound(sound, 4, false), "{}", sound.escape_ascii());
        }
        for odd in [&b"\0\0\0\0"[..], b"a\0b\0", b"a/b\0", b"\xff\xfe\xfd\xfc", b"a\x1bcd"] {
            assert!(!is_sound(odd, 4, false), "{}", odd.escape_ascii());
        }
        assert!(is_sound(b"../a/b\0\0", 4, true) && !is_sound(b"\0\0\0\0", 4, true));
        // 17 bytes are padded to 20 or to 32, and 8 to 16 whatever the policy's padding is.
        let seventeen = [&[b'a'; 17][..], &[0; 15]].concat();
        assert!(is_sound(&seventeen, 32, false) && is_sound(&seventeen[..20], 4, false));
        assert!(!is_sound(&seventeen, 4, false) && is_sound(&[&[b'a'; 8][..], &[0; 8]].concat(), 4, false));
    }

    /// For a directory of a few names, nearly all random keys are rejected, and the right one is always accepted.
    #[test]
    fn wrong_keys_are_told_from_the_right_one() {
        for padding in 0..4u8 {
            // v1, AES-256-XTS and AES-256-CTS.
            let attribute = [&[1, 1, 4, padding][..], &[8; 8], &[7; 16]].concat();
            let context = Context::parse(&attribute).unwrap();
            let facts = InodeFacts { ino: 12, fs_uuid: [0; 16], block_size: 4096 };
            let key = |byte: u8, i: u8| {
                let mut raw = [byte; 64];
                raw[0] = i;
                NameKey::derive(&MasterKey::new(&raw).unwrap(), &context, &facts).unwrap()
            };
            let right = key(1, 0);
            let names = ["a", "photo-0001.jpeg.", "exactly-32-bytes-long-name-here!", "größe"];
            let stored: Vec<_> = names.iter().map(|name| right.encrypt_name(name.as_bytes()).unwrap()).collect();
            let verdict = |key: &NameKey| {
                let mut evidence = NameEvidence::new();
                stored.iter().for_each(|name| evidence.add(key, name));
                evidence.verdict()
            };
            assert_eq!(verdict(&right), Some(true));
            let link = |key: &NameKey| {
                let mut evidence = NameEvidence::new();
                evidence.add_link(key, &right.encrypt_symlink(b"../some/where", 4096).unwrap());
                evidence.add_link(key, b"\xff\xff");
                evidence.verdict()
            };
            assert_eq!(link(&right), Some(true));
            let taken = (0..=255).filter(|&i| link(&key(2, i)) == Some(true)).count();
            assert!(taken <= 4, "{taken} of 256 wrong keys pass by a link, padding {padding}");
            let taken = (0..=255).filter(|&i| verdict(&key(2, i)) == Some(true)).count();
            assert!(taken <= 1, "{taken} of 256 wrong keys pass, padding {padding}");
        }
        assert_eq!(NameEvidence::new().verdict(), None);
    }
}
