//! `postread sign`: a built-in signature of a file, as `fsverity sign` makes it.

use std::io::{self, IsTerminal, Write};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use clap::Args;
use postread::{DigestJob, Digester, FileError};
use postread_sys::hardening::{wipe_freed_memory, wipe_stack};
use postread_verity::MAX_SIGNATURE_SIZE;
use postread_verity::signature::{Certificate, KeyError, SigningKey, sign};
use zeroize::Zeroizing;

use crate::exit::{CommandResult, Failure, Outcome};
use crate::hash_options::HashOptions;
use crate::input_file::read_whole;
use crate::output_file::OutputFile;
use crate::output_paths::refuse_overwriting;
use crate::progress::Progress;
use crate::text::{escape_controls, name_for_stderr, output_failed};

/// More than the file of any key or certificate has, in bytes.
const KEY_MAX: usize = 1 << 20;

#[derive(Args, Debug)]
pub(crate) struct SignArgs {
    /// The file to sign
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Where the signature goes
    #[arg(value_name = "OUT_SIGFILE")]
    out: PathBuf,
    /// Private key, PEM or DER (RSA, or EC on P-256, P-384 or P-521), not encrypted
    #[arg(long, value_name = "KEYFILE")]
    key: PathBuf,
    /// Its certificate, PEM or DER [default: the one in KEYFILE]
    #[arg(long, value_name = "CERTFILE")]
    cert: Option<PathBuf>,
    #[command(flatten)]
    hash: HashOptions,
    /// Write the Merkle tree to FILE
    #[arg(long, value_name = "FILE")]
    out_merkle_tree: Option<PathBuf>,
    /// Write the descriptor to FILE
    #[arg(long, value_name = "FILE")]
    out_descriptor: Option<PathBuf>,
    /// Print nothing but errors
    #[arg(short, long)]
    quiet: bool,
}

/// A failure with the name of a file before it.
fn about(path: &Path, outcome: Outcome) -> impl Fn(&dyn std::fmt::Display) -> Failure + '_ {
    move |error| Failure::new(outcome, format!("{}: {error}", name_for_stderr(path)))
}

/// A file that holds no key that can be used is malformed input. One that wants its passphrase is a matter of the key.
fn outcome_of(error: &KeyError) -> Outcome {
    if matches!(error, KeyError::Encrypted) { Outcome::Key } else { Outcome::Usage }
}

pub(crate) fn run(args: &SignArgs) -> CommandResult {
    let params = args.hash.params()?;
    let mut outputs = vec![("OUT_SIGFILE", args.out.as_path())];
    outputs.extend(args.out_merkle_tree.as_deref().map(|path| ("--out-merkle-tree", path)));
    outputs.extend(args.out_descriptor.as_deref().map(|path| ("--out-descriptor", path)));
    let mut inputs = vec![("FILE", args.file.as_path()), ("--key", &args.key)];
    inputs.extend(args.cert.as_deref().map(|path| ("--cert", path)));
    refuse_overwriting(&outputs, &inputs)?;
    postread_sys::hardening::set_not_dumpable().map_err(Failure::environment)?;
    wipe_freed_memory();
    let key = Zeroizing::new(read_whole(&args.key, KEY_MAX, "a key's file")?);
    let key = SigningKey::from_bytes(&key).map_err(|error| about(&args.key, outcome_of(&error))(&error))?;
    let cert_file = args.cert.as_ref().unwrap_or(&args.key);
    let cert = read_whole(cert_file, KEY_MAX, "a certificate's file")?;
    let cert = Certificate::from_bytes(&cert).map_err(|error| about(cert_file, outcome_of(&error))(&error))?;

    let progress = Progress::new(args.quiet);
    let size = args.file.metadata().ok().map(|metadata| metadata.len());
    progress.set_total(size.unwrap_or(0));
    let tree_out = args.out_merkle_tree.as_deref().map(OutputFile::create).transpose()?;
    let mut descriptor_out = args.out_descriptor.as_deref().map(OutputFile::create).transpose()?;
    let mut signature_out = OutputFile::create(&args.out)?;
    let mut result = Err(FileError::Stopped);
    let job = DigestJob { path: args.file.clone(), params, tag: () };
    let digester = Digester::new().progress(&progress).tree_out(tree_out.as_ref().map(OutputFile::file));
    digester.run(std::iter::once(Ok(job)), |_, tree| {
        result = tree;
        ControlFlow::Continue(())
    });
    progress.finish();
    let descriptor = result.map_err(|error| about(&args.file, Outcome::of_file(&error))(&error))?.descriptor();
    if let Some(out) = &mut descriptor_out {
        out.write(&descriptor.to_bytes())?;
    }
    let digest = descriptor.file_digest();
    let signed = sign(&digest, &key, &cert);
    drop(key);
    wipe_stack();
    let signature = signed.map_err(|error| Failure::new(Outcome::Key, error))?;
    if signature.len() > MAX_SIGNATURE_SIZE {
        return Err(Failure::new(Outcome::Key, "the signature does not fit into a descriptor"));
    }
    signature_out.write(&signature)?;
    [tree_out, descriptor_out, Some(signature_out)].into_iter().flatten().try_for_each(OutputFile::commit)?;
    if !args.quiet {
        let mut out = io::stdout();
        let name = args.file.as_os_str().as_bytes();
        let name = if out.is_terminal() { escape_controls(name).into_bytes() } else { name.to_vec() };
        out.write_all(b"Signed file '")
            .and_then(|()| out.write_all(&name))
            .and_then(|()| writeln!(out, "' ({digest})"))
            .map_err(output_failed)?;
    }
    Ok(Outcome::Good)
}
