//! Images and block devices: the options that point into them, the keys, and the file system found there.

mod entry;
mod keys;
mod layers;
mod terminal;
mod trusted;
mod unlock;

use std::path::{Path, PathBuf};

use clap::Args;
use postread::image::{Image, ImageError};
use postread_fsimage::ext4::{FileType, Inode, Options};
use rustix::fs::OFlags;

pub(crate) use entry::{canonical, compare_paths, mode_string, time_string};
pub(crate) use keys::{KeyArgs, Secrets, read_secret};
pub(crate) use layers::{Layer, Layers, look_into};
pub(crate) use trusted::{Trusted, listed_trouble};
pub(crate) use unlock::ToolMetadata;

use crate::exit::{Failure, Outcome};
use crate::text::{complain, name_for_stderr};

/// `--part`, `--offset` and the keys.
#[derive(Args, Clone, Debug)]
pub(crate) struct ImageArgs {
    /// The partition to read
    #[arg(long, value_name = "N", conflicts_with = "offset")]
    pub(crate) part: Option<u32>,
    /// The byte that the file system begins at; K, M and G may follow
    #[arg(long, value_name = "BYTES", value_parser = crate::read_options::parse_bytes)]
    pub(crate) offset: Option<u64>,
    /// Read metadata with wrong checksums too: what it says may be wrong
    #[arg(long)]
    pub(crate) ignore_checksums: bool,
    #[command(flatten)]
    pub(crate) keys: KeyArgs,
}

impl ImageArgs {
    /// Whether an option was given that has a meaning for images only.
    pub(crate) fn given(&self) -> bool {
        self.part.is_some() || self.offset.is_some() || self.ignore_checksums || self.keys.given()
    }

    /// The file system, with the keys that were given. Where a passphrase is wanted and none was given, and `ask`, it
    /// is asked for on a terminal.
    pub(crate) fn open(&self, target: &Path, ask: bool) -> Result<Image, Failure> {
        Ok(self.open_layers(target, ask)?.1)
    }

    /// The same, and the layers that were gone through.
    pub(crate) fn open_layers(&self, target: &Path, ask: bool) -> Result<(Layers, Image), Failure> {
        let mut secrets = self.keys.load()?;
        let layers = look_into(target, self.part, self.offset)?;
        let (metadata, data, start) = layers.file_system(target)?;
        let keys = secrets.keyring()?;
        let fail =
            |error: ImageError| Failure::new(outcome_of(&error), format!("{}: {error}", name_for_stderr(target)));
        let mut options = Options::default();
        options.checksums = !self.ignore_checksums;
        let image = Image::open(metadata, data, start, keys, options).map_err(fail)?;
        let (wanted, found) = (image.fs().superblock().size(), layers.len());
        if found < wanted {
            complain(format_args!(
                "{}: the file system has {wanted} bytes, and there are {found}: what lies behind them can't be read",
                name_for_stderr(target)
            ));
        }
        let image = image.on_unjudged_key(|key| {
            complain(format_args!(
                "the key given for {key} could not be judged: nothing in this image tells a right key from a wrong one"
            ));
        });
        let image = unlock::unlock(image, &mut secrets, ask)?;
        Ok((layers, image))
    }
}

/// The inode that `path` names in the image, as an argument gives it, and the path as the image spells it: where case is
/// folded, names that the user spells otherwise are found, and digests are listed under the image's own.
pub(crate) fn resolve(image: &Image, path: &[u8]) -> Result<(Inode, Vec<u8>), Failure> {
    try_resolve(image, path).map_err(|Failure { outcome, message }| {
        Failure::new(outcome, format!("{}: {message}", crate::text::bytes_for_stderr(&canonical(path))))
    })
}

/// The same, with a message that does not name the path.
pub(crate) fn try_resolve(image: &Image, path: &[u8]) -> Result<(Inode, Vec<u8>), Failure> {
    image.resolve_spelled(path).map_err(|error| {
        let outcome = outcome_of(&error);
        let ImageError::NotFound { path: missing } = &error else { return Failure::new(outcome, error) };
        // A name that is not there because its directory is locked is a matter of the key.
        let hint = locked_above(image, missing);
        let outcome = if hint.is_some() { Outcome::Key } else { outcome };
        let what = if missing == path { "no such file".into() } else { error.to_string() };
        Failure::new(outcome, format!("{what}{}", hint.unwrap_or_default()))
    })
}

/// What to say where the directory of a name that is not found shows no-key names.
pub(crate) fn locked_above(image: &Image, path: &[u8]) -> Option<String> {
    let parent = path.iter().rposition(|&b| b == b'/').map_or(&[][..], |at| &path[..at]);
    let missing = image.resolve(parent).ok().and_then(|dir| image.names(&dir).ok()?.missing().cloned());
    missing.map(|missing| format!(" (its directory is locked: {missing})"))
}

/// The exit status for what went wrong within an image.
pub(crate) fn outcome_of(error: &ImageError) -> Outcome {
    error.kind().into()
}

/// The key that an encrypted directory lacks, where its names are no-key names.
pub(crate) fn locked(image: &Image, inode: &Inode) -> Result<Option<ImageError>, ImageError> {
    let Some(context) = image.context(inode)? else { return Ok(None) };
    let found = match inode.is_dir() {
        true => image.names(inode)?.missing().cloned().map_or(Ok(()), Err),
        false => image.master_key(&context).map(|_| ()),
    };
    match found {
        Ok(()) => Ok(image.key_trouble(inode, &context).map(|error| ImageError::Key { ino: inode.ino, error })),
        Err(missing) => Ok(Some(ImageError::MissingKey { ino: inode.ino, missing })),
    }
}

/// A path in the image as an argument gives it.
pub(crate) fn bytes_of(path: &std::ffi::OsStr) -> &[u8] {
    std::os::unix::ffi::OsStrExt::as_bytes(path)
}

/// A kind as reports name it.
pub(crate) fn kind_name(kind: FileType) -> &'static str {
    match kind {
        FileType::Regular => "file",
        FileType::Directory => "directory",
        FileType::Symlink => "link",
        FileType::CharDevice => "character device",
        FileType::BlockDevice => "block device",
        FileType::Fifo => "pipe",
        FileType::Socket => "socket",
        _ => "unknown",
    }
}

/// Reads a whole unencrypted file of the image, at most `limit` bytes.
pub(crate) fn read_plain(image: &Image, file: &Inode, limit: u64) -> Result<Option<Vec<u8>>, ImageError> {
    if file.file_type != FileType::Regular || file.is_encrypted() || file.size > limit {
        return Ok(None);
    }
    let mut bytes = vec![0; file.size as usize];
    image.fs().open_raw(file)?.read_raw_at(&mut bytes, 0)?;
    Ok(Some(bytes))
}

/// Opens a target read-only: a regular file or a block device. A pipe without a writer does not block.
pub(crate) fn open_target(path: &Path) -> Result<std::fs::File, Failure> {
    use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
    let fail = |error: std::io::Error| Failure::environment(format!("{}: {error}", name_for_stderr(path)));
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32;
    let file = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(fail)?;
    let kind = file.metadata().map_err(fail)?.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        let what = if kind.is_dir() { "a directory" } else { "a pipe, socket or character device" };
        return Err(Failure::usage(format!("{}: {what}, not an image", name_for_stderr(path))));
    }
    Ok(file)
}

/// A secret's name on the command line, `-` for standard input.
pub(crate) type SecretFile = PathBuf;
