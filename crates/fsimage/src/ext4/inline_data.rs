//! Data kept in the inode: the first 60 bytes in place of the block map, the rest in the attribute `system.data`.

use super::error::{Fault, Result, Structure};
use super::filesystem::Ext4;
use super::inode::Inode;
use super::xattr::XATTR_INDEX_SYSTEM;

/// Where a directory's entries start in the first part: behind the parent's inode number.
pub(crate) const DIR_START: usize = 4;

/// An inode's inline data, not longer than its size: the two parts joined.
pub(crate) fn inline_data(fs: &Ext4, inode: &Inode) -> Result<Vec<u8>> {
    let mut data = [&inode.block[..], &second_part(fs, inode)?].concat();
    let size = usize::try_from(inode.size).unwrap_or(usize::MAX);
    if size > data.len() {
        let fault = Fault::Limit { field: "the size", value: inode.size, limit: data.len() as u64 };
        return Err(fault.of(Structure::InlineData).in_inode(inode.ino).into());
    }
    data.truncate(size);
    Ok(data)
}

/// An inline directory's two runs of entries. Neither holds `.` or `..`.
pub(crate) fn inline_entries(fs: &Ext4, inode: &Inode) -> Result<[Vec<u8>; 2]> {
    Ok([inode.block[DIR_START..].to_vec(), second_part(fs, inode)?])
}

fn second_part(fs: &Ext4, inode: &Inode) -> Result<Vec<u8>> {
    // It is always in the inode, never in a block.
    let attributes = fs.xattrs_in_inode(inode)?;
    let found = attributes.into_iter().find(|a| a.index == XATTR_INDEX_SYSTEM && &*a.name == b"data");
    Ok(found.map(|a| a.value).unwrap_or_default())
}
