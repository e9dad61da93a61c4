//! Plain dm-crypt mappings, which the device itself does not describe.

use std::sync::Arc;

use postread_dmcrypt::Decrypted;
use postread_io::PreadPool;
use postread_volume::Magic;

use super::{Choice, Device, Format, Layer, Opened, device_of};
use crate::error::Result;

pub(super) struct DmCrypt;

impl Format for DmCrypt {
    fn wants(&self, _magic: Option<Magic>, choice: &Choice) -> bool {
        choice.dm_crypt.is_some()
    }

    fn open(&self, device: &Device, pool: &PreadPool, choice: &mut Choice) -> Result<Opened> {
        let mapping = choice.dm_crypt.take().expect("this is what it wants");
        let layer = Layer::DmCrypt { cipher: mapping.spec().to_string(), sector_size: mapping.sector_size() };
        let decrypted = Decrypted::new(device.read_at(), mapping, 0, None)?;
        Ok(Opened::Device(vec![layer], device_of(Arc::new(decrypted), pool)?))
    }
}
