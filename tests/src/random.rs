//! Reproducible random bytes and numbers: Marsaglia's xorshift64.

/// Numbers determined by a seed.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// From any seed.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `limit`, which is not 0.
    pub fn below(&mut self, limit: usize) -> usize {
        ((self.next_u64() >> 32) % limit as u64) as usize
    }
}

/// `len` bytes without repetitions at the scale of a block.
pub fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        out.extend_from_slice(&random.next_u64().to_le_bytes());
    }
    out.truncate(len);
    out
}
