//! GF(2^128) as XTS counts in it: little-endian, modulus x^128 + x^7 + x^2 + x + 1 (IEEE 1619-2018, 5.2).

/// `tweak * x`, without a branch on the tweak.
#[inline(always)]
pub(crate) const fn double(tweak: u128) -> u128 {
    (tweak << 1) ^ ((tweak >> 127) * 0x87)
}

/// Fills `tweaks` with `first`, `first * x`, `first * x^2`, ... and returns the one that would follow.
pub(crate) fn fill_tweaks(first: u128, tweaks: &mut [[u8; 16]]) -> u128 {
    let mut tweak = first;
    for slot in tweaks {
        *slot = tweak.to_le_bytes();
        tweak = double(tweak);
    }
    tweak
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The shift and the reduction by one bit, and the order of the powers.
    #[test]
    fn doubling() {
        assert_eq!(double(1), 2);
        assert_eq!(double(1 << 127), 0x87);
        assert_eq!(double((1 << 127) | 1), 0x85);
        let mut tweaks = [[0; 16]; 3];
        assert_eq!(fill_tweaks(1 << 126, &mut tweaks), 0x87 << 1);
        assert_eq!(tweaks, [(1u128 << 126).to_le_bytes(), (1u128 << 127).to_le_bytes(), 0x87u128.to_le_bytes()]);
    }
}
