//! Runs of data units: their lengths checked, their IVs made a batch at a time.

use crate::error::LengthError;

/// The most bytes a data unit may have.
pub const MAX_UNIT_SIZE: usize = 65536;

/// Units whose IVs are made, and encrypted where the mode asks for it, together.
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
