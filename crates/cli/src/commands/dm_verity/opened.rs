//! Devices that are opened, and what is known of their tree.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use postread::block_verity::{BlockVerityError, Device, Message};
use postread_io::ReadAt;
use postread_verity::HashAlg;
use postread_verity::dm_verity::{Geometry, HashType, Params, SUPERBLOCK_SIZE, Superblock};

use rustix::fs::OFlags;

use super::{DeviceArgs, FecArgs, TreeArgs};
use crate::exit::{Failure, Outcome};
use crate::text::{complain_of, name_for_stderr};

/// A failure that is about a file.
pub(super) fn about(path: &Path, outcome: Outcome, error: impl std::fmt::Display) -> Failure {
    Failure::new(outcome, format!("{}: {error}", name_for_stderr(path)))
}

/// Opens a file or a block device for reading.
pub(super) fn open(path: &Path) -> Result<File, Failure> {
    let file = File::open(path).map_err(|error| about(path, Outcome::Environment, error))?;
    check_kind(path, file)
}

/// Opens one for writing, or makes a file. What is there stays until it is written over.
pub(super) fn open_to_write(path: &Path) -> Result<File, Failure> {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
    check_kind(path, file.map_err(|error| about(path, Outcome::Environment, error))?)
}

/// Opens what is there to be written in parts; a block device only if nothing else uses it.
pub(super) fn open_in_place(path: &Path) -> Result<File, Failure> {
    let device = path.metadata().is_ok_and(|found| found.file_type().is_block_device());
    let exclusive = if device { OFlags::EXCL } else { OFlags::empty() };
    let file = OpenOptions::new().read(true).write(true).custom_flags(exclusive.bits() as i32).open(path);
    check_kind(path, file.map_err(|error| about(path, Outcome::Environment, error))?)
}

fn check_kind(path: &Path, file: File) -> Result<File, Failure> {
    let kind = file.metadata().map_err(|error| about(path, Outcome::Environment, error))?.file_type();
    if kind.is_file() || kind.is_block_device() {
        Ok(file)
    } else {
        Err(about(path, Outcome::Usage, "expected a regular file or a block device"))
    }
}

/// True where both are the same file or device.
pub(super) fn same(a: &File, b: &File) -> bool {
    let id = |file: &File| file.metadata().map(|m| (m.dev(), m.ino(), m.rdev())).ok();
    id(a).is_some() && id(a) == id(b)
}

pub(super) fn length(path: &Path, file: &File) -> Result<u64, Failure> {
    ReadAt::len(file).map_err(|error| about(path, Outcome::Environment, error))
}

/// Hexadecimal, or `-` for nothing.
pub(super) fn parse_salt(text: &str) -> Result<Vec<u8>, Failure> {
    if text == "-" {
        return Ok(Vec::new());
    }
    hex::decode(text).map_err(|error| Failure::usage(format!("--salt: expected hexadecimal or -: {error}")))
}

impl TreeArgs {
    /// The parameters that the options give; those not given are the defaults, and the salt is `salt`.
    pub(super) fn params(&self, salt: &[u8]) -> Result<Params, Failure> {
        let hash_type = HashType::from_number(self.format.unwrap_or(1)).map_err(Failure::usage)?;
        let salt = self.salt.as_deref().map_or_else(|| Ok(salt.to_vec()), parse_salt)?;
        Params::new(
            hash_type,
            self.hash.unwrap_or(HashAlg::Sha256),
            self.data_block_size.unwrap_or(4096),
            self.hash_block_size.unwrap_or(4096),
            &salt,
        )
        .map_err(Failure::usage)
    }

    fn any(&self) -> bool {
        let Self { hash, format, data_block_size, hash_block_size, salt } = self;
        hash.is_some() || format.is_some() || data_block_size.is_some() || hash_block_size.is_some() || salt.is_some()
    }

    /// The parameters of a superblock; an option that contradicts it is an error.
    fn check(&self, found: &Params) -> Result<(), Failure> {
        let mismatch = |option: &str, found: &dyn std::fmt::Display| {
            Err(Failure::new(Outcome::Integrity, format!("{option} is not what the superblock says: {found}")))
        };
        if self.hash.is_some_and(|alg| alg != found.alg()) {
            return mismatch("--hash", &found.alg());
        }
        if self.format.is_some_and(|number| number != found.hash_type().number()) {
            return mismatch("--format", &found.hash_type().number());
        }
        if self.data_block_size.is_some_and(|size| size as usize != found.data_block_size()) {
            return mismatch("--data-block-size", &found.data_block_size());
        }
        if self.hash_block_size.is_some_and(|size| size as usize != found.hash_block_size()) {
            return mismatch("--hash-block-size", &found.hash_block_size());
        }
        if let Some(salt) = &self.salt
            && parse_salt(salt)? != found.salt()
        {
            return mismatch("--salt", &hex::encode(found.salt()));
        }
        Ok(())
    }
}

