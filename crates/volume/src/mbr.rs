//! Master boot records: four primary partitions, and a chain of logical ones inside an extended one.

use std::collections::HashSet;

use postread_io::ReadAt;

use crate::bytes::{le16, le32};
use crate::partition::{Error, Part, PartType, Table, TableKind, bytes};

const SECTOR: u64 = 512;

/// The type byte of the single partition that precedes a GPT.
pub const TYPE_PROTECTIVE: u8 = 0xee;

/// Logical partitions that are read at most, so that a hostile chain ends; Linux reads fewer.
const MAX_LOGICAL: usize = 256;

/// One of the four entries of a boot record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct MbrEntry {
    /// Type byte; 0 where the entry is not in use.
    pub kind: u8,
    /// First sector.
    pub start: u32,
    /// Number of sectors.
    pub sectors: u32,
}

impl MbrEntry {
    fn is_used(&self) -> bool {
        self.kind != 0 && self.sectors != 0
    }

    fn is_extended(&self) -> bool {
        matches!(self.kind, 0x05 | 0x0f | 0x85)
    }
}

/// Parses a boot record's 512 bytes. `None` if it is not one: the signature is missing, or a boot flag that is
/// neither 0 nor 0x80 shows that it is a file system's boot sector.
pub fn parse(sector: &[u8]) -> Option<[MbrEntry; 4]> {
    if sector.len() < 512 || le16(sector, 510) != 0xaa55 {
        return None;
    }
    let at = |i: usize| 446 + 16 * i;
    if (0..4).any(|i| sector[at(i)] & 0x7f != 0) {
        return None;
    }
    Some([0, 1, 2, 3].map(|i| MbrEntry {
        kind: sector[at(i) + 4],
        start: le32(sector, at(i) + 8),
        sectors: le32(sector, at(i) + 12),
    }))
}

/// Reads an MBR and its logical partitions. `None` if there is none.
pub fn read<S: ReadAt + ?Sized>(source: &S) -> Result<Option<Table>, Error> {
    let Some(entries) = parse(&bytes(source, 0, 512)?) else { return Ok(None) };
    let mut parts = Vec::new();
    if !entries.iter().any(MbrEntry::is_used) {
        return Ok(None);
    }
    // The extended partition is the room of the logical ones, and holds nothing itself.
    for (number, entry) in (1..).zip(entries).filter(|(_, entry)| entry.is_used() && !entry.is_extended()) {
        parts.push(part(number, 0, entry));
    }
    if let Some(extended) = entries.into_iter().find(|entry| entry.is_used() && entry.is_extended()) {
        logical(source, extended, &mut parts)?;
    }
    Ok(Some(Table { kind: TableKind::Mbr, sector_size: SECTOR as u32, parts }))
}

/// Follows the chain of boot records inside an extended partition: each has one logical partition (relative to the
/// record) and a link to the next record (relative to the extended partition).
fn logical<S: ReadAt + ?Sized>(source: &S, extended: MbrEntry, parts: &mut Vec<Part>) -> Result<(), Error> {
    let base = u64::from(extended.start);
    let mut at = base;
    let mut seen = HashSet::new();
    let mut number = 5;
    while seen.len() < MAX_LOGICAL {
        let corrupt = |reason| Error::Corrupt { offset: at * SECTOR, reason };
        if !seen.insert(at) {
            return Err(corrupt("the chain of logical partitions is a loop"));
        }
        let Some(entries) = parse(&bytes(source, at * SECTOR, 512)?) else {
            return Err(corrupt("no boot record where a logical partition should be"));
        };
        if let Some(entry) = entries.into_iter().find(|entry| entry.is_used() && !entry.is_extended()) {
            parts.push(part(number, at, entry));
            number += 1;
        }
        match entries.into_iter().find(|entry| entry.is_used() && entry.is_extended()) {
            Some(link) => at = base + u64::from(link.start),
            None => break,
        }
    }
    Ok(())
}

fn part(number: u32, base: u64, entry: MbrEntry) -> Part {
    Part {
        number,
        offset: (base + u64::from(entry.start)) * SECTOR,
        len: u64::from(entry.sectors) * SECTOR,
        kind: PartType::Mbr(entry.kind),
        name: String::new(),
    }
}
