//! `postread cat TARGET PATH`: a file's bytes out of an image, verified where it has fs-verity.

use std::ffi::OsStr;
use std::path::Path;

use postread::image::{Image, ImageError};
use postread::{Engine, Plan};
use postread_fsimage::ext4::Inode;
use postread_verity::FileDigest;

use crate::exit::{Failure, Outcome};
use crate::image::{ImageArgs, Trusted, bytes_of, outcome_of, resolve};
use crate::text::bytes_for_stderr;

/// What to read, and how it is named in messages.
pub(crate) struct ImageFile {
    pub(crate) plan: Plan,
    pub(crate) name: String,
}

/// The plan for a file of an image.
pub(crate) fn open(
    target: &Path,
    path: &OsStr,
    args: &ImageArgs,
    digest: Option<FileDigest>,
) -> Result<ImageFile, Failure> {
    let image = args.open(target, true)?;
    let (inode, path) = resolve(&image, bytes_of(path))?;
    let name = bytes_for_stderr(&path);
    let trusted = Trusted::load(None, digest)?;
    let plan = plan_of(&image, &inode, trusted.get(&path))
        .map_err(|error| Failure::new(error.outcome(), format!("{name}: {error}")))?;
    Ok(ImageFile { plan, name })
}

/// Why there is no plan for reading a file.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PlanError {
    #[error(transparent)]
    Image(#[from] ImageError),
    /// A digest is trusted, and nothing in the file says what its blocks have to be.
    #[error("wanted the digest {0}, and the file has no fs-verity")]
    NoVerity(FileDigest),
    /// Nothing vouches for the file but itself, and that is not enough.
    #[error("the file has fs-verity, and no digest in the list")]
    NotListed,
}

impl PlanError {
    pub(crate) fn outcome(&self) -> Outcome {
        match self {
            Self::Image(error) => outcome_of(error),
            Self::NoVerity(_) | Self::NotListed => Outcome::Integrity,
        }
    }
}

/// The plan for reading a regular file: verified where it has fs-verity, against `trusted` where there is one, else
/// against its own descriptor.
pub(crate) fn plan_of(image: &Image, inode: &Inode, trusted: Option<&FileDigest>) -> Result<Plan, PlanError> {
    match (image.verity(inode)?, trusted) {
        (Some(verity), trusted) => {
            if let Some(trusted) = trusted {
                verity.check_digest(trusted)?;
            }
            Ok(verity.plan()?.0)
        }
        (None, Some(trusted)) => Err(PlanError::NoVerity(*trusted)),
        (None, None) => Ok(image.contents(inode)?.plan()),
    }
}

/// An engine opens it.
impl ImageFile {
    pub(crate) fn open(self, engine: &Engine) -> (postread::OpenFile, String) {
        (engine.open(self.plan), self.name)
    }
}
