//! What was in a directory before the run wrote into it, and which name of the image claimed each of those files.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};

use crate::place::{kind_of, stat};
use crate::unfinished::random_name;

/// The prefix of unfinished files' names, if the file system has no files without names; 32 hexadecimal digits follow.
pub(crate) const UNFINISHED: &str = ".postread-";

/// The files in a directory when the run first came to it. Each may be replaced once, by one name of the image.
///
/// Most file systems list a name as it was given when the file was created, so only the same spelling is known to be the
/// same name. Some that ignore case do not: lowntfs-3g with `ignore_case` lists every name in lower case. There a name that
/// the listing does not have, but a look-up finds, is identified by its inode number.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    /// By the hashes of their names. The keys are secret, so that an image cannot contain colliding names.
    files: Box<[Listed]>,
    hasher: RandomState,
    /// Whether names are listed as they were given. Found out when it first matters.
    keeps_spelling: OnceLock<bool>,
    /// Indices of `files` by inode number, where spelling is not kept.
    by_inode: OnceLock<Box<[(u64, usize)]>>,
    /// Indices of `files` that the image has a name for, and the hash of that name.
    claimed: Mutex<HashMap<usize, u64>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Listed {
    name: u64,
    ino: u64,
}

impl Listing {
    /// Lists a directory, and removes what a killed run left unfinished in it.
    pub(crate) fn of(dir: BorrowedFd<'_>) -> io::Result<Self> {
        let hasher = RandomState::new();
        let mut files = Vec::new();
        for entry in Dir::read_from(dir)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") || remove_leftover(dir, name) {
                continue;
            }
            files.push(Listed { name: hasher.hash_one(name), ino: entry.ino() });
        }
        files.sort_unstable();
        Ok(Self { files: files.into(), hasher, ..Self::default() })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Whether the file `ino`, which a look-up of `name` in `dir` has found, was there before the run and belongs to no
    /// other name of the image. It belongs to this one from now on.
    pub(crate) fn claim(&self, dir: BorrowedFd<'_>, name: &[u8], ino: u64) -> bool {
        if self.files.is_empty() {
            return false;
        }
        let name = self.hasher.hash_one(name);
        let exact = self.files.binary_search_by_key(&name, |file| file.name).ok();
        if let Some(exact) = exact.filter(|_| self.keeps_spelling.get() != Some(&false)) {
            return self.take(exact, name);
        }
        // If that can't be determined, nothing is replaced.
        let kept = *self.keeps_spelling.get_or_init(|| keeps_spelling(dir).unwrap_or(true));
        if kept {
            return false;
        }
        let by_inode = self.by_inode.get_or_init(|| {
            let mut by_inode: Box<[_]> = self.files.iter().enumerate().map(|(i, file)| (file.ino, i)).collect();
            by_inode.sort_unstable();
            by_inode
        });
        let first = by_inode.partition_point(|&(other, _)| other < ino);
        // Several where files have several names.
        let mut same = by_inode[first..].iter().take_while(|&&(other, _)| other == ino).map(|&(_, index)| index);
        // What this run created has another inode number.
        match exact {
            Some(exact) => same.any(|index| index == exact) && self.take(exact, name),
            None => same.any(|index| self.take(index, name)),
        }
    }

    fn take(&self, index: usize, name: u64) -> bool {
        *self.claimed.lock().unwrap_or_else(PoisonError::into_inner).entry(index).or_insert(name) == name
    }
}

/// Whether a file system lists names as they were given: tested with a name in capitals, which file systems that store
/// only one case list in lower case.
fn keeps_spelling(dir: BorrowedFd<'_>) -> io::Result<bool> {
    let name = random_name().to_ascii_uppercase();
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(dir, &name, flags, Mode::RUSR | Mode::WUSR)?;
    let mut kept = false;
    for entry in Dir::read_from(dir)? {
        kept |= entry?.file_name().to_bytes() == name.as_bytes();
    }
    drop(file);
    rustix::fs::unlinkat(dir, &name, AtFlags::empty())?;
    Ok(kept)
}

