//! The handshake: options until the client has chosen an export.

use std::io::{self, Read, Write};

use crate::export::Export;
use crate::proto::{
    BASE_ALLOCATION, BASE_ALLOCATION_ID, FIXED_NEWSTYLE, IHAVEOPT, NBDMAGIC, NO_ZEROES, OPTION_REPLY_MAGIC, READ_MAX,
    SEND_DF, TRANSMISSION_FLAGS, be16, be32, info, option, option_reply,
};

/// The most bytes of an option: names have at most 4096.
const OPTION_MAX: u32 = 64 << 10;
/// The most options of a client.
const OPTIONS_MAX: usize = 256;

/// What was agreed upon.
#[derive(Debug)]
pub(crate) struct Agreed<'a> {
    pub(crate) export: &'a Export,
    /// Replies come in chunks.
    pub(crate) structured: bool,
    /// The client may ask for `base:allocation`.
    pub(crate) status: bool,
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

fn read_array<const N: usize>(stream: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Skips what a client sends along with something that is refused.
pub(crate) fn skip(stream: &mut impl Read, len: u64) -> io::Result<()> {
    match io::copy(&mut stream.take(len), &mut io::sink())? {
        found if found == len => Ok(()),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Negotiates until the client wants to read an export; none where it goes away in good order.
pub(crate) fn negotiate<'a>(
    read: &mut impl Read,
    write: &mut impl Write,
    exports: &'a [Export],
) -> io::Result<Option<Agreed<'a>>> {
    let mut hello = NBDMAGIC.to_be_bytes().to_vec();
    hello.extend(IHAVEOPT.to_be_bytes());
    hello.extend((FIXED_NEWSTYLE | NO_ZEROES).to_be_bytes());
    write.write_all(&hello)?;
    let flags = u32::from_be_bytes(read_array(read)?);
    if flags & !u32::from(FIXED_NEWSTYLE | NO_ZEROES) != 0 || flags & u32::from(FIXED_NEWSTYLE) == 0 {
        return Err(malformed("unknown handshake flags"));
    }
    let mut talk = Talk { exports, structured: false, status_of: None };
    for _ in 0..OPTIONS_MAX {
        if u64::from_be_bytes(read_array(read)?) != IHAVEOPT {
            return Err(malformed("not an option"));
        }
        let (kind, len) = (u32::from_be_bytes(read_array(read)?), u32::from_be_bytes(read_array(read)?));
        if len > OPTION_MAX {
            skip(read, len.into())?;
            write.write_all(&reply(kind, option_reply::ERR_TOO_BIG, b"the option is too long"))?;
            continue;
        }
        let mut bytes = vec![0; len as usize];
        read.read_exact(&mut bytes)?;
        if kind == option::EXPORT_NAME {
            let no_zeroes = flags & u32::from(NO_ZEROES) != 0;
            let export = talk.export(&bytes).ok_or_else(|| malformed("no export of that name"))?;
            write.write_all(&talk.begin(export, no_zeroes))?;
            return Ok(Some(talk.agreed(export)));
        }
        if kind == option::ABORT {
            // It may be gone already.
            let _ = write.write_all(&reply(kind, option_reply::ACK, b""));
            return Ok(None);
        }
        let (out, chosen) = talk.answer(kind, &bytes);
        write.write_all(&out)?;
        if let Some(export) = chosen {
            return Ok(Some(talk.agreed(export)));
        }
    }
    Err(malformed("too many options"))
}

struct Talk<'a> {
    exports: &'a [Export],
    structured: bool,
    /// The export that block status was negotiated for, by its place in the list.
    status_of: Option<usize>,
}

fn reply(option: u32, kind: u32, data: &[u8]) -> Vec<u8> {
    let mut out = OPTION_REPLY_MAGIC.to_be_bytes().to_vec();
    out.extend(option.to_be_bytes());
    out.extend(kind.to_be_bytes());
    out.extend(u32::try_from(data.len()).unwrap_or(u32::MAX).to_be_bytes());
    out.extend(data);
    out
}

/// A name with its length before it, and what follows.
fn name(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let len = usize::try_from(be32(bytes, 0)?).ok()?;
    bytes.get(4..)?.split_at_checked(len)
}

