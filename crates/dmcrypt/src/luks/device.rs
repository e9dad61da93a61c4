//! Devices: finding the header, unlocking.

use std::io;

use postread_io::ReadAt;
use zeroize::Zeroizing;

use super::kdf::KdfError;
use super::limits::{LimitError, Limits};
use super::luks1::{self, Luks1Error};
use super::luks2::{self, BINARY_SIZE, Binary, HEADER_SIZES, Luks2Error};
use super::{Kdf, MAGIC, SECOND_MAGIC, af, be16, constant_time_eq};
use crate::cipher::KeyError;
use crate::hash::HashAlg;
use crate::mapping::{Mapping, MappingError};
use crate::spec::CipherSpec;

/// Why there is no usable header.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LuksError {
    /// No magic number.
    #[error("not a LUKS device")]
    NotLuks,
    /// A version that is not supported.
    #[error("LUKS version {version} is not supported (1 and 2 are)")]
    Version {
        /// The version found.
        version: u16,
    },
    /// A LUKS1 header that cannot be used.
    #[error(transparent)]
    Luks1(#[from] Luks1Error),
    /// A LUKS2 header that cannot be used, and no second one that can.
    #[error(transparent)]
    Luks2(#[from] Luks2Error),
    /// The device could not be read.
    #[error("reading {len} bytes at byte {offset}: {source}")]
    Io {
        /// The first byte requested.
        offset: u64,
        /// Bytes requested.
        len: usize,
        /// The error.
        source: io::Error,
    },
}

/// Why no keyslot could be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UnlockError {
    /// The passphrase opens none of the keyslots that could be tried.
    #[error("the passphrase opens none of {tried} keyslots{}", failures(.failed))]
    WrongPassphrase {
        /// How many keyslots were tried.
        tried: usize,
        /// Keyslots that could not be tried, and why.
        failed: Vec<(String, KeyslotError)>,
    },
    /// There is no keyslot that a passphrase could open.
    #[error("no keyslot can be tried{}", failures(.failed))]
    NoKeyslot {
        /// Keyslots that could not be tried, and why.
        failed: Vec<(String, KeyslotError)>,
    },
    /// The volume key does not fit its cipher.
    #[error("the volume key: {0}")]
    VolumeKey(#[from] MappingError),
    /// The digest of the volume key costs more than a limit allows.
    #[error("the digest of the volume key: {0}")]
    Digest(LimitError),
}

fn failures(failed: &[(String, KeyslotError)]) -> String {
    failed.iter().map(|(id, error)| format!("; keyslot {id}: {error}")).collect()
}

/// Why a keyslot could not be tried.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyslotError {
    /// More than a limit allows.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// Its key could not be derived.
    #[error(transparent)]
    Kdf(#[from] KdfError),
    /// The derived key does not fit its cipher.
    #[error(transparent)]
    Cipher(#[from] KeyError),
    /// Its key material is not on the device, or could not be read.
    #[error("reading {len} bytes of key material at byte {offset}: {source}")]
    Io {
        /// The first byte requested.
        offset: u64,
        /// Bytes requested.
        len: usize,
        /// The error.
        source: io::Error,
    },
    /// It is of a kind that cannot be opened.
    #[error("{0}")]
    Unsupported(String),
}

/// The header of a LUKS device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Luks {
    /// Version 1.
    V1(luks1::Header),
    /// Version 2.
    V2 {
        /// The binary header that was used.
        binary: Binary,
        /// Where that was found, in bytes: not 0 where the first header is damaged or older.
        offset: u64,
        /// The metadata.
        header: luks2::Header,
    },
}

/// Where the encrypted data lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Data {
    /// The first byte.
    pub offset: u64,
    /// The number of bytes; nothing if it goes to the device's end.
    pub size: Option<u64>,
}

/// An unlocked device.
#[derive(Debug)]
#[non_exhaustive]
pub struct Unlocked {
    /// What decrypts the data; sectors count from the data's start.
    pub mapping: Mapping,
    /// Where the data lies.
    pub data: Data,
    /// The number of the keyslot that was opened, as text.
    pub keyslot: String,
}

/// One keyslot of either version.
struct Slot<'a> {
    id: String,
    kdf: Kdf,
    salt: &'a [u8],
    cipher: &'a CipherSpec,
    cipher_key: usize,
    key: usize,
    stripes: usize,
    af_hash: HashAlg,
    offset: u64,
}

