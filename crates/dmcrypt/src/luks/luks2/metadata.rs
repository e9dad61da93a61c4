//! The JSON metadata: keyslots, segments, digests.

use std::collections::BTreeMap;

use base64ct::{Base64, Encoding};
use serde::Deserialize;

use super::Luks2Error;
use crate::hash::HashAlg;
use crate::luks::kdf::Argon2Cost;
use crate::luks::luks1::MAX_KEY;
use crate::luks::{Kdf, constant_time_eq};
use crate::spec::CipherSpec;

/// A device in a state that cannot be read here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unsupported {
    /// The header requires something of its readers.
    #[error("this LUKS2 device requires \"{}\"{}", .requirement.escape_default(), explain(.requirement))]
    Requirement {
        /// What it requires.
        requirement: String,
    },
    /// A segment of a type that cannot be read.
    #[error("segment {id} has type \"{}\"{}", .kind.escape_default(), explain(.kind))]
    Segment {
        /// Its number, as text.
        id: String,
        /// Its type.
        kind: String,
    },
    /// A segment with integrity protection, whose data is mixed with tags.
    #[error("segment {id} has integrity protection ({}), which is not supported", .integrity.escape_default())]
    Integrity {
        /// Its number, as text.
        id: String,
        /// The algorithm.
        integrity: String,
    },
    /// Several segments, which exist while a device is re-encrypted.
    #[error("{count} data segments: the device is being re-encrypted; finish or abort that first")]
    Segments {
        /// How many there are.
        count: usize,
    },
}

fn explain(name: &str) -> &'static str {
    match name {
        _ if name.starts_with("online-reencrypt") => ": it is being re-encrypted; finish or abort that first",
        "offline-reencrypt" => ": it is being re-encrypted offline; finish that first",
        _ if name.starts_with("hw-opal") || name == "opal" => {
            ": the drive itself encrypts (OPAL), and only the drive can unlock it"
        }
        "inline-hw-tags" => ": integrity tags are in the sectors' own metadata, which is not supported",
        _ => ", which is not supported",
    }
}

#[derive(Deserialize)]
struct Json {
    keyslots: BTreeMap<String, JsonKeyslot>,
    segments: BTreeMap<String, JsonSegment>,
    digests: BTreeMap<String, JsonDigest>,
    #[serde(default)]
    config: JsonConfig,
}

#[derive(Deserialize, Default)]
struct JsonConfig {
    #[serde(default)]
    requirements: JsonRequirements,
}

#[derive(Deserialize, Default)]
struct JsonRequirements {
    #[serde(default)]
    mandatory: Vec<String>,
}

#[derive(Deserialize)]
struct JsonKeyslot {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    key_size: u32,
    priority: Option<u32>,
    kdf: Option<JsonKdf>,
    af: Option<JsonAf>,
    area: Option<JsonArea>,
}

#[derive(Deserialize)]
struct JsonKdf {
    #[serde(rename = "type")]
    kind: String,
    salt: String,
    hash: Option<String>,
    iterations: Option<u32>,
    time: Option<u32>,
    memory: Option<u32>,
    cpus: Option<u32>,
}

#[derive(Deserialize)]
struct JsonAf {
    #[serde(rename = "type")]
    kind: String,
    stripes: Option<u32>,
    hash: Option<String>,
}

#[derive(Deserialize)]
struct JsonArea {
    #[serde(rename = "type")]
    kind: String,
    offset: String,
    size: String,
    encryption: Option<String>,
    key_size: Option<u32>,
}

#[derive(Deserialize)]
struct JsonSegment {
    #[serde(rename = "type")]
    kind: String,
    offset: String,
    size: String,
    iv_tweak: Option<String>,
    encryption: Option<String>,
    sector_size: Option<u32>,
    integrity: Option<JsonIntegrity>,
    #[serde(default)]
    flags: Vec<String>,
}

#[derive(Deserialize)]
struct JsonIntegrity {
    #[serde(rename = "type")]
    kind: String,
}

#[derive(Deserialize)]
struct JsonDigest {
    #[serde(rename = "type")]
    kind: String,
    keyslots: Vec<String>,
    segments: Vec<String>,
    salt: String,
    digest: String,
    hash: Option<String>,
    iterations: Option<u32>,
}

/// A keyslot that holds a volume key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Keyslot {
    /// Its number, as text.
    pub id: String,
    /// Bytes of the volume key.
    pub key_size: u32,
    /// 0: only used when selected by number. 1: normal. 2: tried first.
    pub priority: u32,
    /// How a passphrase becomes its key.
    pub kdf: Kdf,
    /// The salt of that.
    pub salt: Vec<u8>,
    /// Anti-forensic stripes.
    pub stripes: u32,
    /// The hash function of anti-forensic splitting.
    pub af_hash: HashAlg,
    /// Where its key material is on the device, in bytes.
    pub area_offset: u64,
    /// The size of that area, in bytes.
    pub area_size: u64,
    /// The cipher of the key material.
    pub cipher: CipherSpec,
    /// Bytes of the key of that cipher.
    pub cipher_key_size: u32,
}

