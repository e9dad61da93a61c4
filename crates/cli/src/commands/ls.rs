//! `postread ls`: directories of an image, with the names that Linux shows.

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;

use clap::Args;
use postread::image::{Image, ImageError, kind_name};
use postread_fscrypt::MissingKey;
use postread_fsimage::ext4::{FileType, Inode};
use serde::Serialize;

use super::ls_tree::Tree;
use crate::exit::{CommandResult, Failure, Outcome};
use crate::image::{ImageArgs, bytes_of, mode_string, outcome_of, resolve, time_string};
use crate::report::{Name, Output};
use crate::text::{bytes_for_stderr, complain, name_for_stderr, output_failed, write_name};

/// The most policies without their keys that are reported one by one.
const MISSING_MAX: usize = 16;

#[derive(Args, Debug)]
pub(crate) struct LsArgs {
    /// Image or block device
    #[arg(value_name = "TARGET")]
    target: PathBuf,
    /// Directory or file in it [default: the root directory]
    #[arg(value_name = "PATH")]
    path: Option<OsString>,
    #[command(flatten)]
    image: ImageArgs,
    /// Show modes, link counts, owners, sizes, times (UTC) and link targets
    #[arg(short, help_heading = "Output")]
    long: bool,
    /// List all directories below, each entry with its path
    #[arg(short = 'R', long, help_heading = "Output")]
    recursive: bool,
    /// Show inode numbers first
    #[arg(short, long, help_heading = "Output")]
    inode: bool,
    /// Show extended attributes, each on its own line
    #[arg(long, help_heading = "Output")]
    xattrs: bool,
    /// Print a report in JSON
    #[arg(long, help_heading = "Output")]
    json: bool,
}

/// One entry of the report.
#[derive(Serialize)]
struct EntryReport {
    #[serde(flatten)]
    name: Name,
    inode: u32,
    /// Whether the name is a no-key name.
    locked: bool,
    #[serde(rename = "type")]
    kind: &'static str,
    mode: String,
    links: u16,
    uid: u32,
    gid: u32,
    size: u64,
    modified: String,
    encrypted: bool,
    verity: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
    /// The target's bytes in hexadecimal, where it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    target_hex: Option<String>,
    /// Major and minor number of a device node.
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<(u32, u32)>,
    /// With `--xattrs`.
    #[serde(skip_serializing_if = "Option::is_none")]
    xattrs: Option<Vec<XattrReport>>,
}

/// An extended attribute.
#[derive(Serialize)]
struct XattrReport {
    name: String,
    value_hex: String,
}

struct Listing<'a> {
    args: &'a LsArgs,
    image: Image,
    output: Output,
    terminal: bool,
    outcome: Outcome,
    /// Whether a key that was given fits a policy that was met.
    fits: bool,
    /// Whether a no-key name or target was shown.
    no_key_shown: bool,
    /// The keys wanted by policies that none fits, as they were met.
    missing: Vec<MissingKey>,
}

pub(crate) fn run(args: &LsArgs) -> CommandResult {
    let image = args.image.open(&args.target, false)?;
    let found = resolve(&image, args.path.as_deref().map_or(&[][..], bytes_of), args.image.follow())?;
    let (inode, path) = (found.inode, found.path);
    let output = Output::begin(args.json, "postread-ls-1")?;
    let terminal = io::stdout().is_terminal();
    let mut listing = Listing {
        args,
        image,
        output,
        terminal,
        outcome: Outcome::Good,
        fits: false,
        no_key_shown: false,
        missing: Vec::new(),
    };
    listing.meet(&inode);
    if !inode.is_dir() {
        let name = path.rsplit(|&b| b == b'/').next().unwrap_or(&path).to_vec();
        listing.show(&name, false, &inode)?;
    } else if args.recursive {
        listing.walk(&inode, &path)?;
    } else {
        listing.directory(&inode, &path)?;
    }
    listing.output.end().map_err(output_failed)?;
    let name = name_for_stderr(&args.target);
    if args.image.keys.given() && !listing.fits {
        for missing in &listing.missing {
            complain(format_args!("{name}: {missing}"));
            listing.outcome = listing.outcome.worst(Outcome::Key);
        }
    } else if listing.no_key_shown {
        let wanted: Vec<String> = listing.missing.iter().map(|missing| missing.wanted.to_string()).collect();
        complain(format_args!(
            "{name}: encrypted names are shown in their encoded form: give --key for {}, or --passphrase-file",
            wanted.join(", ")
        ));
    }
    Ok(listing.outcome)
}

