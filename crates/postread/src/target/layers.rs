//! What is between a target and its file system, layer by layer: each is found by its magic number and opened over the
//! device beneath it.
//!
//! A kind of layer is one type that implements `Format` and one entry of `FORMATS`; every command and every reader then
//! has it.

use std::fs::File;
use std::io;
use std::sync::Arc;

use postread_io::{PreadConfig, PreadOptions, PreadPool, ReadAt, Source};
use postread_volume::partition::Table;
use postread_volume::{Magic, Range, SparseImage, StoredOnly, detect, partition, sparse};

use crate::error::{Error, ErrorKind, Result};

/// The most layers over each other. Nobody has more, and a hostile target must end.
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
    /// A device of both views of the same bytes.
    ///
    /// # Errors
    /// Where the length is not known.
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
    /// The part of the device beneath that is read.
    Range {
        /// Its first byte.
        offset: u64,
        /// Its length in bytes.
        len: u64,
    },
    /// What the last device holds.
    Found(Magic),
}

/// Which parts of a target to go into.
#[derive(Clone, Default)]
pub(super) struct Choice {
    pub(super) partition: Option<u32>,
    pub(super) offset: Option<u64>,
    pub(super) ignore_checksums: bool,
    /// Other pieces of a split sparse image.
    pub(super) pieces: Vec<Arc<dyn ReadAt>>,
}

/// A kind of layer.
trait Format: Sync {
    /// Whether this is what to open a device with. What was chosen by number or offset counts before what is found.
    fn wants(&self, magic: Option<Magic>, choice: &Choice) -> bool;

    /// Opens it. A part that `choice` names is removed from there. Without a device, nothing within was chosen.
    fn open(&self, device: &Device, pool: &PreadPool, choice: &mut Choice) -> Result<(Vec<Layer>, Option<Device>)>;
}

/// Every kind of layer, in the order in which they are asked.
static FORMATS: [&dyn Format; 3] = [&AndroidSparse, &Offset, &Partitions];

struct AndroidSparse;

impl Format for AndroidSparse {
    fn wants(&self, magic: Option<Magic>, _choice: &Choice) -> bool {
        magic == Some(Magic::AndroidSparse)
    }

    fn open(&self, device: &Device, pool: &PreadPool, choice: &mut Choice) -> Result<(Vec<Layer>, Option<Device>)> {
        let mut pieces = vec![device.read_at()];
        pieces.append(&mut choice.pieces);
        let fail = |error: sparse::Error| {
            let kind = match error {
                sparse::Error::Io(_) => ErrorKind::Io,
                sparse::Error::Checksum { .. } => ErrorKind::Corrupt,
                sparse::Error::OtherImage { .. } | sparse::Error::Overlap { .. } => ErrorKind::InvalidInput,
                _ => ErrorKind::Malformed,
            };
            Error::caused_by(kind, error)
        };
        let image = Arc::new(SparseImage::open_pieces(pieces).map_err(fail)?);
        if !choice.ignore_checksums {
            image.verify_checksums().map_err(fail)?;
        }
        let source = pool.read_at(Arc::new(StoredOnly(image.clone())), PreadOptions::default());
        let device = Device::new(image, Arc::new(source))?;
        Ok((vec![Layer::AndroidSparse { len: device.len() }], Some(device)))
    }
}

/// A part that begins where the caller says.
struct Offset;

impl Format for Offset {
    fn wants(&self, _magic: Option<Magic>, choice: &Choice) -> bool {
        choice.offset.is_some()
    }

    fn open(&self, device: &Device, _pool: &PreadPool, choice: &mut Choice) -> Result<(Vec<Layer>, Option<Device>)> {
        let offset = choice.offset.take().unwrap_or(0);
        if offset >= device.len() {
            let what = format!("it has {} bytes, so nothing begins at byte {offset}", device.len());
            return Err(Error::new(ErrorKind::InvalidInput, what));
        }
        let part = device.part(offset, u64::MAX);
        Ok((vec![Layer::Range { offset, len: part.len() }], Some(part)))
    }
}

struct Partitions;

