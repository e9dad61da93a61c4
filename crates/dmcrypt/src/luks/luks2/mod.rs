//! LUKS2: two copies of a binary header with JSON metadata.
//!
//! The specification is "LUKS2 On-Disk Format Specification", version 1.1.4.

mod binary;
mod metadata;

pub use binary::{BINARY_SIZE, Binary, HEADER_SIZES};
pub use metadata::{Digest, Header, Keyslot, Segment, Unsupported};

use crate::hash::UnknownHash;
use crate::spec::SpecError;

/// Why bytes are not a LUKS2 header that can be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Luks2Error {
    /// Another magic number or version, or fewer bytes than a header has.
    #[error("not a LUKS2 header")]
    NotLuks2,
    /// A header whose size is not one that the format allows.
    #[error("corrupt LUKS2 header: its size is {size} bytes (16 KiB to 4 MiB in powers of two are possible)")]
    Size {
        /// The size found, in bytes.
        size: u64,
    },
    /// A checksum algorithm that is not supported.
    #[error("LUKS2 header: checksum: {0}")]
    ChecksumAlg(UnknownHash),
    /// A wrong checksum.
    #[error("corrupt LUKS2 header: its checksum is wrong")]
    Checksum,
    /// Metadata that is not JSON, or lacks something.
    #[error("corrupt LUKS2 metadata: {0}")]
    Json(serde_json::Error),
    /// Metadata that contradicts itself.
    #[error("corrupt LUKS2 metadata: {what} {id}: {reason}")]
    Invalid {
        /// `"keyslot"`, `"segment"` or `"digest"`.
        what: &'static str,
        /// Its number, as text.
        id: String,
        /// What is wrong.
        reason: &'static str,
    },
    /// A cipher that is not supported.
    #[error("LUKS2 {what} {id}: {error}")]
    Cipher {
        /// `"keyslot"` or `"segment"`.
        what: &'static str,
        /// Its number, as text.
        id: String,
        /// What is not supported.
        error: SpecError,
    },
    /// A state that cannot be read here.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
}