fn bytes<S: ReadAt + ?Sized>(source: &S, offset: u64, len: usize) -> Result<Vec<u8>, LuksError> {
    let error = |source| LuksError::Io { offset, len, source };
    let end = source.len().map_err(error)?;
    let rest = usize::try_from(end.saturating_sub(offset)).unwrap_or(usize::MAX);
    let mut out = vec![0; len.min(rest)];
    source.read_exact_at(&mut out, offset).map_err(error)?;
    Ok(out)
}

impl Luks {
    /// Reads the header at the start of a device, or the second header of LUKS2 where the first is damaged.
    ///
    /// # Errors
    /// If there is none that can be used.
    pub fn read<S: ReadAt + ?Sized>(source: &S) -> Result<Self, LuksError> {
        let start = bytes(source, 0, BINARY_SIZE)?;
        let version = if start.len() >= 8 && start.starts_with(&MAGIC) { be16(&start, 6) } else { 0 };
        if version == 1 {
            return Ok(Luks::V1(luks1::Header::parse(&start)?));
        }
        let first = match version {
            0 => Err(LuksError::NotLuks),
            2 => Self::read_copy(source, 0),
            version => Err(LuksError::Version { version }),
        };
        let second = match &first {
            Ok((binary, ..)) => Self::read_copy(source, binary.header_size),
            Err(_) => Self::find_second(source),
        };
        let (binary, offset, json) = match (first, second) {
            (Ok(first), Ok(second)) if second.0.sequence > first.0.sequence => second,
            (Ok(first), _) => first,
            (Err(_), Ok(second)) => second,
            (Err(error), Err(_)) => return Err(error),
        };
        let header = luks2::Header::parse(&json)?;
        Ok(Luks::V2 { binary, offset, header })
    }

    /// A header whose checksum is right.
    fn read_copy<S: ReadAt + ?Sized>(source: &S, offset: u64) -> Result<(Binary, u64, Vec<u8>), LuksError> {
        let binary = Binary::parse(&bytes(source, offset, BINARY_SIZE)?, offset)?;
        let header = bytes(source, offset, binary.header_size as usize)?;
        let json = binary.json(&header)?.to_vec();
        Ok((binary, offset, json))
    }

