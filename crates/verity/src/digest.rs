//! Digests: of a block, the root hash, a file; as bytes, as `ALG:HEX`, and as the kernel formats them to be signed.

use std::fmt;
use std::str::FromStr;

use postread_blockcrypt::hash::{HashAlg, MAX_DIGEST_SIZE};

use crate::params::{alg_from_name, alg_from_number, alg_number};

/// The output of a hash function: a root hash, a block's digest, a file digest. Compared in constant time.
#[derive(Clone, Copy)]
pub struct Digest {
    alg: HashAlg,
    bytes: [u8; MAX_DIGEST_SIZE],
}

impl Digest {
    /// Takes the bytes of a digest; `None` if their number is not the algorithm's.
    pub fn new(alg: HashAlg, bytes: &[u8]) -> Option<Self> {
        if bytes.len() != alg.digest_size() {
            return None;
        }
        let mut digest = Self::zero(alg);
        digest.bytes[..bytes.len()].copy_from_slice(bytes);
        Some(digest)
    }

    /// All zero bytes: the root hash of an empty file.
    pub fn zero(alg: HashAlg) -> Self {
        Self { alg, bytes: [0; MAX_DIGEST_SIZE] }
    }

    /// The hash of `data`, without salt or padding.
    pub fn of(alg: HashAlg, data: &[u8]) -> Self {
        let mut digest = Self::zero(alg);
        let hash = postread_blockcrypt::hash::digest(alg, data);
        digest.bytes[..alg.digest_size()].copy_from_slice(hash.as_ref());
        digest
    }

    /// The hash algorithm.
    pub fn alg(&self) -> HashAlg {
        self.alg
    }

    /// The digest's bytes: 32 or 64.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.alg.digest_size()]
    }

    /// Lower-case hexadecimal, without the algorithm.
    pub fn to_hex(&self) -> String {
        hex::encode(self.as_bytes())
    }
}

/// Compares without a branch on the bytes, so that the time taken does not reveal where two digests differ.
pub(crate) fn constant_time_eq(a: &[u8], b: &[u8]) -> bool {
    if a.len() != b.len() {
        return false;
    }
    let mut difference = 0;
    let (a_words, a_rest) = a.as_chunks::<8>();
    let (b_words, b_rest) = b.as_chunks::<8>();
    for (x, y) in a_words.iter().zip(b_words) {
        difference |= u64::from_ne_bytes(*x) ^ u64::from_ne_bytes(*y);
    }
    for (x, y) in a_rest.iter().zip(b_rest) {
        difference |= u64::from(x ^ y);
    }
    std::hint::black_box(difference) == 0
}

impl PartialEq for Digest {
    fn eq(&self, other: &Self) -> bool {
        self.alg == other.alg && constant_time_eq(self.as_bytes(), other.as_bytes())
    }
}

impl Eq for Digest {}

impl fmt::Display for Digest {
    /// `ALG:HEX`, as `fsverity` prints it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.alg, self.to_hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// The digest of a file as fs-verity defines it: the hash of its descriptor. This is what a caller trusts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct FileDigest {
    digest: Digest,
    number: u8,
}

impl FileDigest {
    /// Takes a digest; `None` if fs-verity does not have its algorithm.
    pub fn new(digest: Digest) -> Option<Self> {
        Some(Self { digest, number: alg_number(digest.alg)? })
    }

    /// The digest itself.
    pub fn digest(&self) -> &Digest {
        &self.digest
    }

    /// The hash algorithm.
    pub fn alg(&self) -> HashAlg {
        self.digest.alg
    }

    /// The digest's bytes: 32 or 64.
    pub fn as_bytes(&self) -> &[u8] {
        self.digest.as_bytes()
    }

    /// Lower-case hexadecimal, without the algorithm.
    pub fn to_hex(&self) -> String {
        self.digest.to_hex()
    }

    /// What a signature covers: `"FSVerity"`, the algorithm and the digest's size as little-endian 16-bit numbers, the
    /// digest (`struct fsverity_formatted_digest`).
    pub fn formatted(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(12 + MAX_DIGEST_SIZE);
        out.extend_from_slice(b"FSVerity");
        out.extend_from_slice(&u16::from(self.number).to_le_bytes());
        out.extend_from_slice(&(self.as_bytes().len() as u16).to_le_bytes());
        out.extend_from_slice(self.as_bytes());
        out
    }

    /// Reads what [`formatted`](Self::formatted) writes; `None` for anything else.
    pub fn from_formatted(bytes: &[u8]) -> Option<Self> {
        let rest = bytes.strip_prefix(b"FSVerity")?;
        let (head, digest) = rest.split_at_checked(4)?;
        let alg = alg_from_number(u64::from(u16::from_le_bytes([head[0], head[1]])))?;
        if usize::from(u16::from_le_bytes([head[2], head[3]])) != digest.len() {
            return None;
        }
        Self::new(Digest::new(alg, digest)?)
    }
}

