//! Files that may be stored next to a file: its Merkle tree (`PATH.verity-tree`) and its descriptor
//! (`PATH.verity-desc`). Both are trusted only if they match a trusted file digest.

use std::fmt;
use std::fs::{self, File};
use std::io::Read;
use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};

use postread_io::{BlockStatus, CorruptionKind, ReadAt};
use postread_verity::{
    Descriptor, Digest, FileDigest, MAX_DESCRIPTOR_SIZE, MerkleTreeParams, TreeGeometry, TrustedDescriptor,
};

use crate::digest_files::{FileError, open_regular};
use crate::error::{Error, ErrorKind, Result};
use crate::verified_file::VerifiedFile;

const TREE: &str = ".verity-tree";
const DESCRIPTOR: &str = ".verity-desc";

/// A run of bytes of a file that are bad for one reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadRange {
    /// Where it begins in the file, in bytes.
    pub offset: u64,
    /// Its length in bytes.
    pub length: u64,
    /// What is wrong with its first block.
    pub reason: String,
}

impl fmt::Display for BadRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bytes {} to {}: {}", self.offset, self.offset + (self.length - 1), self.reason)
    }
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    PathBuf::from(name)
}

fn if_there(path: PathBuf) -> Option<PathBuf> {
    fs::symlink_metadata(&path).is_ok().then_some(path)
}

/// The Merkle tree next to a file, if there is one.
pub fn tree_path(path: &Path) -> Option<PathBuf> {
    if_there(beside(path, TREE))
}

/// The descriptor next to a file, if there is one.
pub fn descriptor_path(path: &Path) -> Option<PathBuf> {
    if_there(beside(path, DESCRIPTOR))
}

/// The descriptor next to a file, if there is one with the file digest `expected`.
pub fn trusted_descriptor(path: &Path, expected: &FileDigest) -> Option<TrustedDescriptor> {
    read_descriptor(&beside(path, DESCRIPTOR)).ok()?.trust(expected).ok()
}

/// How the descriptor next to a file differs from the digest `expected`; `None` if there is no descriptor or it has
/// that digest.
pub fn other_descriptor(path: &Path, expected: &FileDigest) -> Option<String> {
    let descriptor = read_descriptor(&beside(path, DESCRIPTOR)).ok()?;
    let found = descriptor.file_digest();
    let (alg, expected_alg) = (found.alg(), expected.alg());
    let block_size = descriptor.params().block_size();
    match alg == expected_alg {
        _ if found == *expected => None,
        true => Some(format!("the descriptor next to the file has another digest (blocks of {block_size}, {found})")),
        false => {
            Some(format!("the descriptor next to the file uses {alg}, but the digest in the list uses {expected_alg}"))
        }
    }
}

/// Reads a descriptor from a file.
pub(crate) fn read_descriptor(path: &Path) -> Result<Descriptor> {
    let (file, _) = open_regular(path).map_err(|error| Error::from(error).about(path))?;
    let mut bytes = Vec::new();
    let read = file.take(MAX_DESCRIPTOR_SIZE as u64 + 1).read_to_end(&mut bytes);
    read.map_err(|error| Error::caused_by(ErrorKind::Io, error).about(path))?;
    Descriptor::parse(&bytes).map_err(|error| Error::caused_by(ErrorKind::Malformed, error).about(path))
}

/// Finds the bad ranges of a file with the tree beside it and passes them to `found`. False if there is no tree.
///
/// The tree is this file's if the descriptor says so, or if the descriptor made of the tree's root, the file's size and
/// the parameters has the digest `expected`.
///
/// # Errors
/// If the tree is of no use, or something could not be read.
pub fn bad_ranges(
    path: &Path,
    params: &MerkleTreeParams,
    expected: &FileDigest,
    descriptor: Option<&TrustedDescriptor>,
    mut found: impl FnMut(BadRange),
) -> Result<bool> {
    let (file, metadata) = open_regular(path)?;
    let tree = match open_regular(&beside(path, TREE)) {
        Ok((tree, _)) => tree,
        Err(error) if error.is_not_found() => return Ok(false),
        Err(error) => return Err(Error::new(error.kind(), format!("its Merkle tree: {error}"))),
    };
    let size = metadata.len();
    let descriptor = match descriptor {
        Some(descriptor) => descriptor.clone(),
        None => trusted_by_root(&tree, params, size, expected)?,
    };
    let data_size = descriptor.data_size();
    let longer = || format!("the file has {size} bytes, expected {data_size}");
    if data_size < size {
        found(BadRange { offset: data_size, length: size - data_size, reason: longer() });
    }
    let file = VerifiedFile::of_files(file, tree, descriptor)?;
    let mut pending: Option<(Range<u64>, BlockStatus)> = None;
    let mut any = false;
    let mut emit = |(range, status): (Range<u64>, BlockStatus)| {
        any = true;
        let reason = match status {
            BlockStatus::Short => longer(),
            status => status.to_string(),
        };
        found(BadRange { offset: range.start, length: range.end - range.start, reason });
    };
    for bad in file.scan(0..data_size) {
        pending = Some(match pending.take() {
            Some((range, status)) if range.end == bad.range.start && alike(&status, &bad.status) => {
                (range.start..bad.range.end, status)
            }
            Some(other) => {
                emit(other);
                (bad.range, bad.status)
            }
            None => (bad.range, bad.status),
        });
    }
    if let Some(last) = pending {
        emit(last);
    }
    if !any && data_size == size {
        return Err(FileError::Changed.into());
    }
    Ok(true)
}