/// Removes a file of our own that has the name of an unfinished one, or of the one that asks for the spelling. What a
/// directory holds says nothing about whose the directory is: this touches no more than that file.
fn remove_leftover(dir: BorrowedFd<'_>, name: &[u8]) -> bool {
    let small = name.strip_prefix(UNFINISHED.as_bytes());
    let capital = name.strip_prefix(UNFINISHED.to_ascii_uppercase().as_bytes());
    let of = |digits: Option<&[u8]>, letters: std::ops::RangeInclusive<u8>| {
        digits.is_some_and(|digits| {
            digits.len() == 32 && digits.iter().all(|d| d.is_ascii_digit() || letters.contains(d))
        })
    };
    if !of(small, b'a'..=b'f') && !of(capital, b'A'..=b'F') {
        return false;
    }
    let ours = stat(dir, name).ok().flatten().is_some_and(|found| {
        kind_of(&found) == FileType::RegularFile && found.st_uid == rustix::process::geteuid().as_raw()
    });
    ours && rustix::fs::unlinkat(dir, name, AtFlags::empty()).is_ok()
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    /// A listing from a file system that shows every name in lower case.
    fn small(files: &[(&str, u64)]) -> Listing {
        let mut listing = Listing::default();
        let mut listed: Vec<_> =
            files.iter().map(|&(name, ino)| Listed { name: listing.hasher.hash_one(name.as_bytes()), ino }).collect();
        listed.sort_unstable();
        listing.files = listed.into();
        listing.keeps_spelling = OnceLock::from(false);
        listing
    }

    #[test]
    fn a_file_belongs_to_one_name_where_spelling_is_not_kept() {
        let dir = tempfile::tempdir().unwrap();
        let dir = File::open(dir.path()).unwrap();
        let listing = small(&[("config", 7), ("other", 8), ("a", 9), ("b", 9)]);
        let claim = |name: &str, ino| listing.claim(dir.as_fd(), name.as_bytes(), ino);
        assert!(claim("Config", 7) && claim("Config", 7), "the same name again");
        assert!(!claim("CONFIG", 7) && !claim("config", 7), "another name's");
        assert!(!claim("Config", 100), "this run's own");
        assert!(!claim("other", 101), "this run's own under the listed spelling");
        assert!(claim("other", 8) && !claim("Other", 8));
        assert!(claim("A", 9) && claim("B", 9) && !claim("C", 9), "two names of one file");
    }

    #[test]
    fn names_decide_where_spelling_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("config"), "x").unwrap();
        let ino = std::fs::metadata(dir.path().join("config")).unwrap().ino();
        let open = File::open(dir.path()).unwrap();
        let listing = Listing::of(open.as_fd()).unwrap();
        assert!(!listing.claim(open.as_fd(), b"Config", ino));
        assert!(listing.claim(open.as_fd(), b"config", ino));
        // The test file is gone.
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn leftovers_are_removed_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let left = format!("{UNFINISHED}{}", "0123456789abcdef".repeat(2));
        let others =
            [".postread-partial".to_owned(), left.replace('0', "g"), format!("{left}0"), left.replace('a', "A")];
        let capital = left.to_ascii_uppercase();
        [&left, &capital].iter().for_each(|name| std::fs::write(dir.path().join(name), "x").unwrap());
        others.iter().for_each(|name| std::fs::write(dir.path().join(name), "x").unwrap());
        // A directory of that name is not a leftover.
        let directory = left.replace("0123", "3210");
        std::fs::create_dir(dir.path().join(&directory)).unwrap();
        Listing::of(File::open(dir.path()).unwrap().as_fd()).unwrap();
        assert!(!dir.path().join(left).exists() && !dir.path().join(capital).exists());
        assert!(others.iter().chain([&directory]).all(|name| dir.path().join(name).exists()));
    }
}
