//! `postread extract`: a tree from an image, its ciphertext, or a tree from saved ciphertext.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use postread_extract::{Counts, Extraction, Options};
use postread_saved::{RestoreOptions, Saved, SavedCounts};
use postread_sys::open_files;

use super::extract_report::{Reporter, SavedSummary};
use crate::exit::{CommandResult, Failure};
use crate::image::{ImageArgs, bytes_of, load_trusted, resolve};
use crate::progress::Progress;
use crate::read_options::{ReadOptions, StatsReport, parse_jobs};
use crate::report::write_report;
use crate::text::output_failed_after;

#[derive(Args, Debug)]
pub(crate) struct ExtractArgs {
    /// The image or block device
    #[arg(value_name = "TARGET", required_unless_present = "from_ciphertext", conflicts_with = "from_ciphertext")]
    target: Option<PathBuf>,
    /// A directory in it, whose contents are extracted, or a file [default: the root directory]
    #[arg(value_name = "PATH")]
    path: Option<OsString>,
    /// The directory to extract into; it is created if it does not exist
    #[arg(short = 'C', long = "directory", value_name = "DIR")]
    directory: PathBuf,
    #[command(flatten)]
    image: ImageArgs,
    /// Save encrypted files as they are, with what a key needs to restore them later
    #[arg(long, help_heading = "Saved ciphertext", conflicts_with_all = ["from_ciphertext", "keep_going", "privileged", "digests", "jobs"])]
    ciphertext: bool,
    /// Restore what --ciphertext saved in SAVED
    #[arg(long, value_name = "SAVED", help_heading = "Saved ciphertext", conflicts_with_all = ["part", "offset", "ignore_checksums", "ignore_journal", "journal", "superblock", "digests", "require_digests", "passphrase_file"])]
    from_ciphertext: Option<PathBuf>,
    /// Trusted digests of files, as `fsverity digest` prints them, with their paths in the image
    #[arg(long, value_name = "LIST", help_heading = "Trust")]
    digests: Option<PathBuf>,
    /// Fail each file with fs-verity that has no digest in the list
    #[arg(long, help_heading = "Trust", requires = "digests")]
    require_digests: bool,
    /// Keep the good parts of damaged files, with holes where bad blocks were
    #[arg(long, help_heading = "Extraction")]
    keep_going: bool,
    /// Extract also set-id bits, device nodes, and extended attributes other than user.* and access control lists
    #[arg(long, help_heading = "Extraction")]
    privileged: bool,
    /// Write this many files at once [default: the number of CPUs]
    #[arg(long, value_name = "N", help_heading = "Extraction", value_parser = parse_jobs)]
    jobs: Option<usize>,
    #[command(flatten, next_help_heading = "Reading")]
    read: ReadOptions,
    /// Print a report in JSON
    #[arg(long, help_heading = "Output")]
    json: bool,
    /// Print no summary and show no progress
    #[arg(short, long, help_heading = "Output")]
    quiet: bool,
}

pub(crate) fn run(args: &ExtractArgs) -> CommandResult {
    let progress = Progress::new(args.quiet);
    let path = args.path.as_deref().map_or(&[][..], bytes_of);
    if args.ciphertext {
        return save(args, path, &progress);
    }
    let engine = args.read.engine()?;
    let mut trusted = load_trusted(args.digests.as_deref())?;
    let image = match (&args.target, &args.from_ciphertext) {
        (Some(target), None) => Some(args.image.open(target, true)?),
        _ => None,
    };
    if let Some(image) = &image {
        trusted.follow_links(image);
    }
    let reporter = Reporter::new(&progress);
    let mut options = Options::new(&engine, &reporter);
    options.trusted = args.digests.is_some().then_some(&trusted);
    options.require_digests = args.require_digests;
    options.privileged = args.privileged;
    options.keep_going = args.keep_going;
    options.threads = args.jobs.unwrap_or(options.threads);
    options.open_files = open_files::raise_limit();
    let open = || Extraction::open(&args.directory, options).map_err(Failure::from);
    let counts = match (&image, &args.from_ciphertext) {
        (_, Some(saved)) => {
            let secrets = args.image.keys.load()?;
            let keys = secrets.keyring()?;
            let mut how = RestoreOptions::new();
            how.keep_going = args.keep_going;
            let saved = Saved::open(saved, &keys, how)?;
            let extraction = open()?;
            reporter.begin(args.json)?;
            saved.restore(extraction, &reporter)?
        }
        (Some(image), None) => {
            let found = resolve(image, path, args.image.follow())?;
            let extraction = open()?;
            reporter.begin(args.json)?;
            extraction.image(image, found.inode, &found.path)
        }
        (None, None) => return Err(Failure::usage("extract what? give a TARGET")),
    };
    let outcome = reporter.end(&counts)?;
    progress.finish();
    if args.read.stats {
        StatsReport::of(&engine).tell();
    }
    if !args.json && !args.quiet {
        print(&counts, args.digests.is_some()).map_err(|error| output_failed_after(outcome, error))?;
    }
    Ok(outcome)
}

