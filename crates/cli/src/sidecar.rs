//! What may lie beside a file: its Merkle tree (`PATH.verity-tree`) and its descriptor (`PATH.verity-desc`). Both are
//! believed only as far as a trusted file digest vouches for them.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use postread::{Engine, EngineConfig, Linear, Plan, VerityLayer};
use postread_io::{BlockStatus, CorruptionKind, ReadAt, ReadAtSource};
use postread_verity::{
    Descriptor, Digest, FileDigest, MAX_DESCRIPTOR_SIZE, MerkleTreeParams, NoTree, TreeBuilder, TreeGeometry,
    TrustedDescriptor,
};
use serde::Serialize;

use crate::digest_files::open_regular;

/// A run of bytes of a file that are bad for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct BadRange {
    pub(crate) offset: u64,
    pub(crate) length: u64,
    /// Of its first block.
    pub(crate) reason: String,
}

impl fmt::Display for BadRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bytes {} to {}: {}", self.offset, self.offset + (self.length - 1), self.reason)
    }
}

/// The name of what lies beside a file.
pub(crate) fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    PathBuf::from(name)
}

/// The descriptor beside a file, if there is one whose file digest is the one wanted.
pub(crate) fn descriptor(path: &Path, wanted: &FileDigest) -> Option<TrustedDescriptor> {
    any_descriptor(path)?.trust(wanted).ok()
}

/// What to say of a descriptor beside a file that has another digest than the one wanted; none where there is none.
pub(crate) fn other_descriptor(path: &Path, wanted: &FileDigest) -> Option<String> {
    let descriptor = any_descriptor(path)?;
    let (found, params) = (descriptor.file_digest(), descriptor.params());
    let (alg, wanted_alg) = (found.alg(), wanted.alg());
    let block_size = params.block_size();
    match alg == wanted_alg {
        _ if found == *wanted => None,
        true => Some(format!("the descriptor beside the file has another digest (blocks of {block_size}, {found})")),
        false => Some(format!("the descriptor beside the file is of {alg}, the list's digest is of {wanted_alg}")),
    }
}

fn any_descriptor(path: &Path) -> Option<Descriptor> {
    let (file, _) = open_regular(&beside(path, ".verity-desc")).ok()?;
    let mut bytes = Vec::new();
    file.take(MAX_DESCRIPTOR_SIZE as u64 + 1).read_to_end(&mut bytes).ok()?;
    Descriptor::parse(&bytes).ok()
}

/// Finds the bad ranges of a file by the tree beside it. False if there is none; an error if it is of no use.
///
/// The tree is this file's if the descriptor says so, or if the descriptor made of the tree's root, the file's size and
/// the parameters has the digest wanted.
pub(crate) fn bad_ranges(
    path: &Path,
    params: &MerkleTreeParams,
    wanted: &FileDigest,
    descriptor: Option<&TrustedDescriptor>,
    mut found: impl FnMut(BadRange),
) -> Result<bool, String> {
    let (file, metadata) = open_regular(path).map_err(|error| error.to_string())?;
    let tree = match open_regular(&beside(path, ".verity-tree")) {
        Ok((tree, _)) => tree,
        Err(crate::digest_files::FileError::Open(error)) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(false);
        }
        Err(error) => return Err(format!("its Merkle tree: {error}")),
    };
    let size = metadata.len();
    let descriptor = match descriptor {
        Some(descriptor) => descriptor.clone(),
        None => vouched_for(&tree, params, size, wanted)?,
    };
    let data_size = descriptor.data_size();
    if data_size < size {
        let wanted = data_size;
        let reason = format!("the file has {size} bytes, the digest is of one of {wanted}");
        found(BadRange { offset: wanted, length: size - wanted, reason });
    }
    let scanned = scan(file, tree, descriptor, size, found).map_err(|error| error.to_string())?;
    if !scanned && data_size == size {
        return Err("no block is bad: the file changed between two readings".into());
    }
    Ok(true)
}

/// The descriptor that the tree's root makes, if it has the digest wanted.
fn vouched_for(
    tree: &File,
    params: &MerkleTreeParams,
    size: u64,
    wanted: &FileDigest,
) -> Result<TrustedDescriptor, String> {
    let geometry = TreeGeometry::new(params, size).map_err(|error| error.to_string())?;
    if geometry.num_levels() == 0 {
        return Err("the file is one block, so its Merkle tree is empty".into());
    }
    let found = tree.metadata().map_or(geometry.tree_size(), |metadata| metadata.len());
    let other = tree_of_another_size(params, &geometry, found)
        .map(|other| format!("its Merkle tree is not the one of the wanted digest: {other}"));
    let mut block = vec![0; params.block_size()];
    if let Err(error) = tree.read_exact_at(&mut block, 0) {
        return Err(other.unwrap_or(format!("its Merkle tree: {error}")));
    }
    let root = hash(params, &block);
    let descriptor = Descriptor::new(*params, size, root);
    // A tree that was cut still says which blocks beneath its top are good.
    descriptor.trust(wanted).map_err(|_| {
        other.unwrap_or(format!(
        "its Merkle tree is not the one of the wanted digest, for a file of {size} bytes with blocks of {} and this salt \
         (or the tree's root block is bad)",
        params.block_size()
    ))
    })
}

