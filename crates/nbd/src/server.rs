//! Listening, and a thread for each connection.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::ops::Range;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use postread_io::BlockStatus;

use crate::connection;
use crate::export::Export;
use crate::negotiate::negotiate;

/// The most connections at a time; more are closed at once.
const CONNECTIONS_MAX: usize = 256;
/// How long a client may be silent before it has chosen an export.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long to wait where the system has no room for another connection.
const NO_ROOM: Duration = Duration::from_millis(100);

/// Reports what happens while a server runs.
pub trait Events: Send + Sync {
    /// The byte `at` of an export could not be read; clients get `EIO` for all of `range`.
    fn bad(&self, export: &str, at: u64, range: Range<u64>, status: &BlockStatus) {
        let _ = (export, at, range, status);
    }

    /// A connection ended early: its client broke the protocol, or the network failed.
    fn dropped(&self, error: &io::Error) {
        let _ = error;
    }
}

/// Ignores all events.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Events for Silent {}

/// Exports, for whoever connects. Cloning is cheap.
#[derive(Clone)]
pub struct Server {
    exports: Arc<[Export]>,
    events: Arc<dyn Events>,
    connections: Arc<AtomicUsize>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("exports", &self.exports).finish_non_exhaustive()
    }
}

/// A stream of either kind.
trait Stream: Read + Write + Send + Sized + 'static {
    fn another(&self) -> io::Result<Self>;
    fn hang_up(&self);
    fn set_patience(&self, patience: Option<Duration>) -> io::Result<()>;
}

impl Stream for UnixStream {
    fn another(&self) -> io::Result<Self> {
        self.try_clone()
    }

    fn hang_up(&self) {
        let _ = self.shutdown(Shutdown::Both);
    }

    fn set_patience(&self, patience: Option<Duration>) -> io::Result<()> {
        self.set_read_timeout(patience)?;
        self.set_write_timeout(patience)
    }
}

impl Stream for TcpStream {
    fn another(&self) -> io::Result<Self> {
        self.try_clone()
    }

    fn hang_up(&self) {
        let _ = self.shutdown(Shutdown::Both);
    }

    fn set_patience(&self, patience: Option<Duration>) -> io::Result<()> {
        self.set_nodelay(true)?;
        self.set_read_timeout(patience)?;
        self.set_write_timeout(patience)
    }
}

impl Server {
    /// A server of these exports.
    pub fn new(exports: Vec<Export>) -> Self {
        Self { exports: exports.into(), events: Arc::new(Silent), connections: Arc::default() }
    }

    /// Where to report failed reads and dropped connections.
    #[must_use]
    pub fn events(mut self, events: impl Events + 'static) -> Self {
        self.events = Arc::new(events);
        self
    }

    /// Serves whoever connects to a Unix socket, for ever.
    ///
    /// # Errors
    /// Where the socket can't be listened on any more.
    pub fn serve_unix(&self, listener: &UnixListener) -> io::Result<()> {
        self.serve(|| listener.accept().map(|(stream, _)| stream))
    }

    /// Serves whoever connects to a TCP port, for ever. Nothing is encrypted on the way, and nobody is asked who they are.
    ///
    /// # Errors
    /// Where the socket can't be listened on any more.
    pub fn serve_tcp(&self, listener: &TcpListener) -> io::Result<()> {
        self.serve(|| listener.accept().map(|(stream, _)| stream))
    }

    fn serve<S: Stream>(&self, accept: impl Fn() -> io::Result<S>) -> io::Result<()> {
        loop {
            match accept() {
                Ok(stream) => self.start(stream),
                // A client that was gone before it was let in, or no file descriptors: others may be served still.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if matches!(error.raw_os_error(), Some(12 | 23 | 24 | 105)) => {
                    self.events.dropped(&error);
                    std::thread::sleep(NO_ROOM);
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn start<S: Stream>(&self, stream: S) {
        if self.connections.fetch_add(1, Ordering::AcqRel) >= CONNECTIONS_MAX {
            self.connections.fetch_sub(1, Ordering::AcqRel);
            return self.events.dropped(&io::Error::other("too many connections"));
        }
        let server = self.clone();
        let counted = Counted(self.connections.clone());
        let started = std::thread::Builder::new().name("nbd request".into()).spawn(move || {
            let _counted = counted;
            if let Err(error) = server.connection(stream) {
                server.events.dropped(&error);
            }
        });
        if let Err(error) = started {
            self.events.dropped(&error);
        }
    }

    fn connection<S: Stream>(&self, stream: S) -> io::Result<()> {
        stream.set_patience(Some(PATIENCE))?;
        let (mut write, hang_up) = (stream.another()?, Mutex::new(stream.another()?));
        let hang_up = || hang_up.lock().unwrap_or_else(PoisonError::into_inner).hang_up();
        let patient = write.another()?;
        let mut read = io::BufReader::with_capacity(64 << 10, stream);
        let Some(agreed) = negotiate(&mut read, &mut write, &self.exports)? else { return Ok(()) };
        patient.set_patience(None)?;
        connection::run(&agreed, &mut read, &mut write, &hang_up, &self.events)
    }

    /// Serves one client over a pair of streams, such as standard input and output, until it goes away. A client that reads
    /// no more replies holds this up.
    ///
    /// # Errors
    /// Where the client breaks the protocol, or a stream fails.
    pub fn serve_pair(&self, read: &mut impl Read, write: &mut (impl Write + Send)) -> io::Result<()> {
        match negotiate(read, write, &self.exports)? {
            Some(agreed) => connection::run(&agreed, read, write, &|| {}, &self.events),
            None => Ok(()),
        }
    }
}

/// A connection that counts until it is dropped.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
