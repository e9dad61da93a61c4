//! Opening a target: the options, and the order in which they take effect.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use postread_dmcrypt::{Mapping, MappingSpec};
use postread_fscrypt::KeySpecifier;
use postread_fsimage::ext4;
use postread_io::ReadAt;
use postread_verity::FileDigest;
use rustix::fs::OFlags;
use zeroize::Zeroizing;

use super::layers::{Choice, DmVerity, Layers};
use super::{FscryptMetadata, Inner, Keys, Target, unlock};
use crate::engine::{Engine, EngineConfig};
use crate::error::{Error, ErrorKind, Result};
use crate::image::Image;
use crate::policy::QueuePolicy;
use crate::trusted::TrustedDigests;

/// A problem that does not prevent a target from being read, but that its reader should know about.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Warning {
    /// The target ends before its file system does.
    Short {
        /// Bytes of the file system.
        expected: u64,
        /// The real size, in bytes.
        found: u64,
    },
    /// Nothing in the image shows whether the key given for a v1 policy is the right one: contents may be garbage.
    UnjudgedKey(KeySpecifier),
    /// A part of the fscrypt metadata could not be read.
    FscryptMetadata(String),
    /// A part of the file system is damaged, or may be out of date.
    Ext4(ext4::Warning),
    /// The size of a device under dm-verity comes from the superblock, which the root hash does not cover.
    DmVeritySize {
        /// Data blocks by the superblock.
        data_blocks: u64,
        /// Blocks that the device has room for.
        device_blocks: u64,
    },
}

impl std::fmt::Display for Warning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Short { expected, found } => write!(
                f,
                "the image is truncated: expected {expected} bytes, found {found}; what is missing cannot be read"
            ),
            Self::UnjudgedKey(key) => write!(
                f,
                "the key given for {key} could not be judged: nothing in this image distinguishes the right key from a wrong one"
            ),
            Self::FscryptMetadata(what) => f.write_str(what),
            Self::Ext4(warning) => warning.fmt(f),
            Self::DmVeritySize { data_blocks, device_blocks } if data_blocks < device_blocks => write!(
                f,
                "only the first {data_blocks} of its {device_blocks} blocks are under dm-verity and are read: that number comes \
                 from the superblock, which nothing authenticates"
            ),
            Self::DmVeritySize { .. } => {
                f.write_str("the size under dm-verity comes from the superblock, which nothing authenticates")
            }
        }
    }
}

type OnWarning = Arc<dyn Fn(Warning) + Send + Sync>;
pub(super) type AskPassphrase = Box<dyn FnOnce() -> io::Result<Option<Zeroizing<Vec<u8>>>>>;

/// How to open a target: see [`Target::builder`].
#[derive(Default)]
pub struct Builder {
    keys: Keys,
    /// The first error of an option: `open` returns it.
    failed: Option<Error>,
    partition: Option<u32>,
    offset: Option<u64>,
    volume: Option<String>,
    pieces: Vec<PathBuf>,
    luks_header: Option<PathBuf>,
    dm_crypt: Option<MappingSpec>,
    dm_verity: Option<DmVerity>,
    fscrypt_metadata: Vec<PathBuf>,
    trusted: TrustedDigests,
    require_digests: bool,
    ext4: ext4::Options,
    engine: Option<Engine>,
    policy: QueuePolicy,
    on_warning: Option<OnWarning>,
    ask_passphrase: Option<AskPassphrase>,
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder").field("keys", &self.keys).field("partition", &self.partition).finish_non_exhaustive()
    }
}

impl Builder {
    /// Keys and passphrases, instead of those given so far.
    #[must_use]
    pub fn keys(mut self, keys: Keys) -> Self {
        self.keys = keys;
        self
    }

    /// Adds a raw master key. An invalid one is an error of [`Builder::open`].
    #[must_use]
    pub fn key(mut self, raw: &[u8]) -> Self {
        if let Err(error) = self.keys.add(raw) {
            self.failed.get_or_insert(error);
        }
        self
    }

