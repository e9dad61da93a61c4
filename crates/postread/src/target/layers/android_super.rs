//! The super partition of Android devices.

use postread_io::PreadPool;
use postread_volume::Magic;
use postread_volume::super_partition::{self, SuperError, SuperVolume};

use super::{Choice, Device, Format, Opened, volumes};
use crate::error::{Error, ErrorKind, Result};

pub(super) struct AndroidSuper;

fn fail(error: SuperError) -> Error {
    let kind = match error {
        SuperError::Io(_) | SuperError::Len(_) => ErrorKind::Io,
        SuperError::NoPartition { .. } | SuperError::NoSlot { .. } => ErrorKind::NotFound,
        SuperError::OtherDevice { .. } => ErrorKind::Unsupported,
        _ => ErrorKind::Malformed,
    };
    Error::caused_by(kind, error)
}

impl Format for AndroidSuper {
    fn wants(&self, magic: Option<Magic>, choice: &Choice) -> bool {
        magic == Some(Magic::AndroidSuper) && !choice.has_part()
    }

    fn open(&self, device: &Device, pool: &PreadPool, choice: &mut Choice) -> Result<Opened> {
        // Slots hold one layout until an update changes one of them; names tell the two systems apart.
        let metadata = super_partition::read(&*device.read_at(), 0).map_err(fail)?;
        let entry = |partition: &super_partition::LogicalPartition| {
            let opened = SuperVolume::open(device.read_at(), &metadata, &partition.name).map_err(fail);
            volumes::entry(&partition.name, partition.len(), opened)
        };
        // The other system's partitions exist but are empty.
        let there = metadata.partitions.iter().filter(|partition| !partition.is_empty());
        volumes::choose("android_super", "", there.map(entry).collect(), pool, choice)
    }
}
