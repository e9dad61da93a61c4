//! Extraction of an image's files, decrypted and verified.

use postread::image::{Image, ImageError};
use postread_fsimage::ext4::{FileType, Inode};

use super::attributes::Attributes;
use super::directories::{DirId, TOP};
use super::listed::Listed;
use super::{At, Feed, file_job, last_name};
use crate::image::outcome_of;

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
    feed.listed = Listed::of(path);
    if !inode.is_dir() {
        let at = At { dir: TOP, path: last_name(path) };
        if feed.name_is_fine(at, at.path) {
            one(feed, image, inode, at, path.to_vec());
        }
        return;
    }
    match image.locked(&inode) {
        Ok(None) => {}
        Ok(Some(error)) | Err(error) => return feed.failed(path, &error, outcome_of(&error)),
    }
    let own = attributes(feed, image, &inode, path);
    feed.top(own);
    let mut walk = image.walk(inode.ino);
    // The directories that the walk is in, and the lengths of their paths.
    let mut within = vec![(0, TOP)];
    while let Some(visit) = walk.next() {
        let inode = match (visit.inode, &visit.entry) {
            (Ok(inode), Some(_)) => inode,
            (Ok(_), None) => continue,
            (Err(error), _) => {
                // Of the directory that the walk began with there is no path but the image's.
                let of = if visit.path.is_empty() { path } else { &visit.path };
                feed.failed(of, &error, outcome_of(&error));
                continue;
            }
        };
        let name = visit.entry.map(|entry| entry.name).unwrap_or_default();
        let is_dir = inode.is_dir();
        let whole = [path, b"/", &visit.path].concat();
        // The name itself may hold slashes: then it is refused.
        let above = visit.path.len().saturating_sub(name.len() + 1);
        within.truncate(within.partition_point(|(len, _)| *len <= above).max(1));
        let (_, dir) = within.last().copied().unwrap_or((0, TOP));
        let at = At { dir, path: &visit.path };
        let made = if feed.name_is_fine(at, &name) { one(feed, image, inode, at, whole) } else { None };
        match made {
            Some(dir) if is_dir => within.push((visit.path.len(), dir)),
            None if is_dir => walk.skip_dir(),
            _ => {}
        }
    }
}

/// One inode. The directory that its entries go into, if it is one and can be.
fn one(feed: &mut Feed<'_>, image: &Image, inode: Inode, at: At<'_>, whole: Vec<u8>) -> Option<DirId> {
    let path = at.path;
    let attributes = attributes(feed, image, &inode, path);
    let digest = match inode.file_type {
        FileType::Regular => feed.digest_of(image, &inode, &whole),
        _ => Ok(None),
    };
    let digest = match digest {
        Ok(digest) => digest,
        Err(error) => {
            feed.failed(path, &error, outcome_of(&error));
            return None;
        }
    };
    match inode.file_type {
        FileType::Directory => match image.locked(&inode) {
            Ok(None) => return feed.directory(at, attributes),
            Ok(Some(error)) | Err(error) => {
                feed.failed(path, &error, outcome_of(&error));
                return None;
            }
        },
        _ if feed.is_another_name(at, inode.ino, inode.nlink) => {}
        FileType::Regular => {
            let (ino, size) = (inode.ino, inode.size);
            feed.file(at, ino, size, file_job::From::Inode { inode: Box::new(inode), digest }, attributes);
        }
        FileType::Symlink => match image.link_target(&inode) {
            Ok(target) if !target.no_key => feed.symlink(at, &target.target, &attributes),
            Ok(_) => match image.locked(&inode) {
                Ok(Some(error)) | Err(error) => feed.failed(path, &error, outcome_of(&error)),
                Ok(None) => {}
            },
            Err(error) => feed.failed(path, &error, outcome_of(&error)),
        },
        _ => feed.special(at, inode.mode, inode.device().unwrap_or((0, 0)), &attributes),
    }
    None
}