/// What to say where a tree's length is not the one that the file's tree has; none where it is.
pub(crate) fn tree_of_another_size(params: &MerkleTreeParams, file: &TreeGeometry, found: u64) -> Option<String> {
    if found == file.tree_size() {
        return None;
    }
    let (size, block_size) = (file.data_size(), file.block_size());
    let of = match sizes_of(params, found) {
        Some(sizes) => format!("the tree is of one of {} to {} bytes", sizes.start(), sizes.end()),
        None => format!("the tree of {found} bytes is of no size of file"),
    };
    let wanted = file.tree_size();
    Some(format!("the file has {size} bytes, {of} (in blocks of {block_size}; its own tree has {wanted} bytes)"))
}

/// The sizes of files whose trees have `tree_size` bytes.
fn sizes_of(params: &MerkleTreeParams, tree_size: u64) -> Option<RangeInclusive<u64>> {
    let block_size = params.block_size() as u64;
    // Of a file of so many blocks; the largest ones have no tree.
    let tree_of = |blocks: u64| {
        let size = blocks.checked_mul(block_size)?;
        TreeGeometry::new(params, size).ok().map(|geometry| geometry.tree_size())
    };
    // The first number of blocks whose tree has `wanted` bytes or more: trees grow with files.
    let first = |wanted: u64| {
        let (mut low, mut high) = (0, u64::MAX / block_size);
        while low < high {
            let middle = low + (high - low) / 2;
            if tree_of(middle).is_none_or(|size| size >= wanted) { high = middle } else { low = middle + 1 }
        }
        low
    };
    let (from, to) = (first(tree_size), first(tree_size.checked_add(1)?));
    let whole = |blocks: u64| blocks.checked_mul(block_size);
    (tree_of(from)? == tree_size).then_some(())?;
    Some(if from == 0 { 0 } else { whole(from - 1)? + 1 }..=whole(to.checked_sub(1)?)?)
}

/// The hash of one block, salted.
fn hash(params: &MerkleTreeParams, block: &[u8]) -> Digest {
    // A file of one block has its hash as root hash.
    let mut builder = TreeBuilder::new(*params, NoTree);
    match builder.push(block).and_then(|()| builder.finish()) {
        Ok((tree, _)) => tree.root_hash,
        Err(_) => Digest::zero(params.alg()),
    }
}

/// Reads the whole file through the verifying engine. True if anything was bad.
fn scan(
    file: File,
    tree: File,
    descriptor: TrustedDescriptor,
    file_size: u64,
    mut found: impl FnMut(BadRange),
) -> Result<bool, Box<dyn std::error::Error>> {
    let size = descriptor.data_size();
    let layer = VerityLayer::new(descriptor)?;
    let linear = |file: File, len| Arc::new(Linear::new(Arc::new(ReadAtSource::new(file)), 0, len));
    let tree_size = layer.verifier().geometry().tree_size();
    let blocks = layer.hash_blocks(linear(tree, tree_size), Vec::new());
    let plan = layer.protect(Plan::new(linear(file, size), size), blocks)?;
    let engine = Engine::new(EngineConfig::new())?;
    let file = engine.open(plan);
    let mut pending: Option<(Range<u64>, BlockStatus)> = None;
    let mut any = false;
    let mut emit = |(range, status): (Range<u64>, BlockStatus)| {
        any = true;
        let reason = match status {
            BlockStatus::Short => format!("the file has {file_size} bytes, the digest is of one of {size}"),
            status => status.to_string(),
        };
        found(BadRange { offset: range.start, length: range.end - range.start, reason });
    };
    for bad in file.scan(0..size) {
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
    Ok(any)
}

/// May neighbours be told as one range? Corrupt data blocks may; otherwise the reason must be the same.
fn alike(a: &BlockStatus, b: &BlockStatus) -> bool {
    let corrupt_data = |s: &BlockStatus| matches!(s, BlockStatus::Corrupt(c) if c.kind == CorruptionKind::Data);
    a == b || (corrupt_data(a) && corrupt_data(b))
}
