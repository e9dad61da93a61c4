//! Digests of many messages of equal length: the blocks of a Merkle tree.
//!
//! A [`BlockHasher`] hashes `prefix || block || suffix` for every block it is given, as many at a time as the CPU's
//! registers hold. fs-verity and dm-verity type 1 put the salt before the block (it is compressed only once), dm-verity
//! type 0 after it.

use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;

use crate::Platform;
use crate::sha2_many::{Common, Sha2};
use crate::sha256::Sha256;
use crate::sha512::Sha512;

/// A hash algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum HashAlg {
    /// SHA-256 (FIPS 180-4).
    Sha256,
    /// SHA-512 (FIPS 180-4).
    Sha512,
    /// SHA-1 (FIPS 180-4): old dm-verity images. Collisions are known; it verifies nothing against an attacker.
    Sha1,
    /// BLAKE2b with a digest of 256 bits (RFC 7693): Android Verified Boot.
    #[cfg(feature = "blake2")]
    Blake2b256,
}

impl HashAlg {
    /// Every algorithm.
    pub const ALL: &'static [HashAlg] = &[
        HashAlg::Sha256,
        HashAlg::Sha512,
        HashAlg::Sha1,
        #[cfg(feature = "blake2")]
        HashAlg::Blake2b256,
    ];

    /// The digest's size in bytes.
    pub const fn digest_size(self) -> usize {
        match self {
            HashAlg::Sha256 => 32,
            #[cfg(feature = "blake2")]
            HashAlg::Blake2b256 => 32,
            HashAlg::Sha512 => 64,
            HashAlg::Sha1 => 20,
        }
    }

    /// The size in bytes of the blocks that the compression function takes; fs-verity pads the salt to it.
    pub const fn compression_block_size(self) -> usize {
        match self {
            HashAlg::Sha256 | HashAlg::Sha1 => 64,
            HashAlg::Sha512 => 128,
            #[cfg(feature = "blake2")]
            HashAlg::Blake2b256 => 128,
        }
    }

    /// The name, as the kernel's crypto API spells it.
    pub const fn name(self) -> &'static str {
        match self {
            HashAlg::Sha256 => "sha256",
            HashAlg::Sha512 => "sha512",
            HashAlg::Sha1 => "sha1",
            #[cfg(feature = "blake2")]
            HashAlg::Blake2b256 => "blake2b-256",
        }
    }
}

impl fmt::Display for HashAlg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// No hash algorithm of this crate has this name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownHashAlg;

impl fmt::Display for UnknownHashAlg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("unknown hash algorithm: sha256, sha512, sha1 and blake2b-256 are known")
    }
}

impl core::error::Error for UnknownHashAlg {}

impl FromStr for HashAlg {
    type Err = UnknownHashAlg;

    fn from_str(name: &str) -> Result<Self, UnknownHashAlg> {
        Self::ALL.iter().copied().find(|alg| alg.name() == name).ok_or(UnknownHashAlg)
    }
}

/// The longest digest in bytes.
pub const MAX_DIGEST_SIZE: usize = 64;

/// A digest of 20, 32 or 64 bytes. Two are compared in constant time.
#[derive(Clone, Copy)]
pub struct Digest {
    bytes: [u8; MAX_DIGEST_SIZE],
    len: u8,
}

