//! Walks an image's tree with the names that Linux shows.

use postread_fsimage::ext4::{Inode, Walk};

use super::{Entry, Image, ImageError, Names};

/// One step of a walk.
#[derive(Debug)]
#[non_exhaustive]
pub struct ImageVisit {
    /// The path below the directory that the walk began with, without a leading slash; the directory's own path if a
    /// part of it could not be read.
    pub path: Vec<u8>,
    /// The entry, where one could be read.
    pub entry: Option<Entry>,
    /// Its inode, or the error.
    pub inode: Result<Inode, ImageError>,
}

/// A walk, depth first, each directory before what is in it. A broken or locked part is reported, and the walk
/// continues.
#[derive(Debug)]
pub struct ImageWalk {
    image: Image,
    walk: Walk,
    path: Vec<u8>,
    /// The path's length at each depth.
    depths: Vec<usize>,
    /// The directories that the walk is in, by depth, and how their names are shown.
    open: Vec<(u32, Names)>,
}

impl Image {
    /// Walks the tree below the directory `dir`.
    pub fn walk(&self, dir: u32) -> ImageWalk {
        ImageWalk {
            image: self.clone(),
            walk: self.fs().walk(dir),
            path: Vec::new(),
            depths: vec![0],
            open: Vec::new(),
        }
    }
}

impl ImageWalk {
    /// Skips the contents of the directory that was visited last.
    pub fn skip_dir(&mut self) {
        self.walk.skip_dir();
    }

    fn names(&mut self, depth: usize, dir: u32) -> Result<&Names, ImageError> {
        self.open.truncate(depth + 1);
        if self.open.get(depth).is_none_or(|(ino, _)| *ino != dir) {
            self.open.truncate(depth);
            let inode = self.image.fs().inode(dir)?;
            let names = self.image.names(&inode)?;
            self.open.push((dir, names));
        }
        Ok(&self.open.last().expect("just pushed or found").1)
    }
}

impl Iterator for ImageWalk {
    type Item = ImageVisit;

    fn next(&mut self) -> Option<ImageVisit> {
        let visit = self.walk.next()?;
        self.depths.truncate(visit.depth + 1);
        self.path.truncate(self.depths.last().copied().unwrap_or(0));
        let Some(entry) = visit.entry else {
            return Some(ImageVisit {
                path: self.path.clone(),
                entry: None,
                inode: visit.inode.map_err(ImageError::from),
            });
        };
        let shown = self.names(visit.depth, visit.dir).and_then(|names| names.show(visit.dir, entry));
        let entry = match shown {
            Ok(entry) => entry,
            Err(error) => {
                // Without a name there is no path to what is below.
                self.walk.skip_dir();
                return Some(ImageVisit { path: self.path.clone(), entry: None, inode: Err(error) });
            }
        };
        if !self.path.is_empty() {
            self.path.push(b'/');
        }
        self.path.extend_from_slice(&entry.name);
        self.depths.push(self.path.len());
        Some(ImageVisit { path: self.path.clone(), entry: Some(entry), inode: visit.inode.map_err(ImageError::from) })
    }
}
