//! Android's `super` partition: logical partitions, each a list of extents.
//!
//! Layout from AOSP, `system/core/fs_mgr/liblp/include/liblp/metadata_format.h`.

use std::fmt;
use std::io;
use std::sync::Arc;

use postread_blockcrypt::hash::{HashAlg, digest};
use postread_io::ReadAt;

use crate::bytes::{le16, le32, le64};
use crate::partition::{self, bytes};

/// Where the geometry is; a copy follows at the next 4096 bytes.
pub const GEOMETRY_OFFSET: u64 = 4096;

const GEOMETRY_BLOCK: u64 = 4096;
const GEOMETRY_MAGIC: u32 = 0x616c_4467;
const GEOMETRY_LEN: usize = 52;
const HEADER_MAGIC: u32 = 0x414c_5030;
const SECTOR: u64 = 512;

/// The largest metadata that is read, in bytes; AOSP makes 64 KiB.
const MAX_METADATA: u32 = 4 << 20;

/// Why there are no logical partitions to read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SuperError {
    /// No geometry.
    #[error("not an Android super partition")]
    NotSuper,
    /// A structure that contradicts the format.
    #[error("corrupt super partition: {what} at byte {offset}: {reason}")]
    Corrupt {
        /// Which structure.
        what: &'static str,
        /// Where it begins.
        offset: u64,
        /// What is wrong.
        reason: &'static str,
    },
    /// No such slot.
    #[error("the super partition has {count} metadata slots, so there is no slot {slot}")]
    NoSlot {
        /// The slot requested, from 0.
        slot: u32,
        /// How many there are.
        count: u32,
    },
    /// No logical partition of that name.
    #[error("the super partition has no logical partition \"{}\"", .name.escape_default())]
    NoPartition {
        /// The name.
        name: String,
    },
    /// An extent on another block device.
    #[error("logical partition {name} is on the block device {device}, which is not the super partition")]
    OtherDevice {
        /// The partition.
        name: String,
        /// The device's name.
        device: String,
    },
    /// An extent past the end of the source.
    #[error("logical partition {name}: an extent ends past the super partition's {len} bytes")]
    OutOfBounds {
        /// The partition.
        name: String,
        /// The length of the source, in bytes.
        len: u64,
    },
    /// The source failed.
    #[error("reading the super partition: {0}")]
    Io(#[from] partition::Error),
    /// The length of the source could not be found.
    #[error("finding the length of the super partition: {0}")]
    Len(io::Error),
}

/// The structure read first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Geometry {
    /// Bytes that each copy of the metadata has room for.
    pub metadata_max_size: u32,
    /// How many slots there are; devices with A/B updates have two or three.
    pub slots: u32,
}

impl Geometry {
    /// Parses a geometry and checks its checksum.
    ///
    /// # Errors
    /// If it is not one.
    pub fn parse(block: &[u8], offset: u64) -> Result<Self, SuperError> {
        let corrupt = |reason| SuperError::Corrupt { what: "geometry", offset, reason };
        let Some(fields) = block.get(..GEOMETRY_LEN).filter(|block| le32(block, 0) == GEOMETRY_MAGIC) else {
            return Err(SuperError::NotSuper);
        };
        if le32(fields, 4) as usize != GEOMETRY_LEN {
            return Err(corrupt("its size is not 52"));
        }
        if !checksum_is_right(fields, 8) {
            return Err(corrupt("its checksum is wrong"));
        }
        let geometry = Self { metadata_max_size: le32(fields, 40), slots: le32(fields, 44) };
        match geometry {
            Self { metadata_max_size: 0, .. } => Err(corrupt("its metadata has no room")),
            Self { metadata_max_size: max, .. } if max > MAX_METADATA || !max.is_multiple_of(512) => {
                Err(corrupt("its metadata's size is impossible"))
            }
            Self { slots, .. } if slots == 0 || slots > 64 => Err(corrupt("its number of slots is impossible")),
            _ => Ok(geometry),
        }
    }

    /// Where the two copies of a slot's metadata begin, in bytes.
    fn metadata_offsets(&self, slot: u32) -> [u64; 2] {
        let max = u64::from(self.metadata_max_size);
        let first = GEOMETRY_OFFSET + 2 * GEOMETRY_BLOCK + u64::from(slot) * max;
        [first, first + u64::from(self.slots) * max]
    }
}

/// SHA-256 of a structure in which the checksum itself counts as zeros.
fn checksum_is_right(structure: &[u8], at: usize) -> bool {
    let mut copy = structure.to_vec();
    copy[at..at + 32].fill(0);
    digest(HashAlg::Sha256, &copy).as_bytes() == &structure[at..at + 32]
}

/// Where an extent lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExtentAt {
    /// From this byte of a block device on.
    Device {
        /// The index of the block device; 0 is the super partition itself.
        device: u32,
        /// The first byte.
        offset: u64,
    },
    /// Nowhere: it reads as zeros.
    Zero,
}

