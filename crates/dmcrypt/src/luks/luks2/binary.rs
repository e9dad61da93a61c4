//! The binary header: sizes, sequence number, checksum.

use super::Luks2Error;
use crate::hash::HashAlg;
use crate::luks::{MAGIC, SECOND_MAGIC, be16, be64, constant_time_eq, text};

/// Its size, in bytes; JSON follows.
pub const BINARY_SIZE: usize = 4096;

/// The sizes that a whole header may have, in bytes. The second one begins where the first ends.
pub const HEADER_SIZES: [u64; 9] = {
    let mut sizes = [0; 9];
    let mut i = 0;
    while i < 9 {
        sizes[i] = 0x4000 << i;
        i += 1;
    }
    sizes
};

/// A binary header. Its checksum is checked by [`Binary::json`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Binary {
    /// The size of the whole header, JSON included, in bytes.
    pub header_size: u64,
    /// Counts updates: of two good headers the one with the higher number is the newer.
    pub sequence: u64,
    /// The label.
    pub label: String,
    /// The UUID, as text.
    pub uuid: String,
    /// The subsystem's label.
    pub subsystem: String,
    checksum_alg: HashAlg,
}

impl Binary {
    /// Parses a binary header that was found at byte `offset`: the first one at 0, the second one elsewhere.
    ///
    /// # Errors
    /// If it is not one.
    pub fn parse(bytes: &[u8], offset: u64) -> Result<Self, Luks2Error> {
        let magic = if offset == 0 { MAGIC } else { SECOND_MAGIC };
        let found = bytes.first_chunk::<BINARY_SIZE>().filter(|b| b.starts_with(&magic) && be16(&b[..], 6) == 2);
        let bytes = found.ok_or(Luks2Error::NotLuks2)?;
        let size = be64(bytes, 8);
        if !HEADER_SIZES.contains(&size) {
            return Err(Luks2Error::Size { size });
        }
        // A header that was moved is not one.
        if be64(bytes, 256) != offset || (offset != 0 && offset != size) {
            return Err(Luks2Error::NotLuks2);
        }
        let string = |at: usize, len: usize| text(&bytes[at..at + len]).unwrap_or_default();
        Ok(Self {
            header_size: size,
            sequence: be64(bytes, 16),
            label: string(24, 48).to_owned(),
            uuid: string(168, 40).to_owned(),
            subsystem: string(208, 48).to_owned(),
            checksum_alg: string(72, 32).parse().map_err(Luks2Error::ChecksumAlg)?,
        })
    }

    /// The JSON of a whole header, whose checksum is checked.
    ///
    /// # Errors
    /// If the checksum is wrong, or there are too few bytes.
    pub fn json<'a>(&self, header: &'a [u8]) -> Result<&'a [u8], Luks2Error> {
        let header = usize::try_from(self.header_size).ok().and_then(|size| header.get(..size));
        let header = header.ok_or(Luks2Error::NotLuks2)?;
        let (before, rest) = header.split_at(448);
        let (stored, after) = rest.split_at(64);
        let digest = self.checksum_alg.digest(&[before, &[0; 64], after]);
        if !constant_time_eq(&digest, &stored[..digest.len()]) {
            return Err(Luks2Error::Checksum);
        }
        let json = &header[BINARY_SIZE..];
        Ok(&json[..json.iter().position(|&b| b == 0).unwrap_or(json.len())])
    }
}
