//! The layers of a target as reports name them.

use postread::Layers;
use postread::volume::Magic;
use postread::volume::partition::Part;
use serde::Serialize;

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
    /// A LUKS volume, and the keyslot that the passphrase opens.
    Luks {
        version: u32,
        uuid: String,
        cipher: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        keyslot: Option<String>,
    },
    /// A plain dm-crypt mapping.
    DmCrypt { cipher: String, sector_size: u32 },
    /// A device under dm-verity.
    DmVerity { root_hash: String, algorithm: String, data_blocks: u64, block_size: u32 },
    /// A group of logical volumes.
    VolumeGroup { kind: &'static str, name: String, volumes: Vec<VolumeReport> },
    /// The logical volume that is read.
    LogicalVolume { name: String, length: u64 },
    /// What was found there by its magic number.
    Found { format: String },
}

/// A partition in a report.
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

/// A logical volume in a report.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct VolumeReport {
    pub(crate) name: String,
    pub(crate) length: u64,
    pub(crate) format: Option<String>,
    /// Why it can't be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) problem: Option<String>,
}

impl From<&postread::Volume> for VolumeReport {
    fn from(volume: &postread::Volume) -> Self {
        Self {
            name: volume.name.clone(),
            length: volume.len,
            format: volume.holds.map(format_name),
            problem: volume.problem.clone(),
        }
    }
}

fn format_name(magic: Magic) -> String {
    format!("{magic:?}").to_lowercase()
}

fn part_report((part, holds): (&Part, &Option<Magic>)) -> PartReport {
    PartReport {
        number: part.number,
        offset: part.offset,
        length: part.len,
        kind: part.kind.to_string(),
        name: part.name.clone(),
        format: holds.map(format_name),
    }
}

impl Layer {
    /// The layers of a target. A table whose partitions were not chosen is the whole answer.
    pub(crate) fn list(layers: &Layers) -> Vec<Layer> {
        let report = |layer: &postread::Layer| match layer {
            postread::Layer::AndroidSparse { len } => Some(Layer::AndroidSparse { length: *len }),
            postread::Layer::PartitionTable { table, holds } => Some(Layer::PartitionTable {
                kind: format!("{:?}", table.kind).to_lowercase(),
                sector_size: table.sector_size,
                parts: table.parts.iter().zip(holds).map(part_report).collect(),
            }),
            postread::Layer::Range { offset, len } => Some(Layer::Range { offset: *offset, length: *len }),
            postread::Layer::Luks { version, uuid, cipher, keyslot } => Some(Layer::Luks {
                version: *version,
                uuid: uuid.clone(),
                cipher: cipher.clone(),
                keyslot: keyslot.clone(),
            }),
            postread::Layer::DmCrypt { cipher, sector_size } => {
                Some(Layer::DmCrypt { cipher: cipher.clone(), sector_size: *sector_size })
            }
            postread::Layer::DmVerity { root_hash, algorithm, data_blocks, block_size } => Some(Layer::DmVerity {
                root_hash: root_hash.clone(),
                algorithm: algorithm.clone(),
                data_blocks: *data_blocks,
                block_size: *block_size,
            }),
            postread::Layer::VolumeGroup { kind, name, volumes } => Some(Layer::VolumeGroup {
                kind,
                name: name.clone(),
                volumes: volumes.iter().map(VolumeReport::from).collect(),
            }),
            postread::Layer::LogicalVolume { name, len } => {
                Some(Layer::LogicalVolume { name: name.clone(), length: *len })
            }
            postread::Layer::Found(magic) => Some(Layer::Found { format: format_name(*magic) }),
            _ => None,
        };
        layers.list().iter().filter_map(report).collect()
    }
}
