//! Inodes.
//!
//! Layout from the kernel's documentation, `Documentation/filesystems/ext4/inodes.rst`.

use bitflags::bitflags;

use super::bytes::{array, join, le16, le32};
use super::checksum::crc32c;
use super::error::{Corrupt, Fault, Structure};
use super::features::{Incompat, RoCompat};
use super::superblock::Superblock;

bitflags! {
    /// An inode's flags, those that change how it reads by name.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct InodeFlags: u32 {
        /// May not be changed.
        const IMMUTABLE = 0x10;
        /// May only grow.
        const APPEND = 0x20;
        /// Encrypted by fscrypt.
        const ENCRYPT = 0x800;
        /// A hashed directory.
        const INDEX = 0x1000;
        /// Counts its blocks in file system blocks.
        const HUGE_FILE = 0x40000;
        /// Mapped by extents.
        const EXTENTS = 0x80000;
        /// Protected by fs-verity.
        const VERITY = 0x100000;
        /// Holds the value of an extended attribute.
        const EA_INODE = 0x200000;
        /// Data lives in the inode.
        const INLINE_DATA = 0x1000_0000;
        /// Children inherit the project.
        const PROJINHERIT = 0x2000_0000;
        /// A directory that folds case.
        const CASEFOLD = 0x4000_0000;
        const _ = !0;
    }
}

/// What an inode is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FileType {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A symbolic link.
    Symlink,
}

impl FileType {
    /// From the four high bits of a mode.
    pub fn from_mode(mode: u16) -> Option<Self> {
        Some(match mode >> 12 {
            0x1 => Self::Fifo,
            0x2 => Self::CharDevice,
            0x4 => Self::Directory,
            0x6 => Self::BlockDevice,
            0x8 => Self::Regular,
            0xa => Self::Symlink,
            0xc => Self::Socket,
            _ => return None,
        })
    }

    /// From a directory entry's type byte.
    pub fn from_entry(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Regular,
            2 => Self::Directory,
            3 => Self::CharDevice,
            4 => Self::BlockDevice,
            5 => Self::Fifo,
            6 => Self::Socket,
            7 => Self::Symlink,
            _ => return None,
        })
    }
}

/// A moment: seconds since 1970 (negative before it) and nanoseconds into that second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp {
    /// Seconds since 1970-01-01 00:00 UTC; the epoch bits are accounted for.
    pub seconds: i64,
    /// Nanoseconds, below 1,000,000,000 in a sound image.
    pub nanoseconds: u32,
}

/// A parsed inode.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Inode {
    /// Its number.
    pub ino: u32,
    /// Type and permissions, as `st_mode`.
    pub mode: u16,
    /// What it is, from `mode`.
    pub file_type: FileType,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Number of names; a directory of very many subdirectories has 1.
    pub nlink: u16,
    /// Length in bytes. Of an encrypted symbolic link: of its ciphertext and that one's 2-byte length.
    pub size: u64,
    /// Space in use, in units of 512 bytes, as `st_blocks`.
    pub sectors: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Last change of the contents.
    pub mtime: Timestamp,
    /// Creation, where the inode is large enough to tell.
    pub crtime: Option<Timestamp>,
    /// Flags.
    pub flags: InodeFlags,
    /// Generation, which seeds the checksums.
    pub generation: u32,
    /// Project, where the inode is large enough to tell; else 0.
    pub project: u32,
    /// Block of extended attributes, 0 without one.
    pub file_acl: u64,
    /// Deletion time of a free inode, next in the list of an orphan.
    pub(crate) dtime: u32,
    pub(crate) block: [u8; 60],
    /// The bytes behind the fixed fields, where in-inode attributes live; empty without any.
    pub(crate) xattr_body: Box<[u8]>,
    pub(crate) checksum_seed: u32,
}

