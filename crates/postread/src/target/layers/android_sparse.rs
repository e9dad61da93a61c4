//! Android sparse images.

use std::sync::Arc;

use postread_io::{PreadOptions, PreadPool};
use postread_volume::{Magic, SparseImage, StoredOnly, sparse};

use super::{Choice, Device, Format, Layer, Opened};
use crate::error::{Error, ErrorKind, Result};

pub(super) struct AndroidSparse;

impl Format for AndroidSparse {
    fn wants(&self, magic: Option<Magic>, _choice: &Choice) -> bool {
        magic == Some(Magic::AndroidSparse)
    }

    fn open(&self, device: &Device, pool: &PreadPool, choice: &mut Choice) -> Result<Opened> {
        let mut pieces = vec![device.read_at()];
        pieces.append(&mut choice.pieces);
        let fail = |error: sparse::Error| {
            let kind = match error {
                sparse::Error::Io(_) => ErrorKind::Io,
                sparse::Error::Checksum { .. } => ErrorKind::Corrupt,
                sparse::Error::OtherImage { .. } | sparse::Error::Overlap { .. } => ErrorKind::InvalidInput,
                _ => ErrorKind::Malformed,
            };
            Error::caused_by(kind, error)
        };
        let image = Arc::new(SparseImage::open_pieces(pieces).map_err(fail)?);
        if !choice.ignore_checksums {
            image.verify_checksums().map_err(fail)?;
        }
        let source = pool.read_at(Arc::new(StoredOnly(image.clone())), PreadOptions::default());
        let device = Device::new(image, Arc::new(source))?;
        Ok(Opened::Device(vec![Layer::AndroidSparse { len: device.len() }], device))
    }
}
