//! LUKS volumes.

use std::io;
use std::sync::Arc;

use postread_dmcrypt::Decrypted;
use postread_dmcrypt::luks::{Limits, Luks, LuksError, UnlockError, Unlocked};
use postread_io::{PreadPool, ReadAt};
use postread_volume::Magic;

use super::{Choice, Device, Format, Layer, Opened, Stop, device_of};
use crate::error::{Error, ErrorKind, Result};

/// The most LUKS volumes within each other: each costs as much time and memory as its header asks for.
const LUKS_MAX: usize = 2;

pub(super) struct LuksVolume;

fn fail(error: LuksError) -> Error {
    let kind = match error {
        LuksError::Io { .. } => ErrorKind::Io,
        LuksError::Version { .. } => ErrorKind::Unsupported,
        _ => ErrorKind::Malformed,
    };
    Error::caused_by(kind, error)
}

impl Format for LuksVolume {
    fn wants(&self, magic: Option<Magic>, choice: &Choice) -> bool {
        (magic == Some(Magic::Luks) || choice.luks_header.is_some()) && !choice.has_part()
    }

    fn open(&self, device: &Device, pool: &PreadPool, choice: &mut Choice) -> Result<Opened> {
        if choice.luks_opened == LUKS_MAX {
            let what = format!("it has more than {LUKS_MAX} LUKS volumes within each other");
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        let header = choice.luks_header.take().unwrap_or_else(|| device.read_at());
        let luks = Luks::read(&*header).map_err(fail)?;
        let layer = |keyslot| Layer::Luks {
            version: luks.version(),
            uuid: luks.uuid().to_owned(),
            cipher: luks.cipher().to_string(),
            keyslot,
        };
        if choice.passphrases.is_empty()
            && let Some(ask) = choice.ask_passphrase.take()
        {
            choice.passphrases.extend(ask()?);
        }
        if choice.passphrases.is_empty() {
            return Ok(Opened::Stopped(vec![layer(None)], Stop::Locked));
        }
        let Unlocked { mapping, data, keyslot, .. } = unlock(&luks, &*header, choice)?;
        choice.luks_opened += 1;
        let decrypted = Decrypted::new(device.read_at(), Arc::new(mapping), data.offset, data.size);
        let decrypted = decrypted.map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => {
                let expected = data.offset.saturating_add(data.size.unwrap_or(0));
                let what = format!("the LUKS volume is truncated: expected {expected} bytes, found {}", device.len());
                Error::new(ErrorKind::Malformed, what)
            }
            _ => error.into(),
        })?;
        Ok(Opened::Device(vec![layer(Some(keyslot))], device_of(Arc::new(decrypted), pool)?))
    }
}

fn unlock(luks: &Luks, header: &dyn ReadAt, choice: &Choice) -> Result<Unlocked> {
    let mut last = None;
    for passphrase in &choice.passphrases {
        match luks.unlock(header, passphrase, &Limits::default()) {
            Ok(unlocked) => return Ok(unlocked),
            Err(error) => last = Some(error),
        }
    }
    let Some(error) = last else { return Err(Error::new(ErrorKind::Key, "no passphrase was given")) };
    let kind = match error {
        UnlockError::WrongPassphrase { .. } => ErrorKind::Key,
        _ => ErrorKind::Unsupported,
    };
    Err(Error::caused_by(kind, error))
}
