//! Mappings: what a `crypt` target of device-mapper does to sectors.

use std::fmt;

use crate::cipher::{Cipher, KeyError};
use crate::spec::CipherSpec;

/// Bytes of the sectors that device-mapper counts in.
const SECTOR: u32 = 512;

/// A mapping that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MappingError {
    /// A sector size that is not a power of two from 512 to 4096 bytes.
    #[error("sectors of {size} bytes: expected 512, 1024, 2048 or 4096")]
    SectorSize {
        /// The size, in bytes.
        size: u64,
    },
    /// A key that the cipher does not take.
    #[error(transparent)]
    Key(#[from] KeyError),
}

/// A run of bytes that is not whole sectors of a mapping. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes from 512-byte sector {sector} are not whole sectors of {size} bytes")]
#[non_exhaustive]
pub struct SectorError {
    /// The first sector, counted in 512 bytes.
    pub sector: u64,
    /// The number of bytes.
    pub len: usize,
    /// The sector size, in bytes.
    pub size: u32,
}

/// A cipher, its keys, and how sectors are numbered. Keys are zeroized when it is dropped.
pub struct Mapping {
    spec: CipherSpec,
    keys: Vec<Cipher>,
    sector_size: u32,
    iv_large_sectors: bool,
    iv_offset: u64,
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mapping")
            .field("spec", &format_args!("{}", self.spec))
            .field("sector_size", &self.sector_size)
            .field("iv_large_sectors", &self.iv_large_sectors)
            .field("iv_offset", &self.iv_offset)
            .finish_non_exhaustive()
    }
}

impl Mapping {
    /// A mapping of sectors of 512 bytes whose first has number 0.
    ///
    /// # Errors
    /// If the cipher does not take such a key.
    pub fn new(spec: &CipherSpec, key: &[u8]) -> Result<Self, KeyError> {
        let count = spec.key_count.max(1) as usize;
        if !key.len().is_multiple_of(count) {
            let wanted = format!("{count} keys of equal length");
            return Err(KeyError::Length { spec: spec.to_string(), found: key.len(), wanted });
        }
        let one = key.len() / count;
        let keys = (0..count).map(|i| Cipher::new(spec, &key[i * one..(i + 1) * one])).collect::<Result<_, _>>()?;
        Ok(Self { spec: *spec, keys, sector_size: SECTOR, iv_large_sectors: false, iv_offset: 0 })
    }

    /// Encrypts sectors of `size` bytes as units. Without [`with_iv_large_sectors`](Self::with_iv_large_sectors), their
    /// numbers still count 512 bytes.
    ///
    /// # Errors
    /// If the size is not 512, 1024, 2048 or 4096.
    pub fn with_sector_size(mut self, size: u32) -> Result<Self, MappingError> {
        if !matches!(size, 512 | 1024 | 2048 | 4096) {
            return Err(MappingError::SectorSize { size: size.into() });
        }
        self.sector_size = size;
        Ok(self)
    }

    /// Counts in sectors of the mapping's own size for IVs.
    #[must_use]
    pub fn with_iv_large_sectors(mut self, large: bool) -> Self {
        self.iv_large_sectors = large;
        self
    }

    /// Adds `offset` sectors of 512 bytes to each sector's number.
    #[must_use]
    pub fn with_iv_offset(mut self, offset: u64) -> Self {
        self.iv_offset = offset;
        self
    }

    /// The specification.
    pub fn spec(&self) -> &CipherSpec {
        &self.spec
    }

    /// Bytes in a sector that is encrypted as a unit.
    pub fn sector_size(&self) -> u32 {
        self.sector_size
    }

    /// Decrypts whole sectors in place. `sector` is the first one's number on the mapped device, counted in 512 bytes.
    ///
    /// # Errors
    /// If these are not whole sectors; then nothing was changed.
    pub fn decrypt(&self, data: &mut [u8], sector: u64) -> Result<(), SectorError> {
        self.crypt::<false>(data, sector)
    }

    /// Encrypts whole sectors in place; see [`Mapping::decrypt`].
    ///
    /// # Errors
    /// As [`Mapping::decrypt`].
    pub fn encrypt(&self, data: &mut [u8], sector: u64) -> Result<(), SectorError> {
        self.crypt::<true>(data, sector)
    }

    fn crypt<const ENCRYPT: bool>(&self, data: &mut [u8], sector: u64) -> Result<(), SectorError> {
        let size = self.sector_size as usize;
        let per_sector = u64::from(self.sector_size / SECTOR);
        if !data.len().is_multiple_of(size) || !sector.is_multiple_of(per_sector) {
            return Err(SectorError { sector, len: data.len(), size: self.sector_size });
        }
        let first = sector.wrapping_add(self.iv_offset);
        let number = |sector: u64| if self.iv_large_sectors { sector / per_sector } else { sector };
        let step = number(per_sector);
        if let [key] = &self.keys[..] {
            key.sectors::<ENCRYPT>(self.spec.iv, data, size, number(first), step);
            return Ok(());
        }
        let mut sector = first;
        for data in data.chunks_exact_mut(size) {
            let key = &self.keys[(sector % self.keys.len() as u64) as usize];
            key.sectors::<ENCRYPT>(self.spec.iv, data, size, number(sector), step);
            sector = sector.wrapping_add(per_sector);
        }
        Ok(())
    }
}