impl Format for Partitions {
    fn wants(&self, magic: Option<Magic>, choice: &Choice) -> bool {
        choice.partition.is_some() || matches!(magic, Some(Magic::Gpt | Magic::Mbr))
    }

    fn open(&self, device: &Device, _pool: &PreadPool, choice: &mut Choice) -> Result<(Vec<Layer>, Option<Device>)> {
        let table = partition::read(&*device.read_at()).map_err(|error| {
            let kind = match error {
                partition::Error::Io { .. } => ErrorKind::Io,
                partition::Error::NoTable => ErrorKind::NotFound,
                _ => ErrorKind::Malformed,
            };
            Error::caused_by(kind, error)
        })?;
        let parts = table.parts.iter();
        let holds = parts.map(|part| device.part(part.offset, part.len).magic().ok().flatten()).collect();
        let listed = Layer::PartitionTable { table: table.clone(), holds };
        let Some(number) = choice.partition.take() else { return Ok((vec![listed], None)) };
        let Some(part) = table.part(number) else {
            let what = format!("there is no partition {number}: there are {}", list(&[listed]));
            return Err(Error::new(ErrorKind::NotFound, what));
        };
        let part = device.part(part.offset, part.len);
        let range = Layer::Range { offset: part.start - device.start, len: part.len() };
        Ok((vec![listed, range], Some(part)))
    }
}

/// The partitions of the last table: number, what they hold, size, name.
fn list(layers: &[Layer]) -> String {
    let Some((table, holds)) = layers.iter().rev().find_map(|layer| match layer {
        Layer::PartitionTable { table, holds } => Some((table, holds)),
        _ => None,
    }) else {
        return "none".to_owned();
    };
    let parts = table.parts.iter().zip(holds).map(|(part, holds)| {
        let what = holds.map_or_else(|| format!("type {}", part.kind), |magic| format!("{magic:?}").to_lowercase());
        let name = if part.name.is_empty() { String::new() } else { format!(" {:?}", part.name) };
        format!("{} ({what}, {}{name})", part.number, size_text(part.len))
    });
    let parts: Vec<String> = parts.collect();
    if parts.is_empty() { "none".to_owned() } else { parts.join(", ") }
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
    /// Whether the last layer is a table of which nothing was chosen.
    unchosen: bool,
}

impl Layers {
    /// Goes through the layers of a file or block device.
    pub(super) fn open(file: File, mut choice: Choice) -> Result<Self> {
        let pool = PreadPool::new(PreadConfig::new())?;
        let read = Arc::new(file.try_clone()?);
        let mut device = Device::new(read, Arc::new(pool.file(file, PreadOptions::default())))?;
        let pieces = choice.pieces.len();
        let mut list = Vec::new();
        for _ in 0..LAYERS_MAX {
            let magic = device.magic()?;
            let Some(format) = FORMATS.iter().find(|format| format.wants(magic, &choice)) else {
                if !choice.pieces.is_empty() {
                    let what = format!("it is not a sparse image, so it has no {pieces} other pieces");
                    return Err(Error::new(ErrorKind::InvalidInput, what));
                }
                list.extend(magic.map(Layer::Found));
                return Ok(Self { list, device, magic, unchosen: false });
            };
            let (layers, within) = format.open(&device, &pool, &mut choice)?;
            list.extend(layers);
            match within {
                Some(within) => device = within,
                None => {
                    list.extend(magic.map(Layer::Found));
                    return Ok(Self { list, device, magic, unchosen: true });
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

    /// Whether it is a device with partitions, and none of them was chosen.
    pub fn is_unchosen(&self) -> bool {
        self.unchosen
    }

    /// The device with the file system.
    ///
    /// # Errors
    /// Where what was found is known not to be one that can be read: the message says what it is and what to do.
    pub(super) fn file_system(&self) -> Result<&Device> {
        if self.unchosen {
            let what = format!("it holds partitions, choose one with --part: {}", list(&self.list));
            return Err(Error::new(ErrorKind::InvalidInput, what));
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
                let what = "it is a sparse image without the start of a file system: of a split image, give all pieces";
                Err(Error::new(ErrorKind::InvalidInput, what))
            }
            // The parser says what is wrong.
            None => Ok(&self.device),
        }
    }
}
