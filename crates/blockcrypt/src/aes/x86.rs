//! AES on x86-64: the round keys and the choice of a level.

#![allow(unsafe_code)]

use alloc::boxed::Box;

use zeroize::{Zeroize, ZeroizeOnDrop};

use super::vector::{self, DecryptXor, Ecb, KeyStream, Xex};
use super::{Block, MAX_ROUNDS, Schedule, aesni, vaes256, vaes512};
use crate::Platform;
use crate::platform::Feature;

/// Round keys for the AES instructions, of the cipher and of the equivalent inverse cipher (FIPS 197, 5.3.5).
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
#[repr(C, align(64))]
pub(super) struct RoundKeys {
    encryption: [Block; MAX_ROUNDS + 1],
    decryption: [Block; MAX_ROUNDS + 1],
    rounds: usize,
}

impl RoundKeys {
    fn new(schedule: &Schedule) -> Box<Self> {
        // Zeros first: building keys on the stack and moving them to the heap would leave a copy on the stack.
        let none = [[0; 16]; MAX_ROUNDS + 1];
        let mut keys = Box::new(RoundKeys { encryption: none, decryption: none, rounds: schedule.rounds });
        keys.encryption.copy_from_slice(&schedule.keys);
        // SAFETY: round keys are made only where the level is AesNi or higher.
        unsafe { aesni::invert_keys(&schedule.keys[..=schedule.rounds], &mut keys.decryption) };
        keys
    }

    #[inline(always)]
    pub(super) fn encryption(&self) -> &[Block] {
        &self.encryption[..=self.rounds]
    }

    #[inline(always)]
    pub(super) fn decryption(&self) -> &[Block] {
        &self.decryption[..=self.rounds]
    }
}

/// Which file's instructions are used: proof that the CPU has them.
#[derive(Clone, Copy)]
enum Level {
    AesNi,
    Vaes256,
    Vaes512,
}

/// A key for one of the levels with AES instructions.
#[derive(Clone)]
pub(super) struct X86Key {
    keys: Box<RoundKeys>,
    level: Level,
}

/// Calls the level's function of a name.
macro_rules! at_level {
    ($key:expr, $function:ident $(::<$generic:tt>)? ($($argument:expr),*)) => {
        match $key.level {
            Level::AesNi => aesni::$function $(::<$generic>)? (&$key.keys, $($argument),*),
            Level::Vaes256 => vaes256::$function $(::<$generic>)? (&$key.keys, $($argument),*),
            Level::Vaes512 => vaes512::$function $(::<$generic>)? (&$key.keys, $($argument),*),
        }
    };
}

impl X86Key {
    /// Expands a key for the best level that `platform` allows and this CPU has; `None` if that is portable code.
    pub(super) fn new(key: &[u8], platform: Platform) -> Option<Self> {
        let level = match platform.or_detected() {
            Platform::Portable => return None,
            Platform::Avx512 if platform.has(Feature::Vaes) => Level::Vaes512,
            Platform::Avx512 | Platform::Avx2 if platform.has(Feature::Vaes) => Level::Vaes256,
            _ => Level::AesNi,
        };
        let mut schedule = Schedule::new();
        // SAFETY: the level is AesNi or higher.
        schedule.expand(key, |word| unsafe { aesni::sub_word(word) });
        Some(X86Key { keys: RoundKeys::new(&schedule), level })
    }

    pub(super) fn encrypt_blocks(&self, blocks: &mut [Block]) {
        self.pass_alone::<Ecb<true>>(blocks);
    }

    pub(super) fn decrypt_blocks(&self, blocks: &mut [Block]) {
        self.pass_alone::<Ecb<false>>(blocks);
    }

    pub(super) fn xex_encrypt(&self, blocks: &mut [Block], masks: &[Block]) {
        self.pass::<Xex<true>>(blocks, masks);
    }

    pub(super) fn xex_decrypt(&self, blocks: &mut [Block], masks: &[Block]) {
        self.pass::<Xex<false>>(blocks, masks);
    }

    pub(super) fn decrypt_xor(&self, blocks: &mut [Block], masks: &[Block]) {
        self.pass::<DecryptXor>(blocks, masks);
    }

    pub(super) fn xor_key_stream(&self, blocks: &mut [Block], counters: &[Block]) {
        self.pass::<KeyStream>(blocks, counters);
    }

    fn pass<P: vector::Pass>(&self, blocks: &mut [Block], masks: &[Block]) {
        assert_eq!(blocks.len(), masks.len());
        let (data, masks, count) = (blocks.as_mut_ptr().cast(), masks.as_ptr().cast(), blocks.len());
        // SAFETY: the level was found on this CPU; both slices have `count` blocks.
        unsafe { at_level!(self, pass::<P>(data, masks, count)) }
    }

    /// A pass that uses no masks: the blocks serve as their own.
    fn pass_alone<P: vector::Pass>(&self, blocks: &mut [Block]) {
        let (data, count): (*mut u8, _) = (blocks.as_mut_ptr().cast(), blocks.len());
        // SAFETY: the level was found on this CPU; a step reads masks before it stores, and its pass ignores them.
        unsafe { at_level!(self, pass::<P>(data, data, count)) }
    }

    /// Blocks of a flight: units of whole flights are what `xts_units` and `cbc_decrypt_units` take.
    fn flight(&self) -> usize {
        match self.level {
            Level::AesNi => vector::FLIGHT,
            Level::Vaes256 => 2 * vector::FLIGHT,
            Level::Vaes512 => 4 * vector::FLIGHT,
        }
    }

    /// The flights of a unit, `None` if it does not consist of whole ones.
    fn flights(&self, units: &[u8], unit_size: usize, count: usize) -> Option<usize> {
        assert_eq!(units.len(), unit_size * count);
        let flight = 16 * self.flight();
        unit_size.is_multiple_of(flight).then_some(unit_size / flight)
    }

    /// XTS over units of whole flights, one for each of the encrypted IVs; `false`, and nothing done, for others.
    pub(super) fn xts_units<const ENCRYPT: bool>(&self, units: &mut [u8], unit_size: usize, tweaks: &[Block]) -> bool {
        let Some(flights) = self.flights(units, unit_size, tweaks.len()) else { return false };
        let data = units.as_mut_ptr();
        // SAFETY: the level was found on this CPU; there are as many units of whole flights as tweaks.
        unsafe { at_level!(self, xts_units::<ENCRYPT>(data, flights, tweaks)) }
        true
    }

    /// CBC decryption of units of whole flights, one for each IV; `false`, and nothing done, for others.
    pub(super) fn cbc_decrypt_units(&self, units: &mut [u8], unit_size: usize, ivs: &[Block]) -> bool {
        let Some(flights) = self.flights(units, unit_size, ivs.len()) else { return false };
        let data = units.as_mut_ptr();
        // SAFETY: the level was found on this CPU; there are as many units of whole flights as IVs.
        unsafe { at_level!(self, cbc_decrypt_units(data, flights, ivs)) }
        true
    }
}