impl<'a> Talk<'a> {
    /// An export by its name; the first one where there is no name.
    fn export(&self, name: &[u8]) -> Option<&'a Export> {
        self.exports
            .iter()
            .find(|export| export.name.as_bytes() == name)
            .or_else(|| self.exports.first().filter(|_| name.is_empty()))
    }

    fn place(&self, export: &Export) -> Option<usize> {
        self.exports.iter().position(|other| std::ptr::eq(other, export))
    }

    fn agreed(&self, export: &'a Export) -> Agreed<'a> {
        let status = self.structured && self.status_of.is_some() && self.status_of == self.place(export);
        Agreed { export, structured: self.structured, status }
    }

    fn flags(&self) -> u16 {
        TRANSMISSION_FLAGS | if self.structured { SEND_DF } else { 0 }
    }

    /// The answer to `EXPORT_NAME`, the older way to begin.
    fn begin(&self, export: &Export, no_zeroes: bool) -> Vec<u8> {
        let mut out = export.len.to_be_bytes().to_vec();
        out.extend(self.flags().to_be_bytes());
        out.resize(out.len() + if no_zeroes { 0 } else { 124 }, 0);
        out
    }

    /// The answer to any other option, and the export that is read from now on.
    fn answer(&mut self, kind: u32, bytes: &[u8]) -> (Vec<u8>, Option<&'a Export>) {
        let ack = || reply(kind, option_reply::ACK, b"");
        let invalid = |why: &str| (reply(kind, option_reply::ERR_INVALID, why.as_bytes()), None);
        match kind {
            option::LIST if bytes.is_empty() => {
                let mut out = Vec::new();
                for export in self.exports {
                    let mut data = (export.name.len() as u32).to_be_bytes().to_vec();
                    data.extend(export.name.as_bytes());
                    data.extend(export.description.as_bytes());
                    out.extend(reply(kind, option_reply::SERVER, &data));
                }
                out.extend(ack());
                (out, None)
            }
            option::STRUCTURED_REPLY if bytes.is_empty() => {
                self.structured = true;
                (ack(), None)
            }
            option::LIST | option::STRUCTURED_REPLY => invalid("it has no data"),
            option::INFO | option::GO => match self.info(kind, bytes) {
                None => invalid("malformed"),
                Some(None) => (reply(kind, option_reply::ERR_UNKNOWN, b"no export of that name"), None),
                Some(Some((mut out, export))) => {
                    out.extend(ack());
                    (out, (kind == option::GO).then_some(export))
                }
            },
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT if !self.structured => {
                invalid("structured replies come first")
            }
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => match self.contexts(kind, bytes) {
                None => invalid("malformed"),
                Some(None) => (reply(kind, option_reply::ERR_UNKNOWN, b"no export of that name"), None),
                Some(Some(mut out)) => {
                    out.extend(ack());
                    (out, None)
                }
            },
            _ => (reply(kind, option_reply::ERR_UNSUP, b"not supported"), None),
        }
    }

    /// What there is to know of an export. None where the option is malformed, and where there is no such export.
    fn info(&self, kind: u32, bytes: &[u8]) -> Option<Option<(Vec<u8>, &'a Export)>> {
        let (name, rest) = name(bytes)?;
        let count = usize::from(be16(rest, 0)?);
        if rest.len() != 2 + 2 * count {
            return None;
        }
        let Some(export) = self.export(name) else { return Some(None) };
        let mut out = Vec::new();
        let mut item = |item: u16, data: &[u8]| {
            out.extend(reply(kind, option_reply::INFO, &[&item.to_be_bytes(), data].concat()));
        };
        item(info::EXPORT, &[&export.len.to_be_bytes()[..], &self.flags().to_be_bytes()].concat());
        for wanted in rest[2..].chunks_exact(2) {
            match u16::from_be_bytes([wanted[0], wanted[1]]) {
                info::NAME => item(info::NAME, export.name.as_bytes()),
                info::DESCRIPTION => item(info::DESCRIPTION, export.description.as_bytes()),
                info::BLOCK_SIZE => {
                    let sizes = [1, 4096, READ_MAX].map(u32::to_be_bytes).concat();
                    item(info::BLOCK_SIZE, &sizes);
                }
                _ => {}
            }
        }
        Some(Some((out, export)))
    }

    /// The contexts of block status that a client asks for and that there are. None as with [`Talk::info`].
    fn contexts(&mut self, kind: u32, bytes: &[u8]) -> Option<Option<Vec<u8>>> {
        let (export, rest) = name(bytes)?;
        let count = be32(rest, 0)?;
        let mut rest = rest.get(4..)?;
        let list = kind == option::LIST_META_CONTEXT;
        let mut wanted = list && count == 0;
        for _ in 0..count {
            let (query, after) = name(rest)?;
            wanted |= query == BASE_ALLOCATION.as_bytes() || list && query == b"base:";
            rest = after;
        }
        if !rest.is_empty() {
            return None;
        }
        let Some(export) = self.export(export) else { return Some(None) };
        if !list {
            self.status_of = self.place(export).filter(|_| wanted);
        }
        let id = if list { 0 } else { BASE_ALLOCATION_ID };
        let data = [&id.to_be_bytes()[..], BASE_ALLOCATION.as_bytes()].concat();
        Some(Some(if wanted { reply(kind, option_reply::META_CONTEXT, &data) } else { Vec::new() }))
    }
}
