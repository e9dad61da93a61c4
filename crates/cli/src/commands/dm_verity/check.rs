//! `postread dm-verity verify` and `repair`.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use clap::Args;
use postread::block_verity::{
    Area, BadRun, Cause, Device, Fec, InPlaceError, RepairReport, Threads, repair, repair_in_place, verify,
};
use postread::files::{OutputFile, read_whole, refuse_overwriting};
use postread_verity::dm_verity::Verifier;
use serde::Serialize;

use super::files::Files;
use super::opened::{Opened, about, message, open, open_in_place, same};
use super::sign::{SignatureArgs, parse_root_hash};
use super::{DeviceArgs, FecArgs, TreeArgs};
use crate::exit::{CommandResult, Failure, Outcome};
use crate::report::write_report;
use crate::text::{complain_of, output_failed};

/// More than a root hash in hexadecimal has, in bytes.
const ROOT_HASH_MAX: usize = 256;

#[derive(Args, Debug)]
struct CheckArgs {
    #[command(flatten)]
    device: DeviceArgs,
    /// The root hash, in hexadecimal
    #[arg(value_name = "ROOT_HASH", required_unless_present = "root_hash_file", conflicts_with = "root_hash_file")]
    root_hash: Option<String>,
    /// A file with the root hash, in hexadecimal
    #[arg(long, value_name = "FILE")]
    root_hash_file: Option<PathBuf>,
    #[command(flatten)]
    tree: TreeArgs,
    #[command(flatten)]
    fec: FecArgs,
    #[command(flatten)]
    signature: SignatureArgs,
    /// Name the files that bad data blocks belong to, if DATA holds an ext4 file system
    #[arg(long)]
    files: bool,
    /// Print a report in JSON
    #[arg(long)]
    json: bool,
    /// Print nothing but errors
    #[arg(short, long, conflicts_with = "json")]
    quiet: bool,
}

#[derive(Args, Debug)]
pub(super) struct VerifyArgs {
    #[command(flatten)]
    check: CheckArgs,
}

#[derive(Args, Debug)]
pub(super) struct RepairArgs {
    #[command(flatten)]
    check: CheckArgs,
    /// Where the repaired copy of DATA goes; with the tree in the same file, that is repaired too
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Where the repaired copy of HASH goes
    #[arg(long, value_name = "FILE", requires = "output")]
    output_hash: Option<PathBuf>,
    /// Write the repaired blocks into DATA and HASH themselves; JOURNAL holds them until all are written, so that a run that
    /// is killed can be continued
    #[arg(long, value_name = "JOURNAL", conflicts_with = "output", required_unless_present = "output")]
    in_place: Option<PathBuf>,
    /// Another copy of DATA, damaged elsewhere
    #[arg(long, value_name = "FILE")]
    second_copy: Option<PathBuf>,
}

/// A run of bad blocks in a report.
#[derive(Serialize)]
struct Run {
    /// `"data"` or `"hash"`.
    area: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    level: Option<usize>,
    first: u64,
    count: u64,
    /// `"mismatch"`, `"unreadable"` or `"unverifiable"`.
    cause: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    wanted: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    found: Option<String>,
}

impl From<&BadRun> for Run {
    fn from(run: &BadRun) -> Self {
        let (area, level) = match run.area {
            Area::Hash { level } => ("hash", Some(level)),
            _ => ("data", None),
        };
        let (cause, wanted, found) = match run.cause {
            Cause::Mismatch { wanted, found } => ("mismatch", Some(wanted.to_hex()), Some(found.to_hex())),
            Cause::Unreadable { .. } => ("unreadable", None, None),
            _ => ("unverifiable", None, None),
        };
        Self { area, level, first: run.first, count: run.count, cause, wanted, found }
    }
}

#[derive(Serialize)]
struct Results {
    data_blocks: u64,
    /// True where all blocks are good.
    good: bool,
    bad: Vec<Run>,
    nonzero_spare: u64,
    /// How many blocks were repaired, or could be.
    #[serde(skip_serializing_if = "Option::is_none")]
    repaired: Option<u64>,
    /// What could not be repaired.
    #[serde(skip_serializing_if = "Option::is_none")]
    left: Option<Vec<Run>>,
    /// The files that bad data blocks belong to.
    #[serde(skip_serializing_if = "Option::is_none")]
    files: Option<Files>,
}

