//! The metadata that wraps master keys: the `fscrypt` tool's `/.fscrypt`, and the slots of systemd-homed.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use postread_fscrypt::fscrypt_tool::{Protector, ProtectorSource, ToolPolicy};
use postread_fscrypt::homed::HomedSlot;
use postread_fsimage::ext4::{FileType, ROOT_INO};

use crate::error::{Error, ErrorKind, Result};
use crate::image::{Follow, Image, ImageError};

/// Metadata files are far smaller.
const FILE_MAX: u64 = 1 << 20;
/// More files than any real system has; the rest is ignored.
const FILES_MAX: usize = 10_000;
/// How deep home directories of systemd-homed may be.
const HOMED_DEPTH: usize = 3;
/// How many names are looked at for slots.
const HOMED_NAMES_MAX: usize = 100_000;

/// A protector that is on another file system.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinkedProtector {
    /// Its descriptor.
    pub descriptor: String,
    /// The file system, as the link names it: `UUID=...`, or a path.
    pub file_system: String,
}

/// A directory of systemd-homed with its key slots.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HomedDirectory {
    /// Its path.
    pub path: OsString,
    /// The slots, one for each passphrase.
    pub slots: Vec<HomedSlot>,
}

/// The metadata that wraps an image's master keys.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct FscryptMetadata {
    /// The protectors found.
    pub protectors: Vec<Protector>,
    /// The policies.
    pub policies: Vec<ToolPolicy>,
    /// Protectors that the policies use and that are on another file system; those found since are left out.
    pub linked: Vec<LinkedProtector>,
    /// Directories of systemd-homed.
    pub homed: Vec<HomedDirectory>,
    /// What could not be read.
    pub broken: Vec<String>,
}

/// Files by name.
type Files = Vec<(String, Vec<u8>)>;

impl FscryptMetadata {
    /// Reads what an image holds: `/.fscrypt`, which may be a link, and slots in directories near the root.
    pub fn read(image: &Image) -> Self {
        Self { homed: homed(image), ..Self::read_tool(image) }
    }

    /// The `fscrypt` tool's alone.
    pub(super) fn read_tool(image: &Image) -> Self {
        let mut found = Self::default();
        found.add(|folder, broken| from_image(image, folder, broken));
        found
    }

    /// Adds the metadata of another file system: login protectors are on that of `/`.
    pub fn add_image(&mut self, image: &Image) {
        self.add(|folder, broken| from_image(image, folder, broken));
    }

    /// Adds the metadata in a directory: where a file system is mounted, or its `.fscrypt`.
    ///
    /// # Errors
    /// If it holds none.
    pub fn add_dir(&mut self, dir: &Path) -> Result<()> {
        let at: PathBuf = match dir.join(".fscrypt") {
            inner if inner.is_dir() => inner,
            _ if dir.join("protectors").is_dir() => dir.to_owned(),
            _ => {
                let what = "it has no .fscrypt, and no protectors, in it";
                return Err(Error::new(ErrorKind::NotFound, what).about(dir));
            }
        };
        self.add(|folder, broken| from_dir(&at.join(folder), broken));
        Ok(())
    }

    fn add(&mut self, mut files: impl FnMut(&str, &mut Vec<String>) -> Files) {
        let protectors = files("protectors", &mut self.broken);
        let (links, protectors): (Files, Files) = protectors.into_iter().partition(|(name, _)| name.ends_with(".link"));
        let protectors = self.parse(protectors, Protector::parse);
        // A duplicate came from another copy of the same metadata.
        for protector in protectors {
            if self.protectors.iter().all(|other| other.descriptor != protector.descriptor) {
                self.protectors.push(protector);
            }
        }
        for (name, bytes) in links {
            let descriptor = name.trim_end_matches(".link").to_owned();
            let text = String::from_utf8_lossy(&bytes);
            let file_system = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("unknown").to_owned();
            self.linked.push(LinkedProtector { descriptor, file_system });
        }
        let policies = files("policies", &mut self.broken);
        let policies = self.parse(policies, ToolPolicy::parse);
        self.policies.extend(policies);
        self.linked.retain(|link| self.protectors.iter().all(|found| found.descriptor != link.descriptor));
    }

    fn parse<T, E: std::fmt::Display>(&mut self, files: Files, parse: impl Fn(&[u8]) -> Result<T, E>) -> Vec<T> {
        let mut out = Vec::new();
        for (name, bytes) in files {
            match parse(&bytes) {
                Ok(parsed) => out.push(parsed),
                Err(error) => self.broken.push(format!("/.fscrypt: {name}: {error}")),
            }
        }
        out
    }

    /// Whether a passphrase would be of use.
    pub fn wants_passphrase(&self) -> bool {
        !self.homed.is_empty() || self.protectors.iter().any(|found| found.source != ProtectorSource::RawKey)
    }
}

fn from_image(image: &Image, folder: &str, broken: &mut Vec<String>) -> Files {
    let path = format!("/.fscrypt/{folder}");
    let mut out = Vec::new();
    let result = (|| -> Result<(), ImageError> {
        let dir = match image.find(path.as_bytes(), Follow::All) {
            Err(ImageError::NotFound { .. }) => return Ok(()),
            found => found?.inode,
        };
        for entry in image.read_dir(&dir)?.take(FILES_MAX) {
            let entry = entry?;
            let name = String::from_utf8_lossy(&entry.name).into_owned();
            if let Some(bytes) = image.read_plain(&image.fs().inode(entry.ino)?, FILE_MAX)? {
                out.push((name, bytes));
            }
        }
        Ok(())
    })();
    if let Err(error) = result {
        broken.push(format!("{path}: {error}"));
    }
    out
}

fn from_dir(dir: &Path, broken: &mut Vec<String>) -> Files {
    let read = || -> std::io::Result<Files> {
        let mut out = Vec::new();
        for entry in std::fs::read_dir(dir)?.take(FILES_MAX) {
            let entry = entry?;
            let metadata = std::fs::metadata(entry.path())?;
            if metadata.is_file() && metadata.len() <= FILE_MAX {
                out.push((entry.file_name().to_string_lossy().into_owned(), std::fs::read(entry.path())?));
            }
        }
        Ok(out)
    };
    match read() {
        Ok(files) => files,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(error) => {
            broken.push(format!("{}: {error}", dir.display()));
            Vec::new()
        }
    }
}

/// The directories near the root that systemd-homed made.
fn homed(image: &Image) -> Vec<HomedDirectory> {
    let mut out = Vec::new();
    let mut walk = image.walk(ROOT_INO);
    let mut names = 0;
    while let Some(visit) = walk.next() {
        names += 1;
        if names > HOMED_NAMES_MAX {
            break;
        }
        let Ok(inode) = visit.inode else { continue };
        if inode.file_type != FileType::Directory {
            continue;
        }
        if inode.is_encrypted() || visit.path.split(|&b| b == b'/').count() >= HOMED_DEPTH {
            walk.skip_dir();
        }
        if !inode.is_encrypted() {
            continue;
        }
        let slots: Vec<HomedSlot> = image
            .fs()
            .xattrs(&inode)
            .filter_map(Result::ok)
            .filter(|xattr| xattr.full_name().is_some_and(|name| name.starts_with(b"trusted.fscrypt_slot")))
            .filter_map(|xattr| HomedSlot::parse(&xattr.value))
            .collect();
        if !slots.is_empty() {
            let path = std::os::unix::ffi::OsStringExt::from_vec([b"/", &visit.path[..]].concat());
            out.push(HomedDirectory { path, slots });
        }
    }
    out
}
