//! What lies between a target and its file system: an Android sparse image, a partition table, an offset.

use std::path::Path;
use std::sync::Arc;

use postread_io::{PreadConfig, PreadOptions, PreadPool, ReadAt, Source};
use postread_volume::{Magic, Range, SparseImage, Table, detect, partition};
use serde::Serialize;

use super::open_target;
use crate::exit::{Failure, Outcome};
use crate::text::name_for_stderr;

/// One layer, outermost first.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "layer", rename_all = "snake_case")]
pub(crate) enum Layer {
    /// An Android sparse image, which expands to `length` bytes.
    AndroidSparse { length: u64 },
    /// A partition table.
    PartitionTable { kind: String, sector_size: u32, parts: Vec<PartReport> },
    /// The part of the target that is read.
    Range { offset: u64, length: u64 },
    /// What was found there by its magic number.
    Found { format: String },
}

/// A partition, as reports tell it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct PartReport {
    pub(crate) number: u32,
    pub(crate) offset: u64,
    pub(crate) length: u64,
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) name: String,
    pub(crate) format: Option<String>,
}

/// A target that was looked into.
pub(crate) struct Layers {
    pub(crate) list: Vec<Layer>,
    pub(crate) table: Option<Table>,
    pub(crate) magic: Option<Magic>,
    whole: Arc<dyn ReadAt>,
    source: Arc<dyn Source>,
    start: u64,
    len: u64,
}

/// What the parsers and the engine read: metadata from byte 0, data from the byte told.
type Parts = (Arc<dyn ReadAt>, Arc<dyn Source>, u64);

fn format_name(magic: Magic) -> String {
    match magic {
        Magic::Ext4 => "ext4".into(),
        other => format!("{other:?}").to_lowercase(),
    }
}

/// Opens a target, and goes through its layers down to the partition or offset asked for.
pub(crate) fn look_into(target: &Path, part: Option<u32>, offset: Option<u64>) -> Result<Layers, Failure> {
    let name = || name_for_stderr(target);
    let io = |error: std::io::Error| Failure::environment(format!("{}: {error}", name()));
    let file = open_target(target)?;
    let pool = PreadPool::new(PreadConfig::new()).map_err(Failure::environment)?;
    let mut list = Vec::new();
    let mut whole: Arc<dyn ReadAt> = Arc::new(file.try_clone().map_err(io)?);
    let mut magic = detect(&*whole).map_err(io)?;
    let source: Arc<dyn Source> = if magic == Some(Magic::AndroidSparse) {
        let sparse = SparseImage::open(whole).map_err(|error| match error {
            postread_volume::sparse::Error::Io(_) => Failure::environment(format!("{}: {error}", name())),
            _ => Failure::usage(format!("{}: {error}", name())),
        })?;
        whole = Arc::new(sparse);
        list.push(Layer::AndroidSparse { length: whole.len().map_err(io)? });
        magic = detect(&*whole).map_err(io)?;
        Arc::new(pool.read_at(whole.clone(), PreadOptions::default()))
    } else {
        Arc::new(pool.file(file, PreadOptions::default()))
    };
    let mut layers = Layers { list, table: None, magic, source, start: 0, len: whole.len().map_err(io)?, whole };
    let has_table = matches!(magic, Some(Magic::Gpt | Magic::Mbr));
    if part.is_some() || (has_table && offset.is_none()) {
        let table = partition::read(&*layers.whole).map_err(|error| {
            let outcome = match error {
                partition::Error::Io { .. } => Outcome::Environment,
                _ => Outcome::Usage,
            };
            Failure::new(outcome, format!("{}: {error}", name()))
        })?;
        layers.list.push(layers.tell(&table));
        if let Some(number) = part {
            let part = table
                .part(number)
                .ok_or_else(|| Failure::usage(format!("{}: there is no partition {number}", name())))?;
            layers.narrow(part.offset, part.len).map_err(io)?;
        }
        layers.table = Some(table);
    }
    if let Some(offset) = offset {
        if offset >= layers.len {
            return Err(Failure::usage(format!("{}: it has only {} bytes", name(), layers.len)));
        }
        layers.narrow(offset, layers.len - offset).map_err(io)?;
    }
    if let Some(magic) = layers.magic {
        layers.list.push(Layer::Found { format: format_name(magic) });
    }
    Ok(layers)
}

impl Layers {
    /// Bytes of the target, or of the part of it that is read.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    fn narrow(&mut self, offset: u64, len: u64) -> std::io::Result<()> {
        self.start = offset;
        self.len = len.min(self.len.saturating_sub(offset));
        self.magic = detect(&Range::new(self.whole.clone(), offset, self.len))?;
        self.list.push(Layer::Range { offset, length: self.len });
        Ok(())
    }

    fn tell(&self, table: &Table) -> Layer {
        let parts = table.parts.iter().map(|part| {
            let magic = detect(&Range::new(self.whole.clone(), part.offset, part.len)).ok().flatten();
            PartReport {
                number: part.number,
                offset: part.offset,
                length: part.len,
                kind: part.kind.to_string(),
                name: part.name.clone(),
                format: magic.map(format_name),
            }
        });
        Layer::PartitionTable {
            kind: format!("{:?}", table.kind).to_lowercase(),
            sector_size: table.sector_size,
            parts: parts.collect(),
        }
    }

    /// Whether a whole device with partitions was given, and none of them chosen.
    pub(crate) fn only_table(&self) -> bool {
        self.table.is_some() && matches!(self.magic, Some(Magic::Gpt | Magic::Mbr))
    }

    /// The file system's bytes.
    pub(crate) fn file_system(&self, target: &Path) -> Result<Parts, Failure> {
        let name = name_for_stderr(target);
        match self.magic {
            // An unknown magic number is left to the parser, which says what is wrong with it.
            Some(Magic::Ext4) | None => {}
            Some(Magic::Gpt | Magic::Mbr) => {
                let numbers: Vec<String> =
                    self.table.iter().flat_map(|t| &t.parts).map(|p| p.number.to_string()).collect();
                let numbers = numbers.join(", ");
                return Err(Failure::usage(format!("{name}: it holds partitions: choose one with --part ({numbers})")));
            }
            Some(other) if other.is_packed() => {
                let what = format_name(other);
                return Err(Failure::usage(format!("{name}: it holds {what} data: unpack or convert it first")));
            }
            Some(other) => {
                return Err(Failure::usage(format!(
                    "{name}: it holds {}, which can't be read yet",
                    format_name(other)
                )));
            }
        }
        let metadata: Arc<dyn ReadAt> = Arc::new(Range::new(self.whole.clone(), self.start, self.len));
        Ok((metadata, self.source.clone(), self.start))
    }
}
