//! Parts of a device: by byte offset, and partitions.

use postread_io::PreadPool;
use postread_volume::{Magic, partition};

use super::{Choice, Device, Format, Layer, Opened, Stop, size_text};
use crate::error::{Error, ErrorKind, Result};

/// A part that begins where the caller says.
pub(super) struct Offset;

impl Format for Offset {
    fn wants(&self, _magic: Option<Magic>, choice: &Choice) -> bool {
        choice.offset.is_some()
    }

    fn open(&self, device: &Device, _pool: &PreadPool, choice: &mut Choice) -> Result<Opened> {
        let offset = choice.offset.take().unwrap_or(0);
        if offset >= device.len() {
            let what = format!("it has {} bytes, so nothing begins at byte {offset}", device.len());
            return Err(Error::new(ErrorKind::InvalidInput, what));
        }
        let part = device.part(offset, u64::MAX);
        Ok(Opened::Device(vec![Layer::Range { offset, len: part.len() }], part))
    }
}

pub(super) struct Partitions;

impl Format for Partitions {
    fn wants(&self, magic: Option<Magic>, choice: &Choice) -> bool {
        choice.partition.is_some() || matches!(magic, Some(Magic::Gpt | Magic::Mbr))
    }

    fn open(&self, device: &Device, _pool: &PreadPool, choice: &mut Choice) -> Result<Opened> {
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
        let Some(number) = choice.partition.take() else {
            let stop = Stop::Partitions(list(&listed));
            return Ok(Opened::Stopped(vec![listed], stop));
        };
        let Some(part) = table.part(number) else {
            let what = format!("there is no partition {number}: there are {}", list(&listed));
            return Err(Error::new(ErrorKind::NotFound, what));
        };
        let part = device.part(part.offset, part.len);
        let range = Layer::Range { offset: part.start - device.start, len: part.len() };
        Ok(Opened::Device(vec![listed, range], part))
    }
}

/// The partitions of a table: number, what they hold, size, name.
fn list(table: &Layer) -> String {
    let Layer::PartitionTable { table, holds } = table else { return "none".to_owned() };
    let parts = table.parts.iter().zip(holds).map(|(part, holds)| {
        let what = holds.map_or_else(|| format!("type {}", part.kind), |magic| format!("{magic:?}").to_lowercase());
        let name = if part.name.is_empty() { String::new() } else { format!(" {:?}", part.name) };
        format!("{} ({what}, {}{name})", part.number, size_text(part.len))
    });
    let parts: Vec<String> = parts.collect();
    if parts.is_empty() { "none".to_owned() } else { parts.join(", ") }
}
