//! A physical volume's label, header and metadata areas.
//!
//! Layout from LVM2's `lib/format_text/layout.h` and `lib/label/label.h` (facts only).

use postread_io::ReadAt;

use super::LvmError;
use super::group::VolumeGroup;
use crate::bytes::{le32, le64};
use crate::partition::bytes;

/// The most bytes of text metadata that are read. LVM2 makes areas of about 1 MiB.
const MAX_METADATA: u64 = 16 << 20;

/// The most areas that are looked at; LVM2 makes two.
const MAX_AREAS: usize = 8;

/// The size of the header of a metadata area, in bytes.
const AREA_HEADER: u64 = 512;

/// LVM2's checksum: CRC-32 with its own start value and without the final inversion.
fn checksum(data: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(!0xf597_a6cf);
    hasher.update(data);
    !hasher.finalize()
}

/// A physical volume.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PhysicalVolume {
    /// Its UUID, with dashes.
    pub uuid: String,
    /// Its size as it was labelled, in bytes.
    pub device_size: u64,
    /// The newest metadata on it; nothing if it has no area, or belongs to no group.
    pub group: Option<VolumeGroup>,
}

impl PhysicalVolume {
    /// Reads a physical volume's label and metadata.
    ///
    /// # Errors
    /// If there is no label, or nothing after it is usable.
    pub fn read<S: ReadAt + ?Sized>(source: &S) -> Result<Self, LvmError> {
        let start = bytes(source, 0, 2048)?;
        let mut labels = start.chunks_exact(512).enumerate();
        let (number, sector) = labels.find(|(_, s)| s.starts_with(b"LABELONE")).ok_or(LvmError::NotLvm)?;
        let at = number as u64 * 512;
        let corrupt = |reason| LvmError::Corrupt { what: "label", offset: at, reason };
        if &sector[24..32] != b"LVM2 001" {
            return Err(LvmError::NotLvm);
        }
        if le64(sector, 8) != number as u64 {
            return Err(corrupt("it names another sector"));
        }
        if le32(sector, 16) != checksum(&sector[20..]) {
            return Err(corrupt("its checksum is wrong"));
        }
        let header = usize::try_from(le32(sector, 20)).ok().and_then(|at| sector.get(at..)).unwrap_or_default();
        if header.len() < 40 {
            return Err(corrupt("its header is outside the sector"));
        }
        let uuid = uuid(&header[..32]).ok_or_else(|| corrupt("its UUID is not text"))?;
        let device_size = le64(header, 32);
        // Two lists of (offset, size), each ended by zeros: data areas, then metadata areas.
        let mut areas = header[40..].chunks_exact(16).map(|area| (le64(area, 0), le64(area, 8)));
        let ended = areas.by_ref().any(|area| area == (0, 0));
        let areas: Vec<_> = areas.take_while(|&area| area != (0, 0)).take(MAX_AREAS).collect();
        if !ended {
            return Err(corrupt("its list of areas has no end"));
        }
        let mut newest: Option<VolumeGroup> = None;
        let mut failed = None;
        for (offset, size) in areas {
            match area(source, offset, size) {
                Ok(Some(group)) if newest.as_ref().is_none_or(|n| group.seqno > n.seqno) => newest = Some(group),
                Ok(_) => {}
                Err(error) => failed = Some(error),
            }
        }
        match (newest, failed) {
            // One good copy is enough.
            (Some(group), _) => Ok(Self { uuid, device_size, group: Some(group) }),
            (None, Some(error)) => Err(error),
            (None, None) => Ok(Self { uuid, device_size, group: None }),
        }
    }
}

/// A UUID of 32 characters, with the dashes that the text metadata has.
fn uuid(bytes: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(bytes).ok().filter(|text| text.bytes().all(|b| b.is_ascii_graphic()))?;
    let ends = [0, 6, 10, 14, 18, 22, 26, 32];
    Some(ends.windows(2).map(|w| &text[w[0]..w[1]]).collect::<Vec<_>>().join("-"))
}

/// The metadata in an area; nothing if it is empty.
fn area<S: ReadAt + ?Sized>(source: &S, offset: u64, size: u64) -> Result<Option<VolumeGroup>, LvmError> {
    let corrupt = |reason| LvmError::Corrupt { what: "metadata area", offset, reason };
    let header = bytes(source, offset, AREA_HEADER as usize)?;
    if header.len() < AREA_HEADER as usize || &header[4..20] != b" LVM2 x[5A%r0N*>" {
        return Err(corrupt("its header is missing"));
    }
    if le32(&header, 0) != checksum(&header[4..]) {
        return Err(corrupt("its header's checksum is wrong"));
    }
    if le32(&header, 20) != 1 {
        return Err(corrupt("its version is not 1"));
    }
    if (le64(&header, 24), le64(&header, 32)) != (offset, size) || size <= AREA_HEADER {
        return Err(corrupt("it is not where its header says"));
    }
    let (text_at, text_len, sum, flags) = (le64(&header, 40), le64(&header, 48), le32(&header, 56), le32(&header, 60));
    if text_at == 0 || flags & 1 != 0 {
        return Ok(None);
    }
    if text_at < AREA_HEADER || text_at >= size || text_len > (size - AREA_HEADER).min(MAX_METADATA) {
        return Err(corrupt("its metadata is outside of it"));
    }
    // The area is a ring after its header.
    let first = text_len.min(size - text_at);
    let mut text = bytes(source, offset.saturating_add(text_at), first as usize)?;
    text.extend(bytes(source, offset.saturating_add(AREA_HEADER), (text_len - first) as usize)?);
    if text.len() as u64 != text_len || checksum(&text) != sum {
        return Err(corrupt("its metadata's checksum is wrong"));
    }
    VolumeGroup::parse(&text).map(Some)
}
