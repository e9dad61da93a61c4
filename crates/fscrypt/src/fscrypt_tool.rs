//! The metadata that the `fscrypt` tool keeps in `/.fscrypt` of a file system: policies, protectors, wrapped keys.
//!
//! A passphrase or a raw key unlocks a protector's key, and that unlocks a policy's master key; no kernel is needed.
//! Source of the format: `metadata/metadata.proto` and `crypto/crypto.go` of google/fscrypt (Apache-2.0). The files
//! are `/.fscrypt/policies/KEY` and `/.fscrypt/protectors/DESCRIPTOR`, protocol buffers both.

use aes::cipher::{BlockCipherEncrypt, KeyInit};
use hkdf::Hkdf;
use hmac::{Hmac, Mac};
use sha2::Sha256;
use zeroize::Zeroizing;

use crate::wiped::wiping;

/// The most memory that a protector may require: 4 GiB in KiB. The tool itself uses at most half of the machine's.
const MEMORY_MAX_KIB: i64 = 4 << 20;
/// The most passes and lanes, far beyond what the tool chooses.
const TIME_MAX: i64 = 1 << 16;
const PARALLELISM_MAX: i64 = 255;

/// Errors in the metadata or the passphrase.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ToolError {
    /// Not a protocol buffer of this kind.
    #[error("malformed fscrypt metadata: {0}")]
    Malformed(&'static str),
    /// The wrapped key's authentication code is not that of this key: a wrong passphrase, or corrupt metadata.
    #[error("wrong passphrase or key for protector {protector}")]
    WrongKey {
        /// The protector's descriptor.
        protector: String,
    },
    /// The protector hashes with costs out of range.
    #[error(
        "protector {protector} asks for hashing with {memory_kib} KiB, {time} passes, {parallelism} lanes: out of range"
    )]
    Costs {
        /// The protector's descriptor.
        protector: String,
        /// Memory in KiB.
        memory_kib: i64,
        /// Passes.
        time: i64,
        /// Lanes.
        parallelism: i64,
    },
    /// The protector has another kind of secret.
    #[error("protector {protector} needs a {wanted}")]
    Source {
        /// The protector's descriptor.
        protector: String,
        /// The kind of secret it has.
        wanted: &'static str,
    },
}

/// Where a protector's secret comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtectorSource {
    /// The login passphrase (PAM). Such protectors live on the root file system.
    PamPassphrase,
    /// A custom passphrase.
    CustomPassphrase,
    /// A file with a 32-byte key.
    RawKey,
}

/// A key wrapped by another: AES-256-CTR, then HMAC-SHA256 over IV and ciphertext.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct WrappedKey {
    iv: Vec<u8>,
    encrypted_key: Vec<u8>,
    hmac: Vec<u8>,
}

/// A file in `/.fscrypt/protectors`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Protector {
    /// Its name in file names and in policies, 16 hexadecimal digits.
    pub descriptor: String,
    /// Where its secret comes from.
    pub source: ProtectorSource,
    /// The name that its owner gave it.
    pub name: String,
    /// The user whose login passphrase it is (PAM).
    pub uid: i64,
    time: i64,
    memory_kib: i64,
    parallelism: i64,
    truncation_fixed: bool,
    salt: Vec<u8>,
    wrapped: WrappedKey,
}

/// A file in `/.fscrypt/policies`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolPolicy {
    /// The master key's descriptor or identifier, in hexadecimal.
    pub key_descriptor: String,
    wrapped: Vec<(String, WrappedKey)>,
}

/// A protector's key, wiped when dropped.
pub struct ProtectorKey {
    descriptor: String,
    key: Zeroizing<Vec<u8>>,
}

impl std::fmt::Debug for ProtectorKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProtectorKey").field("descriptor", &self.descriptor).finish_non_exhaustive()
    }
}