    /// A passphrase, for the `fscrypt` tool's protectors and the key slots of systemd-homed.
    #[must_use]
    pub fn passphrase(mut self, passphrase: &[u8]) -> Self {
        self.keys.add_passphrase(passphrase);
        self
    }

    /// The partition to read, by its number.
    #[must_use]
    pub fn partition(mut self, number: u32) -> Self {
        self.partition = Some(number);
        self
    }

    /// The byte at which the file system begins.
    #[must_use]
    pub fn offset(mut self, offset: u64) -> Self {
        self.offset = Some(offset);
        self
    }

    /// The logical volume to read, of LVM2 or of an Android super partition: its name, or `GROUP/NAME`.
    #[must_use]
    pub fn volume(mut self, name: impl Into<String>) -> Self {
        self.volume = Some(name.into());
        self
    }

    /// The file or block device with the header of a LUKS volume that has it elsewhere.
    #[must_use]
    pub fn luks_header(mut self, path: impl Into<PathBuf>) -> Self {
        self.luks_header = Some(path.into());
        self
    }

    /// A plain dm-crypt mapping, which the device itself does not describe. It is applied to a device without other
    /// layers, with the first of the raw keys that its cipher accepts.
    #[must_use]
    pub fn dm_crypt(mut self, mapping: MappingSpec) -> Self {
        self.dm_crypt = Some(mapping);
        self
    }

    /// Verifies every block of the innermost device against a root hash.
    #[must_use]
    pub fn dm_verity(mut self, dm_verity: DmVerity) -> Self {
        self.dm_verity = Some(dm_verity);
        self
    }

    /// Another piece of a split Android sparse image.
    #[must_use]
    pub fn piece(mut self, path: impl Into<PathBuf>) -> Self {
        self.pieces.push(path.into());
        self
    }

    /// More of the `fscrypt` tool's metadata, from a directory or an image: login protectors are on the file system of
    /// `/`, wherever the encrypted files are.
    #[must_use]
    pub fn fscrypt_metadata(mut self, path: impl Into<PathBuf>) -> Self {
        self.fscrypt_metadata.push(path.into());
        self
    }

    /// Digests that files must have, instead of those given so far.
    #[must_use]
    pub fn trusted(mut self, trusted: TrustedDigests) -> Self {
        self.trusted = trusted;
        self
    }

    /// The digest that one file must have.
    #[must_use]
    pub fn digest(mut self, path: impl AsRef<OsStr>, digest: FileDigest) -> Self {
        self.trusted.insert(path.as_ref().as_encoded_bytes(), digest);
        self
    }

    /// Whether a file with fs-verity and without a trusted digest is refused.
    #[must_use]
    pub fn require_digests(mut self, require: bool) -> Self {
        self.require_digests = require;
        self
    }

    /// Whether metadata with wrong checksums is read too.
    #[must_use]
    pub fn ignore_checksums(mut self, ignore: bool) -> Self {
        self.ext4.checksums = !ignore;
        self
    }

    /// How to load ext4: which superblock, what about the journal. Replaces what [`Builder::ignore_checksums`] said.
    #[must_use]
    pub fn ext4_options(mut self, options: ext4::Options) -> Self {
        self.ext4 = options;
        self
    }

    /// Where decryption and verification run.
    #[must_use]
    pub fn policy(mut self, policy: QueuePolicy) -> Self {
        self.policy = policy;
        self
    }

    /// An existing engine, instead of the target's own.
    #[must_use]
    pub fn engine(mut self, engine: Engine) -> Self {
        self.engine = Some(engine);
        self
    }

    /// The function to call with notes for the target's reader.
    #[must_use]
    pub fn on_warning(mut self, warn: impl Fn(Warning) + Send + Sync + 'static) -> Self {
        self.on_warning = Some(Arc::new(warn));
        self
    }

