//! POLYVAL (RFC 8452, 3): the hash of HCTR2. The portable version is the `polyval` crate's. The PCLMULQDQ version is
//! here, since names are so short that the crate's calls cost more than its arithmetic.

#[cfg(all(target_arch = "x86_64", not(postread_portable)))]
mod pclmul;

use alloc::boxed::Box;

use ::polyval::Polyval;
use ::polyval::universal_hash::UniversalHash;

use crate::Platform;
use crate::aes::Block;

/// A hash key. Zeroized when dropped.
#[derive(Clone)]
pub(crate) enum HashKey {
    /// The crate's state before any block. (The crate detects PCLMULQDQ itself, and is constant-time without it.)
    Crate(Box<Polyval>),
    #[cfg(all(target_arch = "x86_64", not(postread_portable)))]
    Pclmul(pclmul::Powers),
}

/// A hash in progress.
#[derive(Clone)]
pub(crate) enum State<'a> {
    Crate(Polyval),
    #[cfg(all(target_arch = "x86_64", not(postread_portable)))]
    Pclmul(&'a pclmul::Powers, Block),
    /// Empty; uses the lifetime on every architecture.
    #[cfg(not(all(target_arch = "x86_64", not(postread_portable))))]
    #[allow(dead_code)]
    Never(core::convert::Infallible, core::marker::PhantomData<&'a ()>),
}

impl HashKey {
    pub(crate) fn new(key: &Block, platform: Platform) -> Self {
        #[cfg(all(target_arch = "x86_64", not(postread_portable)))]
        if let Some(powers) = pclmul::Powers::new(key, platform) {
            return HashKey::Pclmul(powers);
        }
        let _ = platform;
        HashKey::Crate(Box::new(Polyval::new(&(*key).into())))
    }

    /// The hash of no blocks.
    pub(crate) fn start(&self) -> State<'_> {
        match self {
            HashKey::Crate(hash) => State::Crate(Polyval::clone(hash)),
            #[cfg(all(target_arch = "x86_64", not(postread_portable)))]
            HashKey::Pclmul(powers) => State::Pclmul(powers, [0; 16]),
        }
    }
}

impl State<'_> {
    /// Hashes more blocks.
    pub(crate) fn update(&mut self, blocks: &[Block]) {
        match self {
            State::Crate(hash) => {
                for four in blocks.chunks(4) {
                    let mut parts = [::polyval::Block::default(); 4];
                    for (part, block) in parts.iter_mut().zip(four) {
                        *part = (*block).into();
                    }
                    hash.update(&parts[..four.len()]);
                }
            }
            #[cfg(all(target_arch = "x86_64", not(postread_portable)))]
            State::Pclmul(powers, sum) => powers.update(sum, blocks),
            #[cfg(not(all(target_arch = "x86_64", not(postread_portable))))]
            State::Never(never, _) => match *never {},
        }
    }

    /// The hash.
    pub(crate) fn finish(self) -> Block {
        match self {
            State::Crate(hash) => hash.finalize().into(),
            #[cfg(all(target_arch = "x86_64", not(postread_portable)))]
            State::Pclmul(_, sum) => sum,
            #[cfg(not(all(target_arch = "x86_64", not(postread_portable))))]
            State::Never(never, _) => match never {},
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    /// RFC 8452, appendix A.
    #[test]
    fn published() {
        let block = |hex: u128| hex.to_be_bytes();
        for platform in Platform::available() {
            let key = HashKey::new(&block(0x2562_9347_5892_4276_1d31_f826_ba4b_757b), platform);
            let mut hash = key.start();
            let message =
                [0x4f4f_9566_8c83_dfb6_4017_62bb_2d01_a262, 0xd1a2_4ddd_2721_d006_bbe4_5f20_d3c9_f362].map(block);
            hash.update(&message);
            assert_eq!(hash.finish(), block(0xf7a3_b47b_8461_19fa_e5b7_866c_f5e5_b77e), "{platform}");
        }
    }

    /// Matches the crate for every block count around the eight that are summed together, in two pieces.
    #[test]
    fn agrees_with_the_crate() {
        let mut x = 1u128;
        let mut next = || {
            x = x.wrapping_mul(0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645).wrapping_add(99);
            (x ^ (x >> 64)).to_le_bytes()
        };
        for platform in Platform::available() {
            for count in 0..40 {
                let (secret, blocks): (Block, Vec<Block>) = (next(), (0..count).map(|_| next()).collect());
                let mut wanted = State::Crate(Polyval::new(&secret.into()));
                wanted.update(&blocks);
                let wanted = wanted.finish();
                let key = HashKey::new(&secret, platform);
                for cut in 0..=count {
                    let mut hash = key.start();
                    hash.update(&blocks[..cut]);
                    hash.update(&blocks[cut..]);
                    assert_eq!(hash.finish(), wanted, "{platform}, {cut} of {count} blocks");
                }
            }
        }
    }
}
