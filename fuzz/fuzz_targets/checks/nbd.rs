//! What the targets of the NBD server check.

use std::io::Cursor;
use std::sync::Arc;

use postread_io::MemorySource;
use postread_nbd::{Export, Server};

/// A client that sends this and nothing else: it gets its answers, each of them whole, and is done with.
pub(crate) fn nbd_session(data: &[u8]) {
    const LEN: u64 = 100_000;
    let source = Arc::new(MemorySource::new(vec![7; LEN as usize + 10]));
    let server = Server::new(vec![Export::new("disk", source, 10, LEN)]);
    let mut replies = Vec::new();
    let _ = server.serve_pair(&mut Cursor::new(data), &mut replies);
    // What it gets is bounded by what it asked for: a request of 28 bytes has at most the export in its reply.
    assert!(replies.len() as u64 <= 200 + data.len() as u64 * 200 + (data.len() as u64 / 28) * (LEN + 100));
}
