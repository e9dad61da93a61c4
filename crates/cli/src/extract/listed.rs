//! A list of trusted digests, held against what comes out of an image: no line of it passes in silence.

use std::collections::HashMap;

use postread::TrustedDigests;
use postread::image::{Image, ImageError};
use postread_fsimage::ext4::{FileType, Inode, ROOT_INO};
use postread_verity::FileDigest;

use super::{Extraction, Feed};
use crate::exit::Outcome;
use crate::text::complain;

/// What is known of the list while the tree is put down.
#[derive(Default)]
pub(super) struct Listed {
    /// What is extracted, as the image spells it.
    top: Vec<u8>,
    /// The digests that inodes of several names are listed with, under whichever; looked up when the first is met.
    aliases: Option<Aliases>,
    /// The listed paths that were met as regular files, and their inodes; none where what is wrong was told.
    met: HashMap<Box<[u8]>, Option<u32>>,
}

type Aliases = HashMap<u32, Vec<FileDigest>>;

impl Listed {
    /// Of an extraction of `top`, as the image spells it.
    pub(super) fn of(top: &[u8]) -> Self {
        Self { top: top.to_vec(), ..Self::default() }
    }

    fn is_within(&self, path: &[u8]) -> bool {
        path.strip_prefix(&*self.top).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
    }
}

/// Whether a file is the one that has a digest.
fn check(image: &Image, inode: &Inode, wanted: &FileDigest) -> Result<(), ImageError> {
    let verity = image.verity(inode)?.ok_or_else(|| ImageError::NoVerity { wanted: Box::new(*wanted) })?;
    verity.trust(wanted)?;
    Ok(())
}

/// Which listed paths are names of one inode: the name that is met first has to be held to the digests of all. One walk
/// of the image, as looking each path up would go through its directory once for each.
fn aliases(image: &Image, trusted: &TrustedDigests) -> Aliases {
    let mut aliases = Aliases::new();
    for visit in image.walk(ROOT_INO) {
        let Ok(inode) = visit.inode else { continue };
        if inode.file_type == FileType::Regular
            && inode.nlink > 1
            && let Some(digest) = trusted.get(&[b"/", &visit.path[..]].concat())
        {
            let all = aliases.entry(inode.ino).or_default();
            if !all.contains(digest) {
                all.push(*digest);
            }
        }
    }
    aliases
}

impl Feed<'_> {
    /// The digest that a regular file is held to under one of its names: the name's own, else that of another name of
    /// the inode. A name that is listed with another digest than its file has is an error, and is not made.
    pub(super) fn digest_of(
        &mut self,
        image: &Image,
        inode: &Inode,
        path: &[u8],
    ) -> Result<Option<FileDigest>, ImageError> {
        let trusted = self.extraction.settings.trusted;
        let own = trusted.get(path).copied();
        if own.is_some() {
            self.listed.met.insert(path.into(), Some(inode.ino));
        }
        if inode.nlink < 2 || trusted.is_empty() {
            return Ok(own);
        }
        let aliases = self.listed.aliases.get_or_insert_with(|| aliases(image, trusted));
        match (own, aliases.get(&inode.ino)) {
            (_, None) => Ok(own),
            (Some(wanted), Some(_)) => {
                // Not left to a thread: that has a file, and no name but the first.
                check(image, inode, &wanted).inspect_err(|_| {
                    self.listed.met.insert(path.into(), None);
                })?;
                Ok(own)
            }
            (None, Some(others)) => {
                let right = others.iter().find(|wanted| check(image, inode, wanted).is_ok());
                Ok(right.or_else(|| others.first()).copied())
            }
        }
    }
}

impl Extraction<'_> {
    /// Tells, when all is done, which listed files were not verified; and of a list that has nothing to do with what was
    /// extracted that nothing was.
    pub(super) fn check_list(&self, image: &Image, listed: &Listed) {
        let trusted = self.settings.trusted;
        if trusted.is_empty() {
            complain("the list of digests is empty: no file was verified against it");
            let mut shared = self.shared();
            shared.outcome = shared.outcome.worst(Outcome::Nothing);
            return;
        }
        let mut applies = false;
        for path in trusted.paths() {
            let within = listed.is_within(path);
            applies |= within;
            match listed.met.get(trusted.real_path(path)) {
                Some(None) => continue,
                // Those that failed were told.
                Some(Some(ino)) if self.shared().held.contains_key(ino) => continue,
                Some(Some(_)) => {}
                None => {
                    if let Some(error) = trusted.trouble(image, path) {
                        self.failed(path, &error, error.kind().into());
                        continue;
                    }
                    if !within {
                        continue;
                    }
                }
            }
            self.failed(path, &"it was not extracted: nothing was verified", Outcome::Integrity);
        }
        let mut shared = self.shared();
        if !applies && shared.counts.verified == 0 {
            complain("the list of digests has no file of what was extracted: none was verified against it");
            shared.outcome = shared.outcome.worst(Outcome::Nothing);
        }
    }
}
