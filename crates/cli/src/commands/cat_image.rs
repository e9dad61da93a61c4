//! `postread cat TARGET PATH`: a file's bytes out of an image, verified where it has fs-verity.

use std::ffi::OsStr;
use std::path::Path;

use postread::{Engine, OpenFile};
use postread_verity::FileDigest;

use crate::exit::{Failure, Outcome};
use crate::image::{ImageArgs, bytes_of, outcome_of, resolve};
use crate::text::bytes_for_stderr;

/// Opens a file of an image. Returns the name that messages call it by too.
pub(crate) fn open(
    engine: &Engine,
    target: &Path,
    path: &OsStr,
    args: &ImageArgs,
    digest: Option<FileDigest>,
) -> Result<(OpenFile, Outcome, String), Failure> {
    let image = args.open(target, true)?;
    let found = resolve(&image, bytes_of(path), args.follow())?;
    let name = bytes_for_stderr(&found.path);
    let plan = image
        .read_plan(&found.inode, digest.as_ref())
        .map_err(|error| Failure::new(outcome_of(&error), format_args!("{name}: {error}")))?;
    Ok((engine.open(plan), Outcome::Good, name))
}