    fn find_second<S: ReadAt + ?Sized>(source: &S) -> Result<(Binary, u64, Vec<u8>), LuksError> {
        let mut last = LuksError::NotLuks;
        for offset in HEADER_SIZES {
            if bytes(source, offset, SECOND_MAGIC.len())? != SECOND_MAGIC {
                continue;
            }
            match Self::read_copy(source, offset) {
                Ok(found) => return Ok(found),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// 1 or 2.
    pub fn version(&self) -> u32 {
        match self {
            Luks::V1(_) => 1,
            Luks::V2 { .. } => 2,
        }
    }

    /// The UUID, as text.
    pub fn uuid(&self) -> &str {
        match self {
            Luks::V1(header) => &header.uuid,
            Luks::V2 { binary, .. } => &binary.uuid,
        }
    }

    /// The cipher of the data.
    pub fn cipher(&self) -> &CipherSpec {
        match self {
            Luks::V1(header) => &header.cipher,
            Luks::V2 { header, .. } => &header.segment.cipher,
        }
    }

    /// Bytes of a sector that is encrypted as a unit.
    pub fn sector_size(&self) -> u32 {
        match self {
            Luks::V1(_) => 512,
            Luks::V2 { header, .. } => header.segment.sector_size,
        }
    }

    /// Where the encrypted data lies.
    pub fn data(&self) -> Data {
        match self {
            Luks::V1(header) => Data { offset: header.payload_offset, size: None },
            Luks::V2 { header, .. } => Data { offset: header.segment.offset, size: header.segment.size },
        }
    }

    fn slots(&self) -> Vec<Slot<'_>> {
        match self {
            Luks::V1(header) => {
                let slot = |k| Self::v1_slot(header, k);
                header.keyslots.iter().map(slot).collect()
            }
            // What has priority 0 is used only when asked for by its number, and what another digest covers is the key
            // of something else.
            Luks::V2 { header, .. } => {
                let ours = |k: &&luks2::Keyslot| k.priority > 0 && header.digest.keyslots.contains(&k.id);
                header.keyslots.iter().filter(ours).map(Self::v2_slot).collect()
            }
        }
    }

    fn v1_slot<'a>(header: &'a luks1::Header, k: &'a luks1::Keyslot) -> Slot<'a> {
        Slot {
            id: k.number.to_string(),
            kdf: Kdf::Pbkdf2 { hash: header.hash, iterations: k.iterations },
            salt: &k.salt,
            cipher: &header.cipher,
            cipher_key: header.key_bytes as usize,
            key: header.key_bytes as usize,
            stripes: k.stripes as usize,
            af_hash: header.hash,
            offset: k.material_offset,
        }
    }

    fn v2_slot(k: &luks2::Keyslot) -> Slot<'_> {
        Slot {
            id: k.id.clone(),
            kdf: k.kdf,
            salt: &k.salt,
            cipher: &k.cipher,
            cipher_key: k.cipher_key_size as usize,
            key: k.key_size as usize,
            stripes: k.stripes as usize,
            af_hash: k.af_hash,
            offset: k.area_offset,
        }
    }

    /// Opens a keyslot with a passphrase, or the contents of a key file, and makes the mapping of the data. `source` is
    /// where the header is. Keyslots are tried in the order of their priorities and numbers.
    ///
    /// # Errors
    /// If the passphrase opens none; keyslots that could not be tried are in the error.
    pub fn unlock<S: ReadAt + ?Sized>(
        &self,
        source: &S,
        passphrase: &[u8],
        limits: &Limits,
    ) -> Result<Unlocked, UnlockError> {
        let digest_iterations = match self {
            Luks::V1(header) => header.digest_iterations,
            Luks::V2 { header, .. } => header.digest.iterations,
        };
        let limit = u64::from(limits.pbkdf2_iterations);
        LimitError::check("PBKDF2 iterations", digest_iterations.into(), limit).map_err(UnlockError::Digest)?;
        let mut tried = 0;
        let mut failed = Vec::new();
        for slot in self.slots() {
            match slot.open(source, passphrase, limits) {
                Ok(key) if self.is_volume_key(&key) => {
                    let mapping = self.mapping(&key)?;
                    return Ok(Unlocked { mapping, data: self.data(), keyslot: slot.id });
                }
                Ok(_) => tried += 1,
                Err(error) => failed.push((slot.id, error)),
            }
        }
        if let Luks::V2 { header, .. } = self {
            let other = header.other_keyslots.iter();
            failed.extend(other.map(|(id, why)| (id.clone(), KeyslotError::Unsupported(why.clone()))));
        }
        Err(if tried > 0 { UnlockError::WrongPassphrase { tried, failed } } else { UnlockError::NoKeyslot { failed } })
    }

    fn is_volume_key(&self, key: &[u8]) -> bool {
        match self {
            Luks::V1(header) => {
                let mut digest = [0; 20];
                header.hash.pbkdf2(key, &header.digest_salt, header.digest_iterations, &mut digest);
                constant_time_eq(&digest, &header.digest)
            }
            Luks::V2 { header, .. } => header.digest.matches(key),
        }
    }

    fn mapping(&self, key: &[u8]) -> Result<Mapping, MappingError> {
        let mapping = Mapping::new(self.cipher(), key)?.with_sector_size(self.sector_size())?;
        Ok(match self {
            Luks::V1(_) => mapping,
            Luks::V2 { header, .. } => mapping.with_iv_offset(header.segment.iv_tweak),
        })
    }
}

impl Slot<'_> {
    /// What is in the keyslot if this is its passphrase, and noise if it is not.
    fn open<S: ReadAt + ?Sized>(
        &self,
        source: &S,
        passphrase: &[u8],
        limits: &Limits,
    ) -> Result<Zeroizing<Vec<u8>>, KeyslotError> {
        let size = self.key as u64 * self.stripes as u64;
        LimitError::check("key material in bytes", size, limits.key_material)?;
        self.kdf.check(limits)?;
        let len = (size as usize).next_multiple_of(512);
        let offset = self.offset;
        let error = |source| KeyslotError::Io { offset, len, source };
        // Before the passphrase is made into a key, which takes seconds.
        let mut material = Zeroizing::new(vec![0; len]);
        source.read_exact_at(&mut material, offset).map_err(error)?;
        let key = self.kdf.derive(passphrase, self.salt, self.cipher_key, limits)?;
        let mapping = Mapping::new(self.cipher, &key)?;
        mapping.decrypt(&mut material, 0).expect("whole sectors");
        Ok(af::merge(&material, self.key, self.stripes, self.af_hash))
    }
}
