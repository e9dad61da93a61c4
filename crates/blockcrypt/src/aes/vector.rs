//! The kernels of the x86-64 levels, written once over a vector of blocks; a level file gives the vector its
//! instructions and compiles these for them.

#![allow(unsafe_code)]
// One index walks several arrays and memory.
#![allow(clippy::needless_range_loop)]

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
    /// `self ^ a ^ b`.
    unsafe fn xor3(self, a: Self, b: Self) -> Self;
    unsafe fn encrypt_round(self, key: Self) -> Self;
    unsafe fn encrypt_last_round(self, key: Self) -> Self;
    unsafe fn decrypt_round(self, key: Self) -> Self;
    unsafe fn decrypt_last_round(self, key: Self) -> Self;
    /// The tweaks of vector `i` of a unit's first flight, `i` below [`FLIGHT`]: the unit's `first` tweak, in every
    /// place, times x^n for block n. `before` is that of vector `i - 1`, or `first`.
    unsafe fn tweak(first: Self, i: usize, before: Self) -> Self;
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
        for v in &mut *state {
            *v = v.xor(key);
        }
        for key in middle {
            let key = V::splat(key);
            for v in &mut *state {
                *v = if ENCRYPT { v.encrypt_round(key) } else { v.decrypt_round(key) };
            }
        }
        let key = V::splat(last);
        for v in &mut *state {
            *v = if ENCRYPT { v.encrypt_last_round(key) } else { v.decrypt_last_round(key) };
        }
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
        let size = V::BLOCKS * 16;
        let mut blocks = [V::load(data); N];
        for i in 1..N {
            blocks[i] = V::load(data.add(i * size));
        }
        let mut state = blocks;
        for i in 0..N {
            state[i] = P::before(blocks[i], V::load(masks.add(i * size)));
        }
        if P::ENCRYPT {
            cipher::<V, true, N>(keys, &mut state)
        } else {
            cipher::<V, false, N>(keys, &mut state)
        }
        for i in 0..N {
            P::after(state[i], blocks[i], V::load(masks.add(i * size))).store(data.add(i * size));
        }
    }
}

/// One pass over any number of blocks; the rest that does not fill a vector `V` goes through `Narrow` vectors of one
/// block.
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

/// Repeats code for each vector of a flight, with a constant index each time: compilers do not unroll loops of this
/// length, and would keep the vectors in memory.
macro_rules! in_flight {
    ($i:ident => $code:expr) => {
        in_flight!(@ $i, $code, 0 1 2 3 4 5 6 7)
    };
    (@ $i:ident, $code:expr, $($value:literal)*) => {
        $({
            const $i: usize = $value;
            $code
        })*
    };
}

/// The index before `i`, or 0.
const fn before(i: usize) -> usize {
    i.saturating_sub(1)
}

/// XTS over units of whole flights, one for each of `first_tweaks`. The tweaks never leave the registers.
///
/// # Safety
///
/// The level's instructions; `data` good for `flights * FLIGHT * V::BLOCKS` blocks per tweak.
#[inline(always)]
pub(super) unsafe fn xts_units<V: Vector, const ENCRYPT: bool>(
    keys: &RoundKeys,
    first_tweaks: &[Block],
    mut data: *mut u8,
    flights: usize,
) {
    let Some(first) = first_tweaks.first() else { return };
    // SAFETY: the pointer moves by a flight for each flight of each unit, as the caller guarantees.
    unsafe {
        let first = V::splat(first);
        let mut tweaks = [first; FLIGHT];
        in_flight!(I => tweaks[I] = V::tweak(first, I, tweaks[before(I)]));
        for unit in 0..first_tweaks.len() {
            for _ in 1..flights {
                tweaks = xts_flight::<V, ENCRYPT, false>(keys, data, tweaks, first);
                data = data.add(FLIGHT * V::BLOCKS * 16);
            }
            let next = V::splat(first_tweaks.get(unit + 1).unwrap_or(&first_tweaks[unit]));
            tweaks = xts_flight::<V, ENCRYPT, true>(keys, data, tweaks, next);
            data = data.add(FLIGHT * V::BLOCKS * 16);
        }
    }
}

