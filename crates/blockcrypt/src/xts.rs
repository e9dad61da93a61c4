//! AES-XTS (IEEE 1619-2018) over runs of data units.

use core::fmt;

use crate::aes::{AesKey, Block};
use crate::error::{KeyError, LengthError, check_key_length};
use crate::units::{check_units, data_unit_methods, for_each_batch, le64};
use crate::{Platform, gf128};

/// AES-128-XTS or AES-256-XTS, by the length of the key. Zeroized when dropped.
///
/// Units are 16 to 65536 bytes, multiples of 16: no ciphertext stealing, which no file system or block device uses.
#[derive(Clone)]
pub struct AesXts {
    data: AesKey,
    tweak: AesKey,
    platform: Platform,
}

/// Tweaks, or blocks, processed together when a unit does not fill a level's registers.
const TWEAKS: usize = 64;

impl AesXts {
    /// Key lengths in bytes: of AES-128-XTS, AES-192-XTS (which the kernel's `xts(aes)` accepts too) and AES-256-XTS.
    pub const KEY_LENGTHS: &'static [usize] = &[32, 48, 64];

    /// A key for the default CPU level: the key of the data, then the key of the tweaks.
    ///
    /// # Errors
    ///
    /// [`KeyError::Length`] where it is not 32, 48 or 64 bytes, [`KeyError::EqualHalves`] where its halves are equal.
    pub fn new(key: &[u8]) -> Result<Self, KeyError> {
        Self::with_platform(key, Platform::default())
    }

    /// A key for a given CPU level.
    ///
    /// # Errors
    ///
    /// As [`AesXts::new`].
    pub fn with_platform(key: &[u8], platform: Platform) -> Result<Self, KeyError> {
        let (data, tweak) = split_key(key, Self::KEY_LENGTHS)?;
        let platform = platform.or_detected();
        Ok(Self { data: AesKey::new(data, platform), tweak: AesKey::new(tweak, platform), platform })
    }

    data_unit_methods!(
        "AesXts",
        [u8; 16],
        le64,
        "The tweak of a unit is its index as a little-endian number",
        "16 to 65536 in steps of 16"
    );

    fn units<const ENCRYPT: bool>(
        &self,
        data: &mut [u8],
        unit_size: usize,
        iv: impl FnMut(u64) -> [u8; 16],
    ) -> Result<(), LengthError> {
        check_units(data.len(), unit_size, 16, 16)?;
        for_each_batch(data, unit_size, iv, |ivs, units| {
            self.tweak.encrypt_blocks(ivs);
            if self.data.xts_units::<ENCRYPT>(units, unit_size, ivs) {
                return;
            }
            with_tweaks(units, unit_size, ivs, |blocks, tweaks| {
                if ENCRYPT { self.data.xex_encrypt(blocks, tweaks) } else { self.data.xex_decrypt(blocks, tweaks) }
            });
        });
        Ok(())
    }
}

impl fmt::Debug for AesXts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AesXts").field("platform", &self.platform).finish_non_exhaustive()
    }
}

/// The halves of an XTS key: for the data, for the tweaks. Compared without a branch on where they differ.
pub(crate) fn split_key<'a>(key: &'a [u8], lengths: &'static [usize]) -> Result<(&'a [u8], &'a [u8]), KeyError> {
    check_key_length(key, lengths)?;
    let (data, tweak) = key.split_at(key.len() / 2);
    let difference = data.iter().zip(tweak).fold(0, |sum, (a, b)| sum | (a ^ b));
    if core::hint::black_box(difference) == 0 { Err(KeyError::EqualHalves) } else { Ok((data, tweak)) }
}

/// Calls `run(blocks, tweaks)` for all blocks of a run of units, up to [`TWEAKS`] at a time and across unit boundaries:
/// short units cost no more per block than long ones. `first_tweaks` are the encrypted IVs.
pub(crate) fn with_tweaks(
    units: &mut [u8],
    unit_size: usize,
    first_tweaks: &[Block],
    mut run: impl FnMut(&mut [Block], &[Block]),
) {
    let unit_blocks = unit_size / 16;
    let mut tweaks = [[0; 16]; TWEAKS];
    let mut next_unit = first_tweaks.iter();
    let (mut tweak, mut left_in_unit) = (0, 0);
    for blocks in units.as_chunks_mut::<16>().0.chunks_mut(TWEAKS) {
        let mut free = &mut tweaks[..blocks.len()];
        while !free.is_empty() {
            if left_in_unit == 0 {
                (tweak, left_in_unit) =
                    (u128::from_le_bytes(*next_unit.next().expect("one tweak per unit")), unit_blocks);
            }
            let (now, rest) = free.split_at_mut(left_in_unit.min(free.len()));
            tweak = gf128::fill_tweaks(tweak, now);
            left_in_unit -= now.len();
            free = rest;
        }
        run(blocks, &tweaks[..blocks.len()]);
    }
}
