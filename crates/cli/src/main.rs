//! The `postread` program: reads, checks and measures what Linux protects with fs-verity and fscrypt.

mod commands;
mod exit;
mod hash_options;
mod image;
mod progress;
mod read_options;
mod report;
mod text;
mod verity_target;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use postread_sys::hardening::WipingAllocator;

use crate::exit::Failure;

// Commands that use a private key have it wipe what they free.
#[global_allocator]
static ALLOCATOR: WipingAllocator = WipingAllocator;

#[derive(Parser, Debug)]
#[command(name = "postread", version, arg_required_else_help = true)]
#[command(about = "Read, decrypt and verify what Linux protects with fs-verity, fscrypt, dm-verity and dm-crypt")]
#[command(
    after_help = "Exit status: 0 success; 1 integrity failure; 2 usage error or malformed input; 3 key missing or wrong; \
4 environment error (I/O, permission); 5 nothing to verify."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

// One module per command, in `commands/`.
#[derive(Subcommand, Debug)]
enum Command {
    /// Compute fs-verity file digests
    Digest(commands::digest::DigestArgs),
    /// Verify a file or an image and report every bad block
    Verify(Box<commands::verify::VerifyArgs>),
    /// Print the verified bytes of a file
    Cat(Box<commands::cat::CatArgs>),
    /// Compare files with a list of fs-verity digests
    Check(commands::check::CheckArgs),
    /// Show what protects an image: layers, policies, the keys needed, digests
    Inspect(Box<commands::inspect::InspectArgs>),
    /// List directories of an image
    Ls(Box<commands::ls::LsArgs>),
    /// Extract files of an image, decrypted and verified, or their ciphertext
    Extract(Box<commands::extract::ExtractArgs>),
    /// Serve a device, opened and verified, as a network block device (NBD)
    Serve(Box<commands::serve::ServeArgs>),
    /// Print the identifiers of master keys
    Key(commands::key::KeyCommand),
    /// Sign a file's fs-verity digest
    Sign(commands::sign::SignArgs),
    /// Print the fs-verity digest that the kernel enforces for a file
    Measure(commands::measure::MeasureArgs),
    /// Enable fs-verity on a file
    Enable(commands::enable::EnableArgs),
    /// Measure the queue policies on a file, and show what `auto` chooses and why
    Tune(commands::tune::TuneArgs),
    /// Create, verify and repair hash trees of whole devices
    DmVerity(commands::dm_verity::DmVerityCommand),
    /// Print a LUKS header, or test a passphrase
    Luks(commands::luks::LuksCommand),
    /// Repeat the kernel patches' measurements on this machine
    Lab(commands::lab::LabArgs),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Digest(args) => commands::digest::run(&args),
        Command::Verify(args) => commands::verify::run(&args),
        Command::Cat(args) => commands::cat::run(&args),
        Command::Check(args) => commands::check::run(&args),
        Command::Inspect(args) => commands::inspect::run(&args),
        Command::Ls(args) => commands::ls::run(&args),
        Command::Extract(args) => commands::extract::run(&args),
        Command::Serve(args) => commands::serve::run(&args),
        Command::Key(command) => commands::key::run(&command),
        Command::Sign(args) => commands::sign::run(&args),
        Command::Measure(args) => commands::measure::run(&args),
        Command::Enable(args) => commands::enable::run(&args),
        Command::Tune(args) => commands::tune::run(&args),
        Command::DmVerity(command) => commands::dm_verity::run(&command),
        Command::Luks(command) => commands::luks::run(&command),
        Command::Lab(args) => commands::lab::run(&args),
    };
    match result {
        Ok(outcome) => outcome.into(),
        Err(Failure { outcome, message }) => {
            if !message.is_empty() {
                text::complain(message);
            }
            outcome.into()
        }
    }
}
