//! Images and block devices: the options that point into them, the keys, and the file system found there.

mod entry;
mod keys;
mod layers;
mod terminal;
mod unlock;

use std::path::{Path, PathBuf};

use clap::Args;
use postread::TrustedDigests;
use postread::image::{Follow, Found, Image, ImageError, canonical};
use postread_fsimage::ext4::{FileType, Inode, Options};
use rustix::fs::OFlags;

pub(crate) use entry::{mode_string, time_string};
pub(crate) use keys::{KeyArgs, Secrets, read_secret};
pub(crate) use layers::{Layer, Layers, look_into};
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
    /// Do not follow a symbolic link that is the last name of PATH
    #[arg(long)]
    no_follow: bool,
    #[command(flatten)]
    pub(crate) keys: KeyArgs,
}

impl ImageArgs {
    /// Which links of a PATH are followed.
    pub(crate) fn follow(&self) -> Follow {
        if self.no_follow { Follow::Parents } else { Follow::All }
    }

    /// Whether an option was given that has a meaning for images only.
    pub(crate) fn given(&self) -> bool {
        self.part.is_some() || self.offset.is_some() || self.ignore_checksums || self.no_follow || self.keys.given()
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

/// What `path`, an argument, leads to in the image.
pub(crate) fn resolve(image: &Image, path: &[u8], follow: Follow) -> Result<Found, Failure> {
    image.find(path, follow).map_err(|error| {
        let name = crate::text::bytes_for_stderr(&canonical(path));
        Failure::new(outcome_of(&error), format_args!("{name}: {}", error.without_path(path)))
    })
}

/// Reads a list of trusted digests; without one there are none.
pub(crate) fn load_trusted(list: Option<&Path>) -> Result<TrustedDigests, Failure> {
    let Some(path) = list else { return Ok(TrustedDigests::new()) };
    let list = std::io::BufReader::new(crate::input_file::open(path)?);
    TrustedDigests::from_list(list).map_err(|error| error.about(path).into())
}

/// The exit status for what went wrong within an image.
pub(crate) fn outcome_of(error: &ImageError) -> Outcome {
    error.kind().into()
}

/// A path in the image as an argument gives it.
pub(crate) fn bytes_of(path: &std::ffi::OsStr) -> &[u8] {
    std::os::unix::ffi::OsStrExt::as_bytes(path)
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
