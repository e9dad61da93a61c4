//! Makes footers and vbmeta images.

use postread_verity::{Digest, HashAlg};

pub(crate) fn footer(original: u64, offset: u64, size: u64) -> [u8; 64] {
    let mut out = [0; 64];
    out[..4].copy_from_slice(b"AVBf");
    out[7] = 1;
    for (at, value) in [(12, original), (20, offset), (28, size)] {
        out[at..at + 8].copy_from_slice(&value.to_be_bytes());
    }
    out
}

/// The size of the authentication block of an algorithm: digest and signature, padded to 64 bytes.
pub(crate) fn auth_size(algorithm: u32) -> usize {
    [0usize, 32 + 256, 32 + 512, 32 + 1024, 64 + 256, 64 + 512, 64 + 1024][algorithm as usize].next_multiple_of(64)
}

/// A vbmeta image with an arbitrary signature.
pub(crate) fn vbmeta(algorithm: u32, descriptors: &[Vec<u8>]) -> Vec<u8> {
    let descriptors = descriptors.concat();
    let key = if algorithm == 0 { vec![] } else { vec![3; 520] };
    let mut aux = [descriptors.clone(), key.clone()].concat();
    aux.resize(aux.len().next_multiple_of(64), 0);
    let digest_size = match algorithm {
        0 => 0,
        1..=3 => 32,
        _ => 64,
    };
    let auth_size = auth_size(algorithm);
    let mut header = vec![0; 256];
    let mut put = |at: usize, value: u64| header[at..at + 8].copy_from_slice(&value.to_be_bytes());
    put(12, auth_size as u64);
    put(20, aux.len() as u64);
    put(32, 0);
    put(40, digest_size as u64);
    put(48, digest_size as u64);
    put(56, if algorithm == 0 { 0 } else { 256 });
    put(64, descriptors.len() as u64);
    put(72, key.len() as u64);
    put(96, 0);
    put(104, descriptors.len() as u64);
    put(112, 7);
    header[..4].copy_from_slice(b"AVB0");
    header[7] = 1;
    header[28..32].copy_from_slice(&algorithm.to_be_bytes());
    let mut auth = vec![0x55; auth_size];
    if digest_size > 0 {
        let alg = if digest_size == 32 { HashAlg::Sha256 } else { HashAlg::Sha512 };
        let digest = Digest::of(alg, &[&header[..], &aux].concat());
        auth[..digest_size].copy_from_slice(digest.as_bytes());
    }
    [header, auth, aux].concat()
}

/// The fields of a hashtree descriptor.
pub(crate) struct Hashtree {
    pub(crate) version: u32,
    pub(crate) image_size: u64,
    pub(crate) tree: (u64, u64),
    pub(crate) block_size: u32,
    pub(crate) fec: (u32, u64, u64),
    pub(crate) alg: &'static str,
    pub(crate) name: &'static [u8],
    pub(crate) digest: Vec<u8>,
    /// How many bytes to leave out at the end.
    pub(crate) cut: usize,
}

impl Default for Hashtree {
    fn default() -> Self {
        Self {
            version: 1,
            image_size: 300 * 4096,
            tree: (300 * 4096, 4 * 4096),
            block_size: 4096,
            fec: (2, 304 * 4096, 4 * 4096),
            alg: "sha256",
            name: b"system",
            digest: vec![9; 32],
            cut: 0,
        }
    }
}

impl Hashtree {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let salt = b"salt";
        let mut out = vec![0; 180];
        let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &1u64.to_be_bytes());
        put(16, &self.version.to_be_bytes());
        put(20, &self.image_size.to_be_bytes());
        put(28, &self.tree.0.to_be_bytes());
        put(36, &self.tree.1.to_be_bytes());
        put(44, &self.block_size.to_be_bytes());
        put(48, &self.block_size.to_be_bytes());
        put(52, &self.fec.0.to_be_bytes());
        put(56, &self.fec.1.to_be_bytes());
        put(64, &self.fec.2.to_be_bytes());
        put(72, self.alg.as_bytes());
        put(104, &(self.name.len() as u32).to_be_bytes());
        put(108, &(salt.len() as u32).to_be_bytes());
        put(112, &(self.digest.len() as u32).to_be_bytes());
        out.extend_from_slice(self.name);
        out.extend_from_slice(salt);
        out.extend_from_slice(&self.digest);
        out.resize(out.len().next_multiple_of(8) - self.cut, 0);
        let following = (out.len() - 16) as u64;
        out[8..16].copy_from_slice(&following.to_be_bytes());
        out
    }
}
