//! Runs of data units: checks their lengths and makes their IVs one batch at a time.

use crate::error::LengthError;

/// The most bytes a data unit may have.
pub const MAX_UNIT_SIZE: usize = 65536;

/// Units whose IVs are made together (and encrypted, if the mode requires it).
const BATCH: usize = 32;

/// Refuses units that are not `min..=65536` bytes in steps of `multiple`, and data that is not a run of whole units.
pub(crate) fn check_units(len: usize, unit_size: usize, min: usize, multiple: usize) -> Result<(), LengthError> {
    if unit_size < min || unit_size > MAX_UNIT_SIZE || !unit_size.is_multiple_of(multiple) {
        return Err(LengthError::UnitSize { found: unit_size, min, max: MAX_UNIT_SIZE, multiple });
    }
    if !len.is_multiple_of(unit_size) {
        return Err(LengthError::PartialUnit { len, unit_size });
    }
    Ok(())
}

/// The IV of each unit of a run that starts at `first_index` and counts by `step`: the index as a little-endian
/// 64-bit number, zero-padded to 16 bytes (`plain64` of dm-crypt, the default of fscrypt). Indexes wrap at 2^64.
pub(crate) fn le64(first_index: u64, step: u64) -> impl FnMut(u64) -> [u8; 16] {
    move |unit| u128::from(first_index.wrapping_add(unit.wrapping_mul(step))).to_le_bytes()
}

/// Calls `run(ivs, units)` for up to [`BATCH`] units at a time; `iv` is called with the number of each unit in this
/// run, in order. The lengths have been checked.
pub(crate) fn for_each_batch(
    data: &mut [u8],
    unit_size: usize,
    mut iv: impl FnMut(u64) -> [u8; 16],
    mut run: impl FnMut(&mut [[u8; 16]], &mut [u8]),
) {
    let mut ivs = [[0; 16]; BATCH];
    let mut unit = 0;
    for batch in data.chunks_mut(BATCH * unit_size) {
        let ivs = &mut ivs[..batch.len() / unit_size];
        for slot in ivs.iter_mut() {
            *slot = iv(unit);
            unit += 1;
        }
        run(ivs, batch);
    }
}

/// The four methods with which a cipher works on runs of data units, in terms of its
/// `fn units<const ENCRYPT: bool>(&self, data, unit_size, iv)`. `$iv` is the type of an IV, `$by_index` gives those
/// that count (as [`le64`]), and the texts document the IV and the sizes that are refused.
macro_rules! data_unit_methods {
    ($name:literal, $iv:ty, $by_index:path, $what:literal, $sizes:literal) => {
        #[doc = concat!(
            "Encrypts a run of data units in place. ", $what, "; the indexes are `first_index`, `first_index + step`, ... ",
            "(modulo 2^64): step 1 for fscrypt, `unit_size / 512` for dm-crypt, which counts 512-byte sectors.")]
        ///
        /// # Errors
        ///
        #[doc = concat!(
            "[`LengthError`] where `unit_size` is not ", $sizes, " or `data` is not a run of whole units; then nothing ",
            "has changed.")]
        pub fn encrypt_units(
            &self,
            data: &mut [u8],
            unit_size: usize,
            first_index: u64,
            step: u64,
        ) -> Result<(), LengthError> {
            self.encrypt_units_with(data, unit_size, $by_index(first_index, step))
        }

        #[doc = concat!("Decrypts a run of data units in place; see [`", $name, "::encrypt_units`].")]
        ///
        /// # Errors
        ///
        #[doc = concat!("As [`", $name, "::encrypt_units`].")]
        pub fn decrypt_units(
            &self,
            data: &mut [u8],
            unit_size: usize,
            first_index: u64,
            step: u64,
        ) -> Result<(), LengthError> {
            self.decrypt_units_with(data, unit_size, $by_index(first_index, step))
        }

        /// Encrypts a run of data units in place; `iv` gives what stands for the index of each, by the unit's number in
        /// this run.
        ///
        /// # Errors
        ///
        #[doc = concat!("As [`", $name, "::encrypt_units`].")]
        pub fn encrypt_units_with(
            &self,
            data: &mut [u8],
            unit_size: usize,
            iv: impl FnMut(u64) -> $iv,
        ) -> Result<(), LengthError> {
            self.units::<true>(data, unit_size, iv)
        }

        /// Decrypts a run of data units in place; `iv` gives what stands for the index of each, by the unit's number in
        /// this run.
        ///
        /// # Errors
        ///
        #[doc = concat!("As [`", $name, "::encrypt_units`].")]
        pub fn decrypt_units_with(
            &self,
            data: &mut [u8],
            unit_size: usize,
            iv: impl FnMut(u64) -> $iv,
        ) -> Result<(), LengthError> {
            self.units::<false>(data, unit_size, iv)
        }
    };
}
pub(crate) use data_unit_methods;