    /// The function that asks for a passphrase if the image has passphrase protectors and no secret was given.
    #[must_use]
    pub fn ask_passphrase(mut self, ask: impl FnOnce() -> io::Result<Option<Zeroizing<Vec<u8>>>> + 'static) -> Self {
        self.ask_passphrase = Some(Box::new(ask));
        self
    }

    /// The layers of a target, without opening a file system, as far as the choices and passphrases given allow.
    ///
    /// # Errors
    /// If it cannot be read, a choice is not there, or a passphrase is wrong.
    pub fn layers(&self, path: impl AsRef<Path>) -> Result<Layers> {
        self.open_through(path.as_ref(), None).map(|(layers, _)| layers)
    }

    fn mapping(&self, spec: &MappingSpec) -> Result<Arc<Mapping>> {
        let mut last = None;
        for key in self.keys.raw() {
            match spec.mapping(key) {
                Ok(mapping) => return Ok(Arc::new(mapping)),
                Err(error) => last = Some(error),
            }
        }
        Err(match last {
            Some(error) => Error::caused_by(ErrorKind::Key, error),
            None => Error::new(ErrorKind::Key, "the dm-crypt mapping needs a raw key"),
        })
    }

    /// Opens the layers. Returns `ask` if it was not used.
    fn open_through(&self, path: &Path, ask: Option<AskPassphrase>) -> Result<(Layers, Option<AskPassphrase>)> {
        let open = |path: &Path| -> Result<Arc<dyn ReadAt>> { Ok(Arc::new(open_target(path)?)) };
        let dm_verity =
            |options: &DmVerity| -> Result<_> { Ok((options.clone(), options.hash_path().map(open).transpose()?)) };
        let mut choice = Choice {
            partition: self.partition,
            offset: self.offset,
            volume: self.volume.clone(),
            ignore_checksums: !self.ext4.checksums,
            pieces: self.pieces.iter().map(|piece| open(piece)).collect::<Result<_>>()?,
            luks_header: self.luks_header.as_deref().map(open).transpose()?,
            passphrases: self.keys.passphrases().map(|passphrase| Zeroizing::new(passphrase.to_vec())).collect(),
            ask_passphrase: ask,
            dm_crypt: self.dm_crypt.as_ref().map(|spec| self.mapping(spec)).transpose()?,
            dm_verity: self.dm_verity.as_ref().map(dm_verity).transpose()?,
            ..Choice::default()
        };
        let layers = Layers::open(open_target(path)?, &mut choice).map_err(|error| error.about(path))?;
        choice.warnings.drain(..).for_each(|warning| self.warn(warning));
        Ok((layers, choice.ask_passphrase.take()))
    }

    /// Opens the target.
    ///
    /// # Errors
    /// If it cannot be read or holds no file system that can be, and where a secret that was given is of no use.
    pub fn open(mut self, path: impl AsRef<Path>) -> Result<Target> {
        let path = path.as_ref();
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let ask = self.ask_passphrase.take();
        let (layers, ask) = self.open_through(path, ask)?;
        self.ask_passphrase = ask;
        self.open_layers(path, layers)
    }

    /// Opens the innermost device, whatever it holds: what a block server offers ([`Layers::device`]). A device with
    /// partitions or volumes of which none was chosen is taken whole.
    ///
    /// # Errors
    /// As [`Builder::layers`], and where a passphrase is missing.
    pub fn open_device(mut self, path: impl AsRef<Path>) -> Result<Layers> {
        let path = path.as_ref();
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let ask = self.ask_passphrase.take();
        let (layers, _) = self.open_through(path, ask)?;
        layers.check_unlocked().map_err(|error| error.about(path))?;
        Ok(layers)
    }

