//! Replies, as bytes.

use crate::proto::{BASE_ALLOCATION_ID, Errno, HOLE_AND_ZERO, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC, chunk};

/// A simple reply; the data of a read that went well follows.
pub(crate) fn simple(cookie: u64, error: Option<Errno>) -> Vec<u8> {
    let mut out = Vec::with_capacity(16);
    out.extend(SIMPLE_REPLY_MAGIC.to_be_bytes());
    out.extend(error.map_or(0, |errno| errno as u32).to_be_bytes());
    out.extend(cookie.to_be_bytes());
    out
}

fn header(cookie: u64, last: bool, kind: u16, len: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(20 + 12);
    out.extend(STRUCTURED_REPLY_MAGIC.to_be_bytes());
    out.extend((if last { chunk::DONE } else { 0 }).to_be_bytes());
    out.extend(kind.to_be_bytes());
    out.extend(cookie.to_be_bytes());
    out.extend(u32::try_from(len).unwrap_or(u32::MAX).to_be_bytes());
    out
}

/// The end of a reply without data.
pub(crate) fn none(cookie: u64) -> Vec<u8> {
    header(cookie, true, chunk::NONE, 0)
}

/// What comes before `len` bytes of data at `offset`.
pub(crate) fn data(cookie: u64, last: bool, offset: u64, len: usize) -> Vec<u8> {
    let mut out = header(cookie, last, chunk::OFFSET_DATA, 8 + len);
    out.extend(offset.to_be_bytes());
    out
}

/// An error, of the byte at `offset` where it concerns one.
pub(crate) fn error(cookie: u64, last: bool, errno: Errno, offset: Option<u64>, message: &str) -> Vec<u8> {
    let mut end = message.len().min(1000);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    let message = &message.as_bytes()[..end];
    let (kind, more) = if offset.is_some() { (chunk::ERROR_OFFSET, 8) } else { (chunk::ERROR, 0) };
    let mut out = header(cookie, last, kind, 6 + message.len() + more);
    out.extend((errno as u32).to_be_bytes());
    out.extend(u16::try_from(message.len()).unwrap_or(0).to_be_bytes());
    out.extend(message);
    out.extend(offset.map(u64::to_be_bytes).iter().flatten());
    out
}

/// Lengths and whether they are holes.
pub(crate) fn block_status(cookie: u64, extents: &[(u64, bool)]) -> Vec<u8> {
    let mut out = header(cookie, true, chunk::BLOCK_STATUS, 4 + 8 * extents.len());
    out.extend(BASE_ALLOCATION_ID.to_be_bytes());
    for &(len, hole) in extents {
        // Requests have lengths of 32 bits.
        out.extend(u32::try_from(len).unwrap_or(u32::MAX).to_be_bytes());
        out.extend((if hole { HOLE_AND_ZERO } else { 0 }).to_be_bytes());
    }
    out
}