impl Inode {
    /// Parses inode `ino` from its `superblock.inode_size` bytes. With `verify` its checksum is verified.
    ///
    /// A free inode (one without links) parses too; [`Ext4::inode`](super::Ext4::inode) tells it apart.
    pub fn parse(bytes: &[u8], ino: u32, superblock: &Superblock, verify: bool) -> Result<Self, Corrupt> {
        let corrupt = |fault: Fault| fault.of(Structure::Inode).in_inode(ino);
        let size = superblock.inode_size as usize;
        let Some(bytes) = bytes.get(..size) else {
            return Err(corrupt(Fault::Truncated { len: bytes.len(), needed: size }));
        };
        let mode = le16(bytes, 0);
        let links = le16(bytes, 0x1a);
        let generation = le32(bytes, 0x64);
        let seed = crc32c(crc32c(superblock.checksum_seed, &ino.to_le_bytes()), &generation.to_le_bytes());
        let mut extra = if size > 128 { usize::from(le16(bytes, 0x80)) } else { 0 };
        // A table that was never written is all zeros, without a checksum.
        let blank = mode == 0 && links == 0;
        if (extra > size - 128 || !extra.is_multiple_of(4)) && !blank {
            return Err(corrupt(Fault::Field { field: "the size of the extra fields", value: extra as u64 }));
        }
        if verify && superblock.has_metadata_csum() && !blank {
            check_sum(bytes, extra, seed).map_err(corrupt)?;
        }
        if blank {
            extra = 0;
        }
        let file_type = match FileType::from_mode(mode) {
            Some(kind) => kind,
            None if links == 0 => FileType::Regular,
            None => return Err(corrupt(Fault::Field { field: "the mode", value: mode.into() })),
        };
        let flags = InodeFlags::from_bits_retain(le32(bytes, 0x20));
        let has = |end: usize| end <= 128 + extra;
        let time = |at: usize, extra_at: usize| {
            let extra = if has(extra_at + 4) { le32(bytes, extra_at) } else { 0 };
            timestamp(le32(bytes, at), extra)
        };
        let large = file_type == FileType::Regular || superblock.incompat.contains(Incompat::LARGEDIR);
        let length = join(le32(bytes, 4), if large { le32(bytes, 0x6c) } else { 0 });
        if length > i64::MAX as u64 {
            return Err(corrupt(Fault::Field { field: "the size", value: length }));
        }
        let mut sectors = u64::from(le32(bytes, 0x1c));
        if superblock.ro_compat.contains(RoCompat::HUGE_FILE) {
            sectors |= u64::from(le16(bytes, 0x74)) << 32;
            if flags.contains(InodeFlags::HUGE_FILE) {
                sectors = sectors.saturating_mul(u64::from(superblock.block_size / 512));
            }
        }
        let file_acl = join(le32(bytes, 0x68), le16(bytes, 0x76).into());
        if file_acl != 0 && (file_acl <= u64::from(superblock.first_data_block) || file_acl >= superblock.blocks_count)
        {
            return Err(corrupt(Fault::Limit {
                field: "the block of extended attributes",
                value: file_acl,
                limit: superblock.blocks_count,
            }));
        }
        // An extra size of 0 in a large inode is from before those fields existed; attributes then follow at 160.
        let body_start = 128 + if extra == 0 && size > 128 { 32 } else { extra };
        let body = bytes.get(body_start..).unwrap_or(&[]);
        let has_body = !blank && body.len() >= 4 && le32(body, 0) == super::xattr::MAGIC;
        Ok(Self {
            ino,
            mode,
            file_type,
            uid: u32::from(le16(bytes, 2)) | u32::from(le16(bytes, 0x78)) << 16,
            gid: u32::from(le16(bytes, 0x18)) | u32::from(le16(bytes, 0x7a)) << 16,
            nlink: links,
            size: length,
            sectors,
            atime: time(8, 0x8c),
            ctime: time(0xc, 0x84),
            mtime: time(0x10, 0x88),
            crtime: has(0x94).then(|| time(0x90, 0x94)),
            flags,
            generation,
            project: if has(0xa0) { le32(bytes, 0x9c) } else { 0 },
            file_acl,
            dtime: le32(bytes, 0x14),
            block: array(bytes, 0x28),
            xattr_body: if has_body { body.into() } else { Box::default() },
            checksum_seed: seed,
        })
    }