/// A run of a logical partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Extent {
    /// The first byte in the logical partition.
    pub start: u64,
    /// The number of bytes.
    pub len: u64,
    /// Where it lies.
    pub at: ExtentAt,
}

/// A logical partition.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogicalPartition {
    /// Its name; names of A/B devices end in `_a` and `_b`.
    pub name: String,
    /// The name of its group.
    pub group: String,
    /// Its extents, in order.
    pub extents: Vec<Extent>,
}

impl LogicalPartition {
    /// Its length in bytes.
    pub fn len(&self) -> u64 {
        self.extents.last().map_or(0, |last| last.start + last.len)
    }

    /// True for a partition of no bytes, as the inactive slot's are.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The metadata of one slot.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Metadata {
    /// The logical partitions.
    pub partitions: Vec<LogicalPartition>,
    /// The names of the block devices; the first is the super partition.
    pub devices: Vec<String>,
}

/// Reads the metadata of a slot (0 is the first), from its second copy where the first is damaged.
///
/// # Errors
/// If there is none that can be used.
pub fn read<S: ReadAt + ?Sized>(source: &S, slot: u32) -> Result<Metadata, SuperError> {
    let mut geometry = Err(SuperError::NotSuper);
    for offset in [GEOMETRY_OFFSET, GEOMETRY_OFFSET + GEOMETRY_BLOCK] {
        let found = Geometry::parse(&bytes(source, offset, GEOMETRY_LEN)?, offset);
        if found.is_ok() || matches!(geometry, Err(SuperError::NotSuper)) {
            geometry = found;
        }
        if geometry.is_ok() {
            break;
        }
    }
    let geometry = geometry?;
    if slot >= geometry.slots {
        return Err(SuperError::NoSlot { slot, count: geometry.slots });
    }
    let [first, second] = geometry.metadata_offsets(slot);
    let at = |offset| {
        let all = bytes(source, offset, geometry.metadata_max_size as usize)?;
        Metadata::parse(&all, offset)
    };
    at(first).or_else(|error| at(second).map_err(|_| error))
}

/// The place of a table within the tables.
struct Table<'a> {
    entries: std::slice::ChunksExact<'a, u8>,
}

/// The entries of the table whose place is at `descriptor` of the header.
fn table<'a>(header: &[u8], tables: &'a [u8], descriptor: usize, min: usize) -> Option<Table<'a>> {
    let (offset, count) = (le32(header, descriptor) as usize, le32(header, descriptor + 4) as usize);
    let size = le32(header, descriptor + 8) as usize;
    let len = count.checked_mul(size).filter(|_| size >= min)?;
    let entries = tables.get(offset..offset.checked_add(len)?)?;
    Some(Table { entries: entries.chunks_exact(size) })
}

/// A name of up to 36 bytes.
fn name(field: &[u8]) -> Option<String> {
    let end = field.iter().position(|&b| b == 0).unwrap_or(field.len());
    std::str::from_utf8(&field[..end]).ok().map(str::to_owned)
}

impl Metadata {
    /// Parses metadata and checks its checksums. `offset` is where it was found, for errors.
    ///
    /// # Errors
    /// If it contradicts the format.
    pub fn parse(all: &[u8], offset: u64) -> Result<Self, SuperError> {
        let corrupt = |reason| SuperError::Corrupt { what: "metadata", offset, reason };
        if all.len() < 128 || le32(all, 0) != HEADER_MAGIC {
            return Err(corrupt("its magic number is missing"));
        }
        if le16(all, 4) != 10 {
            return Err(corrupt("its major version is not 10"));
        }
        let (header_len, tables_len) = (le32(all, 8) as usize, le32(all, 44) as usize);
        if !matches!(header_len, 128 | 256) {
            return Err(corrupt("its header's size is not 128 or 256"));
        }
        let header = all.get(..header_len).ok_or_else(|| corrupt("it ends in its header"))?;
        if !checksum_is_right(header, 12) {
            return Err(corrupt("its header's checksum is wrong"));
        }
        let tables = all[header_len..].get(..tables_len).ok_or_else(|| corrupt("it ends in its tables"))?;
        if digest(HashAlg::Sha256, tables).as_bytes() != &header[48..80] {
            return Err(corrupt("its tables' checksum is wrong"));
        }
        let table = |at, min| table(header, tables, at, min).ok_or_else(|| corrupt("a table is out of bounds"));
        let (partitions, extents) = (table(80, 52)?, table(92, 24)?);
        let (groups, devices) = (table(104, 48)?, table(116, 64)?);
        let text = |field: &[u8]| name(field).ok_or_else(|| corrupt("a name is not UTF-8"));
        let groups = groups.entries.map(|group| text(&group[..36])).collect::<Result<Vec<_>, _>>()?;
        let devices = devices.entries.map(|device| text(&device[24..60])).collect::<Result<Vec<_>, _>>()?;
        let extents: Vec<&[u8]> = extents.entries.collect();
        let mut out = Vec::new();
        for entry in partitions.entries {
            let (first, count) = (le32(entry, 40) as usize, le32(entry, 44) as usize);
            let own = first.checked_add(count).and_then(|end| extents.get(first..end));
            let own = own.ok_or_else(|| corrupt("a partition's extents do not exist"))?;
            let group = groups.get(le32(entry, 48) as usize).ok_or_else(|| corrupt("a group does not exist"))?;
            out.push(LogicalPartition {
                name: text(&entry[..36])?,
                group: group.clone(),
                extents: parse_extents(own, devices.len()).map_err(corrupt)?,
            });
        }
        Ok(Self { partitions: out, devices })
    }