impl Protector {
    /// Parses a protector's file.
    pub fn parse(bytes: &[u8]) -> Result<Protector, ToolError> {
        let mut descriptor = String::new();
        let mut name = String::new();
        let (mut source, mut uid, mut salt) = (0, 0, Vec::new());
        let (mut time, mut memory_kib, mut parallelism, mut truncation_fixed) = (0, 0, 0, false);
        let mut wrapped = WrappedKey::default();
        for field in Fields(bytes) {
            match field? {
                (1, Value::Bytes(value)) => descriptor = text(value)?,
                (2, Value::Varint(value)) => source = value,
                (3, Value::Bytes(value)) => name = text(value)?,
                (4, Value::Bytes(costs)) => {
                    for field in Fields(costs) {
                        match field? {
                            (2, Value::Varint(value)) => time = value as i64,
                            (3, Value::Varint(value)) => memory_kib = value as i64,
                            (4, Value::Varint(value)) => parallelism = value as i64,
                            (5, Value::Varint(value)) => truncation_fixed = value != 0,
                            _ => {}
                        }
                    }
                }
                (5, Value::Bytes(value)) => salt = value.to_vec(),
                (6, Value::Varint(value)) => uid = value as i64,
                (7, Value::Bytes(value)) => wrapped = WrappedKey::parse(value)?,
                _ => {}
            }
        }
        let source = match source {
            1 => ProtectorSource::PamPassphrase,
            2 => ProtectorSource::CustomPassphrase,
            3 => ProtectorSource::RawKey,
            _ => return Err(ToolError::Malformed("unknown source of a protector's secret")),
        };
        if descriptor.is_empty() {
            return Err(ToolError::Malformed("a protector without a descriptor"));
        }
        Ok(Protector { descriptor, source, name, uid, time, memory_kib, parallelism, truncation_fixed, salt, wrapped })
    }

    /// Unlocks with a passphrase (without its newline).
    pub fn unlock_with_passphrase(&self, passphrase: &[u8]) -> Result<ProtectorKey, ToolError> {
        if self.source == ProtectorSource::RawKey {
            return Err(ToolError::Source { protector: self.descriptor.clone(), wanted: "raw key of 32 bytes" });
        }
        let costs = || ToolError::Costs {
            protector: self.descriptor.clone(),
            memory_kib: self.memory_kib,
            time: self.time,
            parallelism: self.parallelism,
        };
        // Before a fix, the tool truncated the lanes to a byte, so such a protector has the truncated value.
        let parallelism = if self.truncation_fixed { self.parallelism } else { self.parallelism & 0xff };
        if !(1..=MEMORY_MAX_KIB).contains(&self.memory_kib)
            || !(1..=TIME_MAX).contains(&self.time)
            || !(1..=PARALLELISM_MAX).contains(&parallelism)
        {
            return Err(costs());
        }
        let params = argon2::Params::new(self.memory_kib as u32, self.time as u32, parallelism as u32, Some(32))
            .map_err(|_| costs())?;
        let argon2 = argon2::Argon2::new(argon2::Algorithm::Argon2id, argon2::Version::V0x13, params);
        // On the heap, as the stack keeps what was moved.
        let mut key = Zeroizing::new(vec![0; 32]);
        wiping(|| argon2.hash_password_into(passphrase, &self.salt, &mut key)).map_err(|_| costs())?;
        self.unlock_with_raw(key.as_slice().try_into().expect("32 bytes"))
    }

    /// Unlocks with the 32-byte key of a raw-key protector.
    pub fn unlock_with_raw_key(&self, key: &[u8; 32]) -> Result<ProtectorKey, ToolError> {
        if self.source != ProtectorSource::RawKey {
            return Err(ToolError::Source { protector: self.descriptor.clone(), wanted: "passphrase" });
        }
        self.unlock_with_raw(key)
    }

    fn unlock_with_raw(&self, key: &[u8; 32]) -> Result<ProtectorKey, ToolError> {
        let key = wiping(|| self.wrapped.unwrap_with(key))
            .ok_or_else(|| ToolError::WrongKey { protector: self.descriptor.clone() })?;
        Ok(ProtectorKey { descriptor: self.descriptor.clone(), key })
    }
}

impl ToolPolicy {
    /// Parses a policy's file.
    pub fn parse(bytes: &[u8]) -> Result<ToolPolicy, ToolError> {
        let mut policy = ToolPolicy { key_descriptor: String::new(), wrapped: Vec::new() };
        for field in Fields(bytes) {
            match field? {
                (1, Value::Bytes(value)) => policy.key_descriptor = text(value)?,
                (3, Value::Bytes(value)) => {
                    let (mut protector, mut wrapped) = (String::new(), WrappedKey::default());
                    for field in Fields(value) {
                        match field? {
                            (1, Value::Bytes(value)) => protector = text(value)?,
                            (2, Value::Bytes(value)) => wrapped = WrappedKey::parse(value)?,
                            _ => {}
                        }
                    }
                    policy.wrapped.push((protector, wrapped));
                }
                _ => {}
            }
        }
        if policy.key_descriptor.is_empty() {
            return Err(ToolError::Malformed("a policy without a key descriptor"));
        }
        Ok(policy)
    }

    /// The protectors that unlock it, by descriptor.
    pub fn protectors(&self) -> impl Iterator<Item = &str> {
        self.wrapped.iter().map(|(protector, _)| protector.as_str())
    }

