//! The layers between a target and its file system: each is found by its magic number and opened over the device below
//! it.
//!
//! A kind of layer is one type that implements `Format` and one entry of `FORMATS`; every command and every reader then
//! supports it.

mod android_sparse;
mod android_super;
mod dm_crypt;
mod dm_verity;
mod luks;
mod lvm;
mod partitions;
mod volumes;

use std::fs::File;
use std::io;
use std::sync::Arc;

use postread_dmcrypt::Mapping;
use postread_io::{PreadConfig, PreadOptions, PreadPool, ReadAt, Source};
use postread_volume::partition::Table;
use postread_volume::{Magic, Range, detect};
use zeroize::Zeroizing;

pub use dm_verity::DmVerity;
pub use volumes::Volume;

use super::builder::{AskPassphrase, Warning};
use crate::error::{Error, ErrorKind, Remedy, Result};

/// The most nested layers. Real targets have fewer, and a hostile one must end.
const LAYERS_MAX: usize = 16;

/// A device: the same bytes as positional reads, for parsers, and as a source, for the engine.
#[derive(Clone)]
pub struct Device {
    whole: Arc<dyn ReadAt>,
    source: Arc<dyn Source>,
    start: u64,
    len: u64,
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Device").field("start", &self.start).field("len", &self.len).finish_non_exhaustive()
    }
}

impl Device {
    /// A device from both views of the same bytes.
    ///
    /// # Errors
    /// If the length is not known.
    pub fn new(read: Arc<dyn ReadAt>, source: Arc<dyn Source>) -> io::Result<Self> {
        let len = read.len()?;
        Ok(Self { whole: read, source, start: 0, len })
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are no bytes at all.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Its bytes for parsers.
    pub fn read_at(&self) -> Arc<dyn ReadAt> {
        Arc::new(Range::new(self.whole.clone(), self.start, self.len))
    }

    /// Its bytes for the engine: the source, and the byte there at which the device starts.
    pub fn source(&self) -> (Arc<dyn Source>, u64) {
        (self.source.clone(), self.start)
    }

    /// A part of it.
    #[must_use]
    pub fn part(&self, offset: u64, len: u64) -> Self {
        let start = self.start.saturating_add(offset.min(self.len));
        Self { start, len: len.min(self.len.saturating_sub(offset)), ..self.clone() }
    }

    /// What it holds, by its magic number.
    pub fn magic(&self) -> io::Result<Option<Magic>> {
        detect(&*self.read_at())
    }
}

/// One layer.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Layer {
    /// An Android sparse image, which expands to `len` bytes.
    AndroidSparse {
        /// Bytes of the expanded image.
        len: u64,
    },
    /// A partition table.
    PartitionTable {
        /// The table.
        table: Table,
        /// What each partition holds, in the table's order.
        holds: Vec<Option<Magic>>,
    },
    /// A part of the device below.
    Range {
        /// Its first byte.
        offset: u64,
        /// Its length in bytes.
        len: u64,
    },
    /// A LUKS volume.
    Luks {
        /// 1 or 2.
        version: u32,
        /// Its UUID.
        uuid: String,
        /// The cipher of its data, as dm-crypt names it.
        cipher: String,
        /// The keyslot that a passphrase has opened; none where it is locked.
        keyslot: Option<String>,
    },
    /// A plain dm-crypt mapping.
    DmCrypt {
        /// Its cipher.
        cipher: String,
        /// Bytes of a sector.
        sector_size: u32,
    },
    /// A device whose blocks are verified against a root hash.
    DmVerity {
        /// The root hash, in hexadecimal.
        root_hash: String,
        /// The hash algorithm.
        algorithm: String,
        /// Blocks with data.
        data_blocks: u64,
        /// Bytes of one.
        block_size: u32,
    },
    /// A group of logical volumes.
    VolumeGroup {
        /// `lvm2` or `android_super`.
        kind: &'static str,
        /// Its name; an Android super partition has none.
        name: String,
        /// Its volumes.
        volumes: Vec<Volume>,
    },
    /// The logical volume that is read.
    LogicalVolume {
        /// Its name.
        name: String,
        /// Its length in bytes.
        len: u64,
    },
    /// What the last device holds.
    Found(Magic),
}

