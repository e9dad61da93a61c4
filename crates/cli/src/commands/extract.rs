//! `postread extract`: a tree out of an image, or its ciphertext, or a tree out of that.

use std::ffi::OsString;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use clap::Args;

use crate::exit::{CommandResult, Failure};
use crate::extract::{Counts, Extraction, LeftOut, Settings, ciphertext, from_image, restore};
use crate::image::{ImageArgs, bytes_of, load_trusted, resolve};
use crate::progress::Progress;
use crate::read_options::{ReadOptions, StatsReport, parse_jobs};
use crate::report::{ListReport, write_report};
use crate::text::{output_failed, output_failed_after};

#[derive(Args, Debug)]
pub(crate) struct ExtractArgs {
    /// The image or block device
    #[arg(value_name = "TARGET", required_unless_present = "from_ciphertext", conflicts_with = "from_ciphertext")]
    target: Option<PathBuf>,
    /// A directory in it, whose contents are extracted, or a file [default: the root directory]
    #[arg(value_name = "PATH")]
    path: Option<OsString>,
    /// The directory to extract into; it is made if it is not there
    #[arg(short = 'C', long = "directory", value_name = "DIR")]
    directory: PathBuf,
    #[command(flatten)]
    image: ImageArgs,
    /// Save encrypted files as they are, with what a key needs to restore them later
    #[arg(long, conflicts_with_all = ["from_ciphertext", "keep_going", "privileged", "digests", "jobs"])]
    ciphertext: bool,
    /// Restore what --ciphertext saved in SAVED
    #[arg(long, value_name = "SAVED", conflicts_with_all = ["part", "offset", "ignore_checksums", "digests", "require_digests", "passphrase_file"])]
    from_ciphertext: Option<PathBuf>,
    /// Trusted digests of files, as `fsverity digest` prints them, with their paths in the image
    #[arg(long, value_name = "LIST")]
    digests: Option<PathBuf>,
    /// A file with fs-verity that has no digest in the list fails
    #[arg(long, requires = "digests")]
    require_digests: bool,
    /// Keep the good parts of damaged files, with holes where bad blocks were
    #[arg(long)]
    keep_going: bool,
    /// Also set-id bits, device nodes, and extended attributes other than user.* and access control lists
    #[arg(long)]
    privileged: bool,
    /// Files written at once [default: the number of CPUs]
    #[arg(long, value_name = "N", value_parser = parse_jobs)]
    jobs: Option<usize>,
    #[command(flatten)]
    read: ReadOptions,
    /// Print a report in JSON
    #[arg(long)]
    json: bool,
    /// Print no summary and show no progress
    #[arg(short, long)]
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
    let settings = Settings {
        engine: &engine,
        progress: &progress,
        trusted: &trusted,
        privileged: args.privileged,
        keep_going: args.keep_going,
        list_given: args.digests.is_some(),
        require_digests: args.require_digests,
        threads: args.jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from)),
    };
    let (outcome, counts) = match (&image, &args.from_ciphertext) {
        (_, Some(saved)) => {
            let secrets = args.image.keys.load()?;
            let keys = secrets.keyring()?;
            let saved = restore::Saved::open(saved, &keys, args.keep_going)?;
            Extraction::open(&settings, None, &args.directory, report(args)?)?.run(|feed| saved.walk(feed))?
        }
        (Some(image), None) => {
            let found = resolve(image, path, args.image.follow())?;
            let extraction = Extraction::open(&settings, Some(image), &args.directory, report(args)?)?;
            extraction.run(|feed| from_image::walk(feed, image, found.inode, &found.path))?
        }
        (None, None) => return Err(Failure::usage("extract what? give a TARGET")),
    };
    progress.finish();
    if args.read.stats {
        StatsReport::of(&engine).tell();
    }
    if !args.json && !args.quiet {
        tell(&counts, args.digests.is_some()).map_err(|error| output_failed_after(outcome, error))?;
    }
    Ok(outcome)
}

fn report(args: &ExtractArgs) -> Result<Option<ListReport<Box<dyn Write + Send>>>, Failure> {
    let begin =
        || ListReport::begin(Box::new(BufWriter::new(io::stdout())) as Box<dyn Write + Send>, "postread-extract-1");
    args.json.then(begin).transpose().map_err(output_failed)
}

fn tell(counts: &Counts, list_given: bool) -> io::Result<()> {
    let Counts { files, bytes, already_there, directories, others, replaced, damaged, failed, left_out, .. } = counts;
    let Counts { verified, self_consistent, copied, .. } = counts;
    let mut out = io::stdout();
    write!(out, "extracted {files} files ({bytes} bytes), {directories} directories, {others} links and others")?;
    for (count, what) in [
        (already_there, "files were there already"),
        (replaced, "files that were there already had another digest and were replaced"),
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
            "{verified} files verified against given digests, {self_consistent} self-consistent only, {copied} merely copied"
        )?;
    }
    let LeftOut { devices, set_id, xattrs, flags } = left_out;
    let parts: Vec<String> = [
        (devices, "device nodes"),
        (set_id, "times set-id bits"),
        (xattrs, "privileged extended attributes"),
        (flags, "times the immutable or append-only flag"),
    ]
    .iter()
    .filter(|(count, _)| **count > 0)
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
    let (outcome, saved) = ciphertext::save(&image, &inode, &args.directory, progress)?;
    progress.finish();
    let mut out = io::stdout();
    if args.json {
        write_report(out, "postread-ciphertext-1", &saved).map_err(|error| output_failed_after(outcome, error))?;
    } else if !args.quiet {
        let ciphertext::Saved { files, bytes, directories, links, others, failed, not_encrypted, .. } = saved;
        let left = match not_encrypted {
            0 => String::new(),
            n => format!("; {n} files and links that are not encrypted were left out"),
        };
        let others = if others > 0 { format!(", {others} pipes, sockets and devices") } else { String::new() };
        let failed = if failed > 0 { format!("; {failed} failed") } else { String::new() };
        writeln!(
            out,
            "saved {files} files ({bytes} bytes), {directories} directories, {links} links{others}{left}{failed}"
        )
        .map_err(|error| output_failed_after(outcome, error))?;
    }
    Ok(outcome)
}
