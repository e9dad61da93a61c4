//! Images and block devices: the options that point into them, and the keys.

mod entry;
mod keys;
mod layers;
pub(crate) mod terminal;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use postread::dmcrypt::MappingSpec;
use postread::image::{Follow, Found, Image, ImageError, canonical};
use postread::{Builder, DmVerity, Target, TrustedDigests};
use postread_fsimage::ext4::{JournalPolicy, Options};

pub(crate) use entry::{mode_string, time_string};
pub(crate) use keys::{KeyArgs, read_secret, secret_name};
pub(crate) use layers::Layer;

use crate::exit::{Failure, Outcome};
use crate::text::{complain, name_for_stderr};

/// What leads from a target to the device within.
#[derive(Args, Clone, Debug)]
pub(crate) struct DeviceArgs {
    /// Partition to read
    #[arg(long, value_name = "N", conflicts_with = "offset", help_heading = "Images")]
    part: Option<u32>,
    /// Byte at which the file system begins; K, M and G may follow
    #[arg(long, value_name = "BYTES", value_parser = crate::read_options::parse_bytes, help_heading = "Images")]
    offset: Option<u64>,
    /// Logical volume to read, of LVM2 or an Android super partition
    #[arg(long, value_name = "NAME", help_heading = "Images")]
    volume: Option<String>,
    /// Another piece of a split Android sparse image (repeatable)
    #[arg(long, value_name = "FILE", help_heading = "Images")]
    piece: Vec<PathBuf>,
    /// Read metadata with wrong checksums too: it may be wrong
    #[arg(long, help_heading = "Images")]
    ignore_checksums: bool,
    /// File or device with the header of a LUKS volume that has it elsewhere
    #[arg(long, value_name = "FILE", help_heading = "Block devices")]
    header: Option<PathBuf>,
    /// Plain dm-crypt mapping, for example aes-xts-plain64,sector_size:4096; the key is the first --key that fits
    #[arg(long, value_name = "SPEC", help_heading = "Block devices")]
    dm_crypt: Option<MappingSpec>,
    /// Verify every block against this dm-verity root hash
    #[arg(long, value_name = "HEX", value_parser = parse_root_hash, help_heading = "Block devices")]
    root_hash: Option<RootHash>,
    /// File or device with the dm-verity hash tree [default: TARGET itself, at --hash-offset]
    #[arg(long, value_name = "FILE", requires = "root_hash", help_heading = "Block devices")]
    hash_device: Option<PathBuf>,
    /// Byte at which the dm-verity superblock begins [default: 0]
    #[arg(long, value_name = "BYTES", value_parser = crate::read_options::parse_bytes, requires = "root_hash", help_heading = "Block devices")]
    hash_offset: Option<u64>,
    /// Number of data blocks under dm-verity [default: the superblock's, which is not authenticated]
    #[arg(long, value_name = "BLOCKS", requires = "root_hash", help_heading = "Block devices")]
    data_blocks: Option<u64>,
}

/// What leads from a target to its file system, and the keys.
#[derive(Args, Clone, Debug)]
pub(crate) struct ImageArgs {
    #[command(flatten)]
    device: DeviceArgs,
    /// Do not replay the journal of a file system that was not unmounted cleanly
    #[arg(long, conflicts_with = "journal", help_heading = "Images")]
    ignore_journal: bool,
    /// Device or file with the journal, of a file system that has it elsewhere
    #[arg(long, value_name = "FILE", help_heading = "Images")]
    journal: Option<PathBuf>,
    /// Read the backup of the superblock in block N
    #[arg(long, value_name = "N", help_heading = "Images")]
    superblock: Option<u64>,
    /// Do not follow a symbolic link that is the last name of PATH
    #[arg(long, help_heading = "Images")]
    no_follow: bool,
    #[command(flatten)]
    pub(crate) keys: KeyArgs,
}

/// A dm-verity root hash.
type RootHash = std::sync::Arc<[u8]>;

fn parse_root_hash(text: &str) -> Result<RootHash, String> {
    hex::decode(text).map(RootHash::from).map_err(|error| format!("expected hexadecimal: {error}"))
}

