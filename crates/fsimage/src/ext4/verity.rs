//! Where fs-verity's metadata is: past the end of the file, at the next multiple of 64 KiB.
//!
//! The Merkle tree comes first, then the descriptor from the next block on; the descriptor's size is in the last
//! four bytes of the last block that is mapped. (The kernel's documentation, `Documentation/filesystems/fsverity.rst`.)

use super::error::{Error, Fault, Result, Structure};
use super::filesystem::Ext4;
use super::inode::{Inode, InodeFlags};
use super::map::last_mapped_end;

/// The boundary past the end of the file where the metadata begins.
pub const VERITY_ALIGN: u64 = 65536;

/// Largest descriptor, with its signature (`FS_VERITY_MAX_DESCRIPTOR_SIZE`).
pub const VERITY_DESCRIPTOR_MAX: u32 = 16384;

/// Where a file's fs-verity metadata is, in bytes from the start of the file. It is read like the file's contents: with
/// [`Ext4::extents_from`], and decrypted if the file is encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VerityLocation {
    /// First byte of the Merkle tree.
    pub tree_offset: u64,
    /// Bytes that the tree may take, up to the descriptor; it ends somewhere in their last block.
    pub tree_room: u64,
    /// First byte of the descriptor.
    pub descriptor_offset: u64,
    /// The descriptor's size with its signature.
    pub descriptor_size: u32,
}

impl Ext4 {
    /// Finds a file's fs-verity metadata.
    ///
    /// `read_plaintext(buf, offset)` fills `buf` from byte `offset` of the file, past its end, decrypted if the
    /// file is encrypted; for one that is not, [`File::read_raw_at`](super::File::read_raw_at) will do.
    pub fn verity_location<E: From<Error>>(
        &self,
        inode: &Inode,
        read_plaintext: impl FnOnce(&mut [u8], u64) -> Result<(), E>,
    ) -> Result<VerityLocation, E> {
        let corrupt = |fault: Fault| E::from(fault.of(Structure::Verity).in_inode(inode.ino).into());
        if !inode.is_verity() {
            return Err(Error::WrongKind { ino: inode.ino, wanted: "file with fs-verity" }.into());
        }
        if !inode.flags.contains(InodeFlags::EXTENTS) {
            return Err(corrupt(Fault::Rule("the file is not mapped by extents")));
        }
        let tree_offset = inode.size.checked_next_multiple_of(VERITY_ALIGN).unwrap_or(u64::MAX);
        let end = last_mapped_end(self, inode)?;
        let size_offset = match end.checked_sub(4) {
            Some(offset) if end > tree_offset => offset,
            _ => return Err(corrupt(Fault::Rule("nothing is mapped past the end of the file"))),
        };
        let mut size = [0; 4];
        read_plaintext(&mut size, size_offset)?;
        let descriptor_size = u32::from_le_bytes(size);
        if descriptor_size == 0 || descriptor_size > VERITY_DESCRIPTOR_MAX {
            return Err(corrupt(Fault::Range {
                field: "the descriptor's size",
                value: descriptor_size.into(),
                first: 1,
                last: VERITY_DESCRIPTOR_MAX.into(),
            }));
        }
        let start = size_offset.saturating_sub(descriptor_size.into());
        let descriptor_offset = start.saturating_sub(start.checked_rem(self.block_size()).unwrap_or(0));
        match descriptor_offset.checked_sub(tree_offset) {
            Some(tree_room) => Ok(VerityLocation { tree_offset, tree_room, descriptor_offset, descriptor_size }),
            None => Err(corrupt(Fault::Rule("the descriptor begins before the metadata"))),
        }
    }
}
