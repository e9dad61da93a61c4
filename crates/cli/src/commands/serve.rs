//! `postread serve`: a target's innermost device as a network block device.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use clap::{ArgGroup, Args};
use postread::BlockStatus;
use postread_nbd::{Events, Export, Server};
use postread_sys::termination::Termination;
use rustix::fs::Mode;

use crate::exit::{CommandResult, Failure, Outcome};
use crate::image::{DeviceArgs, KeyArgs};
use crate::text::{complain, name_for_stderr, output_failed};

#[derive(Args, Debug)]
#[command(group = ArgGroup::new("where").required(true).args(["socket", "tcp"]))]
pub(crate) struct ServeArgs {
    /// The image or block device
    #[arg(value_name = "TARGET")]
    target: PathBuf,
    /// Unix socket to listen on; only you can connect
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// TCP address to listen on, such as 127.0.0.1:10809; anyone who can connect can read everything, and nothing is encrypted
    #[arg(long, value_name = "ADDRESS:PORT")]
    tcp: Option<SocketAddr>,
    /// Name of the export; clients that name none get it too
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true, value_parser = parse_name)]
    export: String,
    #[command(flatten)]
    device: DeviceArgs,
    /// Raw key of the dm-crypt mapping; - for standard input
    #[arg(long, value_name = "FILE", requires = "dm_crypt", help_heading = "Keys")]
    key: Option<PathBuf>,
    /// Passphrase of LUKS volumes; - for standard input, without echo on a terminal
    #[arg(long, value_name = "FILE", help_heading = "Keys")]
    passphrase_file: Option<PathBuf>,
    /// Do not print where it serves, and report only reads that fail
    #[arg(short, long, help_heading = "Output")]
    quiet: bool,
}

/// The longest name that the protocol allows.
const NAME_MAX: usize = 4096;

fn parse_name(name: &str) -> Result<String, String> {
    if name.len() > NAME_MAX || name.contains(['\0', '/', '?', '#', '%']) || name.chars().any(char::is_control) {
        return Err(format!("expected at most {NAME_MAX} bytes without control characters and without / ? # %"));
    }
    Ok(name.to_owned())
}

/// What goes wrong, on standard error.
struct Log {
    target: String,
    quiet: bool,
}

impl Events for Log {
    fn bad(&self, _export: &str, at: u64, range: Range<u64>, status: &BlockStatus) {
        let (target, last) = (&self.target, range.end - 1);
        complain(format_args!(
            "{target}: at byte {at}: {status}; a client gets EIO for bytes {} to {last}",
            range.start
        ));
    }

    fn dropped(&self, error: &io::Error) {
        if !self.quiet {
            complain(format_args!("a client: {error}"));
        }
    }
}

pub(crate) fn run(args: &ServeArgs) -> CommandResult {
    let keys = KeyArgs::of_devices(args.key.as_ref(), args.passphrase_file.as_ref());
    let layers = keys.add_to(args.device.builder(&args.target), true)?.open_device(&args.target)?;
    let device = layers.device();
    let (source, start) = device.source();
    let mut export = Export::new(args.export.as_str(), source, start, device.len());
    export = export.description(args.target.display().to_string());
    if let Some(file) = layers.plain_file() {
        export = export.holes_of(file.try_clone().map_err(Failure::environment)?);
    }
    let log = Log { target: name_for_stderr(&args.target), quiet: args.quiet };
    let server = Server::new(vec![export]).events(log);
    let served = match (&args.socket, args.tcp) {
        (Some(path), _) => {
            let listener = bind(path).map_err(|error| about(path, error))?;
            remove_at_the_end(path)?;
            announce(args, |out| {
                write!(out, "nbd+unix:///{}?socket=", args.export)?;
                out.write_all(path.as_os_str().as_bytes())
            })?;
            server.serve_unix(&listener)
        }
        (None, Some(address)) => {
            let failed = |error| Failure::environment(format!("{address}: {error}"));
            let listener = TcpListener::bind(address).map_err(failed)?;
            let address = listener.local_addr().map_err(failed)?;
            announce(args, |out| write!(out, "nbd://{address}/{}", args.export))?;
            server.serve_tcp(&listener)
        }
        (None, None) => return Err(Failure::usage("serve where? give --socket or --tcp")),
    };
    served.map_err(Failure::environment)?;
    Ok(Outcome::Good)
}

fn about(path: &Path, error: io::Error) -> Failure {
    Failure::environment(format!("{}: {error}", name_for_stderr(path)))
}

/// A socket that only its owner can connect to. One that a server left behind when it was killed is replaced.
fn bind(path: &Path) -> io::Result<UnixListener> {
    let before = rustix::process::umask(Mode::RWXG | Mode::RWXO);
    let bound = match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => match UnixStream::connect(path) {
            // What is no socket refuses too.
            Err(refused) if refused.kind() == io::ErrorKind::ConnectionRefused && is_socket(path) => {
                std::fs::remove_file(path).and_then(|()| UnixListener::bind(path))
            }
            _ => Err(error),
        },
        other => other,
    };
    rustix::process::umask(before);
    bound
}

fn is_socket(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket())
}

/// Ends the process when it is asked to end, and removes the socket before.
fn remove_at_the_end(path: &Path) -> Result<(), Failure> {
    let mut termination = Termination::catch().map_err(Failure::environment)?;
    let path = path.to_owned();
    let waits = std::thread::Builder::new().name("signals".into()).spawn(move || {
        if termination.wait().is_ok() {
            let _ = std::fs::remove_file(&path);
            std::process::exit(0);
        }
    });
    waits.map(drop).map_err(Failure::environment)
}

/// Prints the address that clients take: from then on they can connect.
fn announce(args: &ServeArgs, address: impl FnOnce(&mut io::StdoutLock<'_>) -> io::Result<()>) -> Result<(), Failure> {
    if args.quiet {
        return Ok(());
    }
    let mut out = io::stdout().lock();
    address(&mut out).and_then(|()| writeln!(out)).and_then(|()| out.flush()).map_err(output_failed)
}
