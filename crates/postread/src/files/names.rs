//! Which files to work on: names given, lists of names, directories walked. One name at a time, so that a directory of
//! a million files takes little memory.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, BufRead};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::digest_files::FileError;
use crate::error::ErrorKind;

/// The most names of one directory that are sorted together, in names and in bytes: about 20 MB. A larger directory
/// comes in several runs, each sorted.
const RUN_NAMES: usize = 1 << 20;
const RUN_BYTES: usize = 12 << 20;

/// A longer line of a list names no file.
const MAX_NAME: usize = 65536;

type Named = Result<PathBuf, (PathBuf, NameError)>;

/// Why a list or a directory gives no further name.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// It could not be read.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// A line of a list is too long to be a name; the rest of the list is not read.
    #[error("a line is too long for a name (65536 bytes or more)")]
    LongLine,
}

impl NameError {
    /// What kind of failure it is.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Io(error) if error.kind() == io::ErrorKind::NotFound => ErrorKind::NotFound,
            Self::Io(_) => ErrorKind::Io,
            Self::LongLine => ErrorKind::InvalidInput,
        }
    }
}

impl From<NameError> for FileError {
    fn from(error: NameError) -> Self {
        match error {
            NameError::Io(error) => FileError::Open(error),
            NameError::LongLine => FileError::LongLine,
        }
    }
}

/// An iterator over files' names: those given, in that order, then the lines of a list. An error comes with the list or
/// the directory that it is about, and does not end the iterator.
pub struct FileNames {
    given: std::vec::IntoIter<PathBuf>,
    list: Option<(PathBuf, Box<dyn BufRead + Send>)>,
    recursive: bool,
    walk: Vec<Directory>,
}

impl std::fmt::Debug for FileNames {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileNames")
            .field("given", &self.given)
            .field("recursive", &self.recursive)
            .finish_non_exhaustive()
    }
}

impl FileNames {
    /// The names, then the lines of the list, which comes with its name. With `recursive`, a directory is replaced by the
    /// regular files in and beneath it, each directory's sorted by name.
    pub fn new(names: Vec<PathBuf>, list: Option<(PathBuf, Box<dyn BufRead + Send>)>, recursive: bool) -> Self {
        Self { given: names.into_iter(), list, recursive, walk: Vec::new() }
    }

    /// The name, if there is exactly one and it is not a directory to walk.
    pub fn single(&self) -> Option<&Path> {
        match self.given.as_slice() {
            [only] if self.list.is_none() && !(self.recursive && only.is_dir()) => Some(only),
            _ => None,
        }
    }

    fn next_listed(&mut self) -> Option<Named> {
        loop {
            let (name, mut list) = self.list.take()?;
            let mut line = Vec::new();
            match io::Read::take(&mut list, MAX_NAME as u64).read_until(b'\n', &mut line) {
                Ok(0) => return None,
                Ok(_) if line.len() == MAX_NAME => {
                    return Some(Err((name, NameError::LongLine)));
                }
                Ok(_) => {}
                Err(error) => return Some(Err((name, error.into()))),
            }
            self.list = Some((name, list));
            if line.last() == Some(&b'\n') {
                line.pop();
            }
            if !line.is_empty() {
                return Some(Ok(PathBuf::from(OsString::from_vec(line))));
            }
        }
    }
}

impl Iterator for FileNames {
    type Item = Result<PathBuf, (PathBuf, NameError)>;

