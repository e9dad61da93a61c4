//! The tree of an image, entry by entry.

use postread::image::{Image, ImageError};
use postread::{Error, ErrorKind};
use postread_fsimage::ext4::{FileType, Inode};

use crate::attributes::Attributes;
use crate::directories::{DirId, TOP};
use crate::extraction::AttributeSource;
use crate::file_job::Contents;
use crate::listed::Listed;
use crate::name::last_name;
use crate::tree_writer::{At, Meta, TreeWriter};

/// Attributes by inode number.
pub(crate) struct ImageAttributes<'i>(pub(crate) &'i Image);

impl AttributeSource for ImageAttributes<'_> {
    fn attributes(&self, key: u64, failed: &mut dyn FnMut(Error)) -> Option<Attributes> {
        let fs = self.0.fs();
        let inode = fs.inode(u32::try_from(key).ok()?);
        match inode.map_err(ImageError::from) {
            Ok(inode) => Some(Attributes::read(self.0, &inode, failed)),
            Err(error) => {
                failed(error.into());
                None
            }
        }
    }
}

fn meta(inode: &Inode) -> Meta {
    Meta { ino: inode.ino, links: inode.nlink, key: inode.ino.into() }
}

/// Walks the tree at `inode`, which is `path` of the image. Its contents go into the top directory; a file goes there
/// under its own name.
pub(crate) fn walk(writer: &mut TreeWriter<'_>, image: &Image, inode: Inode, path: &[u8]) {
    writer.listed = Listed::of(path);
    if !inode.is_dir() {
        let at = At { dir: TOP, path: last_name(path) };
        if writer.accepts(at, at.path) {
            one(writer, image, inode, at, path);
        }
        return;
    }
    match image.locked(&inode) {
        Ok(None) => {}
        Ok(Some(error)) | Err(error) => return writer.failed(path, &error.into()),
    }
    writer.top(inode.ino.into());
    let mut walk = image.walk(inode.ino);
    // The directories that the walk is in, and the lengths of their paths.
    let mut within = vec![(0, TOP)];
    while let Some(visit) = walk.next() {
        let inode = match (visit.inode, &visit.entry) {
            (Ok(inode), Some(_)) => inode,
            (Ok(_), None) => continue,
            (Err(error), _) => {
                // The starting directory has only its path in the image.
                let of = if visit.path.is_empty() { path } else { &visit.path };
                writer.failed(of, &error.into());
                continue;
            }
        };
        let name = visit.entry.map(|entry| entry.name).unwrap_or_default();
        let is_dir = inode.is_dir();
        // The name itself may contain slashes: then it is refused.
        let above = visit.path.len().saturating_sub(name.len() + 1);
        let still = within.partition_point(|(len, _)| *len <= above).max(1);
        within.drain(still..).for_each(|(_, dir)| writer.leave(dir));
        let (_, dir) = within.last().copied().unwrap_or((0, TOP));
        let at = At { dir, path: &visit.path };
        let made = match writer.accepts(at, &name) {
            true => one(writer, image, inode, at, &[path, b"/", &visit.path].concat()),
            false => None,
        };
        match made {
            Some(dir) if is_dir => within.push((visit.path.len(), dir)),
            None if is_dir => walk.skip_dir(),
            _ => {}
        }
    }
}

/// One inode, `whole` being its path in the image. Returns the directory for its entries, if it is a directory and
/// could be created.
fn one(writer: &mut TreeWriter<'_>, image: &Image, inode: Inode, at: At<'_>, whole: &[u8]) -> Option<DirId> {
    let (path, meta) = (at.path, meta(&inode));
    match inode.file_type {
        FileType::Directory => match image.locked(&inode) {
            Ok(None) => return writer.directory(at, meta.key),
            Ok(Some(error)) | Err(error) => writer.failed(path, &error.into()),
        },
        FileType::Regular => match writer.digest_of(image, &inode, whole) {
            Ok(digest) => {
                let size = inode.size;
                writer.file(at, meta, size, Contents::inode(inode, digest));
            }
            Err(error) => writer.failed(path, &error.into()),
        },
        FileType::Symlink => match image.link_target(&inode) {
            Ok(target) if !target.no_key => writer.symlink(at, meta, &target.target),
            Ok(_) => match image.locked(&inode) {
                Ok(Some(error)) | Err(error) => writer.failed(path, &error.into()),
                Ok(None) => {}
            },
            Err(error) => writer.failed(path, &error.into()),
        },
        FileType::Fifo | FileType::Socket | FileType::CharDevice | FileType::BlockDevice => {
            writer.special(at, meta, inode.mode, inode.device().unwrap_or((0, 0)));
        }
        _ => writer
            .failed(path, &Error::new(ErrorKind::Malformed, format!("its mode is {:o}: no such type", inode.mode))),
    }
    None
}
