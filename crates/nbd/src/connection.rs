//! A connection once an export is chosen: requests in, reads in flight, replies out.

use std::io::{self, IoSlice, Read, Write};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use postread_io::{Bio, BlockStatus, Buf, Completion};

use crate::export::Export;
use crate::flow::Flow;
use crate::negotiate::{Agreed, skip};
use crate::proto::Errno;
use crate::reply;
use crate::request::{Action, REQUEST_LEN, Request};
use crate::server::Events;

/// Bytes of a chunk of a structured reply.
const CHUNK: u32 = 1 << 20;

/// A piece of a reply on its way.
struct Out {
    header: Vec<u8>,
    data: Option<Buf>,
    /// What it has taken of the flow.
    bytes: u64,
}

/// Talks until the client goes away. `hang_up` ends both directions of the stream.
pub(crate) fn run(
    agreed: &Agreed<'_>,
    read: &mut impl Read,
    write: &mut (impl Write + Send),
    hang_up: &(dyn Fn() + Sync),
    events: &Arc<dyn Events>,
) -> io::Result<()> {
    let flow = Arc::new(Flow::default());
    let (sender, receiver) = channel();
    std::thread::scope(|scope| {
        let send_flow = flow.clone();
        std::thread::Builder::new().name("nbd reply".into()).spawn_scoped(scope, move || {
            if send_all(&receiver, write, &send_flow).is_err() {
                hang_up();
            }
            // What completes from now on is dropped with the channel.
            send_flow.close();
        })?;
        let connection = Connection { agreed, flow, sender, events };
        let taken = connection.take_requests(read);
        // Replies on their way are sent first: the writer ends when the last sender is gone.
        drop(connection);
        taken
    })
}

fn send_all(replies: &Receiver<Out>, write: &mut impl Write, flow: &Flow) -> io::Result<()> {
    for Out { header, data, bytes } in replies {
        let data = data.as_deref().unwrap_or_default();
        write_both(write, &header, data)?;
        flow.leave(bytes);
    }
    Ok(())
}

fn write_both(write: &mut impl Write, header: &[u8], data: &[u8]) -> io::Result<()> {
    let mut slices = [IoSlice::new(header), IoSlice::new(data)];
    let mut slices = &mut slices[..];
    IoSlice::advance_slices(&mut slices, 0);
    while !slices.is_empty() {
        match write.write_vectored(slices) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => IoSlice::advance_slices(&mut slices, n),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

struct Connection<'a> {
    agreed: &'a Agreed<'a>,
    flow: Arc<Flow>,
    sender: Sender<Out>,
    events: &'a Arc<dyn Events>,
}

impl Connection<'_> {
    fn take_requests(&self, read: &mut impl Read) -> io::Result<()> {
        loop {
            let mut bytes = [0; REQUEST_LEN];
            match read.read_exact(&mut bytes) {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
                other => other?,
            }
            let Some(request) = Request::parse(&bytes) else {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "not a request"));
            };
            let Agreed { export, structured, status } = *self.agreed;
            let cookie = request.cookie;
            let goes_on = match request.action(export, structured, status) {
                Action::Disconnect => return Ok(()),
                Action::Done => self.reply(self.done(cookie)),
                Action::Refuse(errno, why) => self.reply(self.refusal(cookie, errno, why)),
                Action::RefuseWrite { len } => {
                    skip(read, len.into())?;
                    self.reply(self.refusal(cookie, Errno::Perm, "the export is read-only"))
                }
                Action::BlockStatus { offset, len, one } => {
                    let extents = export.extents(offset..offset + u64::from(len), one);
                    self.reply(reply::block_status(cookie, &extents))
                }
                Action::Read { offset, len, fragment } => self.read(cookie, offset, len, fragment),
            };
            if !goes_on {
                return Ok(());
            }
        }
    }

    fn done(&self, cookie: u64) -> Vec<u8> {
        if self.agreed.structured { reply::none(cookie) } else { reply::simple(cookie, None) }
    }

    fn refusal(&self, cookie: u64, errno: Errno, why: &str) -> Vec<u8> {
        match self.agreed.structured {
            true => reply::error(cookie, true, errno, None, why),
            false => reply::simple(cookie, Some(errno)),
        }
    }

    /// Sends a reply that needs no read. False once nobody reads any more.
    fn reply(&self, header: Vec<u8>) -> bool {
        let bytes = header.len() as u64;
        self.flow.enter(bytes) && self.sender.send(Out { header, data: None, bytes }).is_ok()
    }

    /// Submits a read, in chunks where the reply may come in chunks.
    fn read(&self, cookie: u64, offset: u64, len: u32, fragment: bool) -> bool {
        let step = if fragment { CHUNK } else { len };
        let left = Arc::new(AtomicUsize::new(len.div_ceil(step) as usize));
        let mut done = 0;
        while done < len {
            let n = step.min(len - done);
            if !self.flow.enter(n.into()) {
                return false;
            }
            let at = offset + u64::from(done);
            self.submit(Reading { cookie, at, len: n, left: left.clone() });
            done += n;
        }
        true
    }

    fn submit(&self, reading: Reading) {
        let Export { source, start, name, .. } = self.agreed.export;
        // A source that reads whole blocks only is asked for those.
        let align = u64::from(source.align()).max(1);
        let first = start.saturating_add(reading.at);
        let (begin, end) = (first / align * align, (first + u64::from(reading.len)).next_multiple_of(align));
        let inside = (first - begin) as usize;
        let bio = Bio::new(begin, Buf::new((end - begin) as usize));
        let (sender, structured) = (self.sender.clone(), self.agreed.structured);
        let (events, name) = (self.events.clone(), name.clone());
        source.submit(
            bio,
            Completion::from_fn(move |bio, _| {
                // Nobody may read them any more.
                let _ = sender.send(reading.finish(bio, inside, structured, &*events, &name));
            }),
        );
    }
}

/// A read in flight, or a chunk of one.
struct Reading {
    cookie: u64,
    /// The first byte of the export.
    at: u64,
    len: u32,
    /// Chunks of the request that have not completed.
    left: Arc<AtomicUsize>,
}

impl Reading {
    /// The reply. `inside`: where in the bio the bytes begin.
    fn finish(self, bio: Option<Bio>, inside: usize, structured: bool, events: &dyn Events, export: &str) -> Out {
        let (cookie, bytes) = (self.cookie, u64::from(self.len));
        let range = inside..inside + self.len as usize;
        let last = self.left.fetch_sub(1, Ordering::AcqRel) == 1;
        let bad = |range: Range<usize>, bio: &Bio| {
            let bad = bio.statuses().first_bad(range.clone())?;
            Some((bad.range.start.max(range.start), bad.status.clone()))
        };
        let found = match &bio {
            None => Some((range.start, BlockStatus::Lost)),
            Some(bio) => bad(range.clone(), bio),
        };
        if let Some((place, status)) = found {
            let at = self.at + (place - inside) as u64;
            events.bad(export, at, self.at..self.at + bytes, &status);
            let header = match structured {
                true => reply::error(cookie, last, Errno::Io, Some(at), &status.to_string()),
                false => reply::simple(cookie, Some(Errno::Io)),
            };
            return Out { header, data: None, bytes };
        }
        let data = bio.map(|bio| {
            let (mut buf, _) = bio.into_parts();
            buf.narrow(range.start, range.len());
            buf
        });
        let header = match structured {
            true => reply::data(cookie, last, self.at, range.len()),
            false => reply::simple(cookie, None),
        };
        Out { header, data, bytes }
    }
}