    /// True for a directory.
    pub fn is_dir(&self) -> bool {
        self.file_type == FileType::Directory
    }

    /// True where contents, names or the link's target are encrypted by fscrypt.
    pub fn is_encrypted(&self) -> bool {
        self.flags.contains(InodeFlags::ENCRYPT)
    }

    /// True where fs-verity protects the contents.
    pub fn is_verity(&self) -> bool {
        self.flags.contains(InodeFlags::VERITY)
    }

    /// True for a directory that folds case.
    pub fn is_casefolded(&self) -> bool {
        self.flags.contains(InodeFlags::CASEFOLD)
    }

    /// True where the data lives in the inode.
    pub fn has_inline_data(&self) -> bool {
        self.flags.contains(InodeFlags::INLINE_DATA)
    }

    /// True for a symbolic link whose target lies in the inode's block map.
    pub fn is_fast_symlink(&self) -> bool {
        self.file_type == FileType::Symlink
            && self.size < 60
            && !self.flags.intersects(InodeFlags::EXTENTS | InodeFlags::INLINE_DATA)
    }

    /// Major and minor number of a device node.
    pub fn device(&self) -> Option<(u32, u32)> {
        if !matches!(self.file_type, FileType::CharDevice | FileType::BlockDevice) {
            return None;
        }
        let (old, new) = (le32(&self.block, 0), le32(&self.block, 4));
        Some(match old {
            0 => ((new & 0xf_ff00) >> 8, (new & 0xff) | (new >> 12 & 0xf_ff00)),
            _ => ((old & 0xff00) >> 8, old & 0xff),
        })
    }
}

fn check_sum(bytes: &[u8], extra: usize, seed: u32) -> Result<(), Fault> {
    let crc = crc32c(crc32c(seed, &bytes[..0x7c]), &[0, 0]);
    let mut wanted = crc32c(crc, &bytes[0x7e..0x80]);
    let mut found = u32::from(le16(bytes, 0x7c));
    if bytes.len() > 128 {
        wanted = crc32c(wanted, &bytes[0x80..0x82]);
        if extra >= 4 {
            wanted = crc32c(crc32c(wanted, &[0, 0]), &bytes[0x84..]);
            found |= u32::from(le16(bytes, 0x82)) << 16;
        } else {
            wanted = crc32c(wanted, &bytes[0x82..]) & 0xffff;
        }
    } else {
        wanted &= 0xffff;
    }
    if found == wanted { Ok(()) } else { Err(Fault::Checksum { found, wanted }) }
}

/// Bits 0 and 1 of the extra word extend the signed seconds by 2^32 each, the others are nanoseconds.
fn timestamp(seconds: u32, extra: u32) -> Timestamp {
    Timestamp { seconds: i64::from(seconds as i32) + (i64::from(extra & 3) << 32), nanoseconds: extra >> 2 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of the kernel's documentation (inodes.rst): where each epoch begins and ends.
    #[test]
    fn epoch_bits() {
        let seconds = |low: i32, epoch| timestamp(low as u32, epoch).seconds;
        assert_eq!(seconds(i32::MIN, 0), -0x8000_0000);
        assert_eq!(seconds(-1, 0), -1);
        assert_eq!(seconds(i32::MAX, 0), 0x7fff_ffff);
        assert_eq!(seconds(i32::MIN, 1), 0x8000_0000);
        assert_eq!(seconds(0, 1), 0x1_0000_0000);
        assert_eq!(seconds(i32::MAX, 3), 0x3_7fff_ffff);
    }
}
