//! Data kept in the inode: the first 60 bytes in place of the block map, the rest in the attribute `system.data`.

use super::bytes::to_u64;
use super::error::{Fault, Result, Structure};
use super::filesystem::Ext4;
use super::inode::Inode;
use super::xattr::{self, ValuePlace};

/// Where a directory's entries start in the first part: after the parent's inode number.
const DIR_START: usize = 4;

impl Ext4 {
    /// Data that is in the inode itself: of a file or symbolic link that has it there.
    pub fn inline_data(&self, inode: &Inode) -> Result<Option<Vec<u8>>> {
        if inode.is_dir() {
            return Ok(None);
        }
        if inode.is_fast_symlink() {
            let len = usize::try_from(inode.size).unwrap_or(usize::MAX);
            // Linux refuses a target of 60 bytes, which leaves no room for a zero byte after it.
            return match inode.block.get(..len) {
                Some(target) if (1..inode.block.len()).contains(&len) => Ok(Some(target.to_vec())),
                _ => Err(Fault::Range { field: "the target's length", value: inode.size, first: 1, last: 59 }
                    .of(Structure::Symlink)
                    .in_inode(inode.ino)
                    .into()),
            };
        }
        if !inode.has_inline_data() {
            return Ok(None);
        }
        let mut data = [&inode.block[..], &second_part(self, inode)?].concat();
        let size = usize::try_from(inode.size).unwrap_or(usize::MAX);
        if size > data.len() {
            let fault = Fault::Limit { field: "the size", value: inode.size, limit: to_u64(data.len()) };
            return Err(fault.of(Structure::InlineData).in_inode(inode.ino).into());
        }
        data.truncate(size);
        Ok(Some(data))
    }

    /// An inline directory's two runs of entries. Neither holds `.` or `..`.
    pub(crate) fn inline_entries(&self, inode: &Inode) -> Result<[Vec<u8>; 2]> {
        Ok([inode.block[DIR_START..].to_vec(), second_part(self, inode)?])
    }
}

fn second_part(fs: &Ext4, inode: &Inode) -> Result<Vec<u8>> {
    // It is always in the inode, never in a block or in another inode.
    let mut attributes = fs.raw_xattrs_in_inode(inode)?.into_iter();
    let found = attributes.find(xattr::RawXattr::is_inline_data);
    match found.map(|raw| raw.value) {
        None => Ok(Vec::new()),
        Some(ValuePlace::Here(value)) => Ok(value),
        Some(ValuePlace::Inode { ino, .. }) => {
            let fault = Fault::Field { field: "the inode of the data", value: ino.into() };
            Err(fault.of(Structure::InlineData).in_inode(inode.ino).into())
        }
    }
}
