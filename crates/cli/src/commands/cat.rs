//! `postread cat`: prints the verified bytes of a plain file or of a file in an image, up to the first bad one.

use std::ffi::OsString;
use std::io::{self, Write};

use clap::Args;

use super::cat_image;
use super::verify_image::is_image_file;
use crate::exit::{CommandResult, Failure};
use crate::image::ImageArgs;
use crate::read_options::{ByteRange, ReadOptions, StatsReport, parse_range};
use crate::text::{name_for_stderr, output_failed_after};
use crate::verity_target::{VerityArgs, outcome_of};

#[derive(Args, Debug)]
pub(crate) struct CatArgs {
    #[command(flatten)]
    target: VerityArgs,
    /// A file in it, if it is an image or a block device
    #[arg(value_name = "PATH", help_heading = None)]
    path: Option<OsString>,
    #[command(flatten)]
    image: ImageArgs,
    /// Only these bytes; the end is exclusive, and either may be left out
    #[arg(long, help_heading = "Reading", value_name = "START..END", value_parser = parse_range)]
    range: Option<ByteRange>,
    #[command(flatten, next_help_heading = "Reading")]
    read: ReadOptions,
}

/// What is missing where the target is an image.
const NO_PATH: &str = "give the PATH of a file in the image, as `postread ls` lists them";

pub(crate) fn run(args: &CatArgs) -> CommandResult {
    let engine = args.read.engine()?;
    let (file, outcome, name) = match &args.path {
        Some(path) => {
            args.target.refuse_for_image()?;
            cat_image::open(&engine, &args.target.file, path, &args.image, args.target.digest)?
        }
        None if args.image.given() => return Err(Failure::usage(NO_PATH)),
        // Nothing says what to trust in a plain file: it is more likely an image.
        None if !args.target.is_plain()
            && args.target.digest.is_none()
            && is_image_file(&args.image, &args.target.file) =>
        {
            let name = name_for_stderr(&args.target.file);
            return Err(Failure::usage(format!("{name}: this is an image: {NO_PATH}")));
        }
        None => {
            let (file, outcome) = args.target.open(&engine)?;
            (file.file().clone(), outcome, name_for_stderr(&args.target.file))
        }
    };
    let range = ByteRange::within(args.range, file.len())?;
    let reader = file.reader();
    let mut out = io::stdout().lock();
    let mut at = range.start;
    let mut result = Ok(outcome);
    while at < range.end {
        let want = usize::try_from(range.end - at).unwrap_or(usize::MAX);
        match reader.lend(at, want) {
            Ok(None) => break,
            Ok(Some(lent)) => {
                out.write_all(&lent).map_err(|error| output_failed_after(outcome, error))?;
                at += lent.len() as u64;
            }
            Err(error) => {
                let message = format!("{name}: {error}");
                result = Err(Failure::new(outcome.worst(outcome_of(&error.status)), message));
                break;
            }
        }
    }
    if let Err(error) = out.flush() {
        let found = result.as_ref().map_or_else(|failure| failure.outcome, |outcome| *outcome);
        return Err(output_failed_after(found, error));
    }
    if args.read.stats {
        StatsReport::of(&engine).tell();
    }
    result
}