fn print(counts: &Counts, list_given: bool) -> io::Result<()> {
    let Counts { files, bytes, already_there, directories, others, replaced, damaged, failed, left_out, .. } = counts;
    let Counts { verified, self_consistent, copied, .. } = counts;
    let mut out = io::stdout();
    write!(out, "extracted {files} files ({bytes} bytes), {directories} directories, {others} links and others")?;
    for (count, what) in [
        (already_there, "files were there already"),
        (replaced, "existing files had another digest and were replaced"),
        (damaged, "files have holes where blocks were bad"),
        (failed, "failed"),
    ] {
        if *count > 0 {
            write!(out, "; {count} {what}")?;
        }
    }
    writeln!(out)?;
    if list_given || *self_consistent > 0 {
        writeln!(
            out,
            "{verified} files verified against given digests, {self_consistent} only self-consistent, {copied} copied unverified"
        )?;
    }
    let parts: Vec<String> = [
        (left_out.devices, "device nodes"),
        (left_out.set_id, "times set-id bits"),
        (left_out.xattrs, "privileged extended attributes"),
        (left_out.flags, "times the immutable or append-only flag"),
    ]
    .iter()
    .filter(|(count, _)| *count > 0)
    .map(|(count, what)| format!("{count} {what}"))
    .collect();
    if !parts.is_empty() {
        writeln!(out, "left out by design: {}", parts.join(", "))?;
    }
    Ok(())
}

fn save(args: &ExtractArgs, path: &[u8], progress: &Progress) -> CommandResult {
    let target = args.target.as_deref().ok_or_else(|| Failure::usage("extract what? give a TARGET"))?;
    let image = args.image.open(target, false)?;
    let inode = resolve(&image, path, args.image.follow())?.inode;
    if !inode.is_dir() {
        return Err(Failure::usage("--ciphertext takes a directory"));
    }
    let reporter = Reporter::new(progress);
    let saved = postread_saved::save(&image, &inode, &args.directory, &reporter)?;
    let outcome = reporter.outcome();
    progress.finish();
    if args.json {
        write_report(io::stdout(), "postread-ciphertext-1", &SavedSummary::new(&saved, outcome))
            .map_err(|error| output_failed_after(outcome, error))?;
    } else if !args.quiet {
        print_saved(&saved).map_err(|error| output_failed_after(outcome, error))?;
    }
    Ok(outcome)
}

fn print_saved(saved: &SavedCounts) -> io::Result<()> {
    let SavedCounts { files, bytes, directories, links, others, failed, not_encrypted, .. } = saved;
    let left = match not_encrypted {
        0 => String::new(),
        n => format!("; {n} files and links that are not encrypted were left out"),
    };
    let others = if *others > 0 { format!(", {others} pipes, sockets and devices") } else { String::new() };
    let failed = if *failed > 0 { format!("; {failed} failed") } else { String::new() };
    writeln!(
        io::stdout(),
        "saved {files} files ({bytes} bytes), {directories} directories, {links} links{others}{left}{failed}"
    )
}
