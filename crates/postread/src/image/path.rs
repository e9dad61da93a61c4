//! Paths within an image: their canonical form, and the inode that each leads to.

use postread_fsimage::ext4::{FileType, Inode, ROOT_INO};

use super::{Image, ImageError};

/// The most symbolic links that one path goes through, as in Linux.
const LINKS_MAX: usize = 40;

/// A path without empty names and `.`, beginning with a slash; empty for the root directory.
pub fn canonical(path: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for name in path.split(|&b| b == b'/').filter(|name| !name.is_empty() && *name != b".") {
        out.push(b'/');
        out.extend_from_slice(name);
    }
    out
}

/// The order of paths in which a directory comes before what is in it, and that before its next sibling.
pub fn compare_paths(a: &[u8], b: &[u8]) -> std::cmp::Ordering {
    a.split(|&b| b == b'/').cmp(b.split(|&b| b == b'/'))
}

/// Which symbolic links of a path are followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Follow {
    /// All of them.
    #[default]
    All,
    /// All but the last name.
    Parents,
    /// None: a path through a link is not found.
    None,
}

/// Where a path leads.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Found {
    /// The inode.
    pub inode: Inode,
    /// The path without links, as the directories spell it: `/` and the names, nothing for the root.
    pub path: Vec<u8>,
    /// Whether the path led through a symbolic link.
    pub followed: bool,
}

/// The names that are still to be looked up.
struct Rest {
    bytes: Vec<u8>,
    at: usize,
    /// How many of the last bytes the caller gave: the ones before them are links' targets.
    given: usize,
}

impl Rest {
    /// The next name, and whether it comes from a link.
    fn next(&mut self) -> Option<(Vec<u8>, bool)> {
        loop {
            let rest = self.bytes.get(self.at..).filter(|rest| !rest.is_empty())?;
            let from_link = rest.len() > self.given;
            let len = rest.iter().position(|&b| b == b'/').unwrap_or(rest.len());
            let name = rest[..len].to_vec();
            self.at += (len + 1).min(rest.len());
            if !name.is_empty() && name != b"." {
                return Some((name, from_link));
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.at >= self.bytes.len()
    }

    /// Puts a link's target before what is left.
    fn put_before(&mut self, target: &[u8]) {
        let rest = self.bytes.split_off(self.at.min(self.bytes.len()));
        self.given = self.given.min(rest.len());
        self.bytes = [target, b"/", &rest].concat();
        if rest.is_empty() {
            self.bytes.pop();
        }
        self.at = 0;
    }
}

impl Image {
    /// Finds what `path` leads to. Names are as [`Image::read_dir`] shows them, or in another case if their directory
    /// folds it. Links are followed within the image: an absolute target begins at its root, and `..` does not lead out
    /// of it.
    ///
    /// # Errors
    /// [`ImageError::NotFound`] where a name is missing, with the key that is missing where its directory is locked.
    pub fn find(&self, path: &[u8], follow: Follow) -> Result<Found, ImageError> {
        let mut rest = Rest { bytes: path.to_vec(), at: 0, given: path.len() };
        let mut inode = self.fs.root()?;
        // The directories above, and the length of the path in each.
        let mut above: Vec<(u32, usize)> = Vec::new();
        let mut spelled = Vec::new();
        let mut links = 0;
        let mut ends_with_slash = path.ends_with(b"/") || path.ends_with(b"/.");
        while let Some((name, from_link)) = rest.next() {
            if !inode.is_dir() {
                return Err(ImageError::NotADirectory { path: spelled });
            }
            if name == b".." {
                if !from_link {
                    return Err(ImageError::Parent);
                }
                let (parent, len) = above.pop().unwrap_or((ROOT_INO, 0));
                spelled.truncate(len);
                inode = self.fs.inode(parent)?;
                continue;
            }
            let before = spelled.len();
            spelled.push(b'/');
            let Some(entry) = self.lookup(&inode, &name)? else {
                // A name that is missing because its directory is locked is a key error.
                let locked = self.names(&inode).ok().and_then(|names| names.missing().cloned());
                spelled.extend_from_slice(&name);
                return Err(ImageError::NotFound { path: spelled, locked });
            };
            let found = self.fs.inode(entry.ino)?;
            let is_last = rest.is_empty();
            let follows = match follow {
                Follow::All => true,
                Follow::Parents => !is_last,
                Follow::None => false,
            };
            if found.file_type == FileType::Symlink && follows {
                spelled.extend_from_slice(&entry.name);
                links += 1;
                if links > LINKS_MAX {
                    return Err(ImageError::Loop { path: canonical(path) });
                }
                let target = self.link_target(&found)?;
                if target.no_key {
                    let error = self.locked(&found)?;
                    return Err(error.unwrap_or(ImageError::NotFound { path: spelled, locked: None }));
                }
                if target.target.is_empty() {
                    return Err(ImageError::NotFound { path: spelled, locked: None });
                }
                if is_last {
                    ends_with_slash |= target.target.ends_with(b"/") || target.target.ends_with(b"/.");
                }
                spelled.truncate(before);
                if target.target.starts_with(b"/") {
                    spelled.clear();
                    above.clear();
                    inode = self.fs.root()?;
                }
                rest.put_before(&target.target);
                continue;
            }
            spelled.extend_from_slice(&entry.name);
            above.push((inode.ino, before));
            inode = found;
        }
        // As in the kernel: what precedes a trailing slash, or a dot after that, is a directory.
        if !inode.is_dir() && ends_with_slash {
            return Err(ImageError::NotADirectory { path: spelled });
        }
        Ok(Found { inode, path: spelled, followed: links > 0 })
    }

    /// The inode at `path`, without following links: see [`Image::find`].
    pub fn resolve(&self, path: &[u8]) -> Result<Inode, ImageError> {
        self.find(path, Follow::None).map(|found| found.inode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_have_one_form() {
        assert_eq!(canonical(b"//a/./b/"), b"/a/b");
        assert_eq!(canonical(b"/"), b"");
    }

    #[test]
    fn a_link_goes_before_the_rest() {
        let mut rest = Rest { bytes: b"/a//b/c".to_vec(), at: 0, given: 7 };
        assert_eq!(rest.next(), Some((b"a".to_vec(), false)));
        rest.put_before(b"../x/");
        assert_eq!(rest.next(), Some((b"..".to_vec(), true)));
        assert_eq!(rest.next(), Some((b"x".to_vec(), true)));
        assert_eq!(rest.next(), Some((b"b".to_vec(), false)));
        assert_eq!(rest.next(), Some((b"c".to_vec(), false)));
        assert!(rest.is_empty());
        rest.put_before(b"y");
        assert_eq!(rest.next(), Some((b"y".to_vec(), true)));
        assert_eq!(rest.next(), None);
    }
}