impl CheckArgs {
    fn root_hash(&self) -> Result<Vec<u8>, Failure> {
        let text = match (&self.root_hash, &self.root_hash_file) {
            (Some(text), _) => text.clone(),
            (None, Some(path)) => {
                let bytes = read_whole(path, ROOT_HASH_MAX, "a root hash")?;
                String::from_utf8_lossy(&bytes).trim().to_owned()
            }
            (None, None) => return Err(Failure::usage("give ROOT_HASH or --root-hash-file")),
        };
        let root_hash = parse_root_hash(&text)?;
        self.signature.check(&root_hash)?;
        Ok(root_hash)
    }

    fn open(&self) -> Result<(Opened, Verifier), Failure> {
        let opened = Opened::new(&self.device, &self.tree)?;
        let verifier = Verifier::new(&opened.params, opened.data_blocks, &self.root_hash()?);
        Ok((opened, verifier.map_err(Failure::usage)?))
    }

    /// Calls `with` with what can repair: parity, and another copy of the data.
    fn with_sources<R>(
        &self,
        opened: &Opened,
        copy: Option<&File>,
        with: impl FnOnce(Option<&Fec<'_>>, &[Device<'_>]) -> R,
    ) -> Result<R, Failure> {
        let device = opened.device();
        let parity = self.fec.fec_device.as_deref().map(open).transpose()?;
        let fec = parity
            .as_ref()
            .map(|parity| {
                let hash = (self.device.hash.as_path(), &opened.hash);
                let message = message(device, &opened.params, opened.data_blocks, hash, &self.fec, parity)?;
                Ok::<_, Failure>(Fec { message, parity, offset: self.fec.fec_offset })
            })
            .transpose()?;
        let copy = copy.map(|copy| {
            let hash: &File = if same(&opened.data, &opened.hash) { copy } else { &opened.hash };
            Device { data: copy, hash, hash_area: opened.hash_area }
        });
        Ok(with(fec.as_ref(), copy.as_slice()))
    }

    /// What can be repaired. Nothing is written.
    fn repair(&self, opened: &Opened, verifier: &Verifier, copy: Option<&File>) -> Result<RepairReport, Failure> {
        let device = opened.device();
        self.with_sources(opened, copy, |fec, copies| repair(&device, verifier, fec, copies, Threads::default()))
    }

    /// Writes repaired blocks into the devices themselves.
    fn in_place(
        &self,
        opened: &Opened,
        verifier: &Verifier,
        copy: Option<&File>,
        journal: &Path,
    ) -> Result<RepairReport, Failure> {
        let data = open_in_place(&self.device.data)?;
        let hash = match same(&opened.data, &opened.hash) {
            true => data.try_clone().map_err(Failure::environment)?,
            false => open_in_place(&self.device.hash)?,
        };
        let area = opened.hash_area;
        let report = self.with_sources(opened, copy, |fec, copies| {
            repair_in_place((&data, &hash), area, verifier, fec, copies, journal, Threads::default())
        })?;
        report.map_err(|error| {
            let outcome = match error {
                InPlaceError::NotAJournal | InPlaceError::OtherDevice => Outcome::Usage,
                _ => Outcome::Environment,
            };
            about(journal, outcome, error)
        })
    }

    /// Writes repaired copies.
    fn copies(
        &self,
        opened: &Opened,
        verifier: &Verifier,
        report: &RepairReport,
        (output, output_hash): (&Path, Option<&Path>),
    ) -> Result<(), Failure> {
        let shared = same(&opened.data, &opened.hash);
        let data_out = OutputFile::create(output)?;
        copy_all(&opened.data, &self.device.data, data_out.file(), output)?;
        let hash_out = output_hash.map(OutputFile::create).transpose()?;
        if let (Some(out), Some(path)) = (&hash_out, output_hash) {
            copy_all(&opened.hash, &self.device.hash, out.file(), path)?;
        }
        for block in &report.repaired {
            let params = &opened.params;
            match block.area {
                Area::Hash { level } => {
                    let in_level = block.index * params.hash_block_size() as u64;
                    let offset = opened.hash_area + verifier.geometry().level_offset(level) + in_level;
                    if let Some(out) = hash_out.as_ref().or(shared.then_some(&data_out)) {
                        write_at(out.file(), &block.bytes, offset, output)?;
                    }
                }
                _ => {
                    let offset = block.index * params.data_block_size() as u64;
                    write_at(data_out.file(), &block.bytes, offset, output)?;
                }
            }
        }
        data_out.commit()?;
        hash_out.map(OutputFile::commit).transpose()?;
        Ok(())
    }

    /// The files that bad data blocks belong to, if that was asked for.
    fn files(&self, opened: &Opened, bad: &[BadRun], left: Option<&[BadRun]>) -> Option<Files> {
        if !self.files || bad.is_empty() {
            return None;
        }
        match Files::find(&self.device.data, opened.params.data_block_size(), bad, left) {
            Ok(files) => Some(files),
            Err(error) => {
                complain_of(&self.device.data, format_args!("no file is named: {}", error.message()));
                None
            }
        }
    }

    fn print(&self, bad: &[BadRun], results: &Results) -> Result<(), Failure> {
        if self.json {
            return write_report(io::stdout().lock(), "postread-dm-verity-1", results).map_err(output_failed);
        }
        let mut out = io::stdout().lock();
        for run in bad {
            if !self.quiet {
                writeln!(out, "{}", run_text(run)).map_err(output_failed)?;
            }
        }
        match &results.files {
            Some(files) if !self.quiet => files.write(&mut out).map_err(output_failed),
            _ => Ok(()),
        }
    }
}