impl fmt::Display for FileDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.digest.fmt(f)
    }
}

impl fmt::Debug for FileDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.digest.fmt(f)
    }
}

/// Why a text is not a digest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DigestParseError {
    /// There is no algorithm in front of the digits.
    #[error("not a digest: expected ALG:HEX, as in sha256:3d248c...")]
    NoAlgorithm,
    /// An algorithm that fs-verity does not have.
    #[error("unknown hash algorithm {name:?} (known: sha256, sha512)")]
    UnknownAlgorithm {
        /// The name given.
        name: String,
    },
    /// Too few or too many digits for the algorithm.
    #[error("expected {wanted} hexadecimal digits for {alg}, found {found}{}", if_another(*.found))]
    Length {
        /// The algorithm's name.
        alg: &'static str,
        /// The number of digits of its digests.
        wanted: usize,
        /// The number of digits given.
        found: usize,
    },
    /// A character that is not a hexadecimal digit.
    #[error("not a hexadecimal digit at position {position}")]
    NotHex {
        /// Its position among the digits, from 0.
        position: usize,
    },
}

/// The algorithm whose digests have this many digits.
fn if_another(digits: usize) -> String {
    let mut algs = [HashAlg::Sha256, HashAlg::Sha512].into_iter();
    let alg = algs.find(|alg| 2 * alg.digest_size() == digits);
    alg.map_or(String::new(), |alg| format!(" (as many as {} has)", alg.name()))
}

impl FromStr for FileDigest {
    type Err = DigestParseError;

    /// Reads `ALG:HEX`. Digits may be in upper or lower case, as `sha256sum --check` takes them.
    fn from_str(text: &str) -> Result<Self, DigestParseError> {
        let (name, digits) = text.split_once(':').ok_or(DigestParseError::NoAlgorithm)?;
        let unknown = || DigestParseError::UnknownAlgorithm { name: name.chars().take(64).collect() };
        let alg = alg_from_name(name).ok_or_else(unknown)?;
        let wanted = 2 * alg.digest_size();
        if digits.len() != wanted {
            return Err(DigestParseError::Length { alg: alg.name(), wanted, found: digits.chars().count() });
        }
        if let Some(position) = digits.bytes().position(|b| !b.is_ascii_hexdigit()) {
            return Err(DigestParseError::NotHex { position });
        }
        let mut digest = Digest::zero(alg);
        hex::decode_to_slice(digits, &mut digest.bytes[..wanted / 2])
            .map_err(|_| DigestParseError::NotHex { position: 0 })?;
        Self::new(digest).ok_or_else(unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: &str = "sha256:3d248ca542a24fc62d1c43b916eae5016878e2533c88238480b26128a1f1af95";

    #[test]
    fn text_and_back() {
        let digest: FileDigest = EMPTY.parse().unwrap();
        assert_eq!(digest.to_string(), EMPTY);
        assert_eq!(EMPTY.replace('a', "A").replace("shA", "sha").parse::<FileDigest>().unwrap(), digest);
    }

    #[test]
    fn formatted_and_back() {
        let digest: FileDigest = EMPTY.parse().unwrap();
        let formatted = digest.formatted();
        assert_eq!(&formatted[..12], b"FSVerity\x01\x00\x20\x00");
        assert_eq!(FileDigest::from_formatted(&formatted), Some(digest));
        for cut in 0..formatted.len() {
            assert_eq!(FileDigest::from_formatted(&formatted[..cut]), None);
        }
    }

    #[test]
    fn bad_text_says_what_is_wrong() {
        let error = |text: &str| text.parse::<FileDigest>().unwrap_err();
        assert_eq!(error("3d24"), DigestParseError::NoAlgorithm);
        assert_eq!(error("md5:00"), DigestParseError::UnknownAlgorithm { name: "md5".into() });
        assert_eq!(error("sha256:00"), DigestParseError::Length { alg: "sha256", wanted: 64, found: 2 });
        let other = error(&EMPTY.replace("256", "512")).to_string();
        assert_eq!(other, "expected 128 hexadecimal digits for sha512, found 64 (as many as sha256 has)");
        assert_eq!(error(&EMPTY.replace("3d", "3g")), DigestParseError::NotHex { position: 1 });
        // As many bytes as digits wanted, but not as many characters: no slicing inside a character.
        assert!(format!("sha256:{}", "\u{e9}".repeat(32)).parse::<FileDigest>().is_err());
    }

    #[test]
    fn equal_means_every_byte() {
        let digest: FileDigest = EMPTY.parse().unwrap();
        for bit in 0..256 {
            let mut other = digest;
            other.digest.bytes[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(digest, other);
        }
        assert!(constant_time_eq(b"123456789", b"123456789"));
        assert!(!constant_time_eq(b"123456789", b"123456788"));
        assert!(!constant_time_eq(b"12", b"123"));
    }
}
