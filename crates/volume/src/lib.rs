//! What is between a device and a file system: partitions, LVM2 volumes, Android sparse images and super partitions,
//! ranges of sources, and magic numbers.
//!
//! ```no_run
//! use std::sync::Arc;
//! use postread_volume::{Range, partition};
//!
//! let disk = Arc::new(std::fs::File::open("disk.img")?);
//! let table = partition::read(&*disk)?;
//! let part = table.part(2).ok_or("no partition 2")?;
//! let source = Range::new(disk, part.offset, part.len);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod bytes;
pub mod gpt;
pub mod lvm;
pub mod magic;
pub mod mbr;
pub mod partition;
mod range;
pub mod sparse;
pub mod super_partition;

pub use magic::{Magic, detect};
pub use partition::{Part, Table};
pub use range::Range;
pub use sparse::{SparseImage, StoredOnly};