/// Data and tree, opened to be read.
pub(super) struct Opened {
    pub(super) data: File,
    pub(super) hash: File,
    pub(super) hash_area: u64,
    pub(super) params: Params,
    pub(super) data_blocks: u64,
}

/// Reads a superblock.
pub(super) fn superblock(path: &Path, hash: &File, offset: u64) -> Result<(Superblock, u64), Failure> {
    let mut bytes = [0; SUPERBLOCK_SIZE];
    hash.read_exact_at(&mut bytes, offset).map_err(|error| match error.kind() {
        std::io::ErrorKind::UnexpectedEof => about(path, Outcome::Usage, "no room for a dm-verity superblock"),
        _ => about(path, Outcome::Environment, error),
    })?;
    let superblock = Superblock::parse(&bytes).map_err(|error| about(path, Outcome::Usage, error))?;
    let area = superblock.hash_area_offset(offset);
    let area = area.ok_or_else(|| about(path, Outcome::Usage, "the hash area begins past the last possible byte"))?;
    Ok((superblock, area))
}

impl Opened {
    /// Opens the devices. Parameters come from the superblock, and from options where there is none.
    pub(super) fn new(args: &DeviceArgs, tree: &TreeArgs) -> Result<Self, Failure> {
        let (data, hash) = (open(&args.data)?, open(&args.hash)?);
        if args.no_superblock {
            let params = tree.params(b"")?;
            let whole = length(&args.data, &data)? / params.data_block_size() as u64;
            let data_blocks = args.data_blocks.unwrap_or(whole);
            return Ok(Self { data, hash, hash_area: args.hash_offset, params, data_blocks });
        }
        let (superblock, hash_area) = superblock(&args.hash, &hash, args.hash_offset)?;
        tree.check(&superblock.params)?;
        let data_blocks = args.data_blocks.unwrap_or(superblock.data_blocks);
        let block_size = superblock.params.data_block_size() as u64;
        let end = if same(&data, &hash) { args.hash_offset } else { length(&args.data, &data)? };
        if args.data_blocks.is_none() {
            if data_blocks < end / block_size {
                complain_of(
                    &args.data,
                    format_args!(
                        "only the first {data_blocks} of its {} blocks are verified: that number comes from the superblock, which \
                         nothing authenticates; give --data-blocks if you know it",
                        end / block_size
                    ),
                );
            } else if !tree.any() {
                complain_of(
                    &args.hash,
                    "the size and the parameters come from the superblock, which nothing authenticates; give --data-blocks if \
                     you know it",
                );
            }
        }
        Ok(Self { data, hash, hash_area, params: superblock.params, data_blocks })
    }

    /// For the library.
    pub(super) fn device(&self) -> Device<'_> {
        Device { data: &self.data, hash: &self.hash, hash_area: self.hash_area }
    }
}

/// What parity covers. On the hash device itself it covers what is before it, else all of that device.
pub(super) fn message<'a>(
    device: Device<'a>,
    params: &Params,
    data_blocks: u64,
    hash: (&Path, &File),
    fec: &FecArgs,
    parity: &File,
) -> Result<Message<'a>, Failure> {
    let block_size = params.data_block_size();
    if block_size != params.hash_block_size() {
        return Err(Failure::usage("parity needs data blocks and hash blocks of one size"));
    }
    let end = if same(hash.1, parity) { fec.fec_offset } else { length(hash.0, hash.1)? };
    let hash_size = end.checked_sub(device.hash_area).ok_or_else(|| {
        Failure::usage(format!("--fec-offset {} is before the hash area at {}", fec.fec_offset, device.hash_area))
    })?;
    let tree = Geometry::new(params, data_blocks).map_err(Failure::usage)?.hash_area_size();
    if hash_size < tree {
        let what = format!("parity covers the {tree} bytes of the tree, and only {hash_size} are before it or on HASH");
        return Err(Failure::usage(what));
    }
    Message::new(device, data_blocks, hash_size, block_size, fec.fec_roots).map_err(failure)
}

/// The failure that an error of the library is.
pub(super) fn failure(error: BlockVerityError) -> Failure {
    let outcome = match error {
        BlockVerityError::Read { .. } | BlockVerityError::Write(_) => Outcome::Environment,
        _ => Outcome::Usage,
    };
    Failure::new(outcome, error)
}
