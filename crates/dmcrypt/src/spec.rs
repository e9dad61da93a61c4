//! Cipher specifications, as in kernel tables and LUKS headers: `cipher[:keycount]-mode-iv[:options]`, or with the
//! kernel's crypto API names `capi:mode(cipher)-iv[:options]`.

use std::fmt;
use std::str::FromStr;

use crate::hash::{HashAlg, UnknownHash};

/// A block cipher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CipherAlg {
    /// AES.
    Aes,
    /// Serpent.
    Serpent,
    /// Twofish.
    Twofish,
    /// XChaCha of 12 rounds with AES, in the mode Adiantum only.
    XChaCha12Aes,
    /// XChaCha of 20 rounds with AES, in the mode Adiantum only.
    XChaCha20Aes,
}

impl CipherAlg {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            CipherAlg::Aes => "aes",
            CipherAlg::Serpent => "serpent",
            CipherAlg::Twofish => "twofish",
            CipherAlg::XChaCha12Aes => "xchacha12,aes",
            CipherAlg::XChaCha20Aes => "xchacha20,aes",
        }
    }
}

/// How blocks of a sector are chained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mode {
    /// CBC.
    Cbc,
    /// XTS.
    Xts,
    /// Adiantum.
    Adiantum,
}

impl Mode {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Mode::Cbc => "cbc",
            Mode::Xts => "xts",
            Mode::Adiantum => "adiantum",
        }
    }
}

/// How a sector's IV is made from its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum IvMode {
    /// The number's low 32 bits, little-endian.
    Plain,
    /// The number, little-endian.
    Plain64,
    /// The number, big-endian, in the IV's last 8 bytes.
    Plain64Be,
    /// The number, little-endian, encrypted under a hash of the key.
    Essiv(HashAlg),
    /// The number of the sector's first cipher block from 1, big-endian, in the IV's last 8 bytes.
    Benbi,
    /// All zeros.
    Null,
}

impl fmt::Display for IvMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            IvMode::Plain => f.write_str("plain"),
            IvMode::Plain64 => f.write_str("plain64"),
            IvMode::Plain64Be => f.write_str("plain64be"),
            IvMode::Essiv(hash) => write!(f, "essiv:{hash}"),
            IvMode::Benbi => f.write_str("benbi"),
            IvMode::Null => f.write_str("null"),
        }
    }
}

/// Why a specification cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// Not of the form.
    #[error("cipher \"{}\": expected CIPHER[:KEYS]-MODE-IV[:HASH] or capi:MODE(CIPHER)-IV[:HASH]", .spec.escape_default())]
    Form {
        /// The specification.
        spec: String,
    },
    /// A cipher, mode or IV that is not known here.
    #[error("{what} \"{}\" is not supported ({supported} are)", .name.escape_default())]
    Unsupported {
        /// `"cipher"`, `"mode"` or `"IV mode"`.
        what: &'static str,
        /// Its name.
        name: String,
        /// The names of those that are.
        supported: &'static str,
    },
    /// A cipher in a mode that it has not.
    #[error("{cipher} in mode {mode} does not exist")]
    Combination {
        /// The cipher.
        cipher: &'static str,
        /// The mode.
        mode: &'static str,
    },
    /// A number of keys that is not a power of two from 1 to 64.
    #[error("{count} keys: expected a power of two from 1 to 64")]
    KeyCount {
        /// The number, as written.
        count: String,
    },
    /// A hash function that is not known here.
    #[error(transparent)]
    Hash(#[from] UnknownHash),
}

/// A parsed specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct CipherSpec {
    /// The cipher.
    pub cipher: CipherAlg,
    /// The mode.
    pub mode: Mode,
    /// How IVs are made.
    pub iv: IvMode,
    /// How many keys there are; a sector's number modulo this selects its key.
    pub key_count: u32,
}

impl FromStr for CipherSpec {
    type Err = SpecError;

    fn from_str(spec: &str) -> Result<Self, SpecError> {
        let form = || SpecError::Form { spec: spec.to_owned() };
        if let Some(capi) = spec.strip_prefix("capi:") {
            let (template, iv) = capi.rsplit_once(")-").ok_or_else(form)?;
            let (mode, cipher) = template.split_once('(').ok_or_else(form)?;
            let cipher = cipher.strip_suffix(",nhpoly1305").unwrap_or(cipher);
            return Self::build(cipher, 1, mode, iv);
        }
        let mut parts = spec.splitn(3, '-');
        let cipher = parts.next().unwrap_or_default();
        let (cipher, count) = match cipher.split_once(':') {
            None => (cipher, 1),
            Some((cipher, count)) => {
                let number = count.parse().ok().filter(|n: &u32| n.is_power_of_two() && *n <= 64);
                (cipher, number.ok_or_else(|| SpecError::KeyCount { count: count.to_owned() })?)
            }
        };
        match (parts.next(), parts.next()) {
            // dm-crypt's format before it had modes.
            (None, None) | (Some("plain"), None) => Self::build(cipher, count, "cbc", "plain"),
            (Some(mode), Some(iv)) => Self::build(cipher, count, mode, iv),
            _ => Err(form()),
        }
    }
}

