//! Which of the CPU's instruction sets the hot loops may use.
//!
//! A [`Platform`] is a level, and a level is an upper bound: each algorithm uses the best code at or below it that the
//! CPU can run. Each key and hasher has its own level, so one process can use several. A level that this CPU lacks is
//! lowered to one that it has, so no value of this type can make a safe call execute an unsupported instruction.

#![allow(unsafe_code)]

use core::fmt;
use core::str::FromStr;
use core::sync::atomic::{AtomicU32, Ordering};

/// The environment variable that lowers [`Platform::default`].
pub const POSTREAD_CPU: &str = "POSTREAD_CPU";

/// A level of instruction sets, the lowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Platform {
    /// The portable code, the reference for every other level. (Crates below it that pick instructions at run time, as
    /// RustCrypto's do on AArch64, still do so.)
    Portable,
    /// x86-64 with AES-NI, PCLMULQDQ and SSE4.1; SHA-NI where the CPU has it.
    AesNi,
    /// AVX2 and BMI2; 256-bit VAES where the CPU has it.
    Avx2,
    /// AVX-512 F, BW, DQ and VL; 512-bit VAES where the CPU has it.
    Avx512,
}

/// An instruction set that an algorithm needs in addition to its level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[cfg_attr(not(all(target_arch = "x86_64", not(postread_portable))), allow(dead_code))]
pub(crate) enum Feature {
    /// SHA-NI: from level [`Platform::AesNi`].
    Sha = 1 << 0,
    /// VAES and VPCLMULQDQ: 256-bit from level [`Platform::Avx2`], 512-bit from [`Platform::Avx512`].
    Vaes = 1 << 1,
    /// GFNI: 256-bit from level [`Platform::Avx2`], 512-bit from [`Platform::Avx512`].
    Gfni = 1 << 2,
    /// AVX-512 IFMA: from level [`Platform::Avx512`].
    Ifma = 1 << 3,
    /// AVX-512 VBMI: from level [`Platform::Avx512`].
    Vbmi = 1 << 4,
}

impl Feature {
    const fn lowest_level(self) -> Platform {
        match self {
            Feature::Sha => Platform::AesNi,
            Feature::Vaes | Feature::Gfni => Platform::Avx2,
            Feature::Ifma | Feature::Vbmi => Platform::Avx512,
        }
    }
}

impl Platform {
    /// Every level, the lowest first.
    pub const ALL: [Platform; 4] = [Platform::Portable, Platform::AesNi, Platform::Avx2, Platform::Avx512];

    /// The highest level that this CPU and its operating system offer.
    pub fn detect() -> Self {
        Self::from_index(detected() & LEVEL_MASK)
    }

    /// The levels that this CPU offers, the lowest first.
    pub fn available() -> impl DoubleEndedIterator<Item = Self> + Clone {
        let top = Self::detect();
        Self::ALL.into_iter().filter(move |&level| level <= top)
    }

    /// The level that `POSTREAD_CPU` names, `None` if it is unset or empty.
    ///
    /// [`Platform::default`] ignores an unknown name, because a library has nowhere to report it; programs and tests
    /// call this to refuse it.
    ///
    /// # Errors
    ///
    /// [`UnknownPlatform`] where the variable holds anything but a level's name.
    #[cfg(feature = "std")]
    pub fn from_env() -> Result<Option<Self>, UnknownPlatform> {
        match std::env::var_os(POSTREAD_CPU) {
            None => Ok(None),
            Some(name) if name.is_empty() => Ok(None),
            Some(name) => name.to_str().ok_or(UnknownPlatform).and_then(str::parse).map(Some),
        }
    }

    /// This level, or the highest one that the CPU offers if that is lower.
    pub fn or_detected(self) -> Self {
        self.min(Self::detect())
    }

    /// The level's name, as `POSTREAD_CPU` takes it.
    pub const fn name(self) -> &'static str {
        match self {
            Platform::Portable => "portable",
            Platform::AesNi => "aesni",
            Platform::Avx2 => "avx2",
            Platform::Avx512 => "avx512",
        }
    }

    /// Whether this level allows `feature` and the CPU has it.
    #[cfg_attr(not(all(target_arch = "x86_64", not(postread_portable))), allow(dead_code))]
    pub(crate) fn has(self, feature: Feature) -> bool {
        self >= feature.lowest_level() && detected() & ((feature as u32) << FEATURE_SHIFT) != 0
    }

    const fn from_index(index: u32) -> Self {
        match index {
            3 => Platform::Avx512,
            2 => Platform::Avx2,
            1 => Platform::AesNi,
            _ => Platform::Portable,
        }
    }
}

impl Default for Platform {
    /// The detected level, lowered by `POSTREAD_CPU` (read once per process, with the `std` feature).
    fn default() -> Self {
        #[cfg(feature = "std")]
        {
            static DEFAULT: std::sync::OnceLock<Platform> = std::sync::OnceLock::new();
            *DEFAULT.get_or_init(|| Self::from_env().ok().flatten().unwrap_or(Platform::Avx512).or_detected())
        }
        #[cfg(not(feature = "std"))]
        Self::detect()
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// No level has this name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownPlatform;

impl fmt::Display for UnknownPlatform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("unknown CPU level: portable, aesni, avx2 and avx512 are known")
    }
}

impl core::error::Error for UnknownPlatform {}

