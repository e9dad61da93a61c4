//! GUID partition tables.
//!
//! Layout from the UEFI specification, chapter 5 "GUID Partition Table (GPT) Disk Layout".

use std::fmt;

use postread_io::ReadAt;

use crate::bytes::{le16, le32, le64};
use crate::partition::{Error, Part, PartType, Table, TableKind, bytes};

const SIGNATURE: &[u8; 8] = b"EFI PART";

/// Sizes of a logical sector that devices have.
const SECTOR_SIZES: [u32; 2] = [512, 4096];

/// Bytes of entries that are read at most: 128 entries of 128 bytes are usual, Linux reads as much as memory allows.
const MAX_ENTRY_BYTES: u64 = 4 << 20;

/// A header, with its checksum verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct GptHeader {
    /// Sector of the header, according to itself.
    pub own_sector: u64,
    /// Sector of the other header.
    pub other_sector: u64,
    /// First sector that partitions may use.
    pub first_usable: u64,
    /// Last sector that partitions may use.
    pub last_usable: u64,
    /// First sector of the entries.
    pub entries_sector: u64,
    /// Number of entries.
    pub entries: u32,
    /// Size of an entry in bytes.
    pub entry_size: u32,
    /// CRC-32 of all entries.
    pub entries_crc: u32,
}

impl GptHeader {
    /// Parses the sector of a header; nothing if it holds none or its checksum is wrong.
    pub fn parse(sector: &[u8]) -> Option<Self> {
        if sector.len() < 512 || &sector[..8] != SIGNATURE {
            return None;
        }
        let len = le32(sector, 12) as usize;
        if len < 92 || len > sector.len() {
            return None;
        }
        let mut header = sector[..len].to_vec();
        header[16..20].fill(0);
        if crc32fast::hash(&header) != le32(sector, 16) {
            return None;
        }
        Some(Self {
            own_sector: le64(sector, 24),
            other_sector: le64(sector, 32),
            first_usable: le64(sector, 40),
            last_usable: le64(sector, 48),
            entries_sector: le64(sector, 72),
            entries: le32(sector, 80),
            entry_size: le32(sector, 84),
            entries_crc: le32(sector, 88),
        })
    }

    /// Parses the array of entries; nothing if its checksum is wrong. Entries out of range are left out.
    pub fn parse_entries(&self, bytes: &[u8], sector_size: u32) -> Option<Vec<Part>> {
        let len = self.entries_len()?;
        let bytes = bytes.get(..len)?;
        if crc32fast::hash(bytes) != self.entries_crc {
            return None;
        }
        let mut parts = Vec::new();
        for (number, entry) in (1u32..).zip(bytes.chunks_exact(self.entry_size as usize)) {
            let mut kind = [0; 16];
            kind.copy_from_slice(&entry[..16]);
            let (first, last) = (le64(entry, 32), le64(entry, 40));
            let usable = first >= self.first_usable && last <= self.last_usable && first <= last;
            let scaled = |sectors: u64| sectors.checked_mul(sector_size.into());
            let end = last.checked_add(1).and_then(scaled);
            let (true, true, Some(offset), Some(end)) = (kind != [0; 16], usable, scaled(first), end) else {
                continue;
            };
            let name: Vec<u16> = (56..128).step_by(2).map(|at| le16(entry, at)).take_while(|&unit| unit != 0).collect();
            parts.push(Part {
                number,
                offset,
                len: end - offset,
                kind: PartType::Gpt(kind),
                name: String::from_utf16_lossy(&name),
            });
        }
        Some(parts)
    }

    fn entries_len(&self) -> Option<usize> {
        let len = u64::from(self.entries) * u64::from(self.entry_size);
        let valid = self.entry_size >= 128 && self.entry_size.is_power_of_two() && len <= MAX_ENTRY_BYTES;
        valid.then_some(len as usize)
    }
}

/// Reads a GPT: the primary one, or its backup at the end of the device where the primary one is damaged. Nothing
/// where there is neither.
pub fn read<S: ReadAt + ?Sized>(source: &S) -> Result<Option<Table>, Error> {
    let len = source.len().map_err(|source| Error::Io { offset: 0, len: 0, source })?;
    let mut damaged = None;
    for sector_size in SECTOR_SIZES {
        let size = u64::from(sector_size);
        for (sector, kind) in [(1, TableKind::Gpt), ((len / size).saturating_sub(1), TableKind::GptBackup)] {
            let Some(offset) = sector.checked_mul(size).filter(|_| sector > 0) else { continue };
            let block = bytes(source, offset, sector_size as usize)?;
            if !block.starts_with(SIGNATURE) {
                continue;
            }
            let header = GptHeader::parse(&block).filter(|header| header.own_sector == sector);
            let at = |header: &GptHeader| header.entries_sector.checked_mul(size);
            let Some((header, at, entries_len)) = header.and_then(|h| Some((h, at(&h)?, h.entries_len()?))) else {
                damaged.get_or_insert(Error::Corrupt { offset, reason: "the GPT header's checksum or fields" });
                continue;
            };
            match header.parse_entries(&bytes(source, at, entries_len)?, sector_size) {
                Some(parts) => return Ok(Some(Table { kind, sector_size, parts })),
                None => {
                    damaged.get_or_insert(Error::Corrupt { offset: at, reason: "the checksum of the GPT's entries" });
                }
            }
        }
    }
    damaged.map_or(Ok(None), Err)
}

/// A GUID in its usual form: the first three groups are little-endian on disk.
pub(crate) fn write_guid(f: &mut fmt::Formatter<'_>, guid: &[u8; 16]) -> fmt::Result {
    write!(f, "{:08x}-{:04x}-{:04x}-", le32(guid, 0), le16(guid, 4), le16(guid, 6))?;
    write!(f, "{:02x}{:02x}-", guid[8], guid[9])?;
    guid[10..].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}