/// The encrypted data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Segment {
    /// Where it begins, in bytes.
    pub offset: u64,
    /// Its size in bytes; nothing if it goes to the device's end.
    pub size: Option<u64>,
    /// The number of its first sector for IVs, in 512 bytes.
    pub iv_tweak: u64,
    /// The cipher.
    pub cipher: CipherSpec,
    /// Bytes of a sector.
    pub sector_size: u32,
}

/// How a volume key is checked.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Digest {
    /// The keyslots that hold the key, by number as text.
    pub keyslots: Vec<String>,
    /// The hash function of PBKDF2.
    pub hash: HashAlg,
    /// Iterations of that.
    pub iterations: u32,
    /// The salt of that.
    pub salt: Vec<u8>,
    digest: Vec<u8>,
}

impl Digest {
    /// True for the volume key that this is the digest of.
    pub(crate) fn matches(&self, key: &[u8]) -> bool {
        let mut found = vec![0; self.digest.len()];
        self.hash.pbkdf2(key, &self.salt, self.iterations, &mut found);
        constant_time_eq(&found, &self.digest)
    }
}

/// The metadata of a LUKS2 header.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Header {
    /// Keyslots that can be opened with a passphrase, in the order in which they are tried: by priority, then by number.
    pub keyslots: Vec<Keyslot>,
    /// Keyslots that cannot, and why.
    pub other_keyslots: Vec<(String, String)>,
    /// The encrypted data.
    pub segment: Segment,
    /// The digest of the segment's key.
    pub digest: Digest,
}

impl Header {
    /// Parses the JSON of a header.
    ///
    /// # Errors
    /// If it is corrupt, or the device is in a state that cannot be read.
    pub fn parse(json: &[u8]) -> Result<Self, Luks2Error> {
        let json: Json = serde_json::from_slice(json).map_err(Luks2Error::Json)?;
        if let Some(requirement) = json.config.requirements.mandatory.into_iter().next() {
            return Err(Unsupported::Requirement { requirement }.into());
        }
        let (segment_id, segment) = segment(json.segments)?;
        let mut keyslots = Vec::new();
        let mut other_keyslots = Vec::new();
        for (id, keyslot) in json.keyslots {
            match self::keyslot(&id, keyslot) {
                Ok(keyslot) => keyslots.push(keyslot),
                Err(error) => other_keyslots.push((id, error.to_string())),
            }
        }
        keyslots.sort_by_key(|k: &Keyslot| (std::cmp::Reverse(k.priority), k.id.parse().unwrap_or(u64::MAX)));
        let of_segment = json.digests.into_iter().find(|(_, digest)| digest.segments.contains(&segment_id));
        let (id, digest) = of_segment.ok_or(Luks2Error::Invalid {
            what: "segment",
            id: segment_id,
            reason: "no digest covers its key",
        })?;
        Ok(Self { keyslots, other_keyslots, segment, digest: self::digest(id, digest)? })
    }
}

fn segment(segments: BTreeMap<String, JsonSegment>) -> Result<(String, Segment), Luks2Error> {
    // Segments with flags beginning "backup" describe an earlier state.
    let backup = |s: &JsonSegment| s.flags.iter().any(|flag| flag.starts_with("backup"));
    let count = segments.len();
    let mut segments: Vec<_> = segments.into_iter().filter(|(_, segment)| !backup(segment)).collect();
    let Some((id, s)) = segments.pop().filter(|_| count == 1) else {
        return Err(Unsupported::Segments { count }.into());
    };
    let invalid = |reason| Luks2Error::Invalid { what: "segment", id: id.clone(), reason };
    if s.kind != "crypt" {
        return Err(Unsupported::Segment { id, kind: s.kind }.into());
    }
    if let Some(integrity) = s.integrity {
        return Err(Unsupported::Integrity { id, integrity: integrity.kind }.into());
    }
    let cipher = s.encryption.ok_or_else(|| invalid("it names no cipher"))?;
    let cipher = cipher.parse().map_err(|error| Luks2Error::Cipher { what: "segment", id: id.clone(), error })?;
    let number = |text: &str, reason| text.parse::<u64>().map_err(|_| invalid(reason));
    let sector_size = s.sector_size.unwrap_or(512);
    if !matches!(sector_size, 512 | 1024 | 2048 | 4096) {
        return Err(invalid("its sectors are not 512, 1024, 2048 or 4096 bytes"));
    }
    let offset = number(&s.offset, "its offset is not a number")?;
    let size = if s.size == "dynamic" { None } else { Some(number(&s.size, "its size is not a number")?) };
    if !offset.is_multiple_of(512)
        || size.is_some_and(|s| !s.is_multiple_of(sector_size.into()) || offset.checked_add(s).is_none())
    {
        return Err(invalid("it is not whole sectors"));
    }
    let iv_tweak = number(s.iv_tweak.as_deref().unwrap_or("0"), "its IV tweak is not a number")?;
    Ok((id.clone(), Segment { offset, size, iv_tweak, cipher, sector_size }))
}

