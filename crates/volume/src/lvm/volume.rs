//! A logical volume as a source.

use std::fmt;
use std::io;
use std::sync::Arc;

use postread_io::ReadAt;

use super::LvmError;
use super::group::{Layout, LogicalVolume, VolumeGroup};

/// A run of a logical volume in one piece of one physical volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct MappedRun {
    /// The index of the physical volume in [`VolumeGroup::pvs`].
    pub pv: usize,
    /// The first byte there.
    pub offset: u64,
    /// The number of bytes.
    pub len: u64,
}

/// An opened logical volume.
pub struct LvmVolume {
    volume: LogicalVolume,
    /// For each physical volume of the group; nothing if this volume does not need it.
    sources: Vec<Option<Arc<dyn ReadAt>>>,
}

impl fmt::Debug for LvmVolume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LvmVolume").field("name", &self.volume.name).finish_non_exhaustive()
    }
}

impl LvmVolume {
    /// Opens the volume `name` on physical volumes, given by their UUIDs.
    ///
    /// # Errors
    /// If there is no such volume, it is of a type that is not supported, or a physical volume that it needs is
    /// missing or too short.
    pub fn open(group: &VolumeGroup, name: &str, pvs: &[(String, Arc<dyn ReadAt>)]) -> Result<Self, LvmError> {
        let volume = group.volume(name)?;
        if let Some(kind) = volume.unsupported() {
            return Err(LvmError::Unsupported { name: volume.name.clone(), kind: kind.to_owned() });
        }
        let mut ends = vec![0; group.pvs.len()];
        for segment in &volume.segments {
            if let Layout::Striped { stripes, .. } = &segment.layout {
                let len = segment.len / stripes.len() as u64;
                stripes.iter().for_each(|&(pv, start)| ends[pv] = start.saturating_add(len).max(ends[pv]));
            }
        }
        let mut sources = Vec::new();
        for (pv, end) in group.pvs.iter().zip(ends) {
            if end == 0 {
                sources.push(None);
                continue;
            }
            let found = pvs.iter().find(|(uuid, _)| *uuid == pv.uuid);
            let missing = || LvmError::MissingPv { name: volume.name.clone(), uuid: pv.uuid.clone() };
            let source = found.map(|(_, source)| source.clone()).ok_or_else(missing)?;
            let len = source.len().map_err(LvmError::Len)?;
            if end > len {
                return Err(LvmError::OutOfBounds { name: volume.name.clone(), uuid: pv.uuid.clone(), len });
            }
            sources.push(Some(source));
        }
        Ok(Self { volume: volume.clone(), sources })
    }

    /// The longest contiguous run from `offset`, for a plan's mapping. `None` past the end.
    pub fn map(&self, offset: u64) -> Option<MappedRun> {
        let at = self.volume.segments.partition_point(|segment| segment.start + segment.len <= offset);
        let segment = self.volume.segments.get(at)?;
        let Layout::Striped { stripes, chunk } = &segment.layout else { return None };
        let into = offset - segment.start;
        let count = stripes.len() as u64;
        let (chunk_index, in_chunk) = (into / chunk, into % chunk);
        let (pv, start) = stripes[(chunk_index % count) as usize];
        let offset = start + chunk_index / count * chunk + in_chunk;
        Some(MappedRun { pv, offset, len: (chunk - in_chunk).min(segment.len - into) })
    }

    /// The source of a physical volume that a [`MappedRun`] names.
    pub fn source(&self, pv: usize) -> Option<&Arc<dyn ReadAt>> {
        self.sources.get(pv)?.as_ref()
    }
}

impl ReadAt for LvmVolume {
    fn len(&self) -> io::Result<u64> {
        Ok(self.volume.len())
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let Some(run) = self.map(offset) else { return Ok(0) };
        let Some(source) = self.source(run.pv) else { return Err(io::ErrorKind::NotFound.into()) };
        let n = usize::try_from(run.len).map_or(buf.len(), |len| len.min(buf.len()));
        source.read_at(&mut buf[..n], run.offset)
    }
}
