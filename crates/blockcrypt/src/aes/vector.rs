//! The kernels of the x86-64 levels, written once over a vector of blocks; a level file gives the vector its
//! instructions and compiles these for them.

#![allow(unsafe_code)]

use super::Block;
use super::x86::RoundKeys;

/// Vectors in flight together: AES instructions take 3 or 4 cycles and one or two start each cycle.
pub(super) const FLIGHT: usize = 8;

/// A register of 1, 2 or 4 blocks.
///
/// # Safety
///
/// Every method needs the instructions of the level whose file implements it; pointers are good for the bytes named.
pub(super) trait Vector: Copy {
    /// Blocks in it.
    const BLOCKS: usize;
    /// Reads [`Vector::BLOCKS`] blocks, at any alignment.
    unsafe fn load(from: *const u8) -> Self;
    /// Writes [`Vector::BLOCKS`] blocks, at any alignment.
    unsafe fn store(self, to: *mut u8);
    /// One block, read into every place.
    unsafe fn splat(from: *const Block) -> Self;
    unsafe fn xor(self, other: Self) -> Self;
    unsafe fn encrypt_round(self, key: Self) -> Self;
    unsafe fn encrypt_last_round(self, key: Self) -> Self;
    unsafe fn decrypt_round(self, key: Self) -> Self;
    unsafe fn decrypt_last_round(self, key: Self) -> Self;
    /// From one tweak `t`, those of [`FLIGHT`] vectors: `t`, `t * x`, `t * x^2`, ... in the order of the blocks.
    unsafe fn tweaks(first: *const Block) -> [Self; FLIGHT];
    /// `self * x^(FLIGHT * BLOCKS)`: the same place of the next flight.
    unsafe fn next_flight(self) -> Self;
    /// The blocks one place up, the last of `before` coming in: what CBC adds to `self`.
    unsafe fn shift_in(self, before: Self) -> Self;
}

/// What a pass does to each block, with its mask.
pub(super) trait Pass {
    /// Whether the cipher encrypts.
    const ENCRYPT: bool;
    /// What goes into the cipher.
    unsafe fn before<V: Vector>(block: V, mask: V) -> V;
    /// What is stored, from what came out of the cipher.
    unsafe fn after<V: Vector>(state: V, block: V, mask: V) -> V;
}

/// `E(block)` or `D(block)`; the masks are not used.
pub(super) struct Ecb<const ENCRYPT: bool>;
/// `E(block ^ mask) ^ mask` or `D(block ^ mask) ^ mask`.
pub(super) struct Xex<const ENCRYPT: bool>;
/// `D(block) ^ mask`.
pub(super) struct DecryptXor;
/// `block ^ E(mask)`.
pub(super) struct KeyStream;

impl<const ENCRYPT: bool> Pass for Ecb<ENCRYPT> {
    const ENCRYPT: bool = ENCRYPT;
    #[inline(always)]
    unsafe fn before<V: Vector>(block: V, _mask: V) -> V {
        block
    }
    #[inline(always)]
    unsafe fn after<V: Vector>(state: V, _block: V, _mask: V) -> V {
        state
    }
}

impl<const ENCRYPT: bool> Pass for Xex<ENCRYPT> {
    const ENCRYPT: bool = ENCRYPT;
    #[inline(always)]
    unsafe fn before<V: Vector>(block: V, mask: V) -> V {
        // SAFETY: the caller has the level's instructions.
        unsafe { block.xor(mask) }
    }
    #[inline(always)]
    unsafe fn after<V: Vector>(state: V, _block: V, mask: V) -> V {
        // SAFETY: the caller has the level's instructions.
        unsafe { state.xor(mask) }
    }
}

impl Pass for DecryptXor {
    const ENCRYPT: bool = false;
    #[inline(always)]
    unsafe fn before<V: Vector>(block: V, _mask: V) -> V {
        block
    }
    #[inline(always)]
    unsafe fn after<V: Vector>(state: V, _block: V, mask: V) -> V {
        // SAFETY: the caller has the level's instructions.
        unsafe { state.xor(mask) }
    }
}

