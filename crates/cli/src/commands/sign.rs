//! `postread sign`: a built-in signature of a file, as `fsverity sign` makes it.

use std::io::{self, IsTerminal, Write};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use clap::Args;
use postread::files::{OutputFile, refuse_overwriting};
use postread::{DigestJob, Digester, FileError};
use postread_sys::hardening::{wipe_freed_memory, wipe_stack};
use postread_verity::MAX_SIGNATURE_SIZE;
use postread_verity::signature::sign;

use super::sign_key::{self, KeyArgs, about};
use crate::exit::{CommandResult, Failure, Outcome};
use crate::hash_options::HashOptions;
use crate::progress::Progress;
use crate::text::{escape_controls, output_failed};

#[derive(Args, Debug)]
pub(crate) struct SignArgs {
    /// The file to sign
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Where the signature goes
    #[arg(value_name = "OUT_SIGFILE")]
    out: PathBuf,
    #[command(flatten)]
    key: KeyArgs,
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

pub(crate) fn run(args: &SignArgs) -> CommandResult {
    let params = args.hash.params()?;
    let mut outputs = vec![("OUT_SIGFILE", args.out.as_path())];
    outputs.extend(args.out_merkle_tree.as_deref().map(|path| ("--out-merkle-tree", path)));
    outputs.extend(args.out_descriptor.as_deref().map(|path| ("--out-descriptor", path)));
    let mut inputs = vec![("FILE", args.file.as_path())];
    inputs.extend(args.key.inputs());
    refuse_overwriting(&outputs, &inputs)?;
    postread_sys::hardening::set_not_dumpable().map_err(Failure::environment)?;
    wipe_freed_memory();
    let (key, cert) = args.key.load()?;

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
    let signed = sign(&digest, &*key, &cert);
    drop(key);
    wipe_stack();
    let signature = signed.map_err(sign_key::failed)?;
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
