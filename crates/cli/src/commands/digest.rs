//! `postread digest`: the output and the options of `fsverity digest`, and directories, lists, JSON, all CPUs.

use std::io::{self, IsTerminal, Write};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use clap::Args;
use postread::files::{FileNames, OutputFile, open_list, refuse_overwriting};
use postread::{DigestJob, Digester, FileError};
use postread_verity::{FileDigest, Tree, list};
use serde::Serialize;

use crate::exit::{CommandResult, Failure, Outcome};
use crate::hash_options::HashOptions;
use crate::progress::Progress;
use crate::report::{Name, Output};
use crate::text::{complain_of, escape_controls, output_failed};

/// A single file smaller than this, in bytes, is not worth a second thread.
const ONE_THREAD: u64 = 8 << 20;

#[derive(Args, Debug)]
pub(crate) struct DigestArgs {
    /// Files; with --recursive also directories
    #[arg(value_name = "PATH", required_unless_present = "from_list")]
    paths: Vec<PathBuf>,
    #[command(flatten)]
    hash: HashOptions,
    /// Digest all regular files below directories (links are not followed)
    #[arg(short, long)]
    recursive: bool,
    /// Read more names from FILE, one per line (- for standard input)
    #[arg(long, value_name = "FILE")]
    from_list: Option<PathBuf>,
    /// Print digests only
    #[arg(long, conflicts_with = "json")]
    compact: bool,
    /// Print the digest as a built-in signature covers it
    #[arg(long)]
    for_builtin_sig: bool,
    /// Write the Merkle tree to FILE (one PATH only)
    #[arg(long, value_name = "FILE")]
    out_merkle_tree: Option<PathBuf>,
    /// Write the descriptor to FILE (one PATH only)
    #[arg(long, value_name = "FILE")]
    out_descriptor: Option<PathBuf>,
    /// Print a report in JSON
    #[arg(long)]
    json: bool,
    /// Show no progress
    #[arg(short, long)]
    quiet: bool,
}

/// One result in the report.
#[derive(Serialize)]
struct DigestResult {
    #[serde(flatten)]
    name: Name,
    #[serde(flatten)]
    what: What,
}

#[derive(Serialize)]
#[serde(untagged)]
enum What {
    Digest {
        size: u64,
        algorithm: &'static str,
        block_size: usize,
        salt: String,
        digest: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        formatted_digest: Option<String>,
    },
    Error {
        error: String,
        exit_status: u8,
    },
}

pub(crate) fn run(args: &DigestArgs) -> CommandResult {
    let params = args.hash.params()?;
    let list =
        args.from_list.as_deref().map(|path| Ok::<_, Failure>((path.to_owned(), open_list(path)?))).transpose()?;
    let inputs = FileNames::new(args.paths.clone(), list, args.recursive);
    let only = inputs.single().map(Path::to_owned);
    if (args.out_merkle_tree.is_some() || args.out_descriptor.is_some()) && only.is_none() {
        return Err(Failure::usage("--out-merkle-tree and --out-descriptor take one file"));
    }
    if let Some(file) = &only {
        let outputs = [("--out-merkle-tree", &args.out_merkle_tree), ("--out-descriptor", &args.out_descriptor)];
        let outputs: Vec<_> = outputs.into_iter().filter_map(|(what, path)| Some((what, path.as_deref()?))).collect();
        refuse_overwriting(&outputs, &[("the input", file)])?;
    }
    let progress = Progress::new(args.quiet);
    let size = only.as_ref().and_then(|path| path.metadata().ok()).map(|metadata| metadata.len());
    progress.set_total(size.unwrap_or(0));
    let tree_out = args.out_merkle_tree.as_deref().map(OutputFile::create).transpose()?;
    let mut descriptor_out = args.out_descriptor.as_deref().map(OutputFile::create).transpose()?;
    let mut output = Output::begin(args.json, "postread-digest-1")?;
    let terminal = io::stdout().is_terminal();
    let mut outcome = Outcome::Good;
    let mut broken: Option<Failure> = None;
    let jobs = inputs.map(|input| {
        let job = |path| DigestJob { path, params, tag: () };
        input.map(job).map_err(|(path, error)| (job(path), error.into()))
    });
    let digester = Digester::new()
        .progress(&progress)
        .tree_out(tree_out.as_ref().map(OutputFile::file))
        .single_thread(size.is_some_and(|size| size < ONE_THREAD));
    digester.run(jobs, |job, result| {
        if let Err(error) = &result {
            outcome = outcome.worst(Outcome::of_file(error));
            complain_of(&job.path, error);
        }
        let written = match (&mut descriptor_out, &result) {
            (Some(out), Ok(tree)) => out.write(&tree.descriptor().to_bytes()),
            _ => Ok(()),
        };
        match report(args, &mut output, terminal, &job.path, &result).and(written.map_err(Failure::from)) {
            Ok(()) => ControlFlow::Continue(()),
            // Nobody reads on, or what is read is not whole: the rest is not worth the work.
            Err(failure) => {
                broken = Some(failure);
                ControlFlow::Break(())
            }
        }
    });
    progress.finish();
    let ended = broken.map_or_else(|| output.end().map_err(output_failed), Err);
    if let Err(failure) = ended {
        return Err(Failure { outcome: outcome.worst(failure.outcome), ..failure });
    }
    // They are of one file: without its digest they are worth nothing.
    if outcome == Outcome::Good {
        [tree_out, descriptor_out].into_iter().flatten().try_for_each(OutputFile::commit)?;
    }
    Ok(outcome)
}

fn report(
    args: &DigestArgs,
    output: &mut Output,
    terminal: bool,
    path: &Path,
    result: &Result<Tree, FileError>,
) -> Result<(), Failure> {
    match output {
        Output::Json(report) => {
            let what = match result {
                Ok(tree) => describe(args, tree),
                Err(error) => What::Error { error: error.to_string(), exit_status: Outcome::of_file(error).code() },
            };
            report.push(&DigestResult { name: Name::new(path), what }).map_err(output_failed)?;
        }
        Output::Lines(out) => {
            if let Ok(tree) = result {
                let line = line(args, &tree.descriptor().file_digest(), path, terminal);
                out.write_all(&line).map_err(output_failed)?;
            }
        }
    }
    Ok(())
}

fn describe(args: &DigestArgs, tree: &Tree) -> What {
    let digest = tree.descriptor().file_digest();
    What::Digest {
        size: tree.geometry.data_size(),
        algorithm: digest.alg().name(),
        block_size: tree.params.block_size(),
        salt: hex::encode(tree.params.salt()),
        digest: digest.to_hex(),
        formatted_digest: args.for_builtin_sig.then(|| hex::encode(digest.formatted())),
    }
}

fn line(args: &DigestArgs, digest: &FileDigest, path: &Path, terminal: bool) -> Vec<u8> {
    let name = path.as_os_str().as_bytes();
    let hex = if args.for_builtin_sig { hex::encode(digest.formatted()) } else { digest.to_hex() };
    if args.compact {
        return format!("{hex}\n").into_bytes();
    }
    let prefix = if args.for_builtin_sig { hex } else { digest.to_string() };
    if terminal {
        return format!("{prefix} {}\n", escape_controls(name)).into_bytes();
    }
    if !args.for_builtin_sig {
        return list::format_line(digest, name);
    }
    let (escaped, name) = list::escape_name(name);
    let mut line = if escaped { vec![b'\\'] } else { Vec::new() };
    line.extend_from_slice(prefix.as_bytes());
    line.push(b' ');
    line.extend_from_slice(&name);
    line.push(b'\n');
    line
}