impl Digest {
    fn zeros(size: usize) -> Self {
        Self { bytes: [0; MAX_DIGEST_SIZE], len: size as u8 }
    }

    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..usize::from(self.len)]
    }

    fn from_slice(digest: &[u8]) -> Self {
        let mut bytes = [0; MAX_DIGEST_SIZE];
        bytes[..digest.len()].copy_from_slice(digest);
        Self { bytes, len: digest.len() as u8 }
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl core::ops::Deref for Digest {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl AsRef<[u8]> for Digest {
    fn as_ref(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl PartialEq for Digest {
    fn eq(&self, other: &Self) -> bool {
        // The bytes beyond `len` are zeros in both.
        let differing = self.bytes.iter().zip(&other.bytes).fold(self.len ^ other.len, |d, (a, b)| d | (a ^ b));
        core::hint::black_box(differing) == 0
    }
}

impl Eq for Digest {}

impl fmt::LowerHex for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::LowerHex::fmt(self, f)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::LowerHex::fmt(self, f)
    }
}

/// The digest of one message.
pub fn digest(alg: HashAlg, data: &[u8]) -> Digest {
    let mut hasher = Hasher::new(alg);
    hasher.update(data);
    hasher.finalize()
}

/// One message that arrives in pieces, through the RustCrypto crates and the instructions that they find.
#[derive(Clone)]
pub struct Hasher(Stream);

#[derive(Clone)]
enum Stream {
    Sha256(sha2::Sha256),
    Sha512(sha2::Sha512),
    Sha1(sha1::Sha1),
    #[cfg(feature = "blake2")]
    Blake2b256(blake2::Blake2b256),
}

impl Hasher {
    /// Starts a message.
    pub fn new(alg: HashAlg) -> Self {
        use sha2::digest::Digest as _;
        Self(match alg {
            HashAlg::Sha256 => Stream::Sha256(sha2::Sha256::new()),
            HashAlg::Sha512 => Stream::Sha512(sha2::Sha512::new()),
            HashAlg::Sha1 => Stream::Sha1(sha1::Sha1::new()),
            #[cfg(feature = "blake2")]
            HashAlg::Blake2b256 => Stream::Blake2b256(blake2::Blake2b256::new()),
        })
    }

    /// The algorithm.
    pub fn alg(&self) -> HashAlg {
        match self.0 {
            Stream::Sha256(_) => HashAlg::Sha256,
            Stream::Sha512(_) => HashAlg::Sha512,
            Stream::Sha1(_) => HashAlg::Sha1,
            #[cfg(feature = "blake2")]
            Stream::Blake2b256(_) => HashAlg::Blake2b256,
        }
    }

    /// Appends to the message.
    pub fn update(&mut self, data: &[u8]) {
        use sha2::digest::Digest as _;
        match &mut self.0 {
            Stream::Sha256(h) => h.update(data),
            Stream::Sha512(h) => h.update(data),
            Stream::Sha1(h) => h.update(data),
            #[cfg(feature = "blake2")]
            Stream::Blake2b256(h) => h.update(data),
        }
    }

    /// Ends the message.
    pub fn finalize(self) -> Digest {
        use sha2::digest::Digest as _;
        match self.0 {
            Stream::Sha256(h) => self::Digest::from_slice(&h.finalize()),
            Stream::Sha512(h) => self::Digest::from_slice(&h.finalize()),
            Stream::Sha1(h) => self::Digest::from_slice(&h.finalize()),
            #[cfg(feature = "blake2")]
            Stream::Blake2b256(h) => self::Digest::from_slice(&h.finalize()),
        }
    }
}

impl fmt::Debug for Hasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Hasher").field(&self.alg()).finish()
    }
}

/// Hashes `prefix || block || suffix` for many blocks at a time.
///
/// ```
/// use postread_blockcrypt::hash::{BlockHasher, HashAlg, digest};
///
/// let hasher = BlockHasher::new(HashAlg::Sha256).with_prefix(&[7; 64]);
/// let data = [1; 3 * 4096];
/// let mut digests = [0; 3 * 32];
/// hasher.hash_blocks(&data, 4096, &mut digests);
/// let salted: Vec<u8> = [7; 64].into_iter().chain([1; 4096]).collect();
/// assert_eq!(digests[32..64], *digest(HashAlg::Sha256, &salted));
/// ```
#[derive(Clone)]
pub struct BlockHasher {
    platform: Platform,
    engine: Engine,
}

#[derive(Clone)]
enum Engine {
    Sha256(Common<Sha256>),
    Sha512(Common<Sha512>),
    /// Algorithms that are no longer used for much data: through their crates, one block at a time.
    Serial {
        prefixed: Hasher,
        suffix: Vec<u8>,
    },
}

impl BlockHasher {
    /// A hasher of bare blocks at the default level.
    pub fn new(alg: HashAlg) -> Self {
        let engine = match alg {
            HashAlg::Sha256 => Engine::Sha256(Common::new()),
            HashAlg::Sha512 => Engine::Sha512(Common::new()),
            _ => Engine::Serial { prefixed: Hasher::new(alg), suffix: Vec::new() },
        };
        Self { platform: Platform::default(), engine }
    }

