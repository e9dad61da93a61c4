//! `postread dm-verity`: hash trees over whole devices.

mod check;
mod files;
mod format;
mod opened;
mod sign;

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::exit::CommandResult;

#[derive(Args, Debug)]
pub(crate) struct DmVerityCommand {
    #[command(subcommand)]
    command: DmVerityWhat,
}

#[derive(Subcommand, Debug)]
enum DmVerityWhat {
    /// Write the hash tree of a device, and its superblock and parity
    Format(Box<format::FormatArgs>),
    /// Check every block of a device against its root hash and list all bad ranges
    Verify(Box<check::VerifyArgs>),
    /// Copy a device with its bad blocks repaired from parity or from a second copy
    Repair(Box<check::RepairArgs>),
    /// Sign a root hash, for veritysetup's --root-hash-signature and the kernel
    Sign(Box<sign::SignArgs>),
    /// Print the superblock of a hash device
    Dump(format::DumpArgs),
}

pub(crate) fn run(command: &DmVerityCommand) -> CommandResult {
    match &command.command {
        DmVerityWhat::Format(args) => format::run(args),
        DmVerityWhat::Verify(args) => check::run_verify(args),
        DmVerityWhat::Repair(args) => check::run_repair(args),
        DmVerityWhat::Sign(args) => sign::run(args),
        DmVerityWhat::Dump(args) => format::run_dump(args),
    }
}

/// The devices of a tree.
#[derive(Args, Debug)]
struct DeviceArgs {
    /// The device with the data
    #[arg(value_name = "DATA")]
    data: PathBuf,
    /// The device with the hash tree; it may be DATA itself, see --hash-offset
    #[arg(id = "hash_device", value_name = "HASH")]
    hash: PathBuf,
    /// Byte on HASH at which the superblock begins, or the tree if there is no superblock
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    hash_offset: u64,
    /// HASH has no superblock: take its fields from the options
    #[arg(long)]
    no_superblock: bool,
    /// Number of data blocks. By default verify and repair take it from the superblock, which is not authenticated
    #[arg(long, value_name = "BLOCKS")]
    data_blocks: Option<u64>,
}

/// What a tree is made with.
#[derive(Args, Debug)]
struct TreeArgs {
    /// Hash algorithm: sha256, sha512, sha1 or blake2b-256 [default: sha256]
    #[arg(long, value_name = "ALG")]
    hash: Option<postread_verity::HashAlg>,
    /// Format of the tree: 1 normal, 0 Chromium OS [default: 1]
    #[arg(long, value_name = "NUMBER")]
    format: Option<u32>,
    /// Size of a data block in bytes [default: 4096]
    #[arg(long, value_name = "BYTES")]
    data_block_size: Option<u32>,
    /// Size of a hash block in bytes [default: 4096]
    #[arg(long, value_name = "BYTES")]
    hash_block_size: Option<u32>,
    /// The salt in hexadecimal, or - for none [default for format: 32 random bytes]
    #[arg(long, value_name = "HEX")]
    salt: Option<String>,
}

/// Where parity is.
#[derive(Args, Debug)]
struct FecArgs {
    /// The device with parity (FEC data); it may be HASH itself, see --fec-offset
    #[arg(long, value_name = "FILE")]
    fec_device: Option<PathBuf>,
    /// Byte at which parity begins on it
    #[arg(long, value_name = "BYTES", default_value_t = 0, requires = "fec_device")]
    fec_offset: u64,
    /// Number of parity bytes per 255-byte codeword, 2 to 24
    #[arg(long, value_name = "COUNT", default_value_t = 2, requires = "fec_device")]
    fec_roots: u32,
}
