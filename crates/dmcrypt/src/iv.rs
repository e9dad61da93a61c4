//! IVs of sectors.

use crate::spec::IvMode;

/// The longest IV: Adiantum's.
pub(crate) type Iv = [u8; 32];

/// The IV of a sector, `size` bytes of the result, before any encryption of it. `number` is in units of 512 bytes, or of
/// sectors with `iv_large_sectors`.
pub(crate) fn make(mode: IvMode, number: u64, size: usize) -> Iv {
    let mut iv = [0; 32];
    match mode {
        IvMode::Plain => iv[..4].copy_from_slice(&(number as u32).to_le_bytes()),
        IvMode::Plain64 | IvMode::Essiv(_) => iv[..8].copy_from_slice(&number.to_le_bytes()),
        IvMode::Plain64Be => iv[size - 8..size].copy_from_slice(&number.to_be_bytes()),
        // 512 bytes are 32 blocks of 16.
        IvMode::Benbi => iv[size - 8..size].copy_from_slice(&(number << 5).wrapping_add(1).to_be_bytes()),
        IvMode::Null => {}
    }
    iv
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_where_they_belong() {
        let of = |mode, number| make(mode, number, 16)[..16].to_vec();
        let number = 0x0102_0304_0506_0708;
        assert_eq!(of(IvMode::Plain, number)[..9], [8, 7, 6, 5, 0, 0, 0, 0, 0]);
        assert_eq!(of(IvMode::Plain64, number)[..9], [8, 7, 6, 5, 4, 3, 2, 1, 0]);
        assert_eq!(of(IvMode::Plain64Be, number)[7..], [0, 1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(of(IvMode::Benbi, 3)[8..], [0, 0, 0, 0, 0, 0, 0, 97]);
        assert_eq!(of(IvMode::Null, number), [0; 16]);
        assert_eq!(make(IvMode::Plain64Be, number, 32)[24..], [1, 2, 3, 4, 5, 6, 7, 8]);
    }
}
