//! NH, the fast half of Adiantum's hash (Adiantum paper, section 5: four passes, stride 2, messages of up to 1024
//! bytes), and the hash of a whole message over it: Poly1305 of the NH hashes.
//!
//! One file per CPU level. They share the key's layout, in which each 16-byte unit holds words 0, 2, 1, 3: the two
//! factors of a product are the two halves of a 64-bit lane, and one shift moves the second one to where the multiply
//! instruction reads it.

#[cfg(all(target_arch = "x86_64", not(postread_portable)))]
mod avx2;
#[cfg(all(target_arch = "x86_64", not(postread_portable)))]
mod avx512;
mod portable;

use crate::Platform;
use crate::poly1305::{Poly1305, PolyKey};
use zeroize::Zeroize;

/// Bytes in a unit of NH; messages are padded to whole units.
pub(crate) const UNIT: usize = 16;
/// The longest message of one NH hash, in bytes.
pub(crate) const MESSAGE: usize = 1024;
/// Bytes of NH key: a unit each for the 64 units of a message, and one more for each further pass.
pub(crate) const KEY: usize = MESSAGE + 3 * UNIT;
const WORDS: usize = KEY / 4;

/// An NH key in the layout that the levels share.
pub(crate) struct NhKey([u32; WORDS]);

impl Drop for NhKey {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl NhKey {
    pub(crate) fn new(key: &[u8; KEY]) -> Self {
        let word = |i: usize| u32::from_le_bytes([key[4 * i], key[4 * i + 1], key[4 * i + 2], key[4 * i + 3]]);
        Self(core::array::from_fn(|i| word(i & !3 | [0, 2, 1, 3][i & 3])))
    }

    /// NH of `message`, 1 to [`MESSAGE`] bytes, padded with zeros to a multiple of [`UNIT`]: one sum per pass.
    #[inline]
    pub(crate) fn hash(&self, platform: Platform, message: &[u8]) -> [u64; 4] {
        assert!(message.len() <= MESSAGE);
        #[cfg(all(target_arch = "x86_64", not(postread_portable)))]
        {
            if platform >= Platform::Avx512 {
                return avx512::hash(&self.0, message);
            }
            if platform >= Platform::Avx2 {
                return avx2::hash(&self.0, message);
            }
        }
        let _ = platform;
        portable::hash(&self.0, message)
    }

    /// Poly1305 under `poly` of the NH hashes of `message`, any length, in pieces of [`MESSAGE`] bytes.
    pub(crate) fn poly1305(&self, platform: Platform, poly: &PolyKey, message: &[u8]) -> u128 {
        let mut poly = Poly1305::new(poly);
        for piece in message.chunks(MESSAGE) {
            let [a, b, c, d] = self.hash(platform, piece).map(u128::from);
            poly.block(a | b << 64);
            poly.block(c | d << 64);
        }
        poly.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    /// NH as defined in the paper, from the key's bytes.
    fn paper(key: &[u8; KEY], message: &[u8]) -> [u64; 4] {
        let mut message = message.to_vec();
        message.resize(message.len().next_multiple_of(UNIT), 0);
        let words = |bytes: &[u8]| -> Vec<u32> {
            bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect()
        };
        let (key, message) = (words(key), words(&message));
        core::array::from_fn(|pass| {
            let mut sum = 0u64;
            for i in (0..message.len()).step_by(4) {
                for j in i..i + 2 {
                    let a = message[j].wrapping_add(key[j + 4 * pass]);
                    let b = message[j + 2].wrapping_add(key[j + 2 + 4 * pass]);
                    sum = sum.wrapping_add(u64::from(a) * u64::from(b));
                }
            }
            sum
        })
    }

    #[test]
    fn every_level_and_every_length_is_the_papers() {
        let mut state = 1u64;
        let mut byte = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 56) as u8
        };
        let key: [u8; KEY] = core::array::from_fn(|_| byte());
        let message: [u8; MESSAGE] = core::array::from_fn(|_| byte());
        let nh = NhKey::new(&key);
        for level in Platform::available() {
            for len in 0..=MESSAGE {
                assert_eq!(nh.hash(level, &message[..len]), paper(&key, &message[..len]), "{level}, {len} bytes");
            }
            let ones = [0xff; MESSAGE];
            let all_ones = NhKey::new(&[0xff; KEY]);
            assert_eq!(all_ones.hash(level, &ones), paper(&[0xff; KEY], &ones), "{level}, all ones");
        }
    }
}
