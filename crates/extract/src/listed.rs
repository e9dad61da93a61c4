//! Compares a list of trusted digests with the extracted files: no line of it is silently ignored.

use std::collections::HashMap;

use postread::image::{Image, ImageError};
use postread::{Error, ErrorKind, TrustedDigests};
use postread_fsimage::ext4::{FileType, Inode, ROOT_INO};
use postread_verity::FileDigest;

use crate::events::Note;
use crate::extraction::Extraction;
use crate::tree_writer::TreeWriter;

/// The state of the list while the tree is extracted.
#[derive(Default)]
pub(crate) struct Listed {
    /// What is extracted, as the image spells it.
    top: Vec<u8>,
    /// The listed digests of inodes with several names, under any of them; looked up when the first one is found.
    aliases: Option<Aliases>,
    /// The listed paths that were found to be regular files, and their inodes; `None` if an error was reported.
    met: HashMap<Box<[u8]>, Option<u32>>,
}

type Aliases = HashMap<u32, Vec<FileDigest>>;

impl Listed {
    /// Of an extraction of `top`, as the image spells it.
    pub(crate) fn of(top: &[u8]) -> Self {
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

/// Which listed paths are names of one inode: the name that is found first is checked against the digests of all. Takes
/// one walk of the image, since looking up each path would scan its directory each time.
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

impl TreeWriter<'_> {
    /// The digest that a regular file must have under one of its names: the name's own, else that of another name of
    /// the inode. A name that is listed with another digest than its file has is an error, and is not created.
    pub(crate) fn digest_of(
        &mut self,
        image: &Image,
        inode: &Inode,
        path: &[u8],
    ) -> Result<Option<FileDigest>, ImageError> {
        let Some(trusted) = self.extraction.options.trusted else { return Ok(None) };
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
                // Not left to a thread, which has the file but only its first name.
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
    /// Reports, when everything is done, which listed files were not verified; and of a list that has nothing to do with
    /// what was extracted, that nothing was.
    pub(crate) fn check_list(&self, image: &Image, trusted: &TrustedDigests, listed: &Listed) {
        if trusted.is_empty() {
            return self.note(&Note::EmptyList);
        }
        let mut applies = false;
        for path in trusted.paths() {
            let within = listed.is_within(path);
            applies |= within;
            if let Some(error) = trusted.trouble(image, path).filter(|_| trusted.contradicts(path)) {
                self.failed(path, &error);
                continue;
            }
            match listed.met.get(trusted.real_path(path)) {
                Some(None) => continue,
                // Those that failed were reported.
                Some(Some(ino)) if self.shared().checked.contains_key(ino) => continue,
                Some(Some(_)) => {}
                None => {
                    if let Some(error) = trusted.trouble(image, path) {
                        self.failed(path, &error);
                        continue;
                    }
                    if !within {
                        continue;
                    }
                }
            }
            self.failed(path, &Error::new(ErrorKind::Corrupt, "it was not extracted: nothing was verified"));
        }
        if !applies && self.shared().counts.verified == 0 {
            self.note(&Note::ListDoesNotApply);
        }
    }
}