    /// Opens the target through layers that [`Builder::layers`] returned, so that it is opened once.
    ///
    /// # Errors
    /// As [`Builder::open`].
    pub fn open_layers(mut self, path: impl AsRef<Path>, layers: Layers) -> Result<Target> {
        let path = path.as_ref();
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let image = self.image(&layers).map_err(|error| error.about(path))?;
        let (image, metadata) = self.unlock(image, layers.is_unlocked()).map_err(|error| error.about(path))?;
        let engine = match self.engine.take() {
            Some(engine) => engine,
            None => Engine::new(EngineConfig::new().policy(self.policy))?,
        };
        Ok(Target(Arc::new(Inner {
            name: path.as_os_str().to_owned(),
            layers,
            image,
            engine,
            metadata,
            metadata_from: self.fscrypt_metadata,
            trusted: self.trusted,
            resolved: OnceLock::new(),
            require_digests: self.require_digests,
        })))
    }

    fn warn(&self, warning: Warning) {
        if let Some(warn) = &self.on_warning {
            warn(warning);
        }
    }

    fn image(&self, layers: &Layers) -> Result<Image> {
        // With a backup of the superblock, what is at the start of the device does not matter.
        let device = if self.ext4.superblock.is_some() { layers.device() } else { layers.file_system()? };
        let (source, start) = device.source();
        let image = Image::open(device.read_at(), source, start, self.keys.keyring()?, self.ext4.clone())?;
        for warning in image.fs().warnings() {
            self.warn(Warning::Ext4(warning.clone()));
        }
        if let Some((expected, found)) = image.fs().truncated() {
            self.warn(Warning::Short { expected, found });
        }
        Ok(match &self.on_warning {
            Some(warn) => {
                let warn = warn.clone();
                image.on_unjudged_key(move |key| warn(Warning::UnjudgedKey(key)))
            }
            None => image,
        })
    }

    /// Unlocks what the secrets unlock, with the metadata that wraps keys where it is needed.
    fn unlock(&mut self, image: Image, unlocked: bool) -> Result<(Image, OnceLock<FscryptMetadata>)> {
        let asks = self.keys.is_empty() && self.ask_passphrase.is_some();
        let passphrases = self.keys.passphrases().next().is_some();
        if !asks && !passphrases && self.keys.raw_protector_keys().next().is_none() {
            return Ok((image, OnceLock::new()));
        }
        let mut metadata = match asks || passphrases {
            true => FscryptMetadata::read(&image),
            false => FscryptMetadata::read_tool(&image),
        };
        add_metadata(&mut metadata, &self.fscrypt_metadata)?;
        for broken in &metadata.broken {
            self.warn(Warning::FscryptMetadata(broken.clone()));
        }
        if asks
            && metadata.wants_passphrase()
            && let Some(ask) = self.ask_passphrase.take()
            && let Some(passphrase) = ask()?
        {
            self.keys.add_passphrase(&passphrase);
        }
        let image = unlock::unlock(&image, &self.keys, &metadata, unlocked)?;
        // Without the slots of systemd-homed it is not whole, and is read again if somebody asks.
        let whole = asks || passphrases;
        Ok((image, if whole { OnceLock::from(metadata) } else { OnceLock::new() }))
    }
}

/// Adds the metadata in directories and images.
pub(super) fn add_metadata(metadata: &mut FscryptMetadata, paths: &[PathBuf]) -> Result<()> {
    for path in paths {
        match path.is_dir() {
            true => metadata.add_dir(path)?,
            false => metadata.add_image(Target::open(path)?.image()),
        }
    }
    Ok(())
}

/// Opens a regular file or a block device, read-only. A pipe without a writer does not block.
fn open_target(path: &Path) -> Result<File> {
    let fail = |error: io::Error| Error::caused_by(ErrorKind::Io, error).about(path);
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32;
    let file = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(fail)?;
    let kind = file.metadata().map_err(fail)?.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        let what = if kind.is_dir() { "a directory" } else { "a pipe, socket or character device" };
        return Err(Error::new(ErrorKind::InvalidInput, format!("{what}, not an image")).about(path));
    }
    Ok(file)
}
