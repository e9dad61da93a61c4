//! Hashes a small file on the calling thread.

use std::fs::{File, Metadata};

use postread_verity::{MerkleTreeParams, Tree, TreeBuilder};

use super::{CHUNK, FileError, Progress, TreeOut, aligned, check_unchanged, read_exact};

pub(super) fn digest(
    file: &File,
    metadata: &Metadata,
    params: MerkleTreeParams,
    out: TreeOut<'_>,
    buf: &mut Vec<u8>,
    progress: &dyn Progress,
) -> Result<Tree, FileError> {
    let size = metadata.len();
    let buf = aligned(buf);
    let mut builder = TreeBuilder::new(params, out);
    let mut offset = 0;
    while offset < size {
        let now = (size - offset).min(CHUNK as u64) as usize;
        read_exact(file, &mut buf[..now], offset, size)?;
        builder.push(&buf[..now])?;
        offset += now as u64;
        progress.advance(now as u64);
    }
    let (tree, _) = builder.finish()?;
    check_unchanged(file, metadata)?;
    Ok(tree)
}
