//! Which files to work on: names given, lists of names, directories walked. A name at a time, so that a directory of
//! a million files takes little memory.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, BufRead};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// The most names of one directory that are sorted together, in names and in bytes: about 20 MB. A larger directory
/// comes in several runs, each sorted.
const RUN_NAMES: usize = 1 << 20;
const RUN_BYTES: usize = 12 << 20;

/// A longer line of a list names no file.
const MAX_NAME: usize = 65536;

/// A name, or why there is none.
pub(crate) type Input = Result<PathBuf, (PathBuf, InputError)>;

/// Why there is no name.
#[derive(Debug)]
pub(crate) enum InputError {
    Io(io::Error),
    /// A line of a list that is too long for one.
    LongLine,
}

impl From<io::Error> for InputError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// The names in the order they were given.
pub(crate) struct Inputs {
    given: std::vec::IntoIter<PathBuf>,
    list: Option<(PathBuf, Box<dyn BufRead + Send>)>,
    recursive: bool,
    walk: Vec<Directory>,
}

impl Inputs {
    /// Names, then the lines of a list; with `recursive` the regular files beneath those that are directories.
    pub(crate) fn new(names: Vec<PathBuf>, list: Option<(PathBuf, Box<dyn BufRead + Send>)>, recursive: bool) -> Self {
        Self { given: names.into_iter(), list, recursive, walk: Vec::new() }
    }

    /// The only name there is, if there is only one and it is not walked into.
    pub(crate) fn single(&self) -> Option<&Path> {
        match self.given.as_slice() {
            [only] if self.list.is_none() && !(self.recursive && only.is_dir()) => Some(only),
            _ => None,
        }
    }

    fn next_listed(&mut self) -> Option<Input> {
        loop {
            let (name, mut list) = self.list.take()?;
            let mut line = Vec::new();
            match io::Read::take(&mut list, MAX_NAME as u64).read_until(b'\n', &mut line) {
                Ok(0) => return None,
                Ok(_) if line.len() == MAX_NAME => {
                    return Some(Err((name, InputError::LongLine)));
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

impl Iterator for Inputs {
    type Item = Input;

    fn next(&mut self) -> Option<Input> {
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

    /// Reads the next run of names. Links, pipes and devices are passed over.
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
