//! From blocks of a device to the files that they belong to.

use std::ops::Range;

use postread_fsimage::ext4::{ExtentKind, Inode, ROOT_INO};

use super::Image;

/// A file or directory with bytes in given ranges of its device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileHit {
    /// Its path from the root, without a leading slash; the root itself has none. A file of several names has a hit for
    /// each.
    pub path: Vec<u8>,
    /// Its inode number.
    pub ino: u32,
    /// The bytes of the file that lie there, ascending. What is past its size holds fs-verity metadata.
    pub bytes: Vec<Range<u64>>,
}

impl Image {
    /// Calls `hit` for each file and directory with bytes in `ranges`, which are byte ranges of the device that the file
    /// system is on, ascending and disjoint. Returns how many bytes of the ranges belong to none: they are metadata or free.
    /// What can't be read of the tree is left out.
    pub fn files_in(&self, ranges: &[Range<u64>], hit: &mut dyn FnMut(FileHit)) -> u64 {
        let total: u64 = ranges.iter().map(|range| range.end.saturating_sub(range.start)).sum();
        let root = ROOT_INO;
        let mut found = 0u64;
        let mut visit = |path: Vec<u8>, inode: &Inode, counts: bool| {
            let bytes = self.bytes_in(inode, ranges);
            if bytes.is_empty() {
                return;
            }
            if counts {
                found = found.saturating_add(bytes.iter().map(|range| range.end - range.start).sum());
            }
            hit(FileHit { path, ino: inode.ino, bytes });
        };
        if let Ok(inode) = self.fs().inode(root) {
            visit(Vec::new(), &inode, true);
        }
        let mut linked = std::collections::HashSet::new();
        for step in self.walk(root) {
            let (Some(_), Ok(inode)) = (step.entry, step.inode) else { continue };
            // The blocks of a file of several names are counted once.
            let first = inode.nlink < 2 || inode.is_dir() || linked.insert(inode.ino);
            visit(step.path, &inode, first);
        }
        total.saturating_sub(found)
    }

    /// The bytes of one inode that lie in the ranges.
    fn bytes_in(&self, inode: &Inode, ranges: &[Range<u64>]) -> Vec<Range<u64>> {
        let mut bytes: Vec<Range<u64>> = Vec::new();
        for extent in self.fs().extents_from(inode, 0).map_while(Result::ok) {
            if extent.kind == ExtentKind::Hole {
                continue;
            }
            let (start, end) = (extent.physical, extent.physical.saturating_add(extent.len));
            let from = ranges.partition_point(|range| range.end <= start);
            for range in ranges[from..].iter().take_while(|range| range.start < end) {
                let (first, last) = (range.start.max(start), range.end.min(end));
                let logical = extent.logical + (first - start)..extent.logical + (last - start);
                match bytes.last_mut() {
                    Some(before) if before.end == logical.start => before.end = logical.end,
                    _ => bytes.push(logical),
                }
            }
        }
        bytes
    }
}