    fn next(&mut self) -> Option<Named> {
        loop {
            while let Some(directory) = self.walk.last_mut() {
                match directory.next() {
                    None => {
                        self.walk.pop();
                    }
                    Some(Err(error)) => {
                        let path = directory.path.clone();
                        self.walk.pop();
                        return Some(Err((path, error.into())));
                    }
                    Some(Ok((path, Kind::File))) => return Some(Ok(path)),
                    Some(Ok((path, Kind::Directory))) => match Directory::open(path.clone()) {
                        Ok(inner) => self.walk.push(inner),
                        Err(error) => return Some(Err((path, error.into()))),
                    },
                }
            }
            let next = match self.given.next() {
                Some(path) => Ok(path),
                None => self.next_listed()?,
            };
            match next {
                Ok(path) if self.recursive && path.is_dir() => match Directory::open(path.clone()) {
                    Ok(directory) => self.walk.push(directory),
                    Err(error) => return Some(Err((path, error.into()))),
                },
                other => return Some(other),
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    File,
    Directory,
}

/// A directory being walked: a sorted run of its names, packed.
struct Directory {
    path: PathBuf,
    entries: fs::ReadDir,
    names: Vec<u8>,
    /// Where each name of the run ends in `names`, and what it is; sorted by name.
    run: Vec<(u32, u32, Kind)>,
    next: usize,
}

impl Directory {
    fn open(path: PathBuf) -> io::Result<Self> {
        let entries = fs::read_dir(&path)?;
        Ok(Self { path, entries, names: Vec::new(), run: Vec::new(), next: 0 })
    }

    /// Reads the next run of names. Links, pipes and devices are skipped.
    fn refill(&mut self) -> io::Result<()> {
        self.names.clear();
        self.run.clear();
        self.next = 0;
        while self.run.len() < RUN_NAMES && self.names.len() < RUN_BYTES {
            let Some(entry) = self.entries.next() else { break };
            let entry = entry?;
            let kind = entry.file_type()?;
            let kind = match (kind.is_file(), kind.is_dir()) {
                (true, _) => Kind::File,
                (_, true) => Kind::Directory,
                _ => continue,
            };
            let start = self.names.len() as u32;
            self.names.extend_from_slice(entry.file_name().as_bytes());
            self.run.push((start, self.names.len() as u32, kind));
        }
        let names = &self.names;
        self.run.sort_unstable_by(|a, b| names[a.0 as usize..a.1 as usize].cmp(&names[b.0 as usize..b.1 as usize]));
        Ok(())
    }

    fn next(&mut self) -> Option<io::Result<(PathBuf, Kind)>> {
        if self.next == self.run.len()
            && let Err(error) = self.refill()
        {
            return Some(Err(error));
        }
        let &(start, end, kind) = self.run.get(self.next)?;
        self.next += 1;
        let name = OsStr::from_bytes(&self.names[start as usize..end as usize]);
        Some(Ok((self.path.join(name), kind)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lines_and_directories_come_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("d")).unwrap();
        for name in ["d/b", "d/a", "z"] {
            fs::write(at(name), "").unwrap();
        }
        std::os::unix::fs::symlink("a", at("d/link")).unwrap();
        let list = format!("{}\n\n{}", at("z").display(), at("d").display());
        let list = || -> Option<(PathBuf, Box<dyn BufRead + Send>)> {
            Some(("list".into(), Box::new(io::Cursor::new(list.clone().into_bytes()))))
        };
        let names = |recursive| -> Vec<PathBuf> {
            FileNames::new(vec![at("d"), at("missing")], list(), recursive).map(Result::unwrap).collect()
        };
        assert_eq!(names(false), [at("d"), at("missing"), at("z"), at("d")]);
        assert_eq!(names(true), [at("d/a"), at("d/b"), at("missing"), at("z"), at("d/a"), at("d/b")]);
        assert_eq!(FileNames::new(vec![at("z")], None, true).single(), Some(&*at("z")));
        assert_eq!(FileNames::new(vec![at("d")], None, true).single(), None);
    }

    #[test]
    fn a_line_that_is_too_long_ends_the_list() {
        let text = [b"f\n".to_vec(), vec![b'x'; MAX_NAME], b"\ng\n".to_vec()].concat();
        let mut names = FileNames::new(Vec::new(), Some(("list".into(), Box::new(io::Cursor::new(text)))), false);
        assert_eq!(names.next().unwrap().unwrap(), Path::new("f"));
        let (path, error) = names.next().unwrap().unwrap_err();
        assert_eq!((&*path, error.kind()), (Path::new("list"), ErrorKind::InvalidInput));
        assert!(names.next().is_none());
    }
}