impl CipherSpec {
    fn build(cipher: &str, key_count: u32, mode: &str, iv: &str) -> Result<Self, SpecError> {
        let unsupported =
            |what, name: &str, supported| SpecError::Unsupported { what, name: name.to_owned(), supported };
        let cipher = match cipher {
            "aes" => CipherAlg::Aes,
            "serpent" => CipherAlg::Serpent,
            "twofish" => CipherAlg::Twofish,
            "xchacha12,aes" => CipherAlg::XChaCha12Aes,
            "xchacha20,aes" => CipherAlg::XChaCha20Aes,
            name => return Err(unsupported("cipher", name, "aes, serpent, twofish, xchacha12,aes and xchacha20,aes")),
        };
        let mode = match mode {
            "cbc" => Mode::Cbc,
            "xts" => Mode::Xts,
            "adiantum" => Mode::Adiantum,
            name => return Err(unsupported("mode", name, "cbc, xts and adiantum")),
        };
        let wide = matches!(cipher, CipherAlg::XChaCha12Aes | CipherAlg::XChaCha20Aes);
        if wide != (mode == Mode::Adiantum) {
            return Err(SpecError::Combination { cipher: cipher.name(), mode: mode.name() });
        }
        let iv = match iv.split_once(':') {
            Some(("essiv", hash)) => IvMode::Essiv(hash.parse()?),
            None => match iv {
                "plain" => IvMode::Plain,
                "plain64" => IvMode::Plain64,
                "plain64be" => IvMode::Plain64Be,
                "benbi" => IvMode::Benbi,
                "null" => IvMode::Null,
                name => {
                    let known = "plain, plain64, plain64be, essiv:HASH, benbi and null";
                    return Err(unsupported("IV mode", name, known));
                }
            },
            Some((name, _)) => {
                return Err(unsupported("IV mode", name, "plain, plain64, plain64be, essiv:HASH, benbi and null"));
            }
        };
        if mode == Mode::Adiantum && matches!(iv, IvMode::Essiv(_)) {
            return Err(unsupported("IV mode", "essiv with adiantum", "plain, plain64, plain64be, benbi and null"));
        }
        Ok(Self { cipher, mode, iv, key_count })
    }
}

impl fmt::Display for CipherSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.cipher.name())?;
        if self.key_count > 1 {
            write!(f, ":{}", self.key_count)?;
        }
        write!(f, "-{}-{}", self.mode.name(), self.iv)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specifications_and_back() {
        for text in [
            "aes-xts-plain64",
            "aes-cbc-essiv:sha256",
            "aes:64-cbc-plain",
            "serpent-xts-plain64be",
            "twofish-cbc-benbi",
            "aes-cbc-null",
            "xchacha12,aes-adiantum-plain64",
            "xchacha20,aes-adiantum-plain64",
        ] {
            assert_eq!(text.parse::<CipherSpec>().unwrap().to_string(), text);
        }
        for (text, same) in [
            ("aes", "aes-cbc-plain"),
            ("twofish-plain", "twofish-cbc-plain"),
            ("capi:xts(aes)-plain64", "aes-xts-plain64"),
            ("capi:cbc(serpent)-essiv:SHA256", "serpent-cbc-essiv:sha256"),
            ("capi:adiantum(xchacha12,aes)-plain64", "xchacha12,aes-adiantum-plain64"),
            ("capi:adiantum(xchacha20,aes,nhpoly1305)-plain64", "xchacha20,aes-adiantum-plain64"),
        ] {
            assert_eq!(text.parse::<CipherSpec>().unwrap().to_string(), same);
        }
    }

    #[test]
    fn what_is_not_supported_is_named() {
        let error = |text: &str| text.parse::<CipherSpec>().unwrap_err().to_string();
        assert!(error("aes-xts").starts_with("cipher \"aes-xts\": expected"));
        assert!(error("capi:xts(aes").starts_with("cipher \"capi:xts(aes\": expected"));
        assert!(error("aes-lrw-benbi").starts_with("mode \"lrw\" is not supported"));
        assert!(error("camellia-xts-plain64").starts_with("cipher \"camellia\" is not supported"));
        assert!(error("aes-cbc-lmk").starts_with("IV mode \"lmk\" is not supported"));
        assert!(error("aes-cbc-eboiv:x").starts_with("IV mode \"eboiv\" is not supported"));
        assert!(error("aes-cbc-essiv:md5").starts_with("hash \"md5\" is not supported"));
        assert_eq!(error("aes:3-cbc-plain"), "3 keys: expected a power of two from 1 to 64");
        assert_eq!(error("aes-adiantum-plain64"), "aes in mode adiantum does not exist");
        assert_eq!(error("xchacha12,aes-xts-plain64"), "xchacha12,aes in mode xts does not exist");
    }
}
