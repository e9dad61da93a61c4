//! `postread dm-verity sign`, and the signatures of root hashes that `verify` and `repair` check.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use postread::files::{OutputFile, read_whole, refuse_overwriting};
use postread_sys::hardening::{set_not_dumpable, wipe_freed_memory, wipe_stack};
use postread_verity::MAX_SIGNATURE_SIZE;
use postread_verity::signature::{Certificate, SignatureError, sign_root_hash, verify_root_hash};

use super::opened::about;
use crate::commands::sign_key::{self, KeyArgs, read_certificate};
use crate::exit::{CommandResult, Failure, Outcome};
use crate::text::{escape_controls, output_failed};

#[derive(Args, Debug)]
pub(super) struct SignArgs {
    /// The root hash, in hexadecimal
    #[arg(value_name = "ROOT_HASH")]
    root_hash: String,
    /// Where the signature goes
    #[arg(value_name = "OUT_SIGFILE")]
    out: PathBuf,
    #[command(flatten)]
    key: KeyArgs,
    /// Print nothing but errors
    #[arg(short, long)]
    quiet: bool,
}

/// The signature that a root hash must have.
#[derive(Args, Debug)]
pub(super) struct SignatureArgs {
    /// A signature of the root hash, as veritysetup and the kernel take it: it must be good
    #[arg(long, value_name = "SIGFILE", requires = "cert")]
    root_hash_signature: Option<PathBuf>,
    /// A certificate that is trusted to sign root hashes, PEM or DER (repeatable)
    #[arg(long, value_name = "CERTFILE", requires = "root_hash_signature")]
    cert: Vec<PathBuf>,
}

pub(super) fn parse_root_hash(text: &str) -> Result<Vec<u8>, Failure> {
    hex::decode(text).map_err(|error| Failure::usage(format!("the root hash is not hexadecimal: {error}")))
}

impl SignatureArgs {
    /// Checks the signature of a root hash, if one was given.
    pub(super) fn check(&self, root_hash: &[u8]) -> Result<(), Failure> {
        let Some(path) = &self.root_hash_signature else { return Ok(()) };
        let signature = read_whole(path, MAX_SIGNATURE_SIZE, "a signature")?;
        let certificates =
            self.cert.iter().map(|path| read_certificate(path)).collect::<Result<Vec<Certificate>, Failure>>()?;
        match verify_root_hash(&signature, root_hash, &certificates) {
            Ok(_) => Ok(()),
            Err(error) => {
                let outcome = match error {
                    SignatureError::Rejected { .. } => Outcome::Integrity,
                    SignatureError::NoCertificate { .. } => Outcome::Key,
                    _ => Outcome::Usage,
                };
                Err(about(path, outcome, error))
            }
        }
    }
}

pub(super) fn run(args: &SignArgs) -> CommandResult {
    let root_hash = parse_root_hash(&args.root_hash)?;
    if root_hash.is_empty() || root_hash.len() > 64 {
        return Err(Failure::usage(format!("expected a root hash of at most 64 bytes, found {}", root_hash.len())));
    }
    refuse_overwriting(&[("OUT_SIGFILE", args.out.as_path())], &args.key.inputs())?;
    set_not_dumpable().map_err(Failure::environment)?;
    wipe_freed_memory();
    let (key, cert) = args.key.load()?;
    let mut out = OutputFile::create(&args.out)?;
    let signed = sign_root_hash(&root_hash, &*key, &cert);
    drop(key);
    wipe_stack();
    out.write(&signed.map_err(sign_key::failed)?)?;
    out.commit()?;
    if !args.quiet {
        let subject = escape_controls(cert.subject().as_bytes());
        writeln!(io::stdout(), "signed root hash {} as {subject}", hex::encode(&root_hash)).map_err(output_failed)?;
    }
    Ok(Outcome::Good)
}