/// A run of bad blocks for people.
fn run_text(run: &BadRun) -> String {
    let blocks = match run.count {
        1 => format!("block {}", run.first),
        count => format!("blocks {} to {}", run.first, run.first + count - 1),
    };
    let what = match run.area {
        Area::Hash { level } => format!("hash {blocks} of level {level}"),
        _ => format!("data {blocks}"),
    };
    match run.cause {
        Cause::Mismatch { wanted, found } if run.count == 1 => {
            format!("{what}: CORRUPT, expected {}, found {}", wanted.to_hex(), found.to_hex())
        }
        Cause::Mismatch { .. } => format!("{what}: CORRUPT"),
        Cause::Unreadable { kind } => format!("{what}: cannot be read: {kind}"),
        _ => format!("{what}: cannot be verified, the hash block above is bad"),
    }
}

fn complain(path: &Path, bad: &[BadRun], spare: u64) {
    if spare > 0 {
        complain_of(
            path,
            format_args!(
                "{spare} hash blocks are not zero where no digest is; the kernel accepts that, veritysetup does not"
            ),
        );
    }
    if bad.first().is_some_and(|run| matches!(run.area, Area::Hash { .. }) && run.cause != Cause::Unverifiable)
        && bad.last().is_some_and(|run| run.area == Area::Data && run.first == 0 && run.cause == Cause::Unverifiable)
    {
        complain_of(path, "nothing can be verified: the root hash is of another device, or the top of the tree is bad");
    }
}

fn outcome(bad: &[BadRun]) -> Outcome {
    let corrupt = bad.iter().any(|run| !matches!(run.cause, Cause::Unreadable { .. }));
    match bad {
        [] => Outcome::Good,
        _ if corrupt => Outcome::Integrity,
        _ => Outcome::Environment,
    }
}

pub(super) fn run_verify(args: &VerifyArgs) -> CommandResult {
    let args = &args.check;
    let (opened, verifier) = args.open()?;
    let report = verify(&opened.device(), &verifier, Threads::default());
    let mut results = Results {
        data_blocks: opened.data_blocks,
        good: report.bad.is_empty(),
        bad: report.bad.iter().map(Run::from).collect(),
        nonzero_spare: report.nonzero_spare,
        repaired: None,
        left: None,
        files: None,
    };
    let mut summary = None;
    let mut left: Option<Vec<BadRun>> = None;
    if !report.bad.is_empty() && args.fec.fec_device.is_some() {
        let repaired = args.repair(&opened, &verifier, None)?;
        let count = repaired.repaired.len();
        results.repaired = Some(count as u64);
        results.left = Some(repaired.left.iter().map(Run::from).collect());
        summary = Some(match repaired.left.is_empty() {
            true => format!("all {count} bad blocks can be repaired from parity"),
            false => format!("{count} bad blocks can be repaired from parity, others cannot"),
        });
        left = Some(repaired.left);
    }
    results.files = args.files(&opened, &report.bad, left.as_deref());
    args.print(&report.bad, &results)?;
    complain(&args.device.hash, &report.bad, report.nonzero_spare);
    if let Some(summary) = summary {
        complain_of(&args.device.data, summary);
    }
    if report.bad.is_empty() && !args.quiet && !args.json {
        let out = format!("{} data blocks: verified against the root hash given\n", opened.data_blocks);
        io::stdout().write_all(out.as_bytes()).map_err(output_failed)?;
    }
    Ok(outcome(&report.bad))
}