impl Pass for KeyStream {
    const ENCRYPT: bool = true;
    #[inline(always)]
    unsafe fn before<V: Vector>(_block: V, mask: V) -> V {
        mask
    }
    #[inline(always)]
    unsafe fn after<V: Vector>(state: V, block: V, _mask: V) -> V {
        // SAFETY: the caller has the level's instructions.
        unsafe { state.xor(block) }
    }
}

/// The cipher on `N` vectors.
///
/// # Safety
///
/// The level's instructions.
#[inline(always)]
unsafe fn cipher<V: Vector, const ENCRYPT: bool, const N: usize>(keys: &RoundKeys, state: &mut [V; N]) {
    let keys = if ENCRYPT { keys.encryption() } else { keys.decryption() };
    let (first, rest) = keys.split_first().expect("round keys");
    let (last, middle) = rest.split_last().expect("round keys");
    // SAFETY: the caller has the level's instructions; the pointers are of whole blocks.
    unsafe {
        let key = V::splat(first);
        state.iter_mut().for_each(|v| *v = v.xor(key));
        for key in middle {
            let key = V::splat(key);
            state.iter_mut().for_each(|v| *v = if ENCRYPT { v.encrypt_round(key) } else { v.decrypt_round(key) });
        }
        let key = V::splat(last);
        state.iter_mut().for_each(|v| *v = if ENCRYPT { v.encrypt_last_round(key) } else { v.decrypt_last_round(key) });
    }
}

/// One pass over `N` vectors.
///
/// # Safety
///
/// The level's instructions; `data` and `masks` good for `N * V::BLOCKS` blocks.
#[inline(always)]
unsafe fn step<V: Vector, P: Pass, const N: usize>(keys: &RoundKeys, data: *mut u8, masks: *const u8) {
    // SAFETY: offsets stay below N vectors.
    unsafe {
        let at = |i: usize| i * V::BLOCKS * 16;
        let blocks: [V; N] = core::array::from_fn(|i| V::load(data.add(at(i))));
        let mut state: [V; N] = core::array::from_fn(|i| P::before(blocks[i], V::load(masks.add(at(i)))));
        if P::ENCRYPT {
            cipher::<V, true, N>(keys, &mut state)
        } else {
            cipher::<V, false, N>(keys, &mut state)
        }
        for i in 0..N {
            P::after(state[i], blocks[i], V::load(masks.add(at(i)))).store(data.add(at(i)));
        }
    }
}

/// One pass over any number of blocks; what does not fill a vector `V` is left to vectors `Narrow` of one block.
///
/// # Safety
///
/// The level's instructions; `data` and `masks` good for `count` blocks.
#[inline(always)]
pub(super) unsafe fn pass<V: Vector, Narrow: Vector, P: Pass>(
    keys: &RoundKeys,
    data: *mut u8,
    masks: *const u8,
    count: usize,
) {
    let mut done = 0;
    // SAFETY: each step takes no more blocks than are left.
    unsafe {
        macro_rules! steps {
            ($vector:ty, $n:expr, $repeat:tt) => {
                $repeat count - done >= $n * <$vector>::BLOCKS {
                    step::<$vector, P, { $n }>(keys, data.add(done * 16), masks.add(done * 16));
                    done += $n * <$vector>::BLOCKS;
                }
            };
        }
        steps!(V, FLIGHT, while);
        steps!(V, 4, if);
        steps!(V, 2, if);
        steps!(V, 1, if);
        if V::BLOCKS > 1 {
            steps!(Narrow, 3, if);
            steps!(Narrow, 2, if);
            steps!(Narrow, 1, if);
        }
    }
    debug_assert_eq!(done, count);
}

