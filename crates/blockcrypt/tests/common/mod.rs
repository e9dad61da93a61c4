//! What the tests of the ciphers share: the CPU levels, length classes named after their edges, repeatable bytes.
#![allow(dead_code, unused_imports)]

pub(crate) mod oracle;

use postread_blockcrypt::Platform;

/// The levels to test, those that `POSTREAD_CPU` does not forbid; the ones that this CPU lacks are printed.
pub(crate) fn levels() -> Vec<Platform> {
    let (have, lacking): (Vec<_>, Vec<_>) = Platform::ALL.into_iter().partition(|&level| level <= Platform::detect());
    for level in lacking {
        println!("this CPU lacks level {level}");
    }
    have.into_iter().filter(|&level| level <= Platform::default()).collect()
}

/// Counts of something done `lanes` at a time, each with its name: around each number of lanes, and twice as many.
pub(crate) fn length_classes(lanes: &[usize]) -> Vec<(String, usize)> {
    let mut classes: Vec<(String, usize)> = vec![("0".into(), 0), ("1".into(), 1), ("2".into(), 2)];
    for &n in lanes {
        classes.push((format!("{n} lanes - 1"), n - 1));
        classes.push((format!("{n} lanes"), n));
        classes.push((format!("{n} lanes + 1"), n + 1));
        classes.push((format!("2 x {n} lanes - 1"), 2 * n - 1));
        classes.push((format!("2 x {n} lanes + 1"), 2 * n + 1));
    }
    classes
}

/// Repeatable bytes (SplitMix64: Steele, Lea, Flood, 2014); the seed is the identity of a failure.
pub(crate) struct Bytes(pub(crate) u64);

impl Bytes {
    pub(crate) fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn take(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next_u64() as u8).collect()
    }

    pub(crate) fn block(&mut self) -> [u8; 16] {
        (u128::from(self.next_u64()) << 64 | u128::from(self.next_u64())).to_le_bytes()
    }
}
