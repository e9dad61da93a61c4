//! Master keys: their names, and the keys derived from them.
//!
//! Derivations: `fs/crypto/hkdf.c` and `keysetup.c` (v2), `keysetup_v1.c` (v1).

use std::fmt;

use aes::cipher::{BlockCipherEncrypt, KeyInit};
use hkdf::Hkdf;
use sha2::{Digest, Sha512};
use zeroize::Zeroizing;

use crate::hw_wrapped::HwKdf;
use crate::wiped::wiping;
use crate::{Context, IvScheme, KeyError, KeySpecifier, Mode, Policy};

/// `HKDF_CONTEXT_*` of `fs/crypto/fscrypt_private.h`.
mod hkdf_context {
    pub(super) const KEY_IDENTIFIER_FOR_RAW_KEY: u8 = 1;
    pub(super) const PER_FILE_ENC_KEY: u8 = 2;
    pub(super) const DIRECT_KEY: u8 = 3;
    pub(super) const IV_INO_LBLK_64_KEY: u8 = 4;
    pub(super) const DIRHASH_KEY: u8 = 5;
    pub(super) const IV_INO_LBLK_32_KEY: u8 = 6;
    pub(super) const INODE_HASH_KEY: u8 = 7;
    pub(super) const KEY_IDENTIFIER_FOR_HW_WRAPPED_KEY: u8 = 8;
}

/// A master key. It is wiped when dropped and never printed.
pub struct MasterKey {
    /// The key as given. For a hardware-wrapped key, the software secret, which replaces the master key.
    secret: Zeroizing<Vec<u8>>,
    /// Of a hardware-wrapped key, the key for inline encryption of contents.
    inline_key: Option<Box<Zeroizing<[u8; 64]>>>,
    identifier: KeySpecifier,
    /// In a box, as moving it would leave a copy.
    hkdf: Box<Hkdf<Sha512>>,
}

impl MasterKey {
    /// A raw key of 16 to 64 bytes.
    pub fn new(key: &[u8]) -> Result<MasterKey, KeyError> {
        if !(16..=64).contains(&key.len()) {
            return Err(KeyError::MasterKeyLength(key.len()));
        }
        Ok(wiping(|| Self::with_secret(key, None, hkdf_context::KEY_IDENTIFIER_FOR_RAW_KEY)))
    }

    /// The raw form of a hardware-wrapped key: 32 bytes that hardware would never show, from which it derives the
    /// key for contents and a secret for all else.
    pub fn hardware_wrapped(raw: &[u8], kdf: HwKdf) -> Result<MasterKey, KeyError> {
        let raw: &[u8; 32] = raw.try_into().map_err(|_| KeyError::MasterKeyLength(raw.len()))?;
        Ok(wiping(|| {
            let secret = kdf.software_secret(raw);
            let inline_key = Some(Box::new(kdf.inline_encryption_key(raw)));
            Self::with_secret(&*secret, inline_key, hkdf_context::KEY_IDENTIFIER_FOR_HW_WRAPPED_KEY)
        }))
    }

    fn with_secret(secret: &[u8], inline_key: Option<Box<Zeroizing<[u8; 64]>>>, identifier_context: u8) -> MasterKey {
        let hkdf = Box::new(Hkdf::<Sha512>::new(None, secret));
        let mut identifier = [0; 16];
        expand(&hkdf, identifier_context, &[], &mut identifier);
        let identifier = KeySpecifier::Identifier(identifier);
        MasterKey { secret: Zeroizing::new(secret.to_vec()), inline_key, identifier, hkdf }
    }

    /// The identifier that v2 policies name it by. It proves the key.
    pub fn identifier(&self) -> KeySpecifier {
        self.identifier
    }

    /// The descriptor that tools give a key by convention: the first 8 bytes of SHA-512 of its SHA-512. A v1 policy
    /// may name the key by any other 8 bytes.
    pub fn conventional_descriptor(&self) -> KeySpecifier {
        let twice = wiping(|| Sha512::digest(Sha512::digest(&*self.secret)));
        let mut descriptor = [0; 8];
        descriptor.copy_from_slice(&twice[..8]);
        KeySpecifier::Descriptor(descriptor)
    }

    /// Whether a policy's key name is this key's. For v1, by the convention.
    pub fn is_named_by(&self, specifier: &KeySpecifier) -> bool {
        match specifier {
            KeySpecifier::Identifier(_) => *specifier == self.identifier,
            KeySpecifier::Descriptor(_) => self.inline_key.is_none() && *specifier == self.conventional_descriptor(),
        }
    }

