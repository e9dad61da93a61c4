//! `postread luks`: what a LUKS header says, and whether a passphrase opens it.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use postread_dmcrypt::luks::{Limits, Luks, LuksError, UnlockError};
use serde::Serialize;

use crate::exit::{CommandResult, Failure, Outcome};
use crate::image::read_secret;
use crate::report::write_report;
use crate::text::{name_for_stderr, output_failed};

#[derive(Args, Debug)]
pub(crate) struct LuksCommand {
    #[command(subcommand)]
    command: LuksWhat,
}

#[derive(Subcommand, Debug)]
enum LuksWhat {
    /// Print a header: ciphers, keyslots with their costs, location of the data
    Dump(DumpArgs),
    /// Try a passphrase or a key file and name the keyslot that it opens
    Test(TestArgs),
}

#[derive(Args, Debug)]
struct DumpArgs {
    /// The device or image
    #[arg(value_name = "DEVICE")]
    device: PathBuf,
    /// Print a report in JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
struct TestArgs {
    /// The device or image
    #[arg(value_name = "DEVICE")]
    device: PathBuf,
    /// A file with the passphrase, without the line break at its end; - for standard input
    #[arg(long, value_name = "FILE", required_unless_present = "key_file", conflicts_with = "key_file")]
    passphrase_file: Option<PathBuf>,
    /// A key file, all of whose bytes count; - for standard input
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// Maximum memory for Argon2, in KiB
    #[arg(long, value_name = "KIB", default_value_t = Limits::default().argon2_memory_kib)]
    argon2_memory_limit: u32,
    /// Maximum of Argon2's passes times its memory, in KiB
    #[arg(long, value_name = "KIB", default_value_t = Limits::default().argon2_work_kib)]
    argon2_work_limit: u64,
    /// Maximum number of iterations of PBKDF2
    #[arg(long, value_name = "COUNT", default_value_t = Limits::default().pbkdf2_iterations)]
    pbkdf2_limit: u32,
}

#[derive(Serialize)]
struct Dump {
    luks: u32,
    uuid: String,
    cipher: String,
    sector_size: u32,
    data_offset: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    data_size: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    label: Option<String>,
    /// Where the header in use is, in bytes.
    header_offset: u64,
    keyslots: Vec<Keyslot>,
}

#[derive(Serialize)]
struct Keyslot {
    id: String,
    /// How a passphrase becomes its key; why it cannot be opened where it cannot.
    #[serde(skip_serializing_if = "Option::is_none")]
    kdf: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cipher: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key_bits: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unsupported: Option<String>,
}

fn open(path: &Path) -> Result<(File, Luks), Failure> {
    let about =
        |outcome, error: &dyn std::fmt::Display| Failure::new(outcome, format!("{}: {error}", name_for_stderr(path)));
    let file = File::open(path).map_err(|error| about(Outcome::Environment, &error))?;
    let luks = Luks::read(&file).map_err(|error| {
        let outcome = if matches!(error, LuksError::Io { .. }) { Outcome::Environment } else { Outcome::Usage };
        about(outcome, &error)
    })?;
    Ok((file, luks))
}

pub(crate) fn run(command: &LuksCommand) -> CommandResult {
    match &command.command {
        LuksWhat::Dump(args) => dump(args),
        LuksWhat::Test(args) => test(args),
    }
}

fn dump(args: &DumpArgs) -> CommandResult {
    let (_, luks) = open(&args.device)?;
    let data = luks.data();
    let slot = |id: String, kdf: String, cipher: String, bytes: u32| Keyslot {
        id,
        kdf: Some(kdf),
        cipher: Some(cipher),
        key_bits: Some(bytes * 8),
        unsupported: None,
    };
    let (keyslots, label, header_offset) = match &luks {
        Luks::V1(header) => {
            let kdf = |n: u32| format!("pbkdf2-{}, {n} iterations", header.hash);
            let slots = header.keyslots.iter();
            let slots = slots
                .map(|k| slot(k.number.to_string(), kdf(k.iterations), header.cipher.to_string(), header.key_bytes));
            (slots.collect::<Vec<_>>(), None, 0)
        }
        Luks::V2 { binary, offset, header, .. } => {
            let slots = header.keyslots.iter();
            let slots = slots.map(|k| slot(k.id.clone(), k.kdf.to_string(), k.cipher.to_string(), k.key_size));
            let others = header.other_keyslots.iter().map(|(id, why)| Keyslot {
                id: id.clone(),
                kdf: None,
                cipher: None,
                key_bits: None,
                unsupported: Some(why.clone()),
            });
            (slots.chain(others).collect(), Some(binary.label.clone()).filter(|l| !l.is_empty()), *offset)
        }
        _ => return Err(Failure::usage("this version of LUKS is not supported")),
    };
    let dump = Dump {
        luks: luks.version(),
        uuid: luks.uuid().to_owned(),
        cipher: luks.cipher().to_string(),
        sector_size: luks.sector_size(),
        data_offset: data.offset,
        data_size: data.size,
        label,
        header_offset,
        keyslots,
    };
    if args.json {
        write_report(io::stdout().lock(), "postread-luks-1", &dump).map_err(output_failed)?;
    } else {
        io::stdout().write_all(text(&dump).as_bytes()).map_err(output_failed)?;
    }
    Ok(Outcome::Good)
}

fn text(dump: &Dump) -> String {
    let mut out =
        format!("LUKS version {}\nUUID:        {}\n", dump.luks, crate::text::escape_controls(dump.uuid.as_bytes()));
    if let Some(label) = &dump.label {
        out += &format!("label:       {}\n", crate::text::escape_controls(label.as_bytes()));
    }
    if dump.header_offset != 0 {
        out += &format!("header:      the second one, at byte {}: the first is damaged or older\n", dump.header_offset);
    }
    let end = dump.data_size.map_or_else(|| "to the end".to_owned(), |size| format!("{size} bytes"));
    out += &format!("data:        from byte {}, {end}\n", dump.data_offset);
    out += &format!("cipher:      {}, sectors of {} bytes\n", dump.cipher, dump.sector_size);
    for k in &dump.keyslots {
        let what = match (&k.kdf, &k.cipher, k.key_bits, &k.unsupported) {
            (Some(kdf), Some(cipher), Some(bits), _) => format!("{kdf}; {cipher}; a key of {bits} bits"),
            (_, _, _, Some(why)) => format!("cannot be opened: {}", crate::text::escape_controls(why.as_bytes())),
            _ => String::new(),
        };
        out += &format!("keyslot {}:   {what}\n", crate::text::escape_controls(k.id.as_bytes()));
    }
    out
}

fn test(args: &TestArgs) -> CommandResult {
    postread_sys::hardening::set_not_dumpable().map_err(Failure::environment)?;
    let (file, luks) = open(&args.device)?;
    let name = name_for_stderr(&args.device);
    let passphrase = match (&args.passphrase_file, &args.key_file) {
        (Some(path), _) => {
            let mut passphrase = read_secret(path)?;
            if passphrase.last() == Some(&b'\n') {
                passphrase.pop();
            }
            passphrase
        }
        (None, Some(path)) => read_secret(path)?,
        (None, None) => return Err(Failure::usage("give --passphrase-file or --key-file")),
    };
    let mut limits = Limits::default();
    limits.argon2_memory_kib = args.argon2_memory_limit;
    limits.argon2_work_kib = args.argon2_work_limit;
    limits.pbkdf2_iterations = args.pbkdf2_limit;
    let unlocked = luks.unlock(&file, &passphrase, &limits).map_err(|error| {
        let outcome = match &error {
            UnlockError::WrongPassphrase { .. } => Outcome::Key,
            _ => Outcome::Usage,
        };
        let limit = match &error {
            UnlockError::NoKeyslot { .. } | UnlockError::Digest(_) if error.to_string().contains("the limit is") => {
                "; raise it with --argon2-memory-limit, --argon2-work-limit or --pbkdf2-limit"
            }
            _ => "",
        };
        Failure::new(outcome, format!("{name}: {error}{limit}"))
    })?;
    let out = format!("{name}: the passphrase opens keyslot {}\n", unlocked.keyslot);
    io::stdout().write_all(out.as_bytes()).map_err(output_failed)?;
    Ok(Outcome::Good)
}
