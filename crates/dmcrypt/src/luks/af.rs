//! Anti-forensic splitting: a key spread over many stripes, all of which are needed to get it back.
//!
//! The specification is "LUKS On-Disk Format", version 1.2.3, section 2.4.

use zeroize::Zeroizing;

use crate::hash::HashAlg;

/// Merges the stripes of a key of `len` bytes. The material may be longer than the stripes.
///
/// # Panics
/// If it is shorter, or there are no stripes.
pub(super) fn merge(material: &[u8], len: usize, stripes: usize, hash: HashAlg) -> Zeroizing<Vec<u8>> {
    assert!(stripes > 0 && material.len() >= len * stripes, "{} bytes in {stripes} stripes of {len}", material.len());
    let mut key = Zeroizing::new(vec![0; len]);
    for (i, stripe) in material.chunks_exact(len.max(1)).take(stripes).enumerate() {
        key.iter_mut().zip(stripe).for_each(|(k, s)| *k ^= s);
        if i + 1 < stripes {
            diffuse(&mut key, hash);
        }
    }
    key
}

/// Replaces each piece as long as a digest by the digest of its number and itself; a shorter last one by as much of it.
fn diffuse(key: &mut [u8], hash: HashAlg) {
    let size = hash.digest(&[]).len();
    for (i, piece) in key.chunks_mut(size).enumerate() {
        let digest = Zeroizing::new(hash.digest(&[&(i as u32).to_be_bytes(), piece]));
        let len = piece.len();
        piece.copy_from_slice(&digest[..len]);
    }
}
