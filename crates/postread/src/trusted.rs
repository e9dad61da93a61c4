//! Trusted digests for files of an image.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::io::{BufRead, Read};

use postread_fsimage::ext4::{FileType, ROOT_INO};
use postread_verity::{FileDigest, list};

use crate::error::{Error, ErrorKind, Result};
use crate::image::{Follow, Image, ImageError, canonical, kind_name};

/// The longest line of a list: a digest and a path.
const LINE_MAX: u64 = 64 << 10;
/// The most bytes of a list: it is kept in memory.
const LIST_MAX: u64 = 256 << 20;

/// Trusted fs-verity digests, by the path of the file in the image.
#[derive(Clone, Debug, Default)]
pub struct TrustedDigests {
    /// Sorted by path: a hash table of a million would take twice the memory.
    by_path: Vec<(Box<[u8]>, FileDigest)>,
    /// For whatever file is read.
    only: Option<FileDigest>,
    /// Listed paths that lead through symbolic links, in the order of the list.
    through_links: Vec<ThroughLink>,
    /// Where they lead, sorted, with the digests that are expected there.
    real: Vec<(Box<[u8]>, FileDigest)>,
}

#[derive(Clone, Debug)]
struct ThroughLink {
    listed: Box<[u8]>,
    real: Box<[u8]>,
    /// Whether another line expects another digest there.
    contradicts: bool,
}

impl TrustedDigests {
    /// None.
    pub fn new() -> Self {
        Self::default()
    }

    /// One digest for whatever file is read: for reading a single file.
    pub fn only(digest: FileDigest) -> Self {
        Self { only: Some(digest), ..Self::default() }
    }

    /// Reads a list as `fsverity digest` prints it: `ALG:HEX PATH` on each line, with the path in the image.
    ///
    /// # Errors
    /// If a line is malformed, or a path is listed with two digests.
    pub fn from_list(mut list: impl BufRead) -> Result<Self> {
        let malformed = |message: String| Error::new(ErrorKind::Malformed, message);
        let mut by_path = Vec::new();
        let mut line = Vec::new();
        let mut bytes = 0;
        for number in 1u64.. {
            line.clear();
            (&mut list).take(LINE_MAX).read_until(b'\n', &mut line)?;
            if line.is_empty() {
                break;
            }
            if line.len() as u64 == LINE_MAX {
                return Err(malformed(format!("line {number} is too long: at most {LINE_MAX} bytes")));
            }
            bytes += line.len() as u64;
            if bytes > LIST_MAX {
                return Err(malformed(format!("the list is too long: at most {LIST_MAX} bytes")));
            }
            if line.last() == Some(&b'\n') {
                line.pop();
            }
            let entry = list::parse_line(&line).map_err(|error| malformed(format!("line {number}: {error}")))?;
            if let Some(entry) = entry {
                by_path.push((canonical(&entry.name).into_boxed_slice(), entry.digest));
            }
        }
        by_path.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        if let Some([(path, _), _]) = by_path.array_windows().find(|[a, b]| a.0 == b.0 && a.1 != b.1) {
            return Err(malformed(format!("{} has two different digests in it", String::from_utf8_lossy(path))));
        }
        by_path.dedup_by(|a, b| a.0 == b.0);
        Ok(Self { by_path, ..Self::default() })
    }

