//! Volume groups: physical volumes, logical volumes, segments.

use super::LvmError;
use super::config::{self, Section, Value};
use super::label::PhysicalVolume;

/// Bytes of a sector in LVM2's units.
const SECTOR: u64 = 512;

/// A physical volume as its group knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PvExtents {
    /// The name that segments have for it.
    pub name: String,
    /// Its UUID, with dashes.
    pub uuid: String,
    /// Where its first extent begins, in bytes.
    pub start: u64,
    /// The number of extents.
    pub count: u64,
}

/// How a segment's extents are laid out.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Layout {
    /// Stripes of chunks in turn; one stripe is a linear segment.
    Striped {
        /// For each stripe: the index of its physical volume in [`VolumeGroup::pvs`], and its first byte there.
        stripes: Vec<(usize, u64)>,
        /// Bytes of a chunk; the whole segment where there is one stripe.
        chunk: u64,
    },
    /// Something that is not supported.
    Other {
        /// Its type.
        kind: String,
    },
}

/// A run of a logical volume.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Segment {
    /// Its first byte in the volume.
    pub start: u64,
    /// Its length in bytes.
    pub len: u64,
    /// Where it lies.
    pub layout: Layout,
}

/// A logical volume.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogicalVolume {
    /// Its name.
    pub name: String,
    /// Its UUID, with dashes.
    pub uuid: String,
    /// False for the hidden parts of other volumes.
    pub visible: bool,
    /// Its segments, in order and without gaps.
    pub segments: Vec<Segment>,
}

impl LogicalVolume {
    /// Its length in bytes.
    pub fn len(&self) -> u64 {
        self.segments.last().map_or(0, |last| last.start + last.len)
    }

    /// True for a volume of no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The type of the first segment that is not supported.
    pub fn unsupported(&self) -> Option<&str> {
        self.segments.iter().find_map(|segment| match &segment.layout {
            Layout::Other { kind } => Some(kind.as_str()),
            Layout::Striped { .. } => None,
        })
    }
}

/// A volume group.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct VolumeGroup {
    /// Its name.
    pub name: String,
    /// Its UUID, with dashes.
    pub uuid: String,
    /// Counts changes: the metadata with the highest is the newest.
    pub seqno: u64,
    /// Bytes of an extent.
    pub extent_size: u64,
    /// The physical volumes.
    pub pvs: Vec<PvExtents>,
    /// The logical volumes, in the order of the metadata.
    pub lvs: Vec<LogicalVolume>,
}

fn metadata(path: &str, reason: impl Into<String>) -> LvmError {
    LvmError::Metadata { path: path.to_owned(), reason: reason.into() }
}

fn number(section: &Section, path: &str, name: &str) -> Result<u64, LvmError> {
    section.number(name).ok_or_else(|| metadata(path, format!("{name} is missing or no number")))
}

/// `a * b`, for sizes that a device can have.
fn bytes(path: &str, a: u64, b: u64) -> Result<u64, LvmError> {
    a.checked_mul(b).filter(|&n| n <= i64::MAX as u64).ok_or_else(|| metadata(path, "a size exceeds 2^63 bytes"))
}

impl VolumeGroup {
    /// The newest metadata on any of the physical volumes.
    ///
    /// # Errors
    /// If none of them has any.
    pub fn newest<'a>(pvs: impl IntoIterator<Item = &'a PhysicalVolume>) -> Result<VolumeGroup, LvmError> {
        let groups = pvs.into_iter().filter_map(|pv| pv.group.as_ref());
        groups.max_by_key(|group| group.seqno).cloned().ok_or(LvmError::NoMetadata)
    }

    /// Parses text metadata.
    ///
    /// # Errors
    /// If it contradicts its grammar or itself.
    pub fn parse(text: &[u8]) -> Result<Self, LvmError> {
        let all = config::parse(text)?;
        let (name, group) = all.sections().next().ok_or_else(|| metadata("", "there is no volume group"))?;
        let extent_size = bytes(name, number(group, name, "extent_size")?, SECTOR)?;
        if extent_size == 0 {
            return Err(metadata(name, "extent_size is 0"));
        }
        let none = Section::default();
        let mut pvs = Vec::new();
        for (pv, section) in group.section("physical_volumes").unwrap_or(&none).sections() {
            let path = format!("{name}/physical_volumes/{pv}");
            let count = number(section, &path, "pe_count")?;
            let start = bytes(&path, number(section, &path, "pe_start")?, SECTOR)?;
            bytes(&path, count, extent_size)?.checked_add(start).ok_or_else(|| metadata(&path, "it is too large"))?;
            let uuid = section.text("id").ok_or_else(|| metadata(&path, "id is missing"))?;
            pvs.push(PvExtents { name: pv.to_owned(), uuid: uuid.to_owned(), start, count });
        }
        let mut lvs = Vec::new();
        for (lv, section) in group.section("logical_volumes").unwrap_or(&none).sections() {
            let path = format!("{name}/logical_volumes/{lv}");
            let visible = match section.get("status") {
                Some(Value::List(flags)) => flags.contains(&Value::Text("VISIBLE".to_owned())),
                _ => true,
            };
            lvs.push(LogicalVolume {
                name: lv.to_owned(),
                uuid: section.text("id").unwrap_or_default().to_owned(),
                visible,
                segments: segments(&path, section, extent_size, &pvs)?,
            });
        }
        Ok(Self {
            name: name.to_owned(),
            uuid: group.text("id").unwrap_or_default().to_owned(),
            seqno: number(group, name, "seqno")?,
            extent_size,
            pvs,
            lvs,
        })
    }

    /// The logical volume of this name.
    ///
    /// # Errors
    /// If there is none.
    pub fn volume(&self, name: &str) -> Result<&LogicalVolume, LvmError> {
        // Also as in `/dev/GROUP/NAME`.
        let short = name.strip_prefix(&self.name).and_then(|rest| rest.strip_prefix('/')).unwrap_or(name);
        let found = self.lvs.iter().find(|lv| lv.name == short);
        found.ok_or_else(|| LvmError::NoVolume { group: self.name.clone(), name: name.to_owned() })
    }
}

