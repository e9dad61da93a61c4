//! SHA-512 as written in FIPS 180-4: the reference for the other files here.

use super::{BLOCK, K};

/// Advances `state` over the whole blocks of `input`.
pub(crate) fn compress(state: &mut [u64; 8], input: &[u8]) {
    let (blocks, rest) = input.as_chunks::<BLOCK>();
    assert!(rest.is_empty());
    for block in blocks {
        let mut w = [0_u64; 80];
        for (w, bytes) in w.iter_mut().zip(block.as_chunks::<8>().0) {
            *w = u64::from_be_bytes(*bytes);
        }
        for t in 16..80 {
            let small0 = w[t - 15].rotate_right(1) ^ w[t - 15].rotate_right(8) ^ (w[t - 15] >> 7);
            let small1 = w[t - 2].rotate_right(19) ^ w[t - 2].rotate_right(61) ^ (w[t - 2] >> 6);
            w[t] = small1.wrapping_add(w[t - 7]).wrapping_add(small0).wrapping_add(w[t - 16]);
        }
        let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = *state;
        for t in 0..80 {
            let big1 = e.rotate_right(14) ^ e.rotate_right(18) ^ e.rotate_right(41);
            let choose = (e & f) ^ (!e & g);
            let t1 = h.wrapping_add(big1).wrapping_add(choose).wrapping_add(K[t]).wrapping_add(w[t]);
            let big0 = a.rotate_right(28) ^ a.rotate_right(34) ^ a.rotate_right(39);
            let majority = (a & b) ^ (a & c) ^ (b & c);
            let t2 = big0.wrapping_add(majority);
            (h, g, f, e, d, c, b, a) = (g, f, e, d.wrapping_add(t1), c, b, a, t1.wrapping_add(t2));
        }
        for (state, end) in state.iter_mut().zip([a, b, c, d, e, f, g, h]) {
            *state = state.wrapping_add(end);
        }
    }
}
