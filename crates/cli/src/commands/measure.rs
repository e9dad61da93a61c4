//! `postread measure`: the digest that the kernel enforces for a file.

use std::io::{self, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use clap::Args;
use postread_sys::filesystem::of_file;
use postread_sys::fsverity;
use postread_verity::{Digest, FileDigest, alg_from_number, list};
use serde::Serialize;

use super::enable::{hint, outcome_of};
use crate::exit::{CommandResult, Outcome};
use crate::report::{ListReport, Name};
use crate::text::{complain_of, escape_controls, output_failed};
use postread::open_regular;

#[derive(Args, Debug)]
pub(crate) struct MeasureArgs {
    /// Files on a file system with fs-verity
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Print a report in JSON
    #[arg(long)]
    json: bool,
}

/// One result in the report.
#[derive(Serialize)]
struct MeasureResult {
    #[serde(flatten)]
    name: Name,
    #[serde(flatten)]
    what: What,
}

#[derive(Serialize)]
#[serde(untagged)]
enum What {
    Digest { digest: String },
    Error { error: String, exit_status: u8 },
}

pub(crate) fn run(args: &MeasureArgs) -> CommandResult {
    let mut outcome = Outcome::Good;
    let mut out = io::stdout();
    let terminal = out.is_terminal();
    let mut report = match args.json {
        true => Some(ListReport::begin(io::stdout(), "postread-measure-1").map_err(output_failed)?),
        false => None,
    };
    for path in &args.files {
        let result = measure(path);
        if let Some(report) = &mut report {
            let what = match &result {
                Ok(digest) => What::Digest { digest: digest.to_string() },
                Err((what, error)) => What::Error { error: error.clone(), exit_status: what.code() },
            };
            report.push(&MeasureResult { name: Name::new(path), what }).map_err(output_failed)?;
        }
        match result {
            Ok(_) if report.is_some() => {}
            Ok(digest) if terminal => {
                writeln!(out, "{digest} {}", escape_controls(path.as_os_str().as_bytes())).map_err(output_failed)?;
            }
            Ok(digest) => {
                out.write_all(&list::format_line(&digest, path.as_os_str().as_bytes())).map_err(output_failed)?;
            }
            Err((what, message)) => {
                outcome = outcome.worst(what);
                complain_of(path, message);
            }
        }
    }
    if let Some(report) = report {
        report.end().map_err(output_failed)?;
    }
    Ok(outcome)
}

fn measure(path: &Path) -> Result<FileDigest, (Outcome, String)> {
    let (file, _) = open_regular(path).map_err(|error| (Outcome::of_file(&error), error.to_string()))?;
    let measured = fsverity::measure(&file).map_err(|error| {
        let kind = of_file(&file).ok();
        (outcome_of(&error), format!("{error}{}", hint(&error, kind.as_ref(), None)))
    })?;
    let unknown = || (Outcome::Environment, format!("the kernel gave hash algorithm {}", measured.hash_algorithm));
    let alg = alg_from_number(u64::from(measured.hash_algorithm)).ok_or_else(unknown)?;
    Digest::new(alg, &measured.digest).and_then(FileDigest::new).ok_or_else(unknown)
}
