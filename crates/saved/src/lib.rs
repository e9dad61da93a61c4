//! Encrypted files saved as they are on disk, and restored later with the key, without the image.
//!
//! [`save`] needs no key. [`Saved`] opens what it saved; [`Saved::restore`] decrypts it into a directory, through
//! `postread-extract`. `docs/ciphertext-layout.md` describes the layout, [`manifest`] has its lines.

mod contents;
pub mod manifest;
mod restore;
mod save;
mod survey;

pub use restore::{RestoreOptions, Saved};
pub use save::{SavedCounts, save};

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use postread::{Error, ErrorKind};
use rustix::fs::OFlags;

/// The manifest's name.
const MANIFEST: &str = "manifest.jsonl";
/// The directory of contents: one file per inode, named by its number.
const DATA: &str = "data";
/// Bytes read at once.
const STEP: u64 = 1 << 20;

/// Opens a regular file for reading. A pipe without a writer does not block.
fn open_regular(path: &Path) -> postread::Result<(File, Metadata)> {
    let io = |error: io::Error| Error::caused_by(ErrorKind::Io, error).about(path);
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(io)?;
    let metadata = file.metadata().map_err(io)?;
    if !metadata.is_file() {
        let what = if metadata.is_dir() { "a directory" } else { "a pipe, socket or device" };
        return Err(Error::new(ErrorKind::InvalidInput, format!("not a regular file ({what})")).about(path));
    }
    Ok((file, metadata))
}