    /// The key that data of one inode is encrypted with: of regular files' contents, or of names and link targets.
    pub(crate) fn encryption_key(
        &self,
        context: &Context,
        fs_uuid: &[u8; 16],
        mode: Mode,
        contents: bool,
    ) -> Result<Zeroizing<Vec<u8>>, KeyError> {
        let policy = &context.policy;
        self.check_fits(policy, mode)?;
        let mut key = Zeroizing::new(vec![0; mode.key_size()]);
        if let Some(inline_key) = &self.inline_key {
            if !matches!(policy.iv_scheme(), IvScheme::InoLblk64 | IvScheme::InoLblk32) {
                return Err(KeyError::WrappedPolicy);
            }
            if contents {
                key.copy_from_slice(&inline_key[..]);
                return Ok(key);
            }
        }
        match (policy.version, policy.iv_scheme()) {
            (1, IvScheme::DirectKey) => key.copy_from_slice(&self.secret[..mode.key_size()]),
            (1, _) => wiping(|| v1_per_file_key(&self.secret, &context.nonce, &mut key)),
            (_, IvScheme::PerFileKey) => self.expand(hkdf_context::PER_FILE_ENC_KEY, &context.nonce, &mut key),
            (_, IvScheme::DirectKey) => self.expand(hkdf_context::DIRECT_KEY, &[mode.number()], &mut key),
            (_, IvScheme::InoLblk64) => self.per_mode_key(hkdf_context::IV_INO_LBLK_64_KEY, mode, fs_uuid, &mut key),
            (_, IvScheme::InoLblk32) => self.per_mode_key(hkdf_context::IV_INO_LBLK_32_KEY, mode, fs_uuid, &mut key),
        }
        Ok(key)
    }

    /// The SipHash key that a casefolded encrypted directory hashes its plaintext names with (v2 only).
    pub(crate) fn dirhash_key(&self, nonce: &[u8; 16]) -> Zeroizing<[u8; 16]> {
        let mut key = Zeroizing::new([0; 16]);
        self.expand(hkdf_context::DIRHASH_KEY, nonce, &mut *key);
        key
    }

    /// The SipHash key that `IV_INO_LBLK_32` hashes inode numbers with.
    pub(crate) fn inode_hash_key(&self) -> Zeroizing<[u8; 16]> {
        let mut key = Zeroizing::new([0; 16]);
        self.expand(hkdf_context::INODE_HASH_KEY, &[], &mut *key);
        key
    }

    fn check_fits(&self, policy: &Policy, mode: Mode) -> Result<(), KeyError> {
        let found = self.secret.len();
        // v1 cuts its keys out of the master key, so it needs as many bytes; HKDF needs only the strength.
        let wanted = if policy.version == 1 { mode.key_size() } else { mode.security_strength() };
        if found < wanted {
            return Err(KeyError::TooShort { mode, wanted, found });
        }
        Ok(())
    }

    fn per_mode_key(&self, context: u8, mode: Mode, fs_uuid: &[u8; 16], key: &mut [u8]) {
        let mut info = [0; 17];
        info[0] = mode.number();
        info[1..].copy_from_slice(fs_uuid);
        self.expand(context, &info, key);
    }

    fn expand(&self, context: u8, info: &[u8], out: &mut [u8]) {
        wiping(|| expand(&self.hkdf, context, info, out));
    }
}

impl fmt::Debug for MasterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MasterKey").field("identifier", &self.identifier).finish_non_exhaustive()
    }
}

/// HKDF-SHA512 without salt; info = "fscrypt\0" || context || `info`.
fn expand(hkdf: &Hkdf<Sha512>, context: u8, info: &[u8], out: &mut [u8]) {
    hkdf.expand_multi_info(&[b"fscrypt\0", &[context], info], out)
        .expect("a key of at most 64 bytes is far below HKDF's limit of 255 hashes");
}

/// v1: AES-128-ECB, the nonce as key, over the master key, cut at the size of the mode's key.
fn v1_per_file_key(master: &[u8], nonce: &[u8; 16], key: &mut [u8]) {
    let aes = aes::Aes128::new(nonce.into());
    key.copy_from_slice(&master[..key.len()]);
    for block in key.chunks_exact_mut(16) {
        aes.encrypt_block(block.try_into().expect("chunks are blocks"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identifier_of(key: &[u8]) -> String {
        hex::encode(MasterKey::new(key).unwrap().identifier().as_bytes())
    }

    /// xfstests generic/581: the key is the bytes 1 to 64.
    #[test]
    fn published_identifier() {
        let key: Vec<u8> = (1..=64).collect();
        assert_eq!(identifier_of(&key), "69b2f6edeee720cce0577937eb8a6751");
    }

    /// The policies of the kernel-made images in `tests/images`: byte i of a key is 7 i + 1.
    #[test]
    fn identifiers_that_the_kernel_gave() {
        let key: Vec<u8> = (0..64u8).map(|i| i.wrapping_mul(7).wrapping_add(1)).collect();
        assert_eq!(identifier_of(&key), "106febaab6f204fb554357b2adefc46b");
        assert_eq!(identifier_of(&key[..32]), "a53d6d5249ef8496c479b43a721b568c");
    }

    #[test]
    fn lengths_are_those_that_linux_takes() {
        for length in [0, 15, 65, 128] {
            assert_eq!(MasterKey::new(&vec![1; length]).unwrap_err(), KeyError::MasterKeyLength(length));
        }
        for length in [16, 32, 64] {
            MasterKey::new(&vec![1; length]).unwrap();
        }
    }

    #[test]
    fn debug_shows_no_secret() {
        let key = MasterKey::new(&[0x5a; 64]).unwrap();
        let text = format!("{key:?}");
        assert!(!text.contains("5a5a") && !text.contains("90, 90"), "{text}");
    }
}
