//! Digests that the caller trusts, for files of an image.

use std::io::{BufRead, BufReader};
use std::path::Path;

use postread::image::{Image, ImageError};
use postread_fsimage::ext4::FileType;
use postread_verity::{FileDigest, list};

use super::{canonical, kind_name, locked_above, outcome_of};
use crate::exit::{Failure, Outcome};
use crate::input_file;
use crate::text::{bytes_for_stderr, name_for_stderr};

/// The longest line of a list: a digest and a path.
const LINE_MAX: u64 = 64 << 10;
/// The most bytes of a list: it is kept in memory.
const LIST_MAX: u64 = 256 << 20;

/// Trusted digests by path.
#[derive(Debug, Default)]
pub(crate) struct Trusted {
    /// In the order of the paths: a table of a million would take twice the memory.
    by_path: Vec<(Box<[u8]>, FileDigest)>,
    /// For the only file there is.
    only: Option<FileDigest>,
}

impl Trusted {
    /// Reads a list, and takes the digest of a single file.
    pub(crate) fn load(digests: Option<&Path>, only: Option<FileDigest>) -> Result<Self, Failure> {
        let mut by_path = Vec::new();
        let Some(path) = digests else { return Ok(Self { by_path, only }) };
        let name = || name_for_stderr(path);
        let io = |error: std::io::Error| Failure::environment(format!("{}: {error}", name()));
        let mut file = BufReader::new(input_file::open(path)?);
        let mut line = Vec::new();
        let mut bytes = 0;
        for number in 1u64.. {
            line.clear();
            std::io::Read::take(&mut file, LINE_MAX).read_until(b'\n', &mut line).map_err(io)?;
            if line.is_empty() {
                break;
            }
            if line.len() as u64 == LINE_MAX {
                return Err(Failure::usage(format!("{}: line {number} is too long", name())));
            }
            bytes += line.len() as u64;
            if bytes > LIST_MAX {
                return Err(Failure::usage(format!("{}: a list has at most {LIST_MAX} bytes", name())));
            }
            if line.last() == Some(&b'\n') {
                line.pop();
            }
            let entry = list::parse_line(&line)
                .map_err(|error| Failure::usage(format!("{}: line {number}: {error}", name())))?;
            if let Some(entry) = entry {
                by_path.push((canonical(&entry.name).into_boxed_slice(), entry.digest));
            }
        }
        by_path.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        if let Some([(path, _), _]) = by_path.array_windows().find(|[a, b]| a.0 == b.0 && a.1 != b.1) {
            let what = format!("{}: {} has two different digests in it", name(), bytes_for_stderr(path));
            return Err(Failure::usage(what));
        }
        by_path.dedup_by(|a, b| a.0 == b.0);
        Ok(Self { by_path, only })
    }

    /// Whether any was given.
    pub(crate) fn any(&self) -> bool {
        self.only.is_some() || !self.by_path.is_empty()
    }

    /// The digest for a path of the image.
    pub(crate) fn get(&self, path: &[u8]) -> Option<&FileDigest> {
        let listed = || self.by_path.binary_search_by(|(listed, _)| (**listed).cmp(path)).ok();
        self.only.as_ref().or_else(|| Some(&self.by_path[listed()?].1))
    }

    /// The paths of the list.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &[u8]> {
        self.by_path.iter().map(|(path, _)| &**path)
    }
}

/// What is wrong with a listed path that nothing was held to: whoever made the image may have put something else in its
/// place. None where it is a regular file, which was not asked for.
pub(crate) fn listed_trouble(image: &Image, path: &[u8]) -> Option<(String, Outcome)> {
    match image.resolve_spelled(path) {
        Ok((_, spelled)) if spelled != path => {
            Some((format!("the image spells it {}: list it so", bytes_for_stderr(&spelled)), Outcome::Integrity))
        }
        Ok((inode, _)) if inode.file_type == FileType::Regular => None,
        Ok((inode, _)) => {
            let what = format!("no regular file but a {}: nothing was verified", kind_name(inode.file_type));
            Some((what, Outcome::Integrity))
        }
        Err(ImageError::NotFound { path: missing }) => match locked_above(image, &missing) {
            // It may well be there: without the key nobody can tell.
            Some(hint) => Some((format!("no such file{hint}"), Outcome::Key)),
            None => Some(("no such file".into(), Outcome::Integrity)),
        },
        // Through a link, say, where there was a directory.
        Err(error @ (ImageError::WrongKind { .. } | ImageError::Parent)) => {
            Some((format!("nothing was verified: {error}"), Outcome::Integrity))
        }
        Err(error) => Some((error.to_string(), outcome_of(&error))),
    }
}
