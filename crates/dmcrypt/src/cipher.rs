//! Keyed ciphers in their modes, over runs of sectors.

use std::fmt;

use cbc::cipher::{BlockCipherDecrypt, BlockCipherEncrypt, BlockSizeUser, KeyInit, consts::U16};
use cbc::cipher::{BlockModeDecrypt, BlockModeEncrypt, InnerIvInit};
use postread_blockcrypt::adiantum::{Adiantum, Stream};
use postread_blockcrypt::cbc::AesCbc;
use postread_blockcrypt::xts::AesXts;
use serpent::Serpent;
use twofish::Twofish;
use xts_mode::Xts128;
use zeroize::Zeroizing;

use crate::iv::{self, Iv};
use crate::spec::{CipherAlg, CipherSpec, IvMode, Mode};

/// A key that the cipher does not accept. The error contains no part of the key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The cipher has no key of this length.
    #[error("the key has {found} bytes, but {spec} takes {wanted}")]
    Length {
        /// The specification.
        spec: String,
        /// Bytes given.
        found: usize,
        /// The lengths that it accepts, in bytes.
        wanted: String,
    },
    /// Both halves of an XTS key are the same, which makes the mode insecure.
    #[error("the halves of the XTS key are equal")]
    EqualHalves,
}

/// A block cipher of 16-byte blocks.
trait Block16: BlockCipherEncrypt + BlockCipherDecrypt + BlockSizeUser<BlockSize = U16> + KeyInit {}
impl<T: BlockCipherEncrypt + BlockCipherDecrypt + BlockSizeUser<BlockSize = U16> + KeyInit> Block16 for T {}

enum Keyed {
    AesXts(AesXts),
    AesCbc(AesCbc),
    Adiantum(Box<Adiantum>),
    SerpentXts(Box<Xts128<Serpent>>),
    SerpentCbc(Box<Serpent>),
    TwofishXts(Box<Xts128<Twofish>>),
    TwofishCbc(Box<Twofish>),
}

/// The key that encrypts IVs.
enum IvKey {
    Aes(AesCbc),
    Serpent(Box<Serpent>),
    Twofish(Box<Twofish>),
}

/// One key of a mapping.
pub(crate) struct Cipher {
    keyed: Keyed,
    iv_key: Option<IvKey>,
}

impl fmt::Debug for Cipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cipher")
    }
}

impl Cipher {
    pub(crate) fn new(spec: &CipherSpec, key: &[u8]) -> Result<Self, KeyError> {
        let length =
            |wanted: &str| KeyError::Length { spec: spec.to_string(), found: key.len(), wanted: wanted.to_owned() };
        let keyed = match (spec.cipher, spec.mode) {
            (CipherAlg::Aes, Mode::Cbc) => Keyed::AesCbc(AesCbc::new(key).map_err(|_| length("16, 24 or 32"))?),
            (CipherAlg::Serpent, Mode::Cbc) => Keyed::SerpentCbc(Box::new(block(key, key.len(), &length)?)),
            (CipherAlg::Twofish, Mode::Cbc) => Keyed::TwofishCbc(Box::new(block(key, key.len(), &length)?)),
            (CipherAlg::Aes, Mode::Xts) => {
                check_halves(key)?;
                Keyed::AesXts(AesXts::new(key).map_err(|_| length("32, 48 or 64"))?)
            }
            (CipherAlg::Serpent, Mode::Xts) => Keyed::SerpentXts(Box::new(xts(key, &length)?)),
            (CipherAlg::Twofish, Mode::Xts) => Keyed::TwofishXts(Box::new(xts(key, &length)?)),
            (CipherAlg::XChaCha12Aes, _) => adiantum(Stream::XChaCha12, key).ok_or_else(|| length("32"))?,
            (CipherAlg::XChaCha20Aes, _) => adiantum(Stream::XChaCha20, key).ok_or_else(|| length("32"))?,
            (CipherAlg::Aes | CipherAlg::Serpent | CipherAlg::Twofish, Mode::Adiantum) => {
                return Err(length("no key of any length"));
            }
        };
        let iv_key = match spec.iv {
            IvMode::Essiv(hash) => {
                let key = Zeroizing::new(hash.digest(&[key]));
                let error = |_: &str| KeyError::Length {
                    spec: format!("{}, which encrypts IVs under a {hash} digest,", spec.cipher.name()),
                    found: key.len(),
                    wanted: "16, 24 or 32".to_owned(),
                };
                Some(match spec.cipher {
                    CipherAlg::Serpent => IvKey::Serpent(Box::new(block(&key, key.len(), &error)?)),
                    CipherAlg::Twofish => IvKey::Twofish(Box::new(block(&key, key.len(), &error)?)),
                    _ => IvKey::Aes(AesCbc::new(&key).map_err(|_| error(""))?),
                })
            }
            _ => None,
        };
        Ok(Self { keyed, iv_key })
    }

    fn iv_size(&self) -> usize {
        if matches!(self.keyed, Keyed::Adiantum(_)) { 32 } else { 16 }
    }