fn base64(text: &str) -> Option<Vec<u8>> {
    Base64::decode_vec(text).ok()
}

fn keyslot(id: &str, k: JsonKeyslot) -> Result<Keyslot, Luks2Error> {
    let invalid = |reason| Luks2Error::Invalid { what: "keyslot", id: id.to_owned(), reason };
    if k.kind != "luks2" {
        return Err(invalid("its type is not luks2"));
    }
    let (Some(kdf), Some(af), Some(area)) = (k.kdf, k.af, k.area) else {
        return Err(invalid("it lacks kdf, af or area"));
    };
    let argon2 = || {
        let (Some(time), Some(memory_kib), Some(cpus)) = (kdf.time, kdf.memory, kdf.cpus) else {
            return Err(invalid("its kdf lacks time, memory or cpus"));
        };
        Ok(Argon2Cost { time, memory_kib, cpus })
    };
    let hash = |name: Option<&str>| {
        let name = name.ok_or_else(|| invalid("it names no hash"))?;
        name.parse::<HashAlg>().map_err(|_| invalid("its hash is not supported"))
    };
    let function = match kdf.kind.as_str() {
        "pbkdf2" => {
            let iterations = kdf.iterations.filter(|n| *n > 0).ok_or_else(|| invalid("its kdf lacks iterations"))?;
            Kdf::Pbkdf2 { hash: hash(kdf.hash.as_deref())?, iterations }
        }
        "argon2i" => Kdf::Argon2i(argon2()?),
        "argon2id" => Kdf::Argon2id(argon2()?),
        _ => return Err(invalid("its kdf is not supported")),
    };
    if af.kind != "luks1" || area.kind != "raw" {
        return Err(invalid("the types of its af and area are not luks1 and raw"));
    }
    let cipher = area.encryption.ok_or_else(|| invalid("its area names no cipher"))?;
    let cipher = cipher.parse().map_err(|error| Luks2Error::Cipher { what: "keyslot", id: id.to_owned(), error })?;
    let number = |text: &str| text.parse::<u64>().map_err(|_| invalid("its area's place is not a number"));
    let length =
        |n: u32| (1..=MAX_KEY).contains(&n).then_some(n).ok_or_else(|| invalid("a key's length is impossible"));
    let keyslot = Keyslot {
        id: id.to_owned(),
        key_size: length(k.key_size)?,
        priority: k.priority.unwrap_or(1),
        kdf: function,
        salt: base64(&kdf.salt).ok_or_else(|| invalid("its salt is not base64"))?,
        stripes: af.stripes.filter(|n| *n > 0).ok_or_else(|| invalid("its af lacks stripes"))?,
        af_hash: hash(af.hash.as_deref())?,
        area_offset: number(&area.offset)?,
        area_size: number(&area.size)?,
        cipher,
        cipher_key_size: length(area.key_size.unwrap_or(0))?,
    };
    if keyslot.area_offset.checked_add(keyslot.area_size).is_none() {
        return Err(invalid("its area is out of bounds"));
    }
    if u64::from(keyslot.key_size) * u64::from(keyslot.stripes) > keyslot.area_size {
        return Err(invalid("its area is too small for its stripes"));
    }
    Ok(keyslot)
}

fn digest(id: String, d: JsonDigest) -> Result<Digest, Luks2Error> {
    let invalid = |reason| Luks2Error::Invalid { what: "digest", id: id.clone(), reason };
    if d.kind != "pbkdf2" {
        return Err(invalid("its type is not pbkdf2"));
    }
    let hash = d.hash.ok_or_else(|| invalid("it names no hash"))?;
    let digest = base64(&d.digest).filter(|bytes| (16..=64).contains(&bytes.len()));
    Ok(Digest {
        keyslots: d.keyslots,
        hash: hash.parse().map_err(|_| invalid("its hash is not supported"))?,
        iterations: d.iterations.filter(|n| *n > 0).ok_or_else(|| invalid("it lacks iterations"))?,
        salt: base64(&d.salt).ok_or_else(|| invalid("its salt is not base64"))?,
        digest: digest.ok_or_else(|| invalid("its digest is not 16 to 64 bytes of base64"))?,
    })
}
