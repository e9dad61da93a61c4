//! GF(256) modulo x^8 + x^4 + x^3 + x^2 + 1: single elements with tables, runs of bytes by doubling, which vectorises.

/// The field's polynomial without its highest term.
const POLY: u8 = 0x1d;

/// Bytes processed at a time: eight multiples of a tile easily fit in the L1 cache.
pub(crate) const TILE: usize = 512;

/// A run of bytes, padded to whole tiles by its owner.
pub(crate) type Tile = [u8; TILE];

struct Tables {
    /// `exp[i]` = 2^i; twice over, so that sums of two logarithms need no reduction.
    exp: [u8; 510],
    log: [u8; 256],
}

static TABLES: Tables = tables();

const fn double(x: u8) -> u8 {
    (x << 1) ^ (if x & 0x80 != 0 { POLY } else { 0 })
}

const fn tables() -> Tables {
    let mut t = Tables { exp: [0; 510], log: [0; 256] };
    let mut x = 1;
    let mut i = 0;
    while i < 255 {
        t.exp[i] = x;
        t.exp[i + 255] = x;
        t.log[x as usize] = i as u8;
        x = double(x);
        i += 1;
    }
    t
}

/// 2 to the power of `i`.
pub(crate) fn exp(i: usize) -> u8 {
    TABLES.exp[i % 255]
}

/// The product.
pub(crate) fn mul(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 {
        return 0;
    }
    TABLES.exp[usize::from(TABLES.log[usize::from(a)]) + usize::from(TABLES.log[usize::from(b)])]
}

/// The inverse of a nonzero element.
pub(crate) fn inverse(a: u8) -> u8 {
    debug_assert_ne!(a, 0, "0 has no inverse");
    TABLES.exp[255 - usize::from(TABLES.log[usize::from(a)])]
}

/// `a` to the power of `n`.
pub(crate) fn pow(a: u8, n: usize) -> u8 {
    if n == 0 {
        return 1;
    }
    if a == 0 {
        return 0;
    }
    exp(usize::from(TABLES.log[usize::from(a)]) * n)
}

/// The products of a run of bytes with 1, 2, 4, ... 128: every constant multiple is a sum of those.
pub(crate) struct Doublings([Tile; 8]);

impl Doublings {
    pub(crate) const fn new() -> Self {
        Self([[0; TILE]; 8])
    }

    /// Starts over with `a ^ b`.
    pub(crate) fn set_sum(&mut self, a: &Tile, b: &Tile) {
        for (d, (a, b)) in self.0[0].iter_mut().zip(a.iter().zip(b)) {
            *d = a ^ b;
        }
        self.fill();
    }

    /// Starts over with `a`.
    pub(crate) fn set(&mut self, a: &Tile) {
        self.0[0] = *a;
        self.fill();
    }

    fn fill(&mut self) {
        for bit in 1..8 {
            let (below, at) = self.0.split_at_mut(bit);
            for (d, s) in at[0].iter_mut().zip(&below[bit - 1]) {
                let carry = ((*s as i8) >> 7) as u8;
                *d = (*s << 1) ^ (carry & POLY);
            }
        }
    }

    /// `out ^= constant * run`.
    pub(crate) fn add_multiple(&self, constant: u8, out: &mut Tile) {
        let mut bits = [0; 8];
        let mut count = 0;
        for bit in 0..8 {
            if constant >> bit & 1 != 0 {
                bits[count] = bit;
                count += 1;
            }
        }
        // Two at a time: half the stores.
        let (pairs, rest) = bits[..count].as_chunks::<2>();
        for &[a, b] in pairs {
            for (o, (x, y)) in out.iter_mut().zip(self.0[a].iter().zip(&self.0[b])) {
                *o ^= x ^ y;
            }
        }
        for &bit in rest {
            for (o, x) in out.iter_mut().zip(&self.0[bit]) {
                *o ^= x;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Multiplication by shift and add.
    fn slow_mul(mut a: u8, mut b: u8) -> u8 {
        let mut sum = 0;
        while b != 0 {
            if b & 1 != 0 {
                sum ^= a;
            }
            a = double(a);
            b >>= 1;
        }
        sum
    }

    #[test]
    fn tables_and_runs_agree_with_shift_and_add() {
        let mut run = [0; TILE];
        for (i, byte) in run.iter_mut().enumerate() {
            *byte = i as u8;
        }
        let mut doublings = Doublings::new();
        doublings.set(&run);
        for constant in 0..=255 {
            let mut out = [0; TILE];
            doublings.add_multiple(constant, &mut out);
            for (i, &product) in out.iter().enumerate() {
                let wanted = slow_mul(i as u8, constant);
                assert_eq!((product, mul(i as u8, constant)), (wanted, wanted));
            }
            if constant != 0 {
                assert_eq!(mul(constant, inverse(constant)), 1);
                assert_eq!(pow(constant, 3), slow_mul(slow_mul(constant, constant), constant));
            }
        }
    }
}