impl Listing<'_> {
    fn directory(&mut self, dir: &Inode, path: &[u8]) -> Result<(), Failure> {
        let entries = self.image.read_dir(dir).map_err(|error| Failure::new(outcome_of(&error), error))?;
        let mut sorted = Vec::new();
        for entry in entries {
            match entry {
                Ok(entry) => sorted.push((entry.name, entry.no_key, entry.ino)),
                Err(error) => self.broken(path, &error),
            }
        }
        sorted.sort_unstable();
        for (name, no_key, ino) in sorted {
            match self.image.fs().inode(ino) {
                Ok(inode) => self.show(&name, no_key, &inode)?,
                Err(error) => self.broken(&[path, b"/", &name].concat(), &error.into()),
            }
        }
        Ok(())
    }

    /// Everything beneath a directory, sorted as one directory is, each before what is in it.
    fn walk(&mut self, dir: &Inode, path: &[u8]) -> Result<(), Failure> {
        let mut tree = Tree::new();
        for visit in self.image.walk(dir.ino) {
            match (visit.inode, visit.entry) {
                (Ok(inode), Some(entry)) => tree.add(&visit.path, &entry.name, entry.no_key, inode.ino),
                (Ok(_), None) => {}
                (Err(error), _) => self.broken(&[path, b"/", &visit.path].concat(), &error),
            }
        }
        tree.each(|name, no_key, ino| {
            match self.image.fs().inode(ino) {
                Ok(inode) => self.show(name, no_key, &inode)?,
                Err(error) => self.broken(&[path, b"/", name].concat(), &error.into()),
            }
            Ok(())
        })
    }

    /// Notes whether one of the keys that were given is the one that this inode needs.
    fn meet(&mut self, inode: &Inode) {
        if self.missing.len() == MISSING_MAX {
            return;
        }
        // What is wrong with a context is reported where the context is used.
        let Ok(Some(context)) = self.image.context(inode) else { return };
        match self.image.master_key(&context) {
            Ok(_) => self.fits = true,
            Err(missing) if self.missing.iter().all(|other| other.wanted != missing.wanted) => {
                self.missing.push(missing);
            }
            Err(_) => {}
        }
    }

    fn broken(&mut self, path: &[u8], error: &ImageError) {
        self.outcome = self.outcome.worst(outcome_of(error));
        complain(format_args!("{}: {error}", bytes_for_stderr(path)));
    }

    fn show(&mut self, name: &[u8], no_key: bool, inode: &Inode) -> Result<(), Failure> {
        self.meet(inode);
        self.no_key_shown |= no_key;
        let target = if inode.file_type == FileType::Symlink && (self.args.long || self.args.json) {
            match self.image.link_target(inode) {
                Ok(target) => {
                    self.no_key_shown |= target.no_key;
                    Some(target.target)
                }
                Err(error) => {
                    self.broken(name, &error);
                    None
                }
            }
        } else {
            None
        };
        let xattrs = if self.args.xattrs { self.xattrs(name, inode) } else { Vec::new() };
        match &mut self.output {
            Output::Json(report) => report.push(&EntryReport {
                name: Name::of_bytes(name),
                inode: inode.ino,
                locked: no_key,
                kind: kind_name(inode.file_type),
                mode: format!("{:04o}", inode.mode & 0o7777),
                links: inode.nlink,
                uid: inode.uid,
                gid: inode.gid,
                size: size_of(inode, target.as_deref()),
                modified: time_string(inode.mtime),
                encrypted: inode.is_encrypted(),
                verity: inode.is_verity(),
                target_hex: target.as_ref().filter(|target| str::from_utf8(target).is_err()).map(hex::encode),
                target: target.map(|target| String::from_utf8_lossy(&target).into_owned()),
                device: inode.device(),
                xattrs: self.args.xattrs.then(|| xattrs.iter().map(xattr_report).collect()),
            }),
            Output::Lines(out) => line(out, self.args, self.terminal, name, inode, target.as_deref())
                .and_then(|()| xattrs.iter().try_for_each(|xattr| xattr_line(out, self.terminal, xattr))),
        }
        .map_err(output_failed)
    }

    /// The extended attributes that Linux shows.
    fn xattrs(&mut self, name: &[u8], inode: &Inode) -> Vec<NamedXattr> {
        let mut shown = Vec::new();
        for xattr in self.image.fs().xattrs(inode) {
            match xattr {
                Ok(xattr) => shown.extend(xattr.full_name().map(|name| (name, xattr.value))),
                Err(error) => self.broken(name, &error.into()),
            }
        }
        shown
    }
}

/// An extended attribute's whole name, and its value.
type NamedXattr = (Vec<u8>, Vec<u8>);

fn xattr_report((name, value): &NamedXattr) -> XattrReport {
    XattrReport { name: String::from_utf8_lossy(name).into_owned(), value_hex: hex::encode(value) }
}

/// `  user.name="text"`, or `=0xHEX` for what is not text: as `getfattr` prints values.
fn xattr_line(out: &mut impl Write, terminal: bool, (name, value): &NamedXattr) -> io::Result<()> {
    out.write_all(b"  ")?;
    write_name(out, name, terminal)?;
    let text = str::from_utf8(value).ok().filter(|text| !text.chars().any(|c| c.is_control() || c == '"' || c == '\\'));
    match text {
        Some(text) => writeln!(out, "=\"{text}\""),
        None => writeln!(out, "=0x{}", hex::encode(value)),
    }
}

/// A size as `stat` has it: an encrypted link's is that of the target that is shown, as since Linux 5.15.
fn size_of(inode: &Inode, target: Option<&[u8]>) -> u64 {
    match target {
        Some(target) if inode.is_encrypted() => target.len() as u64,
        _ => inode.size,
    }
}

fn line(
    out: &mut impl Write,
    args: &LsArgs,
    terminal: bool,
    name: &[u8],
    inode: &Inode,
    target: Option<&[u8]>,
) -> io::Result<()> {
    if args.inode {
        write!(out, "{:>8} ", inode.ino)?;
    }
    if args.long {
        let size = match inode.device() {
            Some((major, minor)) => format!("{major}, {minor}"),
            None => size_of(inode, target).to_string(),
        };
        let (mode, time) = (mode_string(inode), time_string(inode.mtime));
        write!(out, "{mode} {:>3} {:>5} {:>5} {size:>10} {time} ", inode.nlink, inode.uid, inode.gid)?;
    }
    write_name(out, name, terminal)?;
    if let Some(target) = target {
        out.write_all(b" -> ")?;
        write_name(out, target, terminal)?;
    }
    out.write_all(b"\n")
}
