//! Which pages of a file are in the page cache, and how to get them out of it.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;

use rustix::fs::{Advice, fadvise, fdatasync};
use rustix::param::page_size;

use crate::raw::memory;

/// Bytes mapped at once to look at.
const WINDOW: u64 = 1 << 30;

/// How much of a range is in the page cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Residency {
    /// Pages in the cache.
    pub resident: u64,
    /// Pages that the range touches.
    pub total: u64,
}

impl Residency {
    /// Every page of the range is there.
    pub fn is_complete(&self) -> bool {
        self.resident == self.total
    }
}

/// Counts the pages of `range` (cut at the end of the file) that are in the page cache, with
/// [`mincore(2)`](https://man7.org/linux/man-pages/man2/mincore.2.html) on a private mapping. Looking does not bring in
/// any page.
///
/// # Errors
/// `PermissionDenied` for a file that the caller neither owns nor may write: the kernel would call every page resident
/// (since 5.2, so that the page cache is no side channel). Else the system's.
pub fn resident_pages(file: &File, range: Range<u64>) -> io::Result<Residency> {
    let page = page_size() as u64;
    let metadata = file.metadata()?;
    if !kernel_tells(file, metadata.uid()) {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "the kernel reports the residency of a file's pages only to its owner and to users who may write it",
        ));
    }
    let (mut at, end) = (range.start / page * page, range.end.min(metadata.len()));
    let mut residency = Residency::default();
    while at < end && range.start < range.end {
        let len = (end - at).min(WINDOW);
        residency.total += len.div_ceil(page);
        residency.resident += memory::resident_pages(file, at, len as usize, page as usize)?;
        at += len;
    }
    Ok(residency)
}

fn kernel_tells(file: &File, owner: u32) -> bool {
    let me = rustix::process::geteuid();
    me.is_root() || me.as_raw() == owner || {
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(file));
        rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok()
    }
}

/// Writes the file's dirty pages out and asks the kernel to drop its pages from the cache. Pages that are mapped,
/// locked or in use stay: look with [`resident_pages`].
pub fn drop_cache(file: &File) -> io::Result<()> {
    fdatasync(file)?;
    fadvise(file, 0, None, Advice::DontNeed)?;
    Ok(())
}
