//! `postread cat`: a file's verified bytes, and none behind the first bad one.

use std::io::{self, Write};

use clap::Args;

use crate::exit::{CommandResult, Failure};
use crate::read_options::{ByteRange, ReadOptions, StatsReport, parse_range};
use crate::text::{name_for_stderr, output_failed};
use crate::verity_target::{VerityArgs, outcome_of};

#[derive(Args, Debug)]
pub(crate) struct CatArgs {
    #[command(flatten)]
    target: VerityArgs,
    /// Only these bytes; the end is exclusive, and either may be left out
    #[arg(long, value_name = "START..END", value_parser = parse_range)]
    range: Option<ByteRange>,
    #[command(flatten)]
    read: ReadOptions,
}

pub(crate) fn run(args: &CatArgs) -> CommandResult {
    let engine = args.read.engine()?;
    let target = args.target.open(&engine)?;
    let range = ByteRange::within(args.range, target.file.len());
    let reader = target.file.reader();
    let mut out = io::stdout().lock();
    let mut at = range.start;
    let mut result = Ok(target.outcome);
    while at < range.end {
        let want = usize::try_from(range.end - at).unwrap_or(usize::MAX);
        match reader.lend(at, want) {
            Ok(None) => break,
            Ok(Some(lent)) => {
                out.write_all(&lent).map_err(output_failed)?;
                at += lent.len() as u64;
            }
            Err(error) => {
                let message = format!("{}: {error}", name_for_stderr(&args.target.file));
                result = Err(Failure::new(target.outcome.worst(outcome_of(&error.status)), message));
                break;
            }
        }
    }
    out.flush().map_err(output_failed)?;
    if args.read.stats {
        StatsReport::of(&engine).tell();
    }
    result
}
