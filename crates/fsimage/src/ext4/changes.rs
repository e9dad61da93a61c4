//! What fast commits change, laid over the file system: inodes, where their data is, and names.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::casefold::casefold;
use super::directory::DirEntry;
use super::extent::RawExtent;

/// All that fast commits have changed.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// Inodes as they are in the table after the replay, without a right checksum.
    pub(crate) inodes: HashMap<u32, Box<[u8]>>,
    /// The extents of inodes that got or lost some, in order.
    pub(crate) extents: HashMap<u32, Arc<[RawExtent]>>,
    pub(crate) directories: HashMap<u32, Arc<DirChanges>>,
}

/// What has become of a directory's names.
#[derive(Debug, Default)]
pub(crate) struct DirChanges {
    /// Whether a fast commit made the directory: its blocks hold nothing of its own.
    pub(crate) new: bool,
    pub(crate) folds_case: bool,
    /// Names on disk that are gone, by their keys.
    pub(crate) gone: HashSet<Vec<u8>>,
    pub(crate) added: Vec<DirEntry>,
}

impl DirChanges {
    /// True if an entry on disk is still there.
    pub(crate) fn keeps(&self, name: &[u8]) -> bool {
        self.gone.is_empty() || !self.gone.contains(&name_key(name, self.folds_case))
    }
}

/// The key that tells the names of a directory apart.
pub(crate) fn name_key(name: &[u8], folds_case: bool) -> Vec<u8> {
    if folds_case { casefold(name).unwrap_or_else(|| name.to_vec()) } else { name.to_vec() }
}