/// One flight of XTS; returns the tweaks of the next one, which is of the same unit or, where this is its `LAST`, of
/// the unit with the tweak `next_unit`.
///
/// # Safety
///
/// The level's instructions; `data` good for `FLIGHT * V::BLOCKS` blocks.
#[inline(always)]
unsafe fn xts_flight<V: Vector, const ENCRYPT: bool, const LAST: bool>(
    keys: &RoundKeys,
    data: *mut u8,
    tweaks: [V; FLIGHT],
    next_unit: V,
) -> [V; FLIGHT] {
    let keys = if ENCRYPT { keys.encryption() } else { keys.decryption() };
    let (first, rest) = keys.split_first().expect("round keys");
    let (last, middle) = rest.split_last().expect("round keys");
    let (with_tweaks, without) = middle.split_first_chunk::<FLIGHT>().expect("at least nine middle rounds");
    // SAFETY: offsets stay below a flight.
    unsafe {
        let size = V::BLOCKS * 16;
        let key = V::splat(first);
        let mut state = tweaks;
        for i in 0..FLIGHT {
            state[i] = V::load(data.add(i * size)).xor3(tweaks[i], key);
        }
        // One of the next tweaks between two rounds: its instructions fill what the rounds leave free.
        let mut next = [next_unit; FLIGHT];
        in_flight!(I => {
            let key = V::splat(&with_tweaks[I]);
            for v in &mut state {
                *v = if ENCRYPT { v.encrypt_round(key) } else { v.decrypt_round(key) };
            }
            next[I] = if LAST { V::tweak(next_unit, I, next[before(I)]) } else { tweaks[I].next_flight() };
        });
        for key in without {
            let key = V::splat(key);
            for v in &mut state {
                *v = if ENCRYPT { v.encrypt_round(key) } else { v.decrypt_round(key) };
            }
        }
        let key = V::splat(last);
        for i in 0..FLIGHT {
            let key = key.xor(tweaks[i]);
            let last = if ENCRYPT { state[i].encrypt_last_round(key) } else { state[i].decrypt_last_round(key) };
            last.store(data.add(i * size));
        }
        next
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
    // SAFETY: offsets stay below the flights that the caller guarantees; the 16 bytes before a flight that is not the
    // first are the flight before.
    unsafe {
        let size = V::BLOCKS * 16;
        for flight in (0..flights).rev() {
            let data = data.add(flight * FLIGHT * size);
            let mut state = [V::load(data); FLIGHT];
            for i in 1..FLIGHT {
                state[i] = V::load(data.add(i * size));
            }
            let first = if flight == 0 { state[0].shift_in(V::splat(iv)) } else { V::load(data.sub(16)) };
            cipher::<V, false, FLIGHT>(keys, &mut state);
            // The chain is read again here rather than kept in registers; nothing has been stored yet.
            state[0] = state[0].xor(first);
            for i in 1..FLIGHT {
                state[i] = state[i].xor(V::load(data.add(i * size).sub(16)));
            }
            for i in 0..FLIGHT {
                state[i].store(data.add(i * size));
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
        /// The level's instructions; `data` good for `flights` per tweak.
        #[target_feature(enable = $features)]
        pub(super) unsafe fn xts_units<const ENCRYPT: bool>(
            keys: &RoundKeys,
            data: *mut u8,
            flights: usize,
            tweaks: &[Block],
        ) {
            // SAFETY: as this function's.
            unsafe { vector::xts_units::<$vector, ENCRYPT>(keys, tweaks, data, flights) }
        }

        /// # Safety
        ///
        /// The level's instructions; `data` good for `flights` per IV.
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
