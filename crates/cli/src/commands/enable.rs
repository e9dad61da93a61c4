//! `postread enable`: fs-verity on a file, by the kernel, with errors that name the cause and what to do about it.

use std::path::PathBuf;

use clap::Args;
use postread::files::read_whole;
use postread_sys::filesystem::{FsKind, FsStat, of_file};
use postread_sys::fsverity::{self, Cause, Enable, Error};
use postread_verity::{MAX_SIGNATURE_SIZE, MerkleTreeParams, alg_number};

use crate::exit::{CommandResult, Failure, Outcome};
use crate::hash_options::HashOptions;
use crate::text::name_for_stderr;
use postread::open_regular;

#[derive(Args, Debug)]
pub(crate) struct EnableArgs {
    /// A file that no process has open for writing
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    hash: HashOptions,
    /// A built-in signature for the kernel to check and keep
    #[arg(long, value_name = "FILE")]
    signature: Option<PathBuf>,
}

pub(crate) fn run(args: &EnableArgs) -> CommandResult {
    let params = args.hash.params()?;
    let signature = match &args.signature {
        None => Vec::new(),
        Some(path) => read_whole(path, MAX_SIGNATURE_SIZE, "a signature")?,
    };
    let name = name_for_stderr(&args.file);
    let (file, _) =
        open_regular(&args.file).map_err(|error| Failure::new(Outcome::of_file(&error), format!("{name}: {error}")))?;
    let enable = Enable {
        hash_algorithm: u32::from(alg_number(params.alg()).unwrap_or(0)),
        block_size: params.block_size() as u32,
        salt: params.salt(),
        signature: &signature,
    };
    fsverity::enable(&file, &enable).map_err(|error| {
        let hint = hint(&error, of_file(&file).ok().as_ref(), Some(&params));
        Failure::new(outcome_of(&error), format!("{name}: {error}{hint}"))
    })?;
    Ok(Outcome::Good)
}

/// What a refusal means for the exit status.
pub(crate) fn outcome_of(error: &Error) -> Outcome {
    match error.cause {
        Cause::NotRegular | Cause::InvalidParameters | Cause::TooLarge | Cause::TooLong => Outcome::Usage,
        Cause::NotVerity => Outcome::Nothing,
        Cause::NoCertificate => Outcome::Key,
        Cause::SignatureRejected | Cause::Malformed => Outcome::Integrity,
        _ => Outcome::Environment,
    }
}

/// Whether the kernel's file system driver says what it can do, and fs-verity is not part of it.
fn kernel_lacks_verity(kind: FsKind) -> bool {
    let name = if kind == FsKind::Ext { "ext4" } else { "f2fs" };
    let features = std::path::Path::new("/sys/fs").join(name).join("features");
    features.is_dir() && !features.join("verity").exists()
}

/// What to do about a refusal, where that depends on the file system or on the parameters.
pub(crate) fn hint(error: &Error, fs: Option<&FsStat>, params: Option<&MerkleTreeParams>) -> String {
    match (error.cause, fs.map(|fs| fs.kind), params) {
        (Cause::NotSupported | Cause::FeatureOff, Some(kind @ (FsKind::Ext | FsKind::F2fs)), _)
            if kernel_lacks_verity(kind) =>
        {
            ": no feature of the file system would help, as this kernel is built without fs-verity (CONFIG_FS_VERITY)"
                .to_owned()
        }
        (Cause::NotSupported | Cause::FeatureOff, Some(FsKind::Ext), _) => {
            ": turn it on with `tune2fs -O verity DEVICE` \
            (read-only feature 0x8000; needs extents, and blocks no larger than a page)"
                .to_owned()
        }
        (Cause::NotSupported | Cause::FeatureOff, Some(FsKind::F2fs), _) => ": make the file system with \
            `mkfs.f2fs -O verity`, or turn it on with `fsck.f2fs -O verity DEVICE`"
            .to_owned(),
        (Cause::NotSupported | Cause::FeatureOff, Some(FsKind::Btrfs), _) => {
            ": btrfs has it since Linux 5.15, in kernels built with CONFIG_FS_VERITY".to_owned()
        }
        (Cause::NotSupported | Cause::FeatureOff, Some(kind), _) => {
            format!(": {kind} (ext4, f2fs and btrfs have fs-verity)")
        }
        (Cause::InvalidParameters, _, Some(params)) => {
            let page = rustix::param::page_size() as u32;
            let block = fs.map_or(page, |fs| u32::try_from(fs.block_size).unwrap_or(u32::MAX));
            params.kernel_refusal(page, block).map_or(String::new(), |why| format!(": {why}"))
        }
        _ => String::new(),
    }
}