/// Which parts of a target to go into, and what opens them. What a layer uses is removed from here.
#[derive(Default)]
pub(super) struct Choice {
    pub(super) partition: Option<u32>,
    pub(super) offset: Option<u64>,
    pub(super) volume: Option<String>,
    pub(super) ignore_checksums: bool,
    /// Other pieces of a split sparse image.
    pub(super) pieces: Vec<Arc<dyn ReadAt>>,
    /// The header of a LUKS volume that has it elsewhere.
    pub(super) luks_header: Option<Arc<dyn ReadAt>>,
    /// For LUKS volumes. They stay: file systems may have protectors for them too.
    pub(super) passphrases: Vec<Zeroizing<Vec<u8>>>,
    pub(super) ask_passphrase: Option<AskPassphrase>,
    /// How many LUKS volumes passphrases have opened.
    pub(super) luks_opened: usize,
    pub(super) dm_crypt: Option<Arc<Mapping>>,
    /// With the hash device, where it is another one.
    pub(super) dm_verity: Option<(DmVerity, Option<Arc<dyn ReadAt>>)>,
    pub(super) warnings: Vec<Warning>,
}

impl Choice {
    /// Whether a part was chosen that comes before what is found by its magic number.
    fn has_part(&self) -> bool {
        self.partition.is_some() || self.offset.is_some()
    }
}

/// What opening a layer has led to.
enum Opened {
    /// To the device within.
    Device(Vec<Layer>, Device),
    /// Stopped, for lack of a choice or a key.
    Stopped(Vec<Layer>, Stop),
}

/// Why a layer was not opened.
#[derive(Clone, Debug)]
enum Stop {
    /// Partitions, as a list for people.
    Partitions(String),
    /// Logical volumes.
    Volumes(String),
    /// A LUKS volume without a passphrase.
    Locked,
}

impl Stop {
    fn error(&self) -> Error {
        match self {
            Self::Partitions(list) => Error::new(ErrorKind::InvalidInput, format!("it holds partitions: {list}"))
                .with_remedy(Remedy::ChoosePartition),
            Self::Volumes(list) => Error::new(ErrorKind::InvalidInput, format!("it holds logical volumes: {list}"))
                .with_remedy(Remedy::ChooseVolume),
            Self::Locked => {
                Error::new(ErrorKind::Key, "it is a locked LUKS volume").with_remedy(Remedy::GivePassphrase)
            }
        }
    }
}

/// A kind of layer.
trait Format: Sync {
    /// Whether this format opens the device. Choices by number or offset take precedence over detection.
    fn wants(&self, magic: Option<Magic>, choice: &Choice) -> bool;

    /// Opens it.
    fn open(&self, device: &Device, pool: &PreadPool, choice: &mut Choice) -> Result<Opened>;
}

/// Every kind of layer, in the order in which they are asked. A dm-crypt mapping has no magic number, so it comes after
/// those that have one; blocks are verified innermost.
static FORMATS: [&dyn Format; 8] = [
    &android_sparse::AndroidSparse,
    &partitions::Offset,
    &partitions::Partitions,
    &luks::LuksVolume,
    &lvm::Lvm,
    &android_super::AndroidSuper,
    &dm_crypt::DmCrypt,
    &dm_verity::Verity,
];

/// A device that is read through `pool`.
fn device_of(read: Arc<dyn ReadAt>, pool: &PreadPool) -> Result<Device> {
    let source = pool.read_at(read.clone(), PreadOptions::default());
    Ok(Device::new(read, Arc::new(source))?)
}

/// A size for people.
fn size_text(len: u64) -> String {
    match len {
        0..0x10_0000 => format!("{} KiB", len / 1024),
        0x10_0000..0x4000_0000 => format!("{} MiB", len >> 20),
        _ => format!("{:.1} GiB", len as f64 / (1u64 << 30) as f64),
    }
}

/// The layers of a target, outermost first, and the device within the last one.
#[derive(Clone, Debug)]
pub struct Layers {
    list: Vec<Layer>,
    device: Device,
    magic: Option<Magic>,
    stopped: Option<Stop>,
    /// Whether a passphrase has opened a layer.
    unlocked: bool,
    file: Arc<File>,
}

