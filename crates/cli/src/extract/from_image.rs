//! Extraction of an image's files, decrypted and verified.

use postread::image::{Image, ImageError};
use postread_fsimage::ext4::{FileType, Inode};

use super::attributes::Attributes;
use super::{Feed, file_job};
use crate::image::{locked, outcome_of};

/// The attributes of an inode; extended ones that can't be read are told.
fn attributes(feed: &Feed<'_>, image: &Image, inode: &Inode, path: &[u8]) -> Attributes {
    let xattrs = image.fs().xattrs(inode).unwrap_or_else(|error| {
        let error = ImageError::from(error);
        feed.failed(path, &error, outcome_of(&error));
        Vec::new()
    });
    Attributes::of(inode, &xattrs)
}

/// Walks the tree at `inode`, which is `path` of the image. Its contents go into the top directory; a file goes there
/// under its own name.
pub(crate) fn walk(feed: &mut Feed<'_>, image: &Image, inode: Inode, path: &[u8]) {
    if !inode.is_dir() {
        let name = path.rsplit(|&b| b == b'/').next().unwrap_or(path).to_vec();
        if feed.name_is_fine(&name, &name) {
            one(feed, image, inode, &name, path.to_vec());
        }
        return;
    }
    match locked(image, &inode) {
        Ok(None) => {}
        Ok(Some(error)) | Err(error) => return feed.failed(path, &error, outcome_of(&error)),
    }
    let mut walk = image.walk(inode.ino);
    while let Some(visit) = walk.next() {
        let inode = match (visit.inode, &visit.entry) {
            (Ok(inode), Some(_)) => inode,
            (Ok(_), None) => continue,
            (Err(error), _) => {
                feed.failed(&visit.path, &error, outcome_of(&error));
                continue;
            }
        };
        let name = visit.entry.map(|entry| entry.name).unwrap_or_default();
        let is_dir = inode.is_dir();
        let whole = [path, b"/", &visit.path].concat();
        if !feed.name_is_fine(&visit.path, &name) || !one(feed, image, inode, &visit.path, whole) && is_dir {
            walk.skip_dir();
        }
    }
}

/// One inode. False where a directory's contents can't be extracted.
fn one(feed: &mut Feed<'_>, image: &Image, inode: Inode, path: &[u8], whole: Vec<u8>) -> bool {
    let attributes = attributes(feed, image, &inode, path);
    match inode.file_type {
        FileType::Directory => match locked(image, &inode) {
            Ok(None) => return feed.directory(path, attributes),
            Ok(Some(error)) | Err(error) => {
                feed.failed(path, &error, outcome_of(&error));
                return false;
            }
        },
        _ if feed.is_another_name(path, inode.ino, inode.nlink) => {}
        FileType::Regular => {
            let (ino, size) = (inode.ino, inode.size);
            feed.file(path, ino, size, file_job::From::Inode { inode: Box::new(inode), path: whole }, attributes);
        }
        FileType::Symlink => match image.link_target(&inode) {
            Ok(target) if !target.no_key => feed.symlink(path, &target.target, &attributes),
            Ok(_) => match locked(image, &inode) {
                Ok(Some(error)) | Err(error) => feed.failed(path, &error, outcome_of(&error)),
                Ok(None) => {}
            },
            Err(error) => feed.failed(path, &error, outcome_of(&error)),
        },
        _ => feed.special(path, inode.mode, inode.device().unwrap_or((0, 0)), &attributes),
    }
    true
}