/// The descriptor that the tree's root makes, if it has the digest `expected`.
fn trusted_by_root(
    tree: &File,
    params: &MerkleTreeParams,
    size: u64,
    expected: &FileDigest,
) -> Result<TrustedDescriptor> {
    let malformed = |message: String| Error::new(ErrorKind::Malformed, message);
    let geometry = TreeGeometry::new(params, size).map_err(|error| malformed(error.to_string()))?;
    if geometry.num_levels() == 0 {
        return Err(malformed("the file is one block, so its Merkle tree is empty".into()));
    }
    let found = tree.metadata().map_or(geometry.tree_size(), |metadata| metadata.len());
    let other = tree_of_another_size(params, &geometry, found)
        .map(|other| format!("its Merkle tree is not the one of the expected digest: {other}"));
    let mut block = vec![0; params.block_size()];
    if let Err(error) = tree.read_exact_at(&mut block, 0) {
        return Err(malformed(other.unwrap_or(format!("its Merkle tree: {error}"))));
    }
    let root = params.block_hasher().hash_one(&block);
    let root = Digest::new(params.alg(), root.as_bytes()).unwrap_or(Digest::zero(params.alg()));
    // A truncated tree still shows which blocks below its top are good.
    Descriptor::new(*params, size, root).trust(expected).map_err(|_| {
        malformed(other.unwrap_or(format!(
            "its Merkle tree is not the one of the expected digest, for a file of {size} bytes with blocks of {} and \
             this salt (or the tree's root block is bad)",
            params.block_size()
        )))
    })
}

/// How a tree's length differs from the expected one; `None` if it does not.
pub(crate) fn tree_of_another_size(params: &MerkleTreeParams, file: &TreeGeometry, found: u64) -> Option<String> {
    if found == file.tree_size() {
        return None;
    }
    let (size, block_size) = (file.data_size(), file.block_size());
    let of = match sizes_of(params, found) {
        Some(sizes) => format!("the tree is of a file of {} to {} bytes", sizes.start(), sizes.end()),
        None => format!("no file has a tree of {found} bytes"),
    };
    let expected = file.tree_size();
    Some(format!("the file has {size} bytes, {of} (with blocks of {block_size}; its own tree has {expected} bytes)"))
}

/// The sizes of files whose trees have `tree_size` bytes.
fn sizes_of(params: &MerkleTreeParams, tree_size: u64) -> Option<RangeInclusive<u64>> {
    let block_size = params.block_size() as u64;
    // `None` for more blocks than a tree can cover.
    let tree_of = |blocks: u64| {
        let size = blocks.checked_mul(block_size)?;
        TreeGeometry::new(params, size).ok().map(|geometry| geometry.tree_size())
    };
    // The first number of blocks whose tree has `least` bytes or more: trees grow with files.
    let first = |least: u64| {
        let (mut low, mut high) = (0, u64::MAX / block_size);
        while low < high {
            let middle = low + (high - low) / 2;
            if tree_of(middle).is_none_or(|size| size >= least) { high = middle } else { low = middle + 1 }
        }
        low
    };
    let (from, to) = (first(tree_size), first(tree_size.checked_add(1)?));
    let whole = |blocks: u64| blocks.checked_mul(block_size);
    (tree_of(from)? == tree_size).then_some(())?;
    Some(if from == 0 { 0 } else { whole(from - 1)? + 1 }..=whole(to.checked_sub(1)?)?)
}

/// Whether neighbours may be reported as one range: corrupt data blocks may; otherwise the reason must be the same.
fn alike(a: &BlockStatus, b: &BlockStatus) -> bool {
    let corrupt_data = |s: &BlockStatus| matches!(s, BlockStatus::Corrupt(c) if c.kind == CorruptionKind::Data);
    a == b || (corrupt_data(a) && corrupt_data(b))
}