    /// The master key, by the key of one of its protectors; `None` if that is not one of them.
    pub fn master_key(&self, protector: &ProtectorKey) -> Option<Result<Zeroizing<Vec<u8>>, ToolError>> {
        let (name, wrapped) = self.wrapped.iter().find(|(name, _)| *name == protector.descriptor)?;
        let key: Option<&[u8; 32]> = protector.key.as_slice().try_into().ok();
        Some(
            key.and_then(|key| wiping(|| wrapped.unwrap_with(key)))
                .ok_or_else(|| ToolError::WrongKey { protector: name.clone() }),
        )
    }
}

impl WrappedKey {
    fn parse(bytes: &[u8]) -> Result<WrappedKey, ToolError> {
        let mut wrapped = WrappedKey::default();
        for field in Fields(bytes) {
            match field? {
                (1, Value::Bytes(value)) => wrapped.iv = value.to_vec(),
                (2, Value::Bytes(value)) => wrapped.encrypted_key = value.to_vec(),
                (3, Value::Bytes(value)) => wrapped.hmac = value.to_vec(),
                _ => {}
            }
        }
        if wrapped.iv.len() != 16 {
            return Err(ToolError::Malformed("a wrapped key whose IV has not 16 bytes"));
        }
        Ok(wrapped)
    }

    /// The key within; `None` if the authentication code shows that the wrapping key is wrong.
    fn unwrap_with(&self, wrapping: &[u8; 32]) -> Option<Zeroizing<Vec<u8>>> {
        let mut stretched = Zeroizing::new([0; 64]);
        Hkdf::<Sha256>::new(None, wrapping).expand(&[], &mut stretched[..]).expect("64 bytes are within HKDF's limit");
        let (encryption, authentication) = stretched.split_at(32);
        let mut mac = <Hmac<Sha256> as KeyInit>::new_from_slice(authentication).expect("HMAC takes any key");
        mac.update(&self.iv);
        mac.update(&self.encrypted_key);
        mac.verify_slice(&self.hmac).ok()?;
        let aes = aes::Aes256::new_from_slice(encryption).expect("32 bytes");
        let mut counter = u128::from_be_bytes(self.iv.as_slice().try_into().ok()?);
        let mut key = Zeroizing::new(self.encrypted_key.clone());
        for chunk in key.chunks_mut(16) {
            let mut block = counter.to_be_bytes().into();
            aes.encrypt_block(&mut block);
            for (byte, stream) in chunk.iter_mut().zip(block.iter()) {
                *byte ^= stream;
            }
            counter = counter.wrapping_add(1);
        }
        Some(key)
    }
}

fn text(bytes: &[u8]) -> Result<String, ToolError> {
    String::from_utf8(bytes.to_vec()).map_err(|_| ToolError::Malformed("a text that is not UTF-8"))
}

/// A protocol buffer value of the two wire types that this metadata has.
enum Value<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
}

/// The fields of a message, with their numbers.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn varint(&mut self) -> Result<u64, ToolError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first().ok_or(ToolError::Malformed("cut off within a number"))?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(ToolError::Malformed("a number of more than 64 bits"))
    }

    fn take(&mut self, length: u64) -> Result<&'a [u8], ToolError> {
        let length = usize::try_from(length).ok().filter(|&length| length <= self.0.len());
        let (value, rest) = self.0.split_at(length.ok_or(ToolError::Malformed("cut off within a field"))?);
        self.0 = rest;
        Ok(value)
    }

    fn field(&mut self) -> Result<(u64, Value<'a>), ToolError> {
        let tag = self.varint()?;
        let value = match tag & 7 {
            0 => Value::Varint(self.varint()?),
            1 => Value::Bytes(self.take(8)?),
            2 => {
                let length = self.varint()?;
                Value::Bytes(self.take(length)?)
            }
            5 => Value::Bytes(self.take(4)?),
            _ => return Err(ToolError::Malformed("unknown wire type")),
        };
        Ok((tag >> 3, value))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, Value<'a>), ToolError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.0 = &[];
        }
        Some(field)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_truncation_of_a_message_is_an_error_or_a_smaller_message() {
        // A protector of source 2 with descriptor "ab", costs and an IV of 16 bytes.
        let mut bytes = vec![0x0a, 2, b'a', b'b', 0x10, 2, 0x22, 4, 0x10, 1, 0x18, 8, 0x3a, 18, 0x0a, 16];
        bytes.extend([7; 16]);
        Protector::parse(&bytes).unwrap();
        for length in 0..bytes.len() {
            let _ = Protector::parse(&bytes[..length]);
            let _ = ToolPolicy::parse(&bytes[..length]);
        }
        for byte in 0..bytes.len() {
            for bit in 0..8 {
                let mut flipped = bytes.clone();
                flipped[byte] ^= 1 << bit;
                let _ = Protector::parse(&flipped);
                let _ = ToolPolicy::parse(&flipped);
            }
        }
    }
}
