//! LVM2: logical volumes on one or more physical volumes.
//!
//! Linear and striped segments are read; volumes with others (thin, RAID, snapshots, caches) are listed, with the name of
//! what is not supported.
//!
//! ```no_run
//! use std::sync::Arc;
//! use postread_io::ReadAt;
//! use postread_volume::lvm::{LvmVolume, PhysicalVolume, VolumeGroup};
//!
//! let disk: Arc<dyn ReadAt> = Arc::new(std::fs::File::open("disk.img")?);
//! let pv = PhysicalVolume::read(&*disk)?;
//! let group = VolumeGroup::newest([&pv])?;
//! let volume = LvmVolume::open(&group, "root", &[(pv.uuid.clone(), disk)])?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod config;
mod group;
mod label;
mod volume;

pub use group::{Layout, LogicalVolume, PvExtents, Segment, VolumeGroup};
pub use label::PhysicalVolume;
pub use volume::{LvmVolume, MappedRun};

use std::io;

use crate::partition;

/// Why LVM2 metadata cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LvmError {
    /// No label in the first four sectors.
    #[error("not an LVM2 physical volume")]
    NotLvm,
    /// A structure that contradicts the format.
    #[error("corrupt LVM2 {what} at byte {offset}: {reason}")]
    Corrupt {
        /// Which structure.
        what: &'static str,
        /// Where it begins.
        offset: u64,
        /// What is wrong.
        reason: &'static str,
    },
    /// Text metadata that contradicts its grammar or itself.
    #[error("corrupt LVM2 metadata, line {line}: {reason}")]
    Text {
        /// The line, from 1.
        line: usize,
        /// What is wrong.
        reason: String,
    },
    /// Metadata in which something is missing or impossible.
    #[error("corrupt LVM2 metadata: {path}: {reason}")]
    Metadata {
        /// Which entry, as `group/section/entry`.
        path: String,
        /// What is wrong.
        reason: String,
    },
    /// No metadata on any of the physical volumes.
    #[error("no LVM2 metadata: the physical volume belongs to no group, or its metadata is on others")]
    NoMetadata,
    /// No logical volume of that name.
    #[error("volume group {group} has no logical volume \"{}\"", .name.escape_default())]
    NoVolume {
        /// The group.
        group: String,
        /// The name.
        name: String,
    },
    /// A logical volume with segments that are not supported.
    #[error("logical volume {name} has segments of type \"{}\", which is not supported (linear and striped are)", .kind.escape_default())]
    Unsupported {
        /// The volume.
        name: String,
        /// The type.
        kind: String,
    },
    /// A physical volume that a logical volume needs was not given.
    #[error("logical volume {name} needs the physical volume {uuid}, which was not given")]
    MissingPv {
        /// The volume.
        name: String,
        /// The physical volume's UUID.
        uuid: String,
    },
    /// A logical volume that extends past its physical volumes.
    #[error("logical volume {name}: a segment ends past the physical volume {uuid} of {len} bytes")]
    OutOfBounds {
        /// The volume.
        name: String,
        /// The physical volume's UUID.
        uuid: String,
        /// Its length, in bytes.
        len: u64,
    },
    /// A source failed.
    #[error("reading LVM2 metadata: {0}")]
    Io(#[from] partition::Error),
    /// The length of a source could not be found.
    #[error("finding the length of a physical volume: {0}")]
    Len(io::Error),
}