/// XTS over whole flights of one unit: the tweaks never leave the registers.
///
/// # Safety
///
/// The level's instructions; `data` good for `flights * FLIGHT * V::BLOCKS` blocks.
#[inline(always)]
pub(super) unsafe fn xts_unit<V: Vector, const ENCRYPT: bool>(
    keys: &RoundKeys,
    tweak: &Block,
    mut data: *mut u8,
    flights: usize,
) {
    // SAFETY: offsets stay below the flights that the caller vouches for.
    unsafe {
        let at = |i: usize| i * V::BLOCKS * 16;
        let mut tweaks = V::tweaks(tweak);
        for flight in 0..flights {
            let mut state: [V; FLIGHT] = core::array::from_fn(|i| V::load(data.add(at(i))).xor(tweaks[i]));
            cipher::<V, ENCRYPT, FLIGHT>(keys, &mut state);
            for i in 0..FLIGHT {
                state[i].xor(tweaks[i]).store(data.add(at(i)));
            }
            if flight + 1 < flights {
                tweaks = tweaks.map(|tweak| tweak.next_flight());
                data = data.add(at(FLIGHT));
            }
        }
    }
}

/// CBC decryption over whole flights of one unit, from its end to its start, so that the ciphertext before a flight
/// is still there.
///
/// # Safety
///
/// The level's instructions; `data` good for `flights * FLIGHT * V::BLOCKS` blocks.
#[inline(always)]
pub(super) unsafe fn cbc_decrypt_unit<V: Vector>(keys: &RoundKeys, iv: &Block, data: *mut u8, flights: usize) {
    // SAFETY: offsets stay below the flights that the caller vouches for; 16 bytes before a flight that is not the
    // first are the flight before.
    unsafe {
        let at = |i: usize| i * V::BLOCKS * 16;
        for flight in (0..flights).rev() {
            let data = data.add(flight * at(FLIGHT));
            let mut state: [V; FLIGHT] = core::array::from_fn(|i| V::load(data.add(at(i))));
            let first = if flight == 0 { state[0].shift_in(V::splat(iv)) } else { V::load(data.sub(16)) };
            cipher::<V, false, FLIGHT>(keys, &mut state);
            // The chain is read again here rather than kept in registers; nothing has been stored yet.
            let plain: [V; FLIGHT] = core::array::from_fn(|i| {
                let chain = if i == 0 { first } else { V::load(data.add(at(i)).sub(16)) };
                state[i].xor(chain)
            });
            for i in 0..FLIGHT {
                plain[i].store(data.add(at(i)));
            }
        }
    }
}

/// The entry points of a level: the kernels compiled for its instructions.
macro_rules! entry_points {
    ($vector:ty, $narrow:ty, $features:literal) => {
        /// # Safety
        ///
        /// The level's instructions; `data` and `masks` good for `count` blocks.
        #[target_feature(enable = $features)]
        pub(super) unsafe fn pass<P: vector::Pass>(keys: &RoundKeys, data: *mut u8, masks: *const u8, count: usize) {
            // SAFETY: as this function's.
            unsafe { vector::pass::<$vector, $narrow, P>(keys, data, masks, count) }
        }

        /// # Safety
        ///
        /// The level's instructions; `data` good for `flights` a tweak.
        #[target_feature(enable = $features)]
        pub(super) unsafe fn xts_units<const ENCRYPT: bool>(
            keys: &RoundKeys,
            mut data: *mut u8,
            flights: usize,
            tweaks: &[Block],
        ) {
            for tweak in tweaks {
                // SAFETY: as this function's; `data` moves with the tweaks.
                unsafe {
                    vector::xts_unit::<$vector, ENCRYPT>(keys, tweak, data, flights);
                    data = data.add(flights * vector::FLIGHT * <$vector>::BLOCKS * 16);
                }
            }
        }

        /// # Safety
        ///
        /// The level's instructions; `data` good for `flights` an IV.
        #[target_feature(enable = $features)]
        pub(super) unsafe fn cbc_decrypt_units(keys: &RoundKeys, mut data: *mut u8, flights: usize, ivs: &[Block]) {
            for iv in ivs {
                // SAFETY: as this function's; `data` moves with the IVs.
                unsafe {
                    vector::cbc_decrypt_unit::<$vector>(keys, iv, data, flights);
                    data = data.add(flights * vector::FLIGHT * <$vector>::BLOCKS * 16);
                }
            }
        }
    };
}
pub(super) use entry_points;
