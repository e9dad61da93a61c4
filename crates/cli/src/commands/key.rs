//! `postread key id`: the names that a master key has.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::{Args, Subcommand};
use postread_fscrypt::{HwKdf, MasterKey};
use serde::Serialize;

use crate::exit::{CommandResult, Failure, Outcome};
use crate::image::{read_secret, secret_name};
use crate::report::write_report;
use crate::text::{name_for_stderr, output_failed};

#[derive(Args, Debug)]
pub(crate) struct KeyCommand {
    #[command(subcommand)]
    command: KeyWhat,
}

#[derive(Subcommand, Debug)]
enum KeyWhat {
    /// Print the identifier of a master key in v2 policies, and its conventional v1 descriptor
    Id(KeyIdArgs),
}

#[derive(Args, Debug)]
struct KeyIdArgs {
    /// The raw key; - for standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// It is the raw form of a hardware-wrapped key: the identifier that each known derivation gives
    #[arg(long)]
    hw_wrapped: bool,
    /// Print a report in JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct KeyNames {
    #[serde(skip_serializing_if = "Option::is_none")]
    derivation: Option<String>,
    identifier: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    descriptor: Option<String>,
}

pub(crate) fn run(command: &KeyCommand) -> CommandResult {
    let KeyWhat::Id(args) = &command.command;
    postread_sys::hardening::set_not_dumpable().map_err(Failure::environment)?;
    let secret = read_secret(&args.file)?;
    let bad =
        |error| Failure::usage(format!("{}: {error}", name_for_stderr(std::path::Path::new(secret_name(&args.file)))));
    let names = if args.hw_wrapped {
        let named = HwKdf::ALL.into_iter().map(|kdf| {
            let key = MasterKey::hardware_wrapped(&secret, kdf).map_err(bad)?;
            let derivation = Some(format!("{kdf:?}").to_lowercase());
            Ok(KeyNames { derivation, identifier: hex::encode(key.identifier().as_bytes()), descriptor: None })
        });
        named.collect::<Result<Vec<_>, Failure>>()?
    } else {
        let key = MasterKey::new(&secret).map_err(bad)?;
        let descriptor = Some(hex::encode(key.conventional_descriptor().as_bytes()));
        vec![KeyNames { derivation: None, identifier: hex::encode(key.identifier().as_bytes()), descriptor }]
    };
    let mut out = io::stdout().lock();
    if args.json {
        return write_report(out, "postread-key-1", &names).map(|()| Outcome::Good).map_err(output_failed);
    }
    for name in &names {
        let derivation = name.derivation.as_ref().map_or(String::new(), |kdf| format!(" ({kdf})"));
        writeln!(out, "identifier {}{derivation}", name.identifier).map_err(output_failed)?;
        if let Some(descriptor) = &name.descriptor {
            writeln!(out, "descriptor {descriptor}").map_err(output_failed)?;
        }
    }
    Ok(Outcome::Good)
}
