//! The polynomial of Poly1305 (RFC 8439, section 2.5) without its final addition of a secret pad: the final step of
//! Adiantum's two almost-universal hashes.
//!
//! Limbs of 64 bits; clamping leaves the low two bits of `r`'s upper half zero, which makes the reduction by 2^130 - 5
//! a multiplication by `r1 + r1 / 4`. No branch and no index depends on a key or on the message.

use zeroize::Zeroize;

/// `r`, clamped.
pub(crate) struct PolyKey {
    r0: u64,
    r1: u64,
}

impl Drop for PolyKey {
    fn drop(&mut self) {
        self.r0.zeroize();
        self.r1.zeroize();
    }
}

impl PolyKey {
    pub(crate) fn new(r: &[u8; 16]) -> Self {
        let r = u128::from_le_bytes(*r) & 0x0fff_fffc_0fff_fffc_0fff_fffc_0fff_ffff;
        Self { r0: r as u64, r1: (r >> 64) as u64 }
    }
}

/// An evaluation in progress.
pub(crate) struct Poly1305<'k> {
    key: &'k PolyKey,
    h0: u64,
    h1: u64,
    h2: u64,
}

impl<'k> Poly1305<'k> {
    pub(crate) fn new(key: &'k PolyKey) -> Self {
        Self { key, h0: 0, h1: 0, h2: 0 }
    }

    /// Adds a full block.
    #[inline(always)]
    pub(crate) fn block(&mut self, block: u128) {
        self.add(block, 1);
    }

    /// Adds a message: its last block may be short.
    pub(crate) fn message(&mut self, message: &[u8]) {
        let (blocks, rest) = message.as_chunks::<16>();
        for block in blocks {
            self.block(u128::from_le_bytes(*block));
        }
        if !rest.is_empty() {
            let mut last = [0; 16];
            last[..rest.len()].copy_from_slice(rest);
            last[rest.len()] = 1;
            self.add(u128::from_le_bytes(last), 0);
        }
    }

    /// `h = (h + block + high * 2^128) * r`, reduced to a little more than 130 bits.
    #[inline(always)]
    fn add(&mut self, block: u128, high: u64) {
        let (r0, r1) = (u128::from(self.key.r0), u128::from(self.key.r1));
        let s1 = r1 + (r1 >> 2);

        let low = u128::from(self.h0) + u128::from(block as u64);
        let middle = u128::from(self.h1) + (block >> 64) + (low >> 64);
        let (h0, h1) = (u128::from(low as u64), u128::from(middle as u64));
        // At most 2^3: the reduction below leaves h2 below 5.
        let h2 = self.h2 + (middle >> 64) as u64 + high;

        let d0 = h0 * r0 + h1 * s1;
        let d1 = h0 * r1 + h1 * r0 + u128::from(h2 * s1 as u64) + (d0 >> 64);
        let d2 = h2 * r0 as u64 + (d1 >> 64) as u64;

        // What exceeds 2^130 comes back times five.
        let carry = (d2 & !3) + (d2 >> 2);
        let low = u128::from(d0 as u64) + u128::from(carry);
        let middle = u128::from(d1 as u64) + (low >> 64);
        self.h0 = low as u64;
        self.h1 = middle as u64;
        self.h2 = (d2 & 3) + (middle >> 64) as u64;
    }

    /// The value modulo 2^130 - 5, then modulo 2^128.
    pub(crate) fn finish(self) -> u128 {
        let h = u128::from(self.h0) | u128::from(self.h1) << 64;
        // h + 5 reaches 2^130 exactly where h >= 2^130 - 5.
        let (reduced, carry) = h.overflowing_add(5);
        let over = u128::from((self.h2 + u64::from(carry)) >> 2 != 0);
        let mask = over.wrapping_neg();
        (h & !mask) | (reduced & mask)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn poly(r: [u8; 16], message: &[u8]) -> u128 {
        let key = PolyKey::new(&r);
        let mut poly = Poly1305::new(&key);
        poly.message(message);
        poly.finish()
    }

    /// RFC 8439, section 2.5.2 (its tag less its pad).
    #[test]
    fn rfc_8439_example() {
        let r = *b"\x85\xd6\xbe\x78\x57\x55\x6d\x33\x7f\x44\x52\xfe\x42\xd5\x06\xa8";
        let pad = u128::from_le_bytes(*b"\x01\x03\x80\x8a\xfb\x0d\xb2\xfd\x4a\xbf\xf6\xaf\x41\x49\xf5\x1b");
        let tag = u128::from_le_bytes(*b"\xa8\x06\x1d\xc1\x30\x51\x36\xc6\xc2\x2b\x8b\xaf\x0c\x01\x27\xa9");
        assert_eq!(poly(r, b"Cryptographic Forum Research Group").wrapping_add(pad), tag);
    }

    /// RFC 8439, appendix A.3, vectors 7 and 9 to 11 (tests 8 and 9 there are about the pad).
    #[test]
    fn rfc_8439_carries_at_the_edges() {
        let r = |byte: u8| {
            let mut r = [0; 16];
            r[0] = byte;
            r
        };
        // 2^130 - 2: reduced.
        assert_eq!(poly(r(2), &[0xff; 16]), 3);
        // 2^130 - 6: the largest value but one that stays.
        let mut message = [0xff; 16];
        message[0] = 0xfd;
        assert_eq!(poly(r(2), &message), u128::MAX - 5);
        let mut message = [0xff; 48];
        message[16] = 0xf0;
        message[32..].fill(0);
        message[32] = 0x11;
        assert_eq!(poly(r(1), &message), 5);
        let mut message = [0xff; 48];
        message[16] = 0xfb;
        message[17..32].fill(0xfe);
        message[32..].fill(0x01);
        assert_eq!(poly(r(1), &message), 0);
    }
}
