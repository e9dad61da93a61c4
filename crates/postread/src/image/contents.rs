//! A file's contents: where they are, and what they are encrypted with.

use std::ops::Range;
use std::sync::Arc;

use postread_fscrypt::{ContentsKey, Context};
use postread_fsimage::ext4::{self, ExtentKind, FileType, Inode};
use postread_io::{BlockStatus, MemorySource};

use super::file_map::FileMap;
use super::{DecryptStep, Image, ImageError};
use crate::plan::{ExtentMap, Linear, MappedExtent, Mapping, Piece, Plan};

/// A regular file's contents, with its key where it is encrypted.
#[derive(Clone, Debug)]
pub struct Contents {
    pub(super) ino: u32,
    pub(super) len: u64,
    pub(super) map: Arc<dyn MappingDebug>,
    pub(super) key: Option<Arc<ContentsKey>>,
}

/// A mapping that can be printed.
pub(super) trait MappingDebug: Mapping + std::fmt::Debug {}
impl<T: Mapping + std::fmt::Debug> MappingDebug for T {}

/// A mapping that begins later in another one.
#[derive(Debug)]
struct Shifted {
    map: Arc<dyn MappingDebug>,
    by: u64,
}

impl Mapping for Shifted {
    fn piece(&self, offset: u64, len: u64) -> Piece<'_> {
        self.map.piece(self.by.saturating_add(offset), len)
    }
}

impl Image {
    /// A regular file's contents, with the key that they need.
    pub fn contents(&self, file: &Inode) -> Result<Contents, ImageError> {
        is_file(file)?;
        let key = match self.context(file)? {
            Some(context) => Some(Arc::new(self.contents_key(file, &context)?)),
            None => None,
        };
        self.contents_with(file, key)
    }

    /// A regular file's contents as they are on disk: ciphertext, if they are encrypted.
    pub fn ciphertext(&self, file: &Inode) -> Result<Contents, ImageError> {
        is_file(file)?;
        self.contents_with(file, None)
    }

    fn contents_with(&self, file: &Inode, key: Option<Arc<ContentsKey>>) -> Result<Contents, ImageError> {
        let ino = file.ino;
        if let Some(data) = self.fs().inline_data(file)? {
            let len = data.len() as u64;
            let map = Arc::new(Linear::new(Arc::new(MemorySource::new(data)), 0, len));
            return Ok(Contents { ino, len: file.size, map, key });
        }
        let mut extents = Vec::new();
        let mut broken: Vec<(Range<u64>, BlockStatus)> = Vec::new();
        let mut walk = self.fs().extents_from(file, 0);
        while let Some(extent) = walk.next() {
            let (error, status) = match extent {
                Ok(extent) if extent.kind == ExtentKind::Written => {
                    let physical = extent.physical.saturating_add(self.start);
                    extents.push(MappedExtent { logical: extent.logical, len: extent.len, physical });
                    continue;
                }
                Ok(_) => continue,
                Err(error) => match unmapped(&error) {
                    Some(status) => (error, status),
                    None => return Err(error.into()),
                },
            };
            let Some(range) = walk.skip_broken() else { return Err(error.into()) };
            // Neighbours are one range: a hostile map has many of them.
            match broken.last_mut() {
                Some((last, _)) if last.end == range.start => last.end = range.end,
                _ => broken.push((range, status)),
            }
        }
        let mut extents = ExtentMap::new(self.data.clone(), extents)
            .map_err(|_| ImageError::WrongKind { ino, wanted: "file whose extents are apart" })?;
        broken.into_iter().for_each(|(range, status)| extents.add_broken(range, status));
        let map = FileMap { extents, truncated: self.truncated.clone() };
        Ok(Contents { ino, len: file.size, map: Arc::new(map), key })
    }

    fn contents_key(&self, file: &Inode, context: &Context) -> Result<ContentsKey, ImageError> {
        let ino = file.ino;
        let found = self.master_key_at(context, None);
        let (master, right) = found.map_err(|missing| ImageError::MissingKey { ino, missing })?;
        let key = ContentsKey::derive(master, context, &self.facts(file));
        let key = key.map_err(|error| ImageError::Key { ino, error })?;
        if right.is_none() {
            self.tell_unjudged(&context.policy);
        }
        Ok(key)
    }
}

/// The status of the blocks covered by a part of a map, for an error that concerns only that part.
fn unmapped(error: &ext4::Error) -> Option<BlockStatus> {
    match error {
        ext4::Error::Corrupt(corrupt) => {
            Some(BlockStatus::Unmapped { message: error.to_string().into(), checksum: corrupt.is_checksum() })
        }
        ext4::Error::Truncated { expected, found, .. } => {
            Some(BlockStatus::Truncated { expected: *expected, found: *found })
        }
        _ => None,
    }
}

/// Only regular files have contents. This is checked before any key.
fn is_file(inode: &Inode) -> Result<(), ImageError> {
    match inode.file_type {
        FileType::Regular => Ok(()),
        found => Err(ImageError::NotAFile { found }),
    }
}

impl Contents {
    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// True for an empty file.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether reading decrypts.
    pub fn is_encrypted(&self) -> bool {
        self.key.is_some()
    }

    /// The plan for reading it, without verification.
    pub fn plan(&self) -> Plan {
        self.part(0, self.len)
    }

    /// Where the file's bytes from `start` on are; `start` is a multiple of the file system's block size.
    pub(super) fn map_from(&self, start: u64) -> Arc<dyn Mapping> {
        Arc::new(Shifted { map: self.map.clone(), by: start })
    }

    /// The steps that bytes from `start` on go through before anything is checked.
    pub(super) fn steps_from(&self, start: u64) -> Option<DecryptStep> {
        let key = self.key.clone()?;
        let first_unit = start / key.data_unit_size() as u64;
        Some(DecryptStep::new(key, first_unit))
    }

    /// The plan for `len` bytes from `start`, which may lie beyond the file's end.
    pub(super) fn part(&self, start: u64, len: u64) -> Plan {
        let plan = Plan::new(self.map_from(start), len);
        match self.steps_from(start) {
            Some(step) => plan.step(Arc::new(step)),
            None => plan,
        }
    }
}