pub(super) fn run_repair(args: &RepairArgs) -> CommandResult {
    let check = &args.check;
    if check.fec.fec_device.is_none() && args.second_copy.is_none() {
        return Err(Failure::usage("nothing to repair from: give --fec-device or --second-copy"));
    }
    let mut outputs: Vec<(&str, &Path)> = Vec::new();
    outputs.extend(args.output.as_deref().map(|path| ("--output", path)));
    outputs.extend(args.output_hash.as_deref().map(|path| ("--output-hash", path)));
    outputs.extend(args.in_place.as_deref().map(|path| ("--in-place", path)));
    let mut inputs = vec![("DATA", check.device.data.as_path()), ("HASH", &check.device.hash)];
    inputs.extend(check.fec.fec_device.as_deref().map(|path| ("--fec-device", path)));
    inputs.extend(args.second_copy.as_deref().map(|path| ("--second-copy", path)));
    refuse_overwriting(&outputs, &inputs)?;
    let (opened, verifier) = check.open()?;
    let copy = args.second_copy.as_deref().map(open).transpose()?;
    let shared = same(&opened.data, &opened.hash);
    let (report, hash_written) = match (&args.in_place, &args.output) {
        (Some(journal), _) => (check.in_place(&opened, &verifier, copy.as_ref(), journal)?, true),
        (None, Some(output)) => {
            let report = check.repair(&opened, &verifier, copy.as_ref())?;
            let to = (output.as_path(), args.output_hash.as_deref());
            check.copies(&opened, &verifier, &report, to)?;
            (report, shared || args.output_hash.is_some())
        }
        (None, None) => return Err(Failure::usage("where to? give --output or --in-place")),
    };
    let hash_blocks = report.repaired.iter().filter(|block| block.area != Area::Data).count();
    let results = Results {
        data_blocks: opened.data_blocks,
        good: report.left.is_empty(),
        bad: Vec::new(),
        nonzero_spare: 0,
        repaired: Some(report.repaired.len() as u64),
        left: Some(report.left.iter().map(Run::from).collect()),
        files: check.files(&opened, &report.left, None),
    };
    check.print(&report.left, &results)?;
    if hash_blocks > 0 && !hash_written {
        complain_of(
            &check.device.hash,
            format_args!("{hash_blocks} hash blocks were repaired too; --output-hash FILE writes them"),
        );
    }
    if !check.quiet && !check.json {
        let count = report.repaired.len();
        let out = format!("{count} block{} repaired\n", if count == 1 { "" } else { "s" });
        io::stdout().write_all(out.as_bytes()).map_err(output_failed)?;
    }
    Ok(outcome(&report.left))
}

/// Copies a device. Runs that cannot be read are left out: they are holes, or were repaired.
fn copy_all(from: &File, from_path: &Path, to: &File, to_path: &Path) -> Result<(), Failure> {
    let len = super::opened::length(from_path, from)?;
    let mut buf = vec![0; 1 << 20];
    let mut offset = 0;
    while offset < len {
        let now = buf.len().min(usize::try_from(len - offset).unwrap_or(usize::MAX));
        let chunk = &mut buf[..now];
        if from.read_exact_at(chunk, offset).is_err() {
            // Sector by sector: one that cannot be read costs no other.
            for (i, sector) in chunk.chunks_mut(512).enumerate() {
                if from.read_exact_at(sector, offset + 512 * i as u64).is_err() {
                    sector.fill(0);
                }
            }
        }
        write_at(to, chunk, offset, to_path)?;
        offset += now as u64;
    }
    Ok(())
}

fn write_at(file: &File, bytes: &[u8], offset: u64, path: &Path) -> Result<(), Failure> {
    file.write_all_at(bytes, offset).map_err(|error| about(path, Outcome::Environment, error))
}