    /// The IV of a sector, encrypted where the mode does that.
    fn iv(&self, mode: IvMode, number: u64) -> Iv {
        let mut iv = iv::make(mode, number, self.iv_size());
        let first = iv.first_chunk_mut::<16>().expect("an IV has 32 bytes");
        match &self.iv_key {
            None => {}
            // One block of CBC with an IV of zeros is the block cipher itself.
            Some(IvKey::Aes(key)) => key.encrypt_units_with(first, 16, |_| [0; 16]).expect("one block"),
            Some(IvKey::Serpent(key)) => key.encrypt_block(first.into()),
            Some(IvKey::Twofish(key)) => key.encrypt_block(first.into()),
        }
        iv
    }

    /// Processes a run of whole sectors; the first has `number`, and each next one `step` more. Sizes have been
    /// checked.
    pub(crate) fn sectors<const ENCRYPT: bool>(
        &self,
        mode: IvMode,
        data: &mut [u8],
        size: usize,
        number: u64,
        step: u64,
    ) {
        let iv = |unit: u64| self.iv(mode, number.wrapping_add(unit.wrapping_mul(step)));
        let iv16 = |unit: u64| *iv(unit).first_chunk::<16>().expect("an IV has 32 bytes");
        let sectors = || (0u64..).map(iv16);
        let sizes_are_checked = match &self.keyed {
            Keyed::AesXts(key) if ENCRYPT => key.encrypt_units_with(data, size, iv16),
            Keyed::AesXts(key) => key.decrypt_units_with(data, size, iv16),
            Keyed::AesCbc(key) if ENCRYPT => key.encrypt_units_with(data, size, iv16),
            Keyed::AesCbc(key) => key.decrypt_units_with(data, size, iv16),
            Keyed::Adiantum(key) if ENCRYPT => key.encrypt_units_with(data, size, iv),
            Keyed::Adiantum(key) => key.decrypt_units_with(data, size, iv),
            Keyed::SerpentXts(key) => {
                xts_sectors::<ENCRYPT, _>(key, data, size, sectors());
                Ok(())
            }
            Keyed::TwofishXts(key) => {
                xts_sectors::<ENCRYPT, _>(key, data, size, sectors());
                Ok(())
            }
            Keyed::SerpentCbc(key) => {
                cbc_sectors::<ENCRYPT, _>(&**key, data, size, sectors());
                Ok(())
            }
            Keyed::TwofishCbc(key) => {
                cbc_sectors::<ENCRYPT, _>(&**key, data, size, sectors());
                Ok(())
            }
        };
        sizes_are_checked.expect("whole sectors");
    }
}

fn check_halves(key: &[u8]) -> Result<(), KeyError> {
    let (data, tweak) = key.split_at(key.len() / 2);
    let difference = data.iter().zip(tweak).fold(0, |sum, (a, b)| sum | (a ^ b));
    let equal = data.len() == tweak.len() && std::hint::black_box(difference) == 0;
    if equal && !key.is_empty() { Err(KeyError::EqualHalves) } else { Ok(()) }
}

/// Serpent has other key lengths too, but the kernel's tools never use them.
fn block<C: Block16>(key: &[u8], whole: usize, length: &dyn Fn(&str) -> KeyError) -> Result<C, KeyError> {
    let wanted = if whole == key.len() { "16, 24 or 32" } else { "32, 48 or 64" };
    if !matches!(key.len(), 16 | 24 | 32) {
        return Err(length(wanted));
    }
    C::new_from_slice(key).map_err(|_| length(wanted))
}

fn xts<C: Block16>(key: &[u8], length: &dyn Fn(&str) -> KeyError) -> Result<Xts128<C>, KeyError> {
    if !key.len().is_multiple_of(2) {
        return Err(length("32, 48 or 64"));
    }
    check_halves(key)?;
    let (data, tweak) = key.split_at(key.len() / 2);
    Ok(Xts128::new(block(data, key.len(), length)?, block(tweak, key.len(), length)?))
}

fn adiantum(stream: Stream, key: &[u8]) -> Option<Keyed> {
    Adiantum::new(stream, key).ok().map(|key| Keyed::Adiantum(Box::new(key)))
}

fn xts_sectors<const ENCRYPT: bool, C: Block16>(
    key: &Xts128<C>,
    data: &mut [u8],
    size: usize,
    ivs: impl Iterator<Item = [u8; 16]>,
) {
    for (sector, iv) in data.chunks_exact_mut(size).zip(ivs) {
        if ENCRYPT { key.encrypt_sector(sector, iv.into()) } else { key.decrypt_sector(sector, iv.into()) }
    }
}

fn cbc_sectors<const ENCRYPT: bool, C: Block16>(
    key: &C,
    data: &mut [u8],
    size: usize,
    ivs: impl Iterator<Item = [u8; 16]>,
) {
    for (sector, iv) in data.chunks_exact_mut(size).zip(ivs) {
        let blocks = sector.as_chunks_mut::<16>().0;
        if ENCRYPT {
            let mut mode = cbc::Encryptor::<&C>::inner_iv_init(key, &iv.into());
            blocks.iter_mut().for_each(|block| mode.encrypt_block(block.into()));
        } else {
            let mut mode = cbc::Decryptor::<&C>::inner_iv_init(key, &iv.into());
            blocks.iter_mut().for_each(|block| mode.decrypt_block(block.into()));
        }
    }
}