    /// The logical partition of this name.
    ///
    /// # Errors
    /// If there is none.
    pub fn partition(&self, name: &str) -> Result<&LogicalPartition, SuperError> {
        let found = self.partitions.iter().find(|partition| partition.name == name);
        found.ok_or_else(|| SuperError::NoPartition { name: name.to_owned() })
    }
}

fn parse_extents(entries: &[&[u8]], devices: usize) -> Result<Vec<Extent>, &'static str> {
    const TOO_LARGE: &str = "an extent is too large";
    let mut extents = Vec::with_capacity(entries.len());
    let mut start = 0u64;
    for entry in entries {
        let bytes = |sectors: u64| sectors.checked_mul(SECTOR).filter(|&n| n <= i64::MAX as u64).ok_or(TOO_LARGE);
        let len = bytes(le64(entry, 0))?;
        let at = match le32(entry, 8) {
            0 => {
                let (offset, device) = (bytes(le64(entry, 12))?, le32(entry, 20));
                offset.checked_add(len).filter(|&end| end <= i64::MAX as u64).ok_or(TOO_LARGE)?;
                if device as usize >= devices {
                    return Err("an extent's block device does not exist");
                }
                ExtentAt::Device { device, offset }
            }
            1 => ExtentAt::Zero,
            _ => return Err("an extent's type is unknown"),
        };
        extents.push(Extent { start, len, at });
        start = start.checked_add(len).filter(|&end| end <= i64::MAX as u64).ok_or(TOO_LARGE)?;
    }
    Ok(extents)
}

/// A logical partition as a source.
pub struct SuperVolume {
    source: Arc<dyn ReadAt>,
    extents: Vec<Extent>,
}

impl fmt::Debug for SuperVolume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SuperVolume").field("extents", &self.extents.len()).finish_non_exhaustive()
    }
}

impl SuperVolume {
    /// Opens a logical partition of the super partition `source`.
    ///
    /// # Errors
    /// If there is none of that name, or it extends past the source.
    pub fn open(source: Arc<dyn ReadAt>, metadata: &Metadata, name: &str) -> Result<Self, SuperError> {
        let partition = metadata.partition(name)?;
        let source_len = source.len().map_err(SuperError::Len)?;
        for extent in &partition.extents {
            if let ExtentAt::Device { device, offset } = extent.at {
                if device != 0 {
                    let device = metadata.devices.get(device as usize).cloned().unwrap_or_default();
                    return Err(SuperError::OtherDevice { name: name.to_owned(), device });
                }
                if offset + extent.len > source_len {
                    return Err(SuperError::OutOfBounds { name: name.to_owned(), len: source_len });
                }
            }
        }
        let extents = partition.extents.iter().copied().filter(|extent| extent.len > 0).collect();
        Ok(Self { source, extents })
    }

    /// The longest run from `offset` in one piece: its first byte in the super partition (nothing if it reads as
    /// zeros) and its length; nothing past the end. For a plan's mapping.
    pub fn map(&self, offset: u64) -> Option<(Option<u64>, u64)> {
        let at = self.extents.partition_point(|extent| extent.start + extent.len <= offset);
        let extent = self.extents.get(at)?;
        let into = offset - extent.start;
        let at = match extent.at {
            ExtentAt::Device { offset, .. } => Some(offset + into),
            ExtentAt::Zero => None,
        };
        Some((at, extent.len - into))
    }
}

impl ReadAt for SuperVolume {
    fn len(&self) -> io::Result<u64> {
        Ok(self.extents.last().map_or(0, |last| last.start + last.len))
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let Some((at, len)) = self.map(offset) else { return Ok(0) };
        let n = usize::try_from(len).map_or(buf.len(), |len| len.min(buf.len()));
        match at {
            Some(at) => self.source.read_at(&mut buf[..n], at),
            None => {
                buf[..n].fill(0);
                Ok(n)
            }
        }
    }
}
