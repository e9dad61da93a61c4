//! LUKS1 and LUKS2 headers.
//!
//! [`Luks::read`] finds a header, [`Luks::unlock`] turns a passphrase into the [`Mapping`](crate::Mapping) of the data that
//! follows. Parsing is pure ([`luks1::Header::parse`], [`luks2::Header::parse`]); what a hostile header could ask for has
//! [`Limits`].

mod af;
mod device;
mod kdf;
mod limits;
pub mod luks1;
pub mod luks2;

pub use device::{Data, Luks, LuksError, UnlockError, Unlocked};
pub use kdf::Kdf;
pub use limits::{LimitError, Limits};

/// The magic number at the start of a header.
pub const MAGIC: [u8; 6] = *b"LUKS\xba\xbe";
/// The magic number of LUKS2's second header.
pub const SECOND_MAGIC: [u8; 6] = *b"SKUL\xba\xbe";

/// The text in a field that is padded with zeros.
fn text(field: &[u8]) -> Option<&str> {
    let end = field.iter().position(|&b| b == 0).unwrap_or(field.len());
    std::str::from_utf8(&field[..end]).ok()
}

fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn be64(bytes: &[u8], at: usize) -> u64 {
    u64::from(be32(bytes, at)) << 32 | u64::from(be32(bytes, at + 4))
}

/// Compares without a branch on the bytes.
fn constant_time_eq(a: &[u8], b: &[u8]) -> bool {
    let difference = a.iter().zip(b).fold(0, |sum, (x, y)| sum | (x ^ y));
    a.len() == b.len() && std::hint::black_box(difference) == 0
}