impl FromStr for Platform {
    type Err = UnknownPlatform;

    fn from_str(name: &str) -> Result<Self, UnknownPlatform> {
        Self::ALL.into_iter().find(|level| level.name() == name).ok_or(UnknownPlatform)
    }
}

const LEVEL_MASK: u32 = 0xff;
const FEATURE_SHIFT: u32 = 8;
const KNOWN: u32 = 1 << 31;

/// The level's index in the low byte and the [`Feature`] bits above it, found once: CPUID traps in a virtual machine.
fn detected() -> u32 {
    static DETECTED: AtomicU32 = AtomicU32::new(0);
    let mut found = DETECTED.load(Ordering::Relaxed);
    if found == 0 {
        found = probe() | KNOWN;
        DETECTED.store(found, Ordering::Relaxed);
    }
    found
}

#[cfg(any(not(all(target_arch = "x86_64", not(postread_portable))), miri, target_env = "sgx"))]
fn probe() -> u32 {
    0
}

/// Queries CPUID, and XCR0 for the registers that the operating system saves: an instruction that CPUID lists still
/// faults without those. (`is_x86_feature_detected!` needs `std`.) Bits: Intel SDM volume 2A, CPUID leaves 1 and 7.
#[cfg(all(all(target_arch = "x86_64", not(postread_portable)), not(miri), not(target_env = "sgx")))]
fn probe() -> u32 {
    use core::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};

    #[target_feature(enable = "xsave")]
    fn xcr0() -> u64 {
        // SAFETY: the caller checked OSXSAVE, so XGETBV and register 0 exist.
        unsafe { _xgetbv(0) }
    }
    let all = |register: u32, bits: &[u32]| bits.iter().all(|&bit| register & (1 << bit) != 0);

    if __cpuid(0).eax < 7 {
        return 0;
    }
    let (one, seven) = (__cpuid(1), __cpuid_count(7, 0));
    // PCLMULQDQ, SSSE3, SSE4.1, AES.
    if !all(one.ecx, &[1, 9, 19, 25]) {
        return 0;
    }
    let saved = if all(one.ecx, &[26, 27]) {
        // SAFETY: XSAVE and OSXSAVE are set.
        unsafe { xcr0() }
    } else {
        0
    };
    let (ymm, zmm) = (saved & 0b110 == 0b110, saved & 0b1110_0110 == 0b1110_0110);

    let mut level = 1;
    // AVX; BMI1, AVX2, BMI2.
    if ymm && all(one.ecx, &[28]) && all(seven.ebx, &[3, 5, 8]) {
        level = 2;
        // F, DQ, BW, VL.
        if zmm && all(seven.ebx, &[16, 17, 30, 31]) {
            level = 3;
        }
    }
    let mut features = 0;
    for (feature, present) in [
        (Feature::Sha, all(seven.ebx, &[29])),
        (Feature::Vaes, all(seven.ecx, &[9, 10])),
        (Feature::Gfni, all(seven.ecx, &[8])),
        (Feature::Ifma, all(seven.ebx, &[21])),
        (Feature::Vbmi, all(seven.ecx, &[1])),
    ] {
        if present {
            features |= feature as u32;
        }
    }
    level | features << FEATURE_SHIFT
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;
    use alloc::vec::Vec;

    #[test]
    fn names_round_trip() {
        for level in Platform::ALL {
            assert_eq!(level.to_string().parse(), Ok(level));
        }
        assert_eq!("AVX512".parse::<Platform>(), Err(UnknownPlatform));
    }

    #[test]
    fn levels_are_bounds() {
        let available: Vec<_> = Platform::available().collect();
        assert_eq!(available[0], Platform::Portable);
        assert_eq!(available.last(), Some(&Platform::detect()));
        assert!(Platform::default() <= Platform::detect());
        for level in Platform::ALL {
            assert!(available.contains(&level.or_detected()));
        }
        assert!(!Platform::Portable.has(Feature::Sha));
        assert!(!Platform::AesNi.has(Feature::Vaes));
    }

    /// The standard library's detection is written independently of ours.
    #[test]
    #[cfg(all(all(target_arch = "x86_64", not(postread_portable)), feature = "std"))]
    fn agrees_with_std() {
        use std::is_x86_feature_detected as has;
        let aesni = has!("aes") && has!("pclmulqdq") && has!("sse4.1") && has!("ssse3");
        let avx2 = aesni && has!("avx2") && has!("bmi1") && has!("bmi2");
        let avx512 = avx2 && has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl");
        let level = usize::from(aesni) + usize::from(avx2) + usize::from(avx512);
        assert_eq!(Platform::detect(), Platform::ALL[level]);
        let top = Platform::detect();
        assert_eq!(top.has(Feature::Sha), aesni && has!("sha"));
        assert_eq!(top.has(Feature::Vaes), avx2 && has!("vaes") && has!("vpclmulqdq"));
        assert_eq!(top.has(Feature::Gfni), avx2 && has!("gfni"));
        assert_eq!(top.has(Feature::Ifma), avx512 && has!("avx512ifma"));
        assert_eq!(top.has(Feature::Vbmi), avx512 && has!("avx512vbmi"));
        for lacking in Platform::ALL.into_iter().filter(|&level| level > top) {
            std::println!("this CPU lacks level {lacking}");
        }
    }
}
