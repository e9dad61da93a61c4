//! LVM2.

use postread_io::PreadPool;
use postread_volume::Magic;
use postread_volume::lvm::{LvmError, LvmVolume, PhysicalVolume, VolumeGroup};

use super::{Choice, Device, Format, Opened, volumes};
use crate::error::{Error, ErrorKind, Result};

pub(super) struct Lvm;

fn fail(error: LvmError) -> Error {
    let kind = match error {
        LvmError::Io(_) | LvmError::Len(_) => ErrorKind::Io,
        LvmError::NoVolume { .. } | LvmError::MissingPv { .. } => ErrorKind::NotFound,
        LvmError::Unsupported { .. } => ErrorKind::Unsupported,
        _ => ErrorKind::Malformed,
    };
    Error::caused_by(kind, error)
}

impl Format for Lvm {
    fn wants(&self, magic: Option<Magic>, choice: &Choice) -> bool {
        magic == Some(Magic::Lvm2) && !choice.has_part()
    }

    fn open(&self, device: &Device, pool: &PreadPool, choice: &mut Choice) -> Result<Opened> {
        let pv = PhysicalVolume::read(&*device.read_at()).map_err(fail)?;
        let group = VolumeGroup::newest([&pv]).map_err(fail)?;
        let at_hand = [(pv.uuid.clone(), device.read_at())];
        let visible = group.lvs.iter().filter(|volume| volume.visible);
        let entry = |volume: &postread_volume::lvm::LogicalVolume| {
            let opened = LvmVolume::open(&group, &volume.name, &at_hand).map_err(fail);
            volumes::entry(&volume.name, volume.len(), opened)
        };
        volumes::choose("lvm2", &group.name, visible.map(entry).collect(), pool, choice)
    }
}
