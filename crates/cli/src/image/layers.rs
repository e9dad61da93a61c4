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
            postread::Layer::Found(magic) => Some(Layer::Found { format: format_name(*magic) }),
            _ => None,
        };
        layers.list().iter().filter_map(report).collect()
    }
}
