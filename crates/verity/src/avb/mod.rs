//! Android Verified Boot 2: where an image's hash tree is and what its root hash is.
//!
//! A [`Footer`] in the last 64 bytes of a partition says where the [`Vbmeta`] is. Its descriptors name hash trees, which
//! are dm-verity's. Big-endian; layout from AOSP, `external/avb/libavb/avb_footer.h`, `avb_vbmeta_image.h` and
//! `avb_hashtree_descriptor.h`.
//!
//! [`Vbmeta::parse`] checks structure, and that the digest stored in the image is that of the image. It does not check
//! the signature: what it returns is only self-consistent.

mod bytes;
mod footer;
mod hashtree;
mod vbmeta;

pub use footer::{FOOTER_SIZE, Footer, FooterError};
pub use hashtree::{HashtreeDescriptor, HashtreeError};
pub use vbmeta::{Algorithm, Descriptor, HEADER_SIZE, MAX_VBMETA_SIZE, Vbmeta, VbmetaError};
