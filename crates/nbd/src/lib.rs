//! A read-only server for the network block device protocol.
//!
//! An [`Export`] is a [`Source`](postread_io::Source) with a name; a [`Server`] offers exports to whoever connects. Each
//! connection has a thread that takes requests and one that sends replies. Between the two are reads in flight, which are
//! submitted to the source and answered in the order in which they complete. A slow read does not delay others, and a client
//! that does not read its replies delays only itself: a connection has a bounded number of bytes in flight.
//!
//! Supported: fixed newstyle negotiation (`NBD_OPT_GO`, `INFO`, `LIST`, `EXPORT_NAME`), structured replies, block status with
//! `base:allocation`, several connections to one export. Everything that writes is refused with `EPERM`. The protocol is
//! described in `doc/proto.md` of the NBD project.
//!
//! ```no_run
//! use std::os::unix::net::UnixListener;
//! use std::sync::Arc;
//! use postread_io::MemorySource;
//! use postread_nbd::{Export, Server};
//!
//! let source = Arc::new(MemorySource::new(vec![0; 1 << 20]));
//! let server = Server::new(vec![Export::new("disk", source, 0, 1 << 20)]);
//! server.serve_unix(&UnixListener::bind("nbd.sock")?)?;
//! # Ok::<(), std::io::Error>(())
//! ```

mod connection;
mod export;
mod flow;
mod negotiate;
mod proto;
mod reply;
mod request;
mod server;

pub use export::Export;
pub use server::{Events, Server, Silent};