    /// Puts `prefix` in front of every block, in place of any earlier prefix. Its whole compression blocks are
    /// compressed once, here: fs-verity pads its salt to [`HashAlg::compression_block_size`] for that reason.
    #[must_use]
    pub fn with_prefix(mut self, prefix: &[u8]) -> Self {
        match &mut self.engine {
            Engine::Sha256(common) => common.set_prefix(self.platform, prefix),
            Engine::Sha512(common) => common.set_prefix(self.platform, prefix),
            Engine::Serial { prefixed, .. } => {
                *prefixed = Hasher::new(prefixed.alg());
                prefixed.update(prefix);
            }
        }
        self
    }

    /// Puts `suffix` after every block, in place of any earlier suffix.
    #[must_use]
    pub fn with_suffix(mut self, bytes: &[u8]) -> Self {
        match &mut self.engine {
            Engine::Sha256(common) => common.set_suffix(bytes),
            Engine::Sha512(common) => common.set_suffix(bytes),
            Engine::Serial { suffix, .. } => *suffix = bytes.to_vec(),
        }
        self
    }

    /// Uses this level instead of the default, or the highest that the CPU has if that is lower.
    #[must_use]
    pub fn with_platform(mut self, platform: Platform) -> Self {
        self.platform = platform.or_detected();
        self
    }

    /// The algorithm.
    pub fn alg(&self) -> HashAlg {
        match &self.engine {
            Engine::Sha256(_) => HashAlg::Sha256,
            Engine::Sha512(_) => HashAlg::Sha512,
            Engine::Serial { prefixed, .. } => prefixed.alg(),
        }
    }

    /// The level.
    pub fn platform(&self) -> Platform {
        self.platform
    }

    /// Hashes the `data.len() / block_size` consecutive blocks in `data` and writes their digests to `out`, packed.
    ///
    /// # Panics
    ///
    /// If `data` is not a whole number of blocks, or `out` does not have room for exactly their digests.
    pub fn hash_blocks(&self, data: &[u8], block_size: usize, out: &mut [u8]) {
        if data.is_empty() {
            assert!(out.is_empty(), "no blocks and room for digests");
            return;
        }
        assert!(
            block_size != 0 && data.len().is_multiple_of(block_size),
            "{} bytes of blocks of {block_size}",
            data.len()
        );
        self.hash_equal(data.len() / block_size, block_size, &|i| &data[i * block_size..][..block_size], out);
    }

    /// Hashes `blocks` and writes their digests to `out`, packed. Runs of blocks of equal length are hashed many at a
    /// time.
    ///
    /// # Panics
    ///
    /// If `out` does not have room for exactly as many digests as there are blocks.
    pub fn hash_many(&self, blocks: &[&[u8]], out: &mut [u8]) {
        let size = self.alg().digest_size();
        assert_eq!(out.len(), blocks.len() * size, "room for the digests of {} blocks", blocks.len());
        let mut done = 0;
        for run in blocks.chunk_by(|a, b| a.len() == b.len()) {
            self.hash_equal(run.len(), run[0].len(), &|i| run[i], &mut out[done * size..][..run.len() * size]);
            done += run.len();
        }
    }

    /// The digest of one block, prefix and suffix.
    pub fn hash_one(&self, block: &[u8]) -> Digest {
        let mut digest = Digest::zeros(self.alg().digest_size());
        self.hash_equal(1, block.len(), &|_| block, digest.as_mut());
        digest
    }

    fn hash_equal<'a>(&self, count: usize, block_len: usize, block: &dyn Fn(usize) -> &'a [u8], out: &mut [u8]) {
        let size = self.alg().digest_size();
        assert_eq!(out.len(), count * size, "room for the digests of {count} blocks");
        match &self.engine {
            Engine::Sha256(common) => {
                common.hash(|remaining| Sha256::choose(self.platform, remaining), count, block_len, block, out);
            }
            Engine::Sha512(common) => {
                common.hash(|remaining| Sha512::choose(self.platform, remaining), count, block_len, block, out);
            }
            Engine::Serial { prefixed, suffix } => {
                for (i, out) in out.chunks_exact_mut(size).enumerate() {
                    let mut hasher = prefixed.clone();
                    hasher.update(block(i));
                    hasher.update(suffix);
                    out.copy_from_slice(&hasher.finalize());
                }
            }
        }
    }
}

impl fmt::Debug for BlockHasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockHasher")
            .field("alg", &self.alg())
            .field("platform", &self.platform)
            .finish_non_exhaustive()
    }
}
