//! Partition tables of either kind.

use std::io;

use postread_io::ReadAt;

use crate::{gpt, mbr};

/// A partition. Offsets and lengths are in bytes of the device.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Part {
    /// Its number, as Linux counts: 1 to 4 for an MBR's primary ones, from 5 for logical ones; a GPT's entry from 1.
    pub number: u32,
    /// First byte.
    pub offset: u64,
    /// Number of bytes; never 0.
    pub len: u64,
    /// What it is for.
    pub kind: PartType,
    /// Its label; empty in an MBR.
    pub name: String,
}

/// A partition's purpose, according to its table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PartType {
    /// An MBR's type byte.
    Mbr(u8),
    /// A GPT's type GUID, in the byte order of the disk.
    Gpt([u8; 16]),
}

impl std::fmt::Display for PartType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Mbr(byte) => write!(f, "{byte:#04x}"),
            Self::Gpt(guid) => gpt::write_guid(f, guid),
        }
    }
}

/// Which kind of table it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TableKind {
    /// A master boot record, with its extended partitions.
    Mbr,
    /// A GUID partition table, read from its primary header.
    Gpt,
    /// A GUID partition table, read from its backup, as the primary one is damaged.
    GptBackup,
}

/// A partition table.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Table {
    /// Which kind it is.
    pub kind: TableKind,
    /// Bytes that its block addresses count in: 512 or 4096.
    pub sector_size: u32,
    /// The partitions in use, by number.
    pub parts: Vec<Part>,
}

impl Table {
    /// The partition of this number.
    pub fn part(&self, number: u32) -> Option<&Part> {
        self.parts.iter().find(|part| part.number == number)
    }
}

/// Why there are no partitions to read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No table of either kind.
    #[error("there is no partition table")]
    NoTable,
    /// The table contradicts its format.
    #[error("corrupt partition table at byte {offset}: {reason}")]
    Corrupt {
        /// The structure's first byte.
        offset: u64,
        /// What is wrong.
        reason: &'static str,
    },
    /// The source failed.
    #[error("reading {len} bytes at byte {offset}: {source}")]
    Io {
        /// First byte requested.
        offset: u64,
        /// Bytes requested.
        len: usize,
        /// The source's own error.
        source: io::Error,
    },
}

/// Reads a device's partition table: a GPT where there is one (after a protective or hybrid MBR), else an MBR. Logical
/// sectors of 512 and of 4096 bytes are both tried, since an image does not record its device's sector size.
pub fn read<S: ReadAt + ?Sized>(source: &S) -> Result<Table, Error> {
    if let Some(table) = gpt::read(source)? {
        return Ok(table);
    }
    mbr::read(source)?.ok_or(Error::NoTable)
}

/// Reads up to `len` bytes; fewer where the source ends.
pub(crate) fn bytes<S: ReadAt + ?Sized>(source: &S, offset: u64, len: usize) -> Result<Vec<u8>, Error> {
    let mut out = vec![0; len];
    let mut done = 0;
    while done < len {
        match source.read_at(&mut out[done..], offset.saturating_add(done as u64)) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(source) => return Err(Error::Io { offset, len, source }),
        }
    }
    out.truncate(done);
    Ok(out)
}