impl DeviceArgs {
    fn given(&self) -> bool {
        self.part.is_some()
            || self.offset.is_some()
            || self.volume.is_some()
            || self.header.is_some()
            || self.dm_crypt.is_some()
            || self.root_hash.is_some()
            || !self.piece.is_empty()
            || self.ignore_checksums
    }

    /// How to open a target, without keys.
    pub(crate) fn builder(&self, target: &Path) -> Builder {
        let name = name_for_stderr(target);
        let mut builder = Target::builder()
            .ignore_checksums(self.ignore_checksums)
            .on_warning(move |warning| complain(format_args!("{name}: {warning}")));
        if let Some(number) = self.part {
            builder = builder.partition(number);
        }
        if let Some(offset) = self.offset {
            builder = builder.offset(offset);
        }
        for piece in &self.piece {
            builder = builder.piece(piece);
        }
        if let Some(name) = &self.volume {
            builder = builder.volume(name);
        }
        if let Some(header) = &self.header {
            builder = builder.luks_header(header);
        }
        if let Some(mapping) = self.dm_crypt {
            builder = builder.dm_crypt(mapping);
        }
        match self.dm_verity() {
            Some(dm_verity) => builder.dm_verity(dm_verity),
            None => builder,
        }
    }

    fn dm_verity(&self) -> Option<DmVerity> {
        let mut dm_verity = DmVerity::new(self.root_hash.as_ref()?).hash_offset(self.hash_offset.unwrap_or(0));
        if let Some(device) = &self.hash_device {
            dm_verity = dm_verity.hash_device(device);
        }
        if let Some(blocks) = self.data_blocks {
            dm_verity = dm_verity.data_blocks(blocks);
        }
        Some(dm_verity)
    }
}

impl ImageArgs {
    /// Which links of a PATH are followed.
    pub(crate) fn follow(&self) -> Follow {
        if self.no_follow { Follow::Parents } else { Follow::All }
    }

    /// Whether an option was given that has a meaning for images only.
    pub(crate) fn given(&self) -> bool {
        self.device.given()
            || self.ignore_journal
            || self.journal.is_some()
            || self.superblock.is_some()
            || self.no_follow
            || self.keys.given()
    }

    /// How to open a target, without keys.
    pub(crate) fn builder(&self, target: &Path) -> Builder {
        let mut builder = self.device.builder(target);
        // Whoever names a backup of the superblock knows what is there, whatever has overwritten the first one.
        if self.superblock.is_some() && self.device.part.is_none() && self.device.offset.is_none() {
            builder = builder.offset(0);
        }
        for path in &self.keys.fscrypt_metadata {
            builder = builder.fscrypt_metadata(path);
        }
        builder
    }

    fn ext4_options(&self) -> Result<Options, Failure> {
        let mut options = Options::default();
        options.checksums = !self.device.ignore_checksums;
        options.superblock = self.superblock;
        if self.ignore_journal {
            options.journal = JournalPolicy::Ignore;
        }
        if let Some(journal) = &self.journal {
            let fail = |error| Failure::environment(format!("{}: {error}", name_for_stderr(journal)));
            options.external_journal = Some(Arc::new(std::fs::File::open(journal).map_err(fail)?));
        }
        Ok(options)
    }

    /// How to open a target, with the keys that were given. If a passphrase is needed, no secret was given and `ask` is
    /// set, it is asked for on a terminal.
    pub(crate) fn with_keys(&self, target: &Path, ask: bool) -> Result<Builder, Failure> {
        let builder = self.builder(target).ext4_options(self.ext4_options()?);
        self.keys.add_to(builder, ask)
    }

    /// The target, with the keys that were given.
    pub(crate) fn open_target(&self, target: &Path, ask: bool) -> Result<Target, Failure> {
        Ok(self.with_keys(target, ask)?.open(target)?)
    }

    /// The file system of the target.
    pub(crate) fn open(&self, target: &Path, ask: bool) -> Result<Image, Failure> {
        Ok(self.open_target(target, ask)?.image().clone())
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
    let list = std::io::BufReader::new(postread::files::open(path)?);
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
