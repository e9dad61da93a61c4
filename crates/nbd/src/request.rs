//! Requests, once negotiation is over.

use crate::export::Export;
use crate::proto::{Errno, READ_MAX, REQUEST_MAGIC, be16, be32, be64, command, command_flag};

/// Bytes of a request.
pub(crate) const REQUEST_LEN: usize = 28;

/// A request as it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) flags: u16,
    pub(crate) kind: u16,
    /// The client's own number, which the reply repeats.
    pub(crate) cookie: u64,
    pub(crate) offset: u64,
    pub(crate) len: u32,
}

/// What is to be done about one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Read {
        offset: u64,
        len: u32,
        fragment: bool,
    },
    BlockStatus {
        offset: u64,
        len: u32,
        one: bool,
    },
    /// There is nothing to do.
    Done,
    Disconnect,
    Refuse(Errno, &'static str),
    /// The data that was sent with it is skipped first.
    RefuseWrite {
        len: u32,
    },
}

impl Request {
    /// Parses a request; none where it does not begin as one, and nobody knows where the next one would.
    pub(crate) fn parse(bytes: &[u8; REQUEST_LEN]) -> Option<Self> {
        if be32(bytes, 0)? != REQUEST_MAGIC {
            return None;
        }
        Some(Self {
            flags: be16(bytes, 4)?,
            kind: be16(bytes, 6)?,
            cookie: be64(bytes, 8)?,
            offset: be64(bytes, 16)?,
            len: be32(bytes, 24)?,
        })
    }

    /// Judges it. `structured`: replies in chunks were negotiated; `status`: block status was.
    pub(crate) fn action(&self, export: &Export, structured: bool, status: bool) -> Action {
        let Self { offset, len, flags, .. } = *self;
        let known = match self.kind {
            command::READ if structured => command_flag::DF,
            command::BLOCK_STATUS => command_flag::REQ_ONE,
            _ => 0,
        };
        let within = offset.checked_add(len.into()).is_some_and(|end| end <= export.len);
        match self.kind {
            command::DISC => Action::Disconnect,
            command::WRITE => Action::RefuseWrite { len },
            command::TRIM | command::WRITE_ZEROES => Action::Refuse(Errno::Perm, "the export is read-only"),
            _ if flags & !known != 0 => Action::Refuse(Errno::Inval, "unknown flags"),
            command::FLUSH => Action::Done,
            command::READ | command::BLOCK_STATUS if len == 0 => Action::Refuse(Errno::Inval, "a length of 0"),
            command::READ | command::BLOCK_STATUS if !within => {
                Action::Refuse(Errno::Inval, "past the end of the export")
            }
            command::READ if len > READ_MAX => Action::Refuse(Errno::Overflow, "longer than 32 MiB"),
            command::READ => Action::Read { offset, len, fragment: structured && flags & command_flag::DF == 0 },
            command::BLOCK_STATUS if status => {
                Action::BlockStatus { offset, len, one: flags & command_flag::REQ_ONE != 0 }
            }
            _ => Action::Refuse(Errno::Inval, "unknown command"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use postread_io::MemorySource;

    use super::*;

    fn bytes(flags: u16, kind: u16, offset: u64, len: u32) -> [u8; REQUEST_LEN] {
        let mut out = [0; REQUEST_LEN];
        out[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        out[4..6].copy_from_slice(&flags.to_be_bytes());
        out[6..8].copy_from_slice(&kind.to_be_bytes());
        out[8..16].copy_from_slice(&7u64.to_be_bytes());
        out[16..24].copy_from_slice(&offset.to_be_bytes());
        out[24..].copy_from_slice(&len.to_be_bytes());
        out
    }

    #[test]
    fn requests_are_judged() {
        let export = Export::new("x", Arc::new(MemorySource::new(vec![0; 10_000])), 0, 10_000);
        let action = |flags, kind, offset, len| {
            Request::parse(&bytes(flags, kind, offset, len)).unwrap().action(&export, true, true)
        };
        let refused = |action| match action {
            Action::Refuse(errno, _) => Some(errno),
            _ => None,
        };
        assert_eq!(action(0, 0, 9999, 1), Action::Read { offset: 9999, len: 1, fragment: true });
        assert_eq!(action(4, 0, 0, 10_000), Action::Read { offset: 0, len: 10_000, fragment: false });
        assert_eq!(refused(action(0, 0, 9999, 2)), Some(Errno::Inval));
        assert_eq!(refused(action(0, 0, u64::MAX, 2)), Some(Errno::Inval));
        assert_eq!(refused(action(0, 0, 0, 0)), Some(Errno::Inval));
        assert_eq!(refused(action(1, 0, 0, 1)), Some(Errno::Inval));
        assert_eq!(action(1, 1, 0, 512), Action::RefuseWrite { len: 512 });
        assert_eq!(refused(action(0, 4, 0, 512)), Some(Errno::Perm));
        assert_eq!(refused(action(0, 99, 0, 512)), Some(Errno::Inval));
        assert_eq!((action(0, 2, 0, 0), action(0, 3, 0, 0)), (Action::Disconnect, Action::Done));
        assert_eq!(action(8, 7, 0, 10_000), Action::BlockStatus { offset: 0, len: 10_000, one: true });
        let plain = Request::parse(&bytes(0, 0, 0, 1)).unwrap().action(&export, false, false);
        assert_eq!(plain, Action::Read { offset: 0, len: 1, fragment: false });
        let request = Request::parse(&bytes(0, 7, 0, 1)).unwrap();
        assert_eq!(refused(request.action(&export, true, false)), Some(Errno::Inval));
        assert!(Request::parse(&[0; REQUEST_LEN]).is_none());
        let large = Export::new("x", Arc::new(MemorySource::new(Vec::new())), 0, u64::MAX);
        let request = Request::parse(&bytes(0, 0, 0, READ_MAX + 1)).unwrap();
        assert_eq!(refused(request.action(&large, true, true)), Some(Errno::Overflow));
    }
}
