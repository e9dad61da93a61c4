//! Encryption modes and the pairs of them that a policy may have.

use std::fmt;

/// An encryption mode, by its number in a context (`FSCRYPT_MODE_*` of `include/uapi/linux/fscrypt.h`).
///
/// Before Linux 4.20 the numbers 7 and 8 meant Speck128/256-XTS and -CTS; since 6.1 they mean SM4. No context tells
/// the two apart, and images with Speck never left development kernels, so they are read as SM4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Mode {
    /// AES-256-XTS, contents.
    Aes256Xts = 1,
    /// AES-256-CBC with ciphertext stealing, names.
    Aes256Cts = 4,
    /// AES-128-CBC with ESSIV, contents.
    Aes128CbcEssiv = 5,
    /// AES-128-CBC with ciphertext stealing, names.
    Aes128Cts = 6,
    /// SM4-XTS, contents.
    Sm4Xts = 7,
    /// SM4-CBC with ciphertext stealing, names.
    Sm4Cts = 8,
    /// Adiantum (XChaCha12, AES-256, NHPoly1305), contents and names.
    Adiantum = 9,
    /// AES-256-HCTR2, names.
    Aes256Hctr2 = 10,
}

impl Mode {
    /// Every mode.
    pub const ALL: [Mode; 8] = [
        Mode::Aes256Xts,
        Mode::Aes256Cts,
        Mode::Aes128CbcEssiv,
        Mode::Aes128Cts,
        Mode::Sm4Xts,
        Mode::Sm4Cts,
        Mode::Adiantum,
        Mode::Aes256Hctr2,
    ];

    /// The mode of a number in a context; `None` where Linux knows none.
    pub fn from_number(number: u8) -> Option<Mode> {
        Self::ALL.into_iter().find(|mode| mode.number() == number)
    }

    /// Its number in a context.
    pub fn number(self) -> u8 {
        self as u8
    }

    /// Bytes of its key.
    pub fn key_size(self) -> usize {
        match self {
            Mode::Aes256Xts => 64,
            Mode::Aes256Cts | Mode::Sm4Xts | Mode::Adiantum | Mode::Aes256Hctr2 => 32,
            Mode::Aes128CbcEssiv | Mode::Aes128Cts | Mode::Sm4Cts => 16,
        }
    }

    /// Bytes of its IV.
    pub fn iv_size(self) -> usize {
        match self {
            Mode::Adiantum | Mode::Aes256Hctr2 => 32,
            _ => 16,
        }
    }

    /// Bytes that a master key must have at least in a v2 policy: the mode's security strength, not its key size.
    pub fn security_strength(self) -> usize {
        match self {
            Mode::Aes256Xts | Mode::Aes256Cts | Mode::Adiantum | Mode::Aes256Hctr2 => 32,
            Mode::Aes128CbcEssiv | Mode::Aes128Cts | Mode::Sm4Xts | Mode::Sm4Cts => 16,
        }
    }

    /// Whether Linux accepts this pair of modes in a policy of this version.
    pub fn valid_pair(version: u8, contents: Mode, names: Mode) -> bool {
        use Mode::*;
        match (contents, names) {
            (Aes256Xts, Aes256Cts) | (Aes128CbcEssiv, Aes128Cts) | (Adiantum, Adiantum) => true,
            (Aes256Xts, Aes256Hctr2) | (Sm4Xts, Sm4Cts) => version >= 2,
            _ => false,
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Aes256Xts => "AES-256-XTS",
            Mode::Aes256Cts => "AES-256-CTS",
            Mode::Aes128CbcEssiv => "AES-128-CBC-ESSIV",
            Mode::Aes128Cts => "AES-128-CTS",
            Mode::Sm4Xts => "SM4-XTS",
            Mode::Sm4Cts => "SM4-CTS",
            Mode::Adiantum => "Adiantum",
            Mode::Aes256Hctr2 => "AES-256-HCTR2",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_round_trip_and_unknown_ones_are_none() {
        for mode in Mode::ALL {
            assert_eq!(Mode::from_number(mode.number()), Some(mode));
        }
        for number in [0, 2, 3, 11, 127, 255] {
            assert_eq!(Mode::from_number(number), None);
        }
    }

    #[test]
    fn only_the_kernels_pairs_are_valid() {
        let valid = |version| {
            let mut pairs = Vec::new();
            for contents in Mode::ALL {
                for names in Mode::ALL {
                    if Mode::valid_pair(version, contents, names) {
                        pairs.push((contents.number(), names.number()));
                    }
                }
            }
            pairs
        };
        assert_eq!(valid(1), [(1, 4), (5, 6), (9, 9)]);
        assert_eq!(valid(2), [(1, 4), (1, 10), (5, 6), (7, 8), (9, 9)]);
    }
}
