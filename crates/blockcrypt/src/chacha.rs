//! XChaCha with 12 or 20 rounds: Adiantum's stream cipher (Bernstein's ChaCha with its 64-bit block counter; the
//! extended nonce as in the Adiantum paper, section 2).
//!
//! One file per CPU level; each generates the key stream of as many blocks at once as its vectors have 32-bit lanes.

#[cfg(all(target_arch = "x86_64", not(postread_portable)))]
mod avx2;
#[cfg(all(target_arch = "x86_64", not(postread_portable)))]
mod avx512;
mod portable;
#[cfg(all(target_arch = "x86_64", not(postread_portable)))]
mod ssse3;

use zeroize::Zeroize;

use crate::Platform;

/// Bytes in a block of key stream.
const BLOCK: usize = 64;
/// "expand 32-byte k".
const CONSTANTS: [u32; 4] = [0x6170_7865, 0x3320_646e, 0x7962_2d32, 0x6b20_6574];

/// Half the number of rounds.
pub(crate) type DoubleRounds = u32;
/// A ChaCha key as its eight words.
pub(crate) type Key = [u32; 8];

/// The words of 32 bytes of key.
pub(crate) fn key_words(bytes: &[u8; 32]) -> Key {
    core::array::from_fn(|i| u32::from_le_bytes([bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]]))
}

/// HChaCha: the key of an extended nonce's stream, from the nonce's first 16 bytes.
pub(crate) fn hchacha(double_rounds: DoubleRounds, key: &Key, nonce: &[u8; 16]) -> Key {
    portable::hchacha(double_rounds, key, nonce)
}

/// HChaCha of several nonces under one key, in order.
pub(crate) fn hchacha_many(
    platform: Platform,
    double_rounds: DoubleRounds,
    key: &Key,
    nonces: &[[u8; 16]],
    keys: &mut [Key],
) {
    debug_assert_eq!(nonces.len(), keys.len());
    #[cfg_attr(not(all(target_arch = "x86_64", not(postread_portable))), allow(unused_mut))]
    let (mut nonces, mut keys) = (nonces, keys);
    #[cfg(all(target_arch = "x86_64", not(postread_portable)))]
    if platform >= Platform::AesNi {
        // For one or two nonces, doing them one by one is as fast as four together.
        while nonces.len() > 2 {
            let count = nonces.len().min(4);
            let mut four = [[0; 16]; 4];
            four[..count].copy_from_slice(&nonces[..count]);
            let mut made = ssse3::hchacha(double_rounds, key, &four);
            keys[..count].copy_from_slice(&made[..count]);
            made.zeroize();
            (nonces, keys) = (&nonces[count..], &mut keys[count..]);
        }
    }
    let _ = platform;
    for (nonce, slot) in nonces.iter().zip(keys) {
        *slot = hchacha(double_rounds, key, nonce);
    }
}

/// XORs `data` with the key stream of `key` and the 64-bit `nonce`, from block 0.
pub(crate) fn xor_stream(platform: Platform, double_rounds: DoubleRounds, key: &Key, nonce: u64, data: &mut [u8]) {
    let mut start = [0; 16];
    start[..4].copy_from_slice(&CONSTANTS);
    start[4..12].copy_from_slice(key);
    start[14] = nonce as u32;
    start[15] = (nonce >> 32) as u32;
    xor_stream_from(platform, double_rounds, &start, data);
    start.zeroize();
}

fn xor_stream_from(platform: Platform, double_rounds: DoubleRounds, start: &[u32; 16], data: &mut [u8]) {
    #[cfg(all(target_arch = "x86_64", not(postread_portable)))]
    {
        if platform >= Platform::Avx512 {
            return avx512::xor_stream(double_rounds, start, data);
        }
        if platform >= Platform::Avx2 {
            return avx2::xor_stream(double_rounds, start, 0, data);
        }
        if platform >= Platform::AesNi {
            return ssse3::xor_stream(double_rounds, start, 0, data);
        }
    }
    let _ = platform;
    portable::xor_stream(double_rounds, start, 0, data);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;

    /// RFC 8439, section 2.3.2's block as a stream: its nonce's first word is the upper half of this counter, so the
    /// first block of that stream is block 1 + (9 << 24 << 32) here, beyond what [`xor_stream`] reaches; only the
    /// portable code takes the counter.
    #[test]
    fn rfc_8439_block() {
        let key = key_words(&core::array::from_fn(|i| i as u8));
        let mut start = [0; 16];
        start[..4].copy_from_slice(&CONSTANTS);
        start[4..12].copy_from_slice(&key);
        start[14] = 0x4a00_0000;
        let mut block = [0; 64];
        portable::xor_stream(10, &start, 1 | 0x0900_0000 << 32, &mut block);
        let wanted =
            *b"\x10\xf1\xe7\xe4\xd1\x3b\x59\x15\x50\x0f\xdd\x1f\xa3\x20\x71\xc4\xc7\xd1\xf4\xc7\x33\xc0\x68\x03\
            \x04\x22\xaa\x9a\xc3\xd4\x6c\x4e\xd2\x82\x64\x46\x07\x9f\xaa\x09\x14\xc2\xd7\x05\xd9\x8b\x02\xa2\
            \xb5\x12\x9c\xd1\xde\x16\x4e\xb9\xcb\xd0\x83\xe8\xa2\x50\x3c\x4e";
        assert_eq!(block, wanted);
    }

    #[test]
    fn hchacha_of_many_is_each_by_itself() {
        let key = key_words(&core::array::from_fn(|i| (i * 11 + 5) as u8));
        let nonces: [[u8; 16]; 9] = core::array::from_fn(|n| core::array::from_fn(|i| (n * 16 + i) as u8));
        for level in Platform::available() {
            for count in 0..=9 {
                let mut keys = [[0; 8]; 9];
                hchacha_many(level, 6, &key, &nonces[..count], &mut keys[..count]);
                for (nonce, got) in nonces.iter().zip(&keys[..count]) {
                    assert_eq!(*got, hchacha(6, &key, nonce), "{level}, {count} nonces");
                }
            }
        }
    }

    /// Every length up to more than two batches of the widest level, and the lanes' edges of longer ones.
    #[test]
    fn every_level_is_the_portable_one() {
        let key = key_words(&core::array::from_fn(|i| (i * 7 + 3) as u8));
        for level in Platform::available() {
            for rounds in [6, 10] {
                let long = [16 * 64 * 4 - 1, 16 * 64 * 4, 16 * 64 * 4 + 1, 65520, 65536, 262_144 + 65];
                for len in (0..2200).chain(long) {
                    let mut wanted: vec::Vec<u8> = (0..len).map(|i| (i * 31) as u8).collect();
                    let mut got = wanted.clone();
                    xor_stream(Platform::Portable, rounds, &key, 0x0123_4567_89ab_cdef, &mut wanted);
                    xor_stream(level, rounds, &key, 0x0123_4567_89ab_cdef, &mut got);
                    assert!(got == wanted, "{level}, {rounds} double rounds, {len} bytes");
                }
            }
        }
    }
}
