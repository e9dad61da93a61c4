//! SHA-256 of many messages: chooses which code hashes how many of them.

#[cfg(all(target_arch = "x86_64", not(postread_portable)))]
mod avx2;
#[cfg(all(target_arch = "x86_64", not(postread_portable)))]
mod avx512;
mod portable;
#[cfg(all(target_arch = "x86_64", not(postread_portable)))]
mod sha_ni;
#[cfg(test)]
mod tests;

use crate::Platform;
#[cfg(all(target_arch = "x86_64", not(postread_portable)))]
use crate::platform::Feature;
use crate::sha2_many::{Job, Sha2};

/// The compression block's size in bytes.
const BLOCK: usize = 64;

/// The round constants (FIPS 180-4, 4.2.2).
#[rustfmt::skip]
static K: [u32; 64] = [
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
];

/// SHA-256 (FIPS 180-4).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sha256;

/// A way to compress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kernel {
    /// One message with plain code; on other architectures than x86-64 for the tests only.
    #[cfg_attr(not(all(target_arch = "x86_64", not(postread_portable))), allow(dead_code))]
    Portable,
    /// One message with what the `sha2` crate finds: SHA-NI, or SHA-256 instructions on AArch64.
    Single,
    /// Two to four messages with SHA-NI.
    #[cfg(all(target_arch = "x86_64", not(postread_portable)))]
    ShaNi(usize),
    /// 8 lanes.
    #[cfg(all(target_arch = "x86_64", not(postread_portable)))]
    Avx2,
    /// 8 lanes with AVX-512's rotates and three-operand logic.
    #[cfg(all(target_arch = "x86_64", not(postread_portable)))]
    Avx512Half,
    /// 16 lanes.
    #[cfg(all(target_arch = "x86_64", not(postread_portable)))]
    Avx512,
}

impl Sha2 for Sha256 {
    type Word = u32;
    type Kernel = Kernel;
    const BLOCK: usize = BLOCK;
    const LENGTH: usize = 8;
    const START: [u32; 8] =
        [0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19];

    fn write_word(word: u32, out: &mut [u8]) {
        out.copy_from_slice(&word.to_be_bytes());
    }

    #[cfg(not(all(target_arch = "x86_64", not(postread_portable))))]
    fn choose(_: Platform, _: usize) -> Kernel {
        Kernel::Single
    }

    /// Chosen by times measured on Zen 4, in thousands of cycles for messages of 4 KiB: `sha2` 8.5; SHA-NI two 9.9,
    /// three 14.8, four 18.2; 8 lanes 35, 16 lanes 64, however few of them are used.
    #[cfg(all(target_arch = "x86_64", not(postread_portable)))]
    fn choose(platform: Platform, remaining: usize) -> Kernel {
        if platform.has(Feature::Sha) {
            match (platform, remaining) {
                (Platform::Avx512, 15..) => Kernel::Avx512,
                (Platform::Avx512, 8 | 10..) => Kernel::Avx512Half,
                (_, 1) => Kernel::Single,
                (_, 5) => Kernel::ShaNi(3),
                (_, 9) => Kernel::ShaNi(3),
                (_, more) => Kernel::ShaNi(more.min(4)),
            }
        } else {
            match (platform, remaining) {
                (Platform::Avx512, 9..) => Kernel::Avx512,
                (Platform::Avx512, 2..) => Kernel::Avx512Half,
                (Platform::Avx2, 3..) => Kernel::Avx2,
                _ => Kernel::Portable,
            }
        }
    }

    fn step(kernel: Kernel, job: &mut Job<'_, '_, Self>) {
        match kernel {
            Kernel::Portable => job.run::<1>(|state, [input]| {
                let mut one = state.map(|[word]| word);
                portable::compress(&mut one, input);
                *state = one.map(|word| [word]);
            }),
            Kernel::Single => job.run::<1>(|state, [input]| {
                let mut one = state.map(|[word]| word);
                sha2::block_api::compress256(&mut one, input.as_chunks().0);
                *state = one.map(|word| [word]);
            }),
            #[cfg(all(target_arch = "x86_64", not(postread_portable)))]
            Kernel::ShaNi(2) => job.run::<2>(sha_ni::compress),
            #[cfg(all(target_arch = "x86_64", not(postread_portable)))]
            Kernel::ShaNi(3) => job.run::<3>(sha_ni::compress),
            #[cfg(all(target_arch = "x86_64", not(postread_portable)))]
            Kernel::ShaNi(_) => job.run::<4>(sha_ni::compress),
            #[cfg(all(target_arch = "x86_64", not(postread_portable)))]
            Kernel::Avx2 => job.run::<8>(avx2::compress),
            #[cfg(all(target_arch = "x86_64", not(postread_portable)))]
            Kernel::Avx512Half => job.run::<8>(avx512::compress8),
            #[cfg(all(target_arch = "x86_64", not(postread_portable)))]
            Kernel::Avx512 => job.run_with_tail::<16>(avx512::compress16),
        }
    }
}
