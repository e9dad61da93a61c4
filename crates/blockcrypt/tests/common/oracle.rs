//! Ciphers and digests that somebody else wrote: RustCrypto's, or OpenSSL's where the tests are built with
//! `RUSTFLAGS='--cfg postread_openssl'` (which needs its headers and pkg-config; CI runs both).

use postread_blockcrypt::hash::HashAlg;

/// A block cipher in a mode, without padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cipher {
    Aes256Ecb,
    Aes128Cbc,
    Aes192Cbc,
    Aes256Cbc,
    Aes128Xts,
    Aes256Xts,
    Sm4Ecb,
    Sm4Cbc,
}

/// The digest of `parts` one after the other, by RustCrypto.
pub(crate) fn digest_by_crate(alg: HashAlg, parts: &[&[u8]]) -> Vec<u8> {
    fn all<D: sha2::digest::Digest>(parts: &[&[u8]]) -> Vec<u8> {
        parts.iter().fold(D::new(), |hasher, part| hasher.chain_update(part)).finalize().to_vec()
    }
    match alg {
        HashAlg::Sha256 => all::<sha2::Sha256>(parts),
        HashAlg::Sha512 => all::<sha2::Sha512>(parts),
        HashAlg::Sha1 => all::<sha1::Sha1>(parts),
        _ => all::<blake2::Blake2b256>(parts),
    }
}

pub(crate) use chosen::{NAME, digest, encrypt};

#[cfg(postread_openssl)]
mod chosen {
    use super::{Cipher, HashAlg, digest_by_crate};
    use openssl::hash::{Hasher, MessageDigest};
    use openssl::symm::{self, Crypter, Mode};

    pub(crate) const NAME: &str = "OpenSSL";

    pub(crate) fn encrypt(cipher: Cipher, key: &[u8], iv: Option<&[u8]>, data: &[u8]) -> Vec<u8> {
        let cipher = match cipher {
            Cipher::Aes256Ecb => symm::Cipher::aes_256_ecb(),
            Cipher::Aes128Cbc => symm::Cipher::aes_128_cbc(),
            Cipher::Aes192Cbc => symm::Cipher::aes_192_cbc(),
            Cipher::Aes256Cbc => symm::Cipher::aes_256_cbc(),
            Cipher::Aes128Xts => symm::Cipher::aes_128_xts(),
            Cipher::Aes256Xts => symm::Cipher::aes_256_xts(),
            Cipher::Sm4Ecb => symm::Cipher::sm4_ecb(),
            Cipher::Sm4Cbc => symm::Cipher::sm4_cbc(),
        };
        let mut crypter = Crypter::new(cipher, Mode::Encrypt, key, iv).unwrap();
        crypter.pad(false);
        let mut out = vec![0; data.len() + 32];
        let len = crypter.update(data, &mut out).unwrap();
        let len = len + crypter.finalize(&mut out[len..]).unwrap();
        assert_eq!(len, data.len());
        out.truncate(len);
        out
    }

    pub(crate) fn digest(alg: HashAlg, parts: &[&[u8]]) -> Vec<u8> {
        let digest = match alg {
            HashAlg::Sha256 => MessageDigest::sha256(),
            HashAlg::Sha512 => MessageDigest::sha512(),
            HashAlg::Sha1 => MessageDigest::sha1(),
            _ => return digest_by_crate(alg, parts),
        };
        let mut hasher = Hasher::new(digest).unwrap();
        parts.iter().for_each(|part| hasher.update(part).unwrap());
        hasher.finish().unwrap().to_vec()
    }
}

#[cfg(not(postread_openssl))]
mod chosen {
    use super::{Cipher, HashAlg, digest_by_crate};
    use aes::cipher::{BlockCipherEncrypt, BlockModeEncrypt, KeyInit, KeyIvInit};
    use aes::{Aes128, Aes192, Aes256};

    pub(crate) const NAME: &str = "RustCrypto";

    pub(crate) fn encrypt(cipher: Cipher, key: &[u8], iv: Option<&[u8]>, data: &[u8]) -> Vec<u8> {
        let mut out = data.to_vec();
        let iv = || -> [u8; 16] { iv.expect("the mode has an IV").try_into().unwrap() };
        match cipher {
            Cipher::Aes256Ecb => ecb::<Aes256>(key, &mut out),
            Cipher::Sm4Ecb => ecb::<sm4::Sm4>(key, &mut out),
            Cipher::Aes128Cbc => cbc::<cbc::Encryptor<Aes128>>(key, iv(), &mut out),
            Cipher::Aes192Cbc => cbc::<cbc::Encryptor<Aes192>>(key, iv(), &mut out),
            Cipher::Aes256Cbc => cbc::<cbc::Encryptor<Aes256>>(key, iv(), &mut out),
            Cipher::Sm4Cbc => cbc::<cbc::Encryptor<sm4::Sm4>>(key, iv(), &mut out),
            Cipher::Aes128Xts => {
                let [a, b] = [0, 16].map(|at| Aes128::new_from_slice(&key[at..at + 16]).unwrap());
                xts_mode::Xts128::new(a, b).encrypt_sector(&mut out, iv().into());
            }
            Cipher::Aes256Xts => {
                let [a, b] = [0, 32].map(|at| Aes256::new_from_slice(&key[at..at + 32]).unwrap());
                xts_mode::Xts128::new(a, b).encrypt_sector(&mut out, iv().into());
            }
        }
        out
    }

    fn ecb<C: KeyInit + BlockCipherEncrypt>(key: &[u8], data: &mut [u8]) {
        let cipher = C::new_from_slice(key).unwrap();
        for block in data.chunks_exact_mut(16) {
            cipher.encrypt_block(block.try_into().unwrap());
        }
    }

    fn cbc<E: KeyIvInit + BlockModeEncrypt>(key: &[u8], iv: [u8; 16], data: &mut [u8]) {
        let mut encryptor = E::new_from_slices(key, &iv).unwrap();
        for block in data.chunks_exact_mut(16) {
            encryptor.encrypt_block(block.try_into().unwrap());
        }
    }

    pub(crate) fn digest(alg: HashAlg, parts: &[&[u8]]) -> Vec<u8> {
        digest_by_crate(alg, parts)
    }
}
