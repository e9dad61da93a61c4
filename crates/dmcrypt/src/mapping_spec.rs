//! A mapping as one text: the cipher, and dm-crypt's optional parameters.

use std::str::FromStr;

use crate::mapping::{Mapping, MappingError};
use crate::spec::{CipherSpec, SpecError};

/// Why a text is not a mapping.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MappingSpecError {
    /// The cipher.
    #[error(transparent)]
    Cipher(#[from] SpecError),
    /// A parameter that is not known, or not with this value.
    #[error(
        "bad parameter {found:?}: expected sector_size:512, 1024, 2048 or 4096, iv_large_sectors, or iv_offset:SECTORS"
    )]
    Parameter {
        /// What was found.
        found: String,
    },
}

/// A cipher and parameters, which together with a key make a [`Mapping`]: `aes-xts-plain64,sector_size:4096`.
///
/// `sector_size` and `iv_large_sectors` are as in a table of dm-crypt; `iv_offset` counts sectors of 512 bytes, and has
/// its own column there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MappingSpec {
    /// The cipher.
    pub cipher: CipherSpec,
    /// Bytes of a sector.
    pub sector_size: u32,
    /// Whether IVs count in such sectors.
    pub iv_large_sectors: bool,
    /// What is added to the number of each sector, in sectors of 512 bytes.
    pub iv_offset: u64,
}

impl MappingSpec {
    /// The mapping with this key.
    ///
    /// # Errors
    /// If the cipher does not take such a key.
    pub fn mapping(&self, key: &[u8]) -> Result<Mapping, MappingError> {
        let mapping = Mapping::new(&self.cipher, key)?.with_sector_size(self.sector_size)?;
        Ok(mapping.with_iv_large_sectors(self.iv_large_sectors).with_iv_offset(self.iv_offset))
    }
}

impl FromStr for MappingSpec {
    type Err = MappingSpecError;

    fn from_str(text: &str) -> Result<Self, MappingSpecError> {
        // A name of the crypto API has commas within its brackets.
        let end = text.rfind(')').unwrap_or(0);
        let comma = text[end..].find(',').map_or(text.len(), |at| end + at);
        let mut spec = Self { cipher: text[..comma].parse()?, sector_size: 512, iv_large_sectors: false, iv_offset: 0 };
        for parameter in text[comma..].split(',').skip(1) {
            let bad = || MappingSpecError::Parameter { found: parameter.to_owned() };
            match parameter.split_once(':') {
                None if parameter == "iv_large_sectors" => spec.iv_large_sectors = true,
                Some(("sector_size", size @ ("512" | "1024" | "2048" | "4096"))) => {
                    spec.sector_size = size.parse().map_err(|_| bad())?;
                }
                Some(("iv_offset", offset)) => spec.iv_offset = offset.parse().map_err(|_| bad())?,
                _ => return Err(bad()),
            }
        }
        Ok(spec)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_follow_the_cipher() {
        let parsed = |text: &str| text.parse::<MappingSpec>();
        let spec = parsed("aes-xts-plain64,sector_size:4096,iv_large_sectors,iv_offset:8").unwrap();
        assert_eq!((spec.sector_size, spec.iv_large_sectors, spec.iv_offset), (4096, true, 8));
        assert_eq!(parsed("aes-cbc-essiv:sha256").unwrap().sector_size, 512);
        let spec = parsed("capi:adiantum(xchacha12,aes)-plain64,sector_size:4096").unwrap();
        assert_eq!((spec.cipher, spec.sector_size), ("xchacha12,aes-adiantum-plain64".parse().unwrap(), 4096));
        for bad in ["", "rot13", "aes-xts-plain64,", "aes-xts-plain64,sector_size:513", "aes-xts-plain64,iv_offset:-1"]
        {
            assert!(parsed(bad).is_err(), "{bad}");
        }
        assert!(spec.mapping(&[0; 32]).is_ok() && spec.mapping(&[0; 31]).is_err());
    }
}
