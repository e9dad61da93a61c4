//! What a cipher refuses: keys it must not use and lengths it cannot process.

use core::fmt;

/// A key was refused. The error contains no part of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyError {
    /// The cipher has no key of this length.
    Length {
        /// Bytes given.
        found: usize,
        /// Key lengths that the cipher accepts, in bytes.
        wanted: &'static [usize],
    },
    /// Both halves of an XTS key are the same: the tweaks would be ciphertext of known blocks under the data key. The
    /// kernel refuses such keys too (`EINVAL`); a v1 fscrypt master key of zeros leads to one.
    EqualHalves,
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyError::Length { found, wanted } => {
                write!(f, "a key of {found} bytes; the cipher takes ")?;
                for (i, length) in wanted.iter().enumerate() {
                    write!(f, "{}{length}", if i == 0 { "" } else { " or " })?;
                }
                Ok(())
            }
            KeyError::EqualHalves => f.write_str("the halves of the XTS key are equal"),
        }
    }
}

impl core::error::Error for KeyError {}

/// A length that the mode cannot process. No byte was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LengthError {
    /// The size of a data unit is outside the mode's limits, or not a multiple of `multiple`.
    UnitSize {
        /// Bytes per unit, as given.
        found: usize,
        /// The smallest unit.
        min: usize,
        /// The largest unit.
        max: usize,
        /// What a unit's size must be a multiple of.
        multiple: usize,
    },
    /// The data is not a whole number of units.
    PartialUnit {
        /// Bytes of data.
        len: usize,
        /// Bytes per unit.
        unit_size: usize,
    },
    /// A message shorter than the mode's minimum.
    TooShort {
        /// Bytes of the message.
        len: usize,
        /// The shortest message.
        min: usize,
    },
}

impl fmt::Display for LengthError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LengthError::UnitSize { found, min, max, multiple } => {
                write!(f, "a data unit of {found} bytes; {min} to {max} in steps of {multiple} are possible")
            }
            LengthError::PartialUnit { len, unit_size } => {
                write!(f, "{len} bytes are not a whole number of data units of {unit_size} bytes")
            }
            LengthError::TooShort { len, min } => write!(f, "a message of {len} bytes; the shortest has {min}"),
        }
    }
}

impl core::error::Error for LengthError {}

/// Refuses a key whose length is not in `wanted`.
pub(crate) fn check_key_length(key: &[u8], wanted: &'static [usize]) -> Result<(), KeyError> {
    if wanted.contains(&key.len()) { Ok(()) } else { Err(KeyError::Length { found: key.len(), wanted }) }
}
