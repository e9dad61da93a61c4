//! The footer: the last 64 bytes of a partition.

use super::bytes::{be32, be64};
use super::vbmeta::MAX_VBMETA_SIZE;

/// Its size on disk, in bytes.
pub const FOOTER_SIZE: usize = 64;

/// Why bytes are not a usable footer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FooterError {
    /// Another magic number, or fewer than 64 bytes.
    #[error("no AVB footer: its magic number is missing")]
    Magic,
    /// A major version other than 1.
    #[error("AVB footer version {major}.{minor}: expected 1.x")]
    Version {
        /// The major version found.
        major: u32,
        /// The minor version found.
        minor: u32,
    },
    /// A vbmeta image that is not between the original image and the footer.
    #[error("AVB footer: {size} bytes of vbmeta at byte {offset} are not inside the partition of {partition} bytes")]
    Range {
        /// Where the vbmeta image begins, in bytes.
        offset: u64,
        /// Its size, in bytes.
        size: u64,
        /// The partition's size, in bytes.
        partition: u64,
    },
}

/// A footer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Footer {
    /// The size of the image before AVB added to it, in bytes.
    pub original_image_size: u64,
    /// Where the vbmeta image begins in the partition, in bytes.
    pub vbmeta_offset: u64,
    /// Its size, in bytes.
    pub vbmeta_size: u64,
}

impl Footer {
    /// Parses the last 64 bytes of a partition of `partition` bytes.
    ///
    /// # Errors
    /// If they are not a footer, or it points outside the partition.
    pub fn parse(bytes: &[u8], partition: u64) -> Result<Self, FooterError> {
        let Some(bytes) = bytes.first_chunk::<FOOTER_SIZE>().filter(|bytes| bytes.starts_with(b"AVBf")) else {
            return Err(FooterError::Magic);
        };
        let (major, minor) = (be32(bytes, 4), be32(bytes, 8));
        if major != 1 {
            return Err(FooterError::Version { major, minor });
        }
        let footer =
            Self { original_image_size: be64(bytes, 12), vbmeta_offset: be64(bytes, 20), vbmeta_size: be64(bytes, 28) };
        let (offset, size) = (footer.vbmeta_offset, footer.vbmeta_size);
        let end = offset.checked_add(size).and_then(|end| end.checked_add(FOOTER_SIZE as u64));
        let fits = end.is_some_and(|end| end <= partition) && size <= MAX_VBMETA_SIZE as u64;
        if !fits || footer.original_image_size > offset {
            return Err(FooterError::Range { offset, size, partition });
        }
        Ok(footer)
    }
}