/// A volume's segments, which must follow one another.
fn segments(path: &str, lv: &Section, extent_size: u64, pvs: &[PvExtents]) -> Result<Vec<Segment>, LvmError> {
    let count = number(lv, path, "segment_count")?;
    let mut segments = Vec::new();
    for (name, section) in lv.sections().filter(|(name, _)| name.starts_with("segment")) {
        let path = format!("{path}/{name}");
        let start = bytes(&path, number(section, &path, "start_extent")?, extent_size)?;
        let extents = number(section, &path, "extent_count")?;
        let len = bytes(&path, extents, extent_size)?;
        if len == 0 {
            return Err(metadata(&path, "extent_count is 0"));
        }
        start.checked_add(len).ok_or_else(|| metadata(&path, "it is too large"))?;
        let kind = section.text("type").ok_or_else(|| metadata(&path, "type is missing"))?;
        let layout = match kind {
            "striped" | "linear" => striped(&path, section, extents, extent_size, pvs)?,
            kind => Layout::Other { kind: kind.to_owned() },
        };
        segments.push(Segment { start, len, layout });
    }
    segments.sort_by_key(|segment| segment.start);
    let mut end = 0;
    for segment in &segments {
        if segment.start != end {
            return Err(metadata(path, format!("no segment, or two, at byte {end}")));
        }
        end += segment.len;
    }
    if segments.len() as u64 != count {
        return Err(metadata(path, format!("segment_count is {count}, found {}", segments.len())));
    }
    Ok(segments)
}

fn striped(
    path: &str,
    section: &Section,
    extents: u64,
    extent_size: u64,
    pvs: &[PvExtents],
) -> Result<Layout, LvmError> {
    let count = number(section, path, "stripe_count")?;
    let Some(Value::List(list)) = section.get("stripes") else {
        return Err(metadata(path, "stripes is missing or no list"));
    };
    let (pairs, rest) = list.as_chunks::<2>();
    if !rest.is_empty() || pairs.len() as u64 != count || count == 0 {
        return Err(metadata(path, "stripes does not have stripe_count pairs"));
    }
    if !extents.is_multiple_of(count) {
        return Err(metadata(path, "extent_count is no multiple of stripe_count"));
    }
    let mut stripes = Vec::new();
    for pair in pairs {
        let [Value::Text(name), Value::Number(first)] = pair else {
            return Err(metadata(path, "a stripe is not a name and a number"));
        };
        let index = pvs.iter().position(|pv| pv.name == *name);
        let index = index.ok_or_else(|| metadata(path, format!("there is no physical volume {name}")))?;
        let pv = &pvs[index];
        let first = u64::try_from(*first).ok();
        let end = first.and_then(|first| first.checked_add(extents / count));
        let Some((first, _)) = first.zip(end.filter(|&end| end <= pv.count)) else {
            return Err(metadata(path, format!("a stripe lies outside the physical volume {name}")));
        };
        stripes.push((index, pv.start + first * extent_size));
    }
    let chunk = if count == 1 {
        extents * extent_size
    } else {
        let chunk = bytes(path, number(section, path, "stripe_size")?, SECTOR)?;
        if chunk == 0 || !extent_size.is_multiple_of(chunk) {
            return Err(metadata(path, "stripe_size does not divide extent_size"));
        }
        chunk
    };
    Ok(Layout::Striped { stripes, chunk })
}