    /// Trusts a digest for one more path. A path that has one gets the new one.
    pub fn insert(&mut self, path: &[u8], digest: FileDigest) {
        let path = canonical(path).into_boxed_slice();
        match self.by_path.binary_search_by(|(listed, _)| listed.cmp(&path)) {
            Ok(at) => self.by_path[at].1 = digest,
            Err(at) => self.by_path.insert(at, (path, digest)),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.only.is_none() && self.by_path.is_empty()
    }

    /// The digest that the file at `path` must have; `path` is spelled as in the image, without links.
    pub fn get(&self, path: &[u8]) -> Option<&FileDigest> {
        let find = |list: &'_ [(Box<[u8]>, FileDigest)]| list.binary_search_by(|(listed, _)| (**listed).cmp(path)).ok();
        self.only
            .as_ref()
            .or_else(|| find(&self.by_path).map(|at| &self.by_path[at].1))
            .or_else(|| find(&self.real).map(|at| &self.real[at].1))
    }

    /// The paths of the list.
    pub fn paths(&self) -> impl Iterator<Item = &[u8]> {
        self.by_path.iter().map(|(path, _)| &**path)
    }

    /// Where a listed path leads, links followed: the path itself where it goes through none.
    pub fn real_path<'a>(&'a self, listed: &'a [u8]) -> &'a [u8] {
        self.through_link(listed).map_or(listed, |link| &link.real)
    }

    fn through_link(&self, listed: &[u8]) -> Option<&ThroughLink> {
        let at = self.through_links.binary_search_by(|link| (*link.listed).cmp(listed)).ok()?;
        Some(&self.through_links[at])
    }

    /// Whether a listed path leads through links to a file that another line gives another digest.
    pub fn contradicts(&self, listed: &[u8]) -> bool {
        self.through_link(listed).is_some_and(|link| link.contradicts)
    }

    /// Follows listed paths that lead through the image's symbolic links, so that the files they lead to are verified
    /// against their digests. Takes one walk of the image, where there is a list.
    pub fn follow_links(&mut self, image: &Image) {
        self.through_links.clear();
        self.real.clear();
        if self.by_path.is_empty() {
            return;
        }
        // Hashes, because the paths themselves would take quadratic space in a deep chain. A false match costs one
        // look-up.
        let hasher = RandomState::new();
        let mut links = HashSet::new();
        for visit in image.walk(ROOT_INO) {
            if let Ok(inode) = &visit.inode
                && inode.file_type == FileType::Symlink
            {
                links.insert(hasher.hash_one([b"/", &visit.path[..]].concat()));
            }
        }
        if links.is_empty() {
            return;
        }
        for (listed, digest) in &self.by_path {
            let ends = (1..listed.len()).filter(|&at| listed[at] == b'/').chain([listed.len()]);
            if !ends.into_iter().any(|end| links.contains(&hasher.hash_one(listed[..end].to_vec()))) {
                continue;
            }
            // `trouble` reports the error.
            let Ok(found) = image.find(listed, Follow::All) else { continue };
            if found.followed {
                let real = found.path.into_boxed_slice();
                self.through_links.push(ThroughLink { listed: listed.clone(), real: real.clone(), contradicts: false });
                self.real.push((real, *digest));
            }
        }
        self.real.sort_by(|a, b| a.0.cmp(&b.0));
        self.real.dedup_by(|a, b| a.0 == b.0);
        let mut links = std::mem::take(&mut self.through_links);
        for link in &mut links {
            let own = self.by_path.binary_search_by(|(path, _)| path.cmp(&link.listed)).ok();
            link.contradicts = own.map(|at| &self.by_path[at].1) != self.get(&link.real);
        }
        self.through_links = links;
    }

    /// Why no file was verified against a listed path: the author of the image may have replaced it. `None` if it is a
    /// regular file, which was just not requested.
    pub fn trouble(&self, image: &Image, path: &[u8]) -> Option<Error> {
        let corrupt = |message: String| Some(Error::new(ErrorKind::Corrupt, message));
        if let Some(link) = self.through_link(path).filter(|link| link.contradicts) {
            let real = String::from_utf8_lossy(&link.real);
            return corrupt(format!("it leads to {real}, for which the list has another digest"));
        }
        match image.find(path, Follow::All) {
            Ok(found) if !found.followed && found.path != path => {
                corrupt(format!("the image spells it {}: list it so", String::from_utf8_lossy(&found.path)))
            }
            Ok(found) if found.inode.file_type == FileType::Regular => None,
            Ok(found) => {
                let kind = kind_name(found.inode.file_type);
                corrupt(format!("not a regular file but a {kind}: nothing was verified"))
            }
            // It may exist, but that is unknown without the key.
            Err(error @ ImageError::NotFound { locked: Some(_), .. }) => Some(error.without_path(path).into()),
            Err(ImageError::NotFound { .. }) => corrupt("no such file".to_owned()),
            // Through a file, say, where there was a directory.
            Err(error @ (ImageError::NotADirectory { .. } | ImageError::Parent | ImageError::Loop { .. })) => {
                corrupt(format!("nothing was verified: {error}"))
            }
            Err(error) => Some(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "sha256:3d248ca542a24fc62d1c43b916eae5016878e2533c88238480b26128a1f1af95";

    #[test]
    fn paths_are_found_in_their_one_form() {
        let list = format!("{DIGEST} //b/./c\n# comment\n\n{DIGEST} /a\n");
        let mut trusted = TrustedDigests::from_list(list.as_bytes()).unwrap();
        assert!(trusted.get(b"/b/c").is_some() && trusted.get(b"/a").is_some() && trusted.get(b"/c").is_none());
        assert_eq!(trusted.paths().collect::<Vec<_>>(), [&b"/a"[..], b"/b/c"]);
        trusted.insert(b"c/", DIGEST.parse().unwrap());
        assert!(trusted.get(b"/c").is_some());
    }

    #[test]
    fn a_line_that_is_wrong_is_named() {
        let error = TrustedDigests::from_list(format!("{DIGEST} /a\nnonsense\n").as_bytes()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Malformed);
        assert!(error.to_string().starts_with("line 2: "), "{error}");
        let other = DIGEST.replace("3d24", "3d25");
        let error = TrustedDigests::from_list(format!("{DIGEST} /a\n{other} a\n").as_bytes()).unwrap_err();
        assert_eq!(error.to_string(), "/a has two different digests in it");
    }
}
