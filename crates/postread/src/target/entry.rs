//! Results of walks and look-ups.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use postread_fsimage::ext4::{FileType, Inode, Timestamp};

use super::{Target, shown};
use crate::error::{Error, Result};
use crate::image::{Found, ImageError, ImageWalk};

/// The metadata of a file, a directory or another inode.
#[derive(Clone, Debug)]
pub struct Metadata(Inode);

impl Metadata {
    pub(super) fn new(inode: Inode) -> Self {
        Self(inode)
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.0.size
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What kind of file it is.
    pub fn file_type(&self) -> FileType {
        self.0.file_type
    }

    /// Whether it is a regular file.
    pub fn is_file(&self) -> bool {
        self.0.file_type == FileType::Regular
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.0.is_dir()
    }

    /// Whether it is a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.0.file_type == FileType::Symlink
    }

    /// Whether it is encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.0.is_encrypted()
    }

    /// Whether it has fs-verity.
    pub fn is_verity(&self) -> bool {
        self.0.is_verity()
    }

    /// The permission bits, with those for set-id and sticky.
    pub fn permissions(&self) -> u16 {
        self.0.mode & 0o7777
    }

    /// The user who owns it.
    pub fn uid(&self) -> u32 {
        self.0.uid
    }

    /// The group that owns it.
    pub fn gid(&self) -> u32 {
        self.0.gid
    }

    /// How many names it has.
    pub fn nlink(&self) -> u32 {
        self.0.nlink.into()
    }

    /// Its inode number.
    pub fn ino(&self) -> u64 {
        self.0.ino.into()
    }

    /// Major and minor number of a device node.
    pub fn device(&self) -> Option<(u32, u32)> {
        self.0.device()
    }

    /// When its contents were last changed. A time that [`SystemTime`] has no room for is that of its epoch.
    pub fn modified(&self) -> SystemTime {
        time(self.0.mtime)
    }

    /// When it was last read, according to the file system.
    pub fn accessed(&self) -> SystemTime {
        time(self.0.atime)
    }

    /// The inode, for what is special to ext4.
    pub fn inode(&self) -> &Inode {
        &self.0
    }
}

fn time(at: Timestamp) -> SystemTime {
    let seconds = Duration::from_secs(at.seconds.unsigned_abs());
    let whole = match at.seconds {
        0.. => SystemTime::UNIX_EPOCH.checked_add(seconds),
        _ => SystemTime::UNIX_EPOCH.checked_sub(seconds),
    };
    let exact = whole.and_then(|whole| whole.checked_add(Duration::from_nanos(at.nanoseconds.into())));
    exact.unwrap_or(SystemTime::UNIX_EPOCH)
}

/// A name in a directory, and its inode's metadata.
#[derive(Clone, Debug)]
pub struct Entry {
    path: PathBuf,
    is_no_key: bool,
    metadata: Metadata,
}

impl Entry {
    pub(super) fn new(path: Vec<u8>, is_no_key: bool, inode: Inode) -> Self {
        let path = match path.is_empty() {
            true => PathBuf::from("/"),
            false => std::ffi::OsString::from_vec(path).into(),
        };
        Self { path, is_no_key, metadata: Metadata::new(inode) }
    }

    /// The path in the image, from its root: what [`Target`]'s calls take.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The name.
    pub fn file_name(&self) -> &OsStr {
        // A name in a hostile image may contain slashes; everything below it can't be reached by path then.
        self.path.file_name().unwrap_or(self.path.as_os_str())
    }

    /// Whether the name is a no-key name: what Linux shows where the key is missing.
    pub fn is_no_key(&self) -> bool {
        self.is_no_key
    }

    /// Its metadata. Links are not followed.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

/// The entries of a directory: see [`Target::read_dir`]. An error concerns one entry; the rest follows.
pub struct ReadDir(Box<dyn Iterator<Item = Result<Entry>> + Send>);

impl ReadDir {
    pub(super) fn new(entries: impl Iterator<Item = Result<Entry>> + Send + 'static) -> Self {
        Self(Box::new(entries))
    }
}

impl Iterator for ReadDir {
    type Item = Result<Entry>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next()
    }
}

impl std::fmt::Debug for ReadDir {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReadDir").finish_non_exhaustive()
    }
}

/// A walk: see [`Target::walk`]. An error concerns one entry or one directory, and the walk continues.
#[derive(Debug)]
pub struct Walk {
    root: Vec<u8>,
    from: Visited,
}

#[derive(Debug)]
enum Visited {
    File(Option<Box<Inode>>),
    Directory(Box<ImageWalk>),
}

impl Walk {
    pub(super) fn new(target: Target, root: Found) -> Self {
        let from = match root.inode.is_dir() {
            true => Visited::Directory(Box::new(target.image().walk(root.inode.ino))),
            false => Visited::File(Some(Box::new(root.inode))),
        };
        Self { root: root.path, from }
    }

    /// Skips the contents of the directory that was returned last.
    pub fn skip_dir(&mut self) {
        if let Visited::Directory(walk) = &mut self.from {
            walk.skip_dir();
        }
    }
}

impl Iterator for Walk {
    type Item = Result<Entry>;

    fn next(&mut self) -> Option<Self::Item> {
        let walk = match &mut self.from {
            Visited::File(file) => return file.take().map(|inode| Ok(Entry::new(self.root.clone(), false, *inode))),
            Visited::Directory(walk) => walk,
        };
        let visit = walk.next()?;
        let path = match visit.path.is_empty() {
            true => self.root.clone(),
            false => [&self.root, &b"/"[..], &visit.path].concat(),
        };
        let fail = |error: ImageError| Error::from(error).about(shown(&path));
        Some(match (visit.inode, visit.entry) {
            (Ok(inode), Some(entry)) => Ok(Entry::new(path, entry.no_key, inode)),
            (Ok(inode), None) => Ok(Entry::new(path, false, inode)),
            (Err(error), _) => Err(fail(error)),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn times_before_the_epoch_and_beyond_all_reason() {
        let at = |seconds, nanoseconds| time(Timestamp { seconds, nanoseconds });
        assert_eq!(at(1, 5), SystemTime::UNIX_EPOCH + Duration::new(1, 5));
        assert_eq!(at(-1, 1), SystemTime::UNIX_EPOCH - Duration::from_nanos(999_999_999));
        let _ = at(i64::MIN, 0);
        let _ = at(i64::MAX, u32::MAX);
    }

    #[test]
    fn a_name_of_bytes_is_a_name() {
        let name = OsStr::from_bytes(b"\xff");
        assert_eq!(Path::new("/a").join(name).file_name(), Some(name));
    }
}
