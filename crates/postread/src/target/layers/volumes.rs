//! Logical volumes of LVM2 and of Android's super partition.

use std::sync::Arc;

use postread_io::{PreadPool, ReadAt};
use postread_volume::{Magic, detect};

use super::{Choice, Layer, Opened, Stop, device_of, size_text};
use crate::error::{Error, ErrorKind, Result};

/// A logical volume in a list.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Volume {
    /// Its name.
    pub name: String,
    /// Its length in bytes.
    pub len: u64,
    /// What it holds, where a magic number is known.
    pub holds: Option<Magic>,
    /// Why it can't be read, if so.
    pub problem: Option<String>,
}

/// A volume and, where it can be opened, its bytes.
pub(super) type Opening = (Volume, Option<Arc<dyn ReadAt>>);

/// An entry of a list, and the volume if it could be opened.
pub(super) fn entry<V: ReadAt + 'static>(name: &str, len: u64, opened: Result<V>) -> Opening {
    let name = name.to_owned();
    match opened {
        Ok(volume) => {
            let holds = detect(&volume).ok().flatten();
            (Volume { name, len, holds, problem: None }, Some(Arc::new(volume)))
        }
        Err(error) => (Volume { name, len, holds: None, problem: Some(error.message().to_string()) }, None),
    }
}

/// The volume that was chosen, by its name or as `GROUP/NAME`; the list where none was.
pub(super) fn choose(
    kind: &'static str,
    group: &str,
    found: Vec<Opening>,
    pool: &PreadPool,
    choice: &mut Choice,
) -> Result<Opened> {
    let (volumes, mut opened): (Vec<_>, Vec<_>) = found.into_iter().unzip();
    let list = list(&volumes);
    let wanted = choice.volume.take();
    let position = wanted.as_deref().map(|wanted| {
        let name = wanted.strip_prefix(group).and_then(|rest| rest.strip_prefix('/')).unwrap_or(wanted);
        volumes.iter().position(|volume| volume.name == name)
    });
    let listed = Layer::VolumeGroup { kind, name: group.to_owned(), volumes };
    let (Some(position), Some(wanted)) = (position, wanted) else {
        return Ok(Opened::Stopped(vec![listed], Stop::Volumes(list)));
    };
    let Some(position) = position else {
        let what = format!("there is no logical volume {wanted:?}: there are {list}");
        return Err(Error::new(ErrorKind::NotFound, what));
    };
    let Layer::VolumeGroup { volumes, .. } = &listed else { unreachable!("made above") };
    let Volume { name, len, problem, .. } = volumes[position].clone();
    let Some(volume) = opened.swap_remove(position) else {
        return Err(Error::new(ErrorKind::Unsupported, problem.unwrap_or_default()));
    };
    let device = device_of(volume, pool)?;
    Ok(Opened::Device(vec![listed, Layer::LogicalVolume { name, len }], device))
}

/// Name, what it holds, size.
fn list(volumes: &[Volume]) -> String {
    let name = |volume: &Volume| {
        let what = match (&volume.holds, &volume.problem) {
            (Some(magic), _) => format!("{magic:?}").to_lowercase(),
            (None, Some(_)) => "cannot be read".to_owned(),
            (None, None) => "unknown".to_owned(),
        };
        format!("{} ({what}, {})", volume.name.escape_debug(), size_text(volume.len))
    };
    match volumes {
        [] => "none".to_owned(),
        volumes => volumes.iter().map(name).collect::<Vec<_>>().join(", "),
    }
}
