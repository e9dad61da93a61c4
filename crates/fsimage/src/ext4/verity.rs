//! Where fs-verity's metadata lies: behind the end of the file, at the next multiple of 64 KiB.
//!
//! The Merkle tree comes first, then the descriptor from the next block on; the descriptor's size stands in the last
//! four bytes of the last block that is mapped. (The kernel's documentation, `Documentation/filesystems/fsverity.rst`.)

use super::error::{Error, Fault, Result, Structure};
use super::filesystem::Ext4;
use super::inode::{Inode, InodeFlags};
use super::map::last_mapped_end;

/// The boundary behind the end of the file where the metadata begins.
pub const VERITY_ALIGN: u64 = 65536;

/// Largest descriptor, with its signature (`FS_VERITY_MAX_DESCRIPTOR_SIZE`).
pub const VERITY_DESCRIPTOR_MAX: u32 = 16384;

/// Where a file's fs-verity metadata lies, in bytes from the start of the file. Its bytes are read as the file's are:
/// by [`Ext4::extents_from`], and decrypted as contents where the file is encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VerityLocation {
    /// First byte of the Merkle tree.
    pub tree_offset: u64,
    /// Bytes that the tree may take, up to the descriptor; it ends somewhere in the last block of them.
    pub tree_room: u64,
    /// First byte of the descriptor.
    pub descriptor_offset: u64,
    /// The descriptor's size with its signature.
    pub descriptor_size: u32,
}

impl Ext4 {
    /// Finds a file's fs-verity metadata.
    ///
    /// `read_plaintext(buf, offset)` fills `buf` from byte `offset` of the file, past its end, decrypted where the
    /// file is encrypted; for a file that is not, [`File::read_raw_at`](super::File::read_raw_at) does.
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
        let block_size = u64::from(self.superblock().block_size);
        let tree_offset = inode.size.next_multiple_of(VERITY_ALIGN);
        let end = last_mapped_end(self, inode)?;
        if end <= tree_offset {
            return Err(corrupt(Fault::Rule("nothing is mapped behind the end of the file")));
        }
        let mut size = [0; 4];
        let size_offset = end - 4;
        read_plaintext(&mut size, size_offset)?;
        let descriptor_size = u32::from_le_bytes(size);
        if descriptor_size == 0 || descriptor_size > VERITY_DESCRIPTOR_MAX {
            return Err(corrupt(Fault::Limit {
                field: "the descriptor's size",
                value: descriptor_size.into(),
                limit: VERITY_DESCRIPTOR_MAX.into(),
            }));
        }
        let descriptor_offset = size_offset.saturating_sub(descriptor_size.into()) / block_size * block_size;
        if descriptor_offset < tree_offset {
            return Err(corrupt(Fault::Rule("the descriptor begins before the metadata")));
        }
        Ok(VerityLocation {
            tree_offset,
            tree_room: descriptor_offset - tree_offset,
            descriptor_offset,
            descriptor_size,
        })
    }
}
