//! The ciphers of the archive experiment, each as the read path has them: a step, and its inverse to make the files.

use std::ops::Range;
use std::sync::Arc;

use postread::image::DecryptStep;
use postread::{BioMut, Inputs, Step, VerifiedInputs};
use postread_blockcrypt::Platform;
use postread_blockcrypt::speck::SpeckXts;
use postread_fscrypt::{ContentsKey, Context, InodeFacts, MasterKey};
use postread_io::BlockStatus;
use serde::Serialize;

use crate::error::LabError;

/// Bytes of a data unit, as of a file system block.
pub(crate) const UNIT: usize = 4096;

/// What the files of an archive are encrypted with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cipher {
    /// AES-256-XTS at the CPU's best level.
    #[serde(rename = "aes-256-xts")]
    AesXts,
    /// AES-256-XTS with AES instructions off.
    #[serde(rename = "aes-256-xts-portable")]
    AesXtsPortable,
    /// Speck128/256-XTS, which fscrypt had before Linux 4.20.
    #[serde(rename = "xts-speck128")]
    SpeckXts,
    /// Adiantum with XChaCha12.
    Adiantum,
}

impl Cipher {
    /// All, in the order of the table.
    pub const ALL: [Cipher; 4] = [Cipher::AesXts, Cipher::AesXtsPortable, Cipher::SpeckXts, Cipher::Adiantum];

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Cipher::AesXts => "AES-256-XTS",
            Cipher::AesXtsPortable => "AES-256-XTS, AES instructions off",
            Cipher::SpeckXts => "xts-speck128",
            Cipher::Adiantum => "Adiantum",
        }
    }

    /// What the patch (Linux, fscrypt to an unbound queue) published for it.
    pub fn published(self) -> Option<&'static str> {
        match self {
            Cipher::AesXts => Some("about +-2 % (x86, AES-NI on)"),
            Cipher::AesXtsPortable => Some("+25 to 35 % (x86, AES-NI off, 4 and 8 CPUs)"),
            Cipher::SpeckXts => Some("about +10 % (quad-core ARM, NEON)"),
            Cipher::Adiantum => None,
        }
    }
}

/// The key of one file.
pub(crate) enum FileKey {
    Fscrypt(Arc<ContentsKey>),
    Speck(Arc<SpeckXts>),
}

impl FileKey {
    /// The key of file number `number`: as a v2 policy derives it, under a nonce that is the number.
    pub(crate) fn new(cipher: Cipher, number: u32) -> Result<FileKey, LabError> {
        let engine = |error: &dyn std::fmt::Display| LabError::Engine(error.to_string());
        let mut nonce = [0; 16];
        nonce[..4].copy_from_slice(&number.to_le_bytes());
        let master: [u8; 64] = std::array::from_fn(|i| i as u8);
        let (contents, names, platform) = match cipher {
            Cipher::SpeckXts => {
                // Speck's time had no better derivation to test than any other: one key per file, with both halves its
                // own.
                let mut key = master;
                key.iter_mut().zip(nonce.iter().cycle()).for_each(|(key, nonce)| *key ^= nonce);
                return SpeckXts::new(&key).map(|key| FileKey::Speck(Arc::new(key))).map_err(|e| engine(&e));
            }
            Cipher::AesXts => (1, 4, Platform::default()),
            Cipher::AesXtsPortable => (1, 4, Platform::Portable),
            Cipher::Adiantum => (9, 9, Platform::default()),
        };
        let master = MasterKey::new(&master).map_err(|e| engine(&e))?;
        let identifier = master.identifier();
        let context = [&[2, contents, names, 3, 0, 0, 0, 0], identifier.as_bytes(), &nonce].concat();
        let context = Context::parse(&context).map_err(|e| engine(&e))?;
        let facts = InodeFacts { ino: u64::from(number) + 11, fs_uuid: [0; 16], block_size: UNIT };
        let key = ContentsKey::derive_with_platform(&master, &context, &facts, platform).map_err(|e| engine(&e))?;
        Ok(FileKey::Fscrypt(Arc::new(key)))
    }

    /// Encrypts a file's data units from the first one on.
    pub(crate) fn encrypt(&self, data: &mut [u8], first_unit: u64) -> Result<(), LabError> {
        match self {
            FileKey::Fscrypt(key) => key.encrypt(data, first_unit).map_err(|e| LabError::Engine(e.to_string())),
            FileKey::Speck(key) => {
                key.encrypt_units(data, UNIT, first_unit, 1).map_err(|e| LabError::Engine(e.to_string()))
            }
        }
    }

    /// The step that decrypts it.
    pub(crate) fn step(&self) -> Arc<dyn Step> {
        match self {
            FileKey::Fscrypt(key) => Arc::new(DecryptStep::new(key.clone(), 0)),
            FileKey::Speck(key) => Arc::new(SpeckStep(key.clone())),
        }
    }
}

/// Decrypts Speck, which no policy of today names.
struct SpeckStep(Arc<SpeckXts>);

impl Step for SpeckStep {
    fn block_size(&self) -> u32 {
        UNIT as u32
    }

    fn inputs(&self, _blocks: Range<u64>, _wanted: &mut Inputs) {}

    fn run(&self, bio: &mut BioMut<'_>, _inputs: &VerifiedInputs<'_>) {
        let first = bio.offset() / UNIT as u64;
        if let Err(error) = self.0.decrypt_units(bio.data_mut(), UNIT, first, 1) {
            let all = 0..bio.data().len();
            bio.fail(all, &BlockStatus::Step { message: error.to_string().into() });
        }
    }
}