impl Layers {
    /// Opens the layers of a file or block device.
    pub(super) fn open(file: File, choice: &mut Choice) -> Result<Self> {
        let pool = PreadPool::new(PreadConfig::new())?;
        let read = Arc::new(file.try_clone()?);
        let whole = read.clone();
        let mut device = Device::new(read, Arc::new(pool.file(file, PreadOptions::default())))?;
        let pieces = choice.pieces.len();
        let mut list = Vec::new();
        for _ in 0..LAYERS_MAX {
            let magic = device.magic().map_err(|error| match postread_io::Corruption::of(&error) {
                Some(corruption) => Error::caused_by(ErrorKind::Corrupt, corruption.clone()),
                None => error.into(),
            })?;
            let Some(format) = FORMATS.iter().find(|format| format.wants(magic, choice)) else {
                if !choice.pieces.is_empty() {
                    let what = format!("it is not a sparse image, so it has no {pieces} other pieces");
                    return Err(Error::new(ErrorKind::InvalidInput, what));
                }
                if let Some(volume) = &choice.volume {
                    let what = format!("it has no logical volumes, so none is called {volume:?}");
                    return Err(Error::new(ErrorKind::NotFound, what));
                }
                list.extend(magic.map(Layer::Found));
                let unlocked = choice.luks_opened > 0;
                return Ok(Self { list, device, magic, stopped: None, unlocked, file: whole });
            };
            match format.open(&device, &pool, choice)? {
                Opened::Device(layers, within) => {
                    list.extend(layers);
                    device = within;
                }
                Opened::Stopped(layers, stop) => {
                    list.extend(layers);
                    list.extend(magic.map(Layer::Found));
                    let unlocked = choice.luks_opened > 0;
                    return Ok(Self { list, device, magic, stopped: Some(stop), unlocked, file: whole });
                }
            }
        }
        Err(Error::new(ErrorKind::Unsupported, format!("it has more than {LAYERS_MAX} layers")))
    }

    /// The layers, outermost first.
    pub fn list(&self) -> &[Layer] {
        &self.list
    }

    /// The device within the last layer.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// What that device holds.
    pub fn magic(&self) -> Option<Magic> {
        self.magic
    }

    /// Whether the last layer was not opened: a partition or a logical volume must be chosen, or a passphrase is
    /// needed.
    pub fn is_stopped(&self) -> bool {
        self.stopped.is_some()
    }

    /// The file, where the device within the last layer is a part of it as it is: nothing between decrypts, expands or
    /// verifies.
    pub fn plain_file(&self) -> Option<&File> {
        let plain =
            |layer: &Layer| matches!(layer, Layer::PartitionTable { .. } | Layer::Range { .. } | Layer::Found(_));
        // A list of volumes without a choice changes nothing either.
        let listed = |layer: &Layer| matches!(layer, Layer::VolumeGroup { .. }) && self.stopped.is_some();
        self.list.iter().all(|layer| plain(layer) || listed(layer)).then_some(&*self.file)
    }

    /// Whether a passphrase has opened one of the layers.
    pub(super) fn is_unlocked(&self) -> bool {
        self.unlocked
    }

    /// Fails where a passphrase is missing.
    pub(super) fn check_unlocked(&self) -> Result<()> {
        match &self.stopped {
            Some(stop @ Stop::Locked) => Err(stop.error()),
            _ => Ok(()),
        }
    }

    /// The device with the file system.
    ///
    /// # Errors
    /// If a choice or a key is missing, or what was found is known not to be one that can be read: the message says
    /// what it is and what to do.
    pub(super) fn file_system(&self) -> Result<&Device> {
        if let Some(stop) = &self.stopped {
            return Err(stop.error());
        }
        let sparse = self.list.iter().any(|layer| matches!(layer, Layer::AndroidSparse { .. }));
        match self.magic {
            Some(magic) => match magic.advice() {
                Some(advice) => {
                    let what = format!("it holds {}, not ext4: {advice}", magic.name());
                    Err(Error::new(ErrorKind::Unsupported, what))
                }
                None => Ok(&self.device),
            },
            None if sparse => {
                let what =
                    "it is a sparse image without the start of a file system (if it is a split image, give all pieces)";
                Err(Error::new(ErrorKind::InvalidInput, what))
            }
            // The parser reports the error.
            None => Ok(&self.device),
        }
    }
}
