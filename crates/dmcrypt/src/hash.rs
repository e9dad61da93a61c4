//! Hash functions by the names that LUKS headers and cipher specifications have for them.

use std::fmt;
use std::str::FromStr;

use pbkdf2::pbkdf2_hmac;
use sha2::Digest;

/// A hash function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HashAlg {
    /// SHA-1.
    Sha1,
    /// SHA-224.
    Sha224,
    /// SHA-256.
    Sha256,
    /// SHA-384.
    Sha384,
    /// SHA-512.
    Sha512,
    /// RIPEMD-160.
    Ripemd160,
    /// Whirlpool.
    Whirlpool,
}

/// A name of no hash function known here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("hash \"{}\" is not supported (sha1, sha224, sha256, sha384, sha512, ripemd160 and whirlpool are)", .name.escape_default())]
#[non_exhaustive]
pub struct UnknownHash {
    /// The name.
    pub name: String,
}

/// Runs `$body` with `$hash` naming the type of a hash function.
macro_rules! with_type {
    ($alg:expr, $hash:ident => $body:expr) => {
        match $alg {
            HashAlg::Sha1 => {
                type $hash = sha1::Sha1;
                $body
            }
            HashAlg::Sha224 => {
                type $hash = sha2::Sha224;
                $body
            }
            HashAlg::Sha256 => {
                type $hash = sha2::Sha256;
                $body
            }
            HashAlg::Sha384 => {
                type $hash = sha2::Sha384;
                $body
            }
            HashAlg::Sha512 => {
                type $hash = sha2::Sha512;
                $body
            }
            HashAlg::Ripemd160 => {
                type $hash = ripemd::Ripemd160;
                $body
            }
            HashAlg::Whirlpool => {
                type $hash = whirlpool::Whirlpool;
                $body
            }
        }
    };
}

impl HashAlg {
    const ALL: [HashAlg; 7] = [
        HashAlg::Sha1,
        HashAlg::Sha224,
        HashAlg::Sha256,
        HashAlg::Sha384,
        HashAlg::Sha512,
        HashAlg::Ripemd160,
        HashAlg::Whirlpool,
    ];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            HashAlg::Sha1 => "sha1",
            HashAlg::Sha224 => "sha224",
            HashAlg::Sha256 => "sha256",
            HashAlg::Sha384 => "sha384",
            HashAlg::Sha512 => "sha512",
            HashAlg::Ripemd160 => "ripemd160",
            HashAlg::Whirlpool => "whirlpool",
        }
    }

    /// The digest of the pieces of a message.
    pub(crate) fn digest(self, pieces: &[&[u8]]) -> Vec<u8> {
        with_type!(self, H => {
            let mut hasher = H::new();
            pieces.iter().for_each(|piece| hasher.update(piece));
            hasher.finalize().to_vec()
        })
    }

    /// PBKDF2 with HMAC of this hash function.
    pub(crate) fn pbkdf2(self, password: &[u8], salt: &[u8], iterations: u32, out: &mut [u8]) {
        with_type!(self, H => pbkdf2_hmac::<H>(password, salt, iterations, out));
    }
}

impl fmt::Display for HashAlg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for HashAlg {
    type Err = UnknownHash;

    fn from_str(name: &str) -> Result<Self, UnknownHash> {
        let found = Self::ALL.into_iter().find(|alg| alg.name().eq_ignore_ascii_case(name));
        found.ok_or_else(|| UnknownHash { name: name.to_owned() })
    }
}
