//! The checksums of metadata: CRC-32C as ext4 chains it, CRC-16 of old group descriptors, CRC-32 of old journals.

use super::bytes::{low8, to_usize};

/// CRC-32C without inversion at either end, so that pieces chain: what the format calls `crc32c(seed, bytes)`.
pub(crate) fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    !crc32c::crc32c_append(!seed, bytes)
}

/// CRC-16 (polynomial 0x8005, reflected) without inversion: the checksum of `gdt_csum`.
pub(crate) fn crc16(seed: u16, bytes: &[u8]) -> u16 {
    bytes.iter().fold(seed, |crc, &byte| crc >> 8 ^ CRC16[usize::from(low8(crc.into()) ^ byte)])
}

/// CRC-32 (polynomial 0x04c11db7), most significant bit first, without inversion: the journal's first checksum.
pub(crate) fn crc32_be(seed: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(seed, |crc, &byte| crc << 8 ^ CRC32_BE[to_usize((crc >> 24) ^ u32::from(byte))])
}

#[allow(clippy::arithmetic_side_effects, clippy::as_conversions, reason = "computed by the compiler, which checks it")]
const CRC16: [u16; 256] = {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        let mut crc = i as u16;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0xa001 } else { crc >> 1 };
            bit += 1;
        }
        table[i] = crc;
        i += 1;
    }
    table
};

#[allow(clippy::arithmetic_side_effects, clippy::as_conversions, reason = "computed by the compiler, which checks it")]
const CRC32_BE: [u32; 256] = {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        let mut crc = (i as u32) << 24;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc >> 31 == 1 { crc << 1 ^ 0x04c1_1db7 } else { crc << 1 };
            bit += 1;
        }
        table[i] = crc;
        i += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    /// The catalogue of parametrised CRC algorithms gives each algorithm's value for "123456789".
    #[test]
    fn catalogue_check_values() {
        assert_eq!(!crc32c(!0, b"123456789"), 0xe306_9283, "CRC-32/ISCSI");
        assert_eq!(crc16(0xffff, b"123456789"), 0x4b37, "CRC-16/MODBUS");
        assert_eq!(crc32_be(!0, b"123456789"), 0x0376_e6e7, "CRC-32/MPEG-2");
    }

    #[test]
    fn pieces_chain() {
        assert_eq!(crc32c(crc32c(7, b"1234"), b"56789"), crc32c(7, b"123456789"));
    }
}
