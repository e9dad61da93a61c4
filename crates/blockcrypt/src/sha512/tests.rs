//! Every kernel against the `sha2` crate, whichever of them `choose` would take.

use alloc::vec::Vec;
use std::println;

use sha2::Digest;

use super::{Kernel, Sha512};
use crate::Platform;
use crate::sha2_many::Common;

fn kernels() -> Vec<Kernel> {
    let mut kernels = Vec::from([Kernel::Portable, Kernel::Single]);
    #[cfg(all(target_arch = "x86_64", not(postread_portable)))]
    {
        let top = Platform::detect();
        let levels: [(bool, &[Kernel]); 2] = [
            (top >= Platform::Avx2, &[Kernel::Avx2]),
            (top >= Platform::Avx512, &[Kernel::Avx512Half, Kernel::Avx512]),
        ];
        for (has, some) in levels {
            if has {
                kernels.extend(some);
            } else {
                println!("this CPU lacks what {some:?} needs");
            }
        }
    }
    kernels
}

#[test]
fn every_kernel_agrees_with_sha2() {
    let bytes: Vec<u8> = (0..40_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for kernel in kernels() {
        for (prefix, suffix) in [(0, 0), (1, 0), (128, 0), (0, 32), (127, 1), (129, 64), (256, 256)] {
            let (prefix, suffix) = (&bytes[7..7 + prefix], &bytes[500..500 + suffix]);
            let mut common = Common::<Sha512>::new();
            common.set_prefix(Platform::Portable, prefix);
            common.set_suffix(suffix);
            for len in [0, 1, 63, 64, 111, 112, 127, 128, 129, 239, 240, 256, 300] {
                for count in [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33] {
                    let block = |i: usize| &bytes[i * 1001..][..len];
                    let mut out = std::vec![0; count * 64];
                    common.hash(|_| kernel, count, len, &block, &mut out);
                    for (i, found) in out.chunks(64).enumerate() {
                        let wanted = sha2::Sha512::new().chain_update(prefix).chain_update(block(i));
                        let wanted = wanted.chain_update(suffix).finalize();
                        assert_eq!(found, &wanted[..], "{kernel:?}, message {i} of {count}, {len} bytes");
                    }
                }
            }
        }
    }
}
