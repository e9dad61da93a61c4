//! Inodes.
//!
//! Layout from the kernel's documentation, `Documentation/filesystems/ext4/inodes.rst`. Which field is valid under which
//! feature follows what Linux reads.

use bitflags::bitflags;

use super::bytes::{array, join, le16, le32, to_u64, to_usize};
use super::checksum::crc32c;
use super::error::{Corrupt, Fault, Structure};
use super::features::{Compat, Incompat, RoCompat};
use super::superblock::Superblock;
use super::xattr;

bitflags! {
    /// An inode's flags. Those that change how the inode is read have names.
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

/// A time: seconds since 1970 (negative before) and nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp {
    /// Seconds since 1970-01-01 00:00 UTC, with the epoch bits.
    pub seconds: i64,
    /// Nanoseconds, below 1,000,000,000.
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
    /// Project, with the feature `project` and in an inode large enough; else 0.
    pub project: u32,
    /// Block of extended attributes, 0 without one.
    pub file_acl: u64,
    /// Deletion time of a free inode, next in the list of an orphan.
    pub(crate) dtime: u32,
    pub(crate) block: [u8; 60],
    /// The bytes after the fixed fields, where in-inode attributes are; empty without any.
    pub(crate) xattr_body: Box<[u8]>,
    pub(crate) checksum_seed: u32,
    inline_data: bool,
    fast_symlink: bool,
}

impl Inode {
    /// Parses inode `ino` from its `superblock.inode_size` bytes. With `verify` its checksum is verified.
    ///
    /// A free inode (one without links) parses too; [`Ext4::inode`](super::Ext4::inode) refuses it.
    pub fn parse(bytes: &[u8], ino: u32, superblock: &Superblock, verify: bool) -> Result<Self, Corrupt> {
        parse(bytes, ino, superblock, verify).map_err(|fault| fault.of(Structure::Inode).in_inode(ino))
    }

    /// True for a directory.
    pub fn is_dir(&self) -> bool {
        self.file_type == FileType::Directory
    }

    /// True if contents, names or the link's target are encrypted by fscrypt.
    pub fn is_encrypted(&self) -> bool {
        self.flags.contains(InodeFlags::ENCRYPT)
    }

    /// True if fs-verity protects the contents.
    pub fn is_verity(&self) -> bool {
        self.flags.contains(InodeFlags::VERITY)
    }

    /// True for a directory that folds case.
    pub fn is_casefolded(&self) -> bool {
        self.flags.contains(InodeFlags::CASEFOLD)
    }

    /// True if the data is in the inode: the flag is set, and the attribute `system.data` is there.
    pub fn has_inline_data(&self) -> bool {
        self.inline_data
    }

    /// True for a symbolic link whose target is in place of the inode's block map.
    ///
    /// As in Linux this does not depend on the flag for extents. With the feature `ea_inode` the length decides, else
    /// whether the inode has any blocks besides the one for attributes.
    pub fn is_fast_symlink(&self) -> bool {
        self.fast_symlink
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

/// Bytes of an inode in every version.
const GOOD_OLD_SIZE: usize = 128;

/// Bytes after those that an inode has room for if it does not say how many it uses.
const EXTRA_DEFAULT: usize = 32;

fn parse(bytes: &[u8], ino: u32, superblock: &Superblock, verify: bool) -> Result<Inode, Fault> {
    let size = to_usize(superblock.inode_size);
    let Some(bytes) = bytes.get(..size) else {
        return Err(Fault::Truncated { len: bytes.len(), needed: size });
    };
    let mode = le16(bytes, 0);
    let links = le16(bytes, 0x1a);
    let generation = le32(bytes, 0x64);
    let seed = crc32c(crc32c(superblock.checksum_seed, &ino.to_le_bytes()), &generation.to_le_bytes());
    let room = size.saturating_sub(GOOD_OLD_SIZE);
    let mut extra = if room > 0 { usize::from(le16(bytes, 0x80)) } else { 0 };
    // A table that was never written is all zeros, without a checksum.
    let blank = mode == 0 && links == 0;
    if (extra > room || !extra.is_multiple_of(4)) && !blank {
        return Err(Fault::Field { field: "the size of the extra fields", value: to_u64(extra) });
    }
    if verify && superblock.has_metadata_csum() && !blank {
        verify_checksum(bytes, extra, seed)?;
    }
    if blank {
        extra = 0;
    }
    let file_type = match FileType::from_mode(mode) {
        Some(kind) => kind,
        None if links == 0 => FileType::Regular,
        None => return Err(Fault::Field { field: "the mode", value: mode.into() }),
    };
    let flags = InodeFlags::from_bits_retain(le32(bytes, 0x20));
    let large = file_type == FileType::Regular || superblock.incompat.contains(Incompat::LARGEDIR);
    let length = join(le32(bytes, 4), if large { le32(bytes, 0x6c) } else { 0 });
    if !blank {
        check(flags, length, superblock)?;
    }
    let mut sectors = u64::from(le32(bytes, 0x1c));
    if superblock.ro_compat.contains(RoCompat::HUGE_FILE) {
        sectors |= u64::from(le16(bytes, 0x74)) << 32;
        if flags.contains(InodeFlags::HUGE_FILE) {
            sectors = sectors.saturating_mul(u64::from(superblock.block_size / 512));
        }
    }
    let bit64 = superblock.incompat.contains(Incompat::BIT64);
    let file_acl = join(le32(bytes, 0x68), if bit64 { le16(bytes, 0x76).into() } else { 0 });
    if file_acl != 0 && !superblock.has_blocks(file_acl, 1) {
        return Err(superblock.out_of_range("the block of extended attributes", file_acl));
    }
    let body = match bytes.get(GOOD_OLD_SIZE.saturating_add(extra)..) {
        Some(body) if extra > 0 && body.len() >= 8 && le32(body, 0) == xattr::MAGIC => body,
        _ => &[],
    };
    let ea_inode = superblock.incompat.contains(Incompat::EA_INODE);
    let inline_data = flags.contains(InodeFlags::INLINE_DATA) && xattr::has_inline_data(body, ea_inode)?;
    let fast_symlink = file_type == FileType::Symlink
        && if ea_inode {
            (1..60).contains(&length)
        } else {
            let for_attributes = if file_acl == 0 { 0 } else { u64::from(superblock.cluster_size / 512) };
            !inline_data && sectors == for_attributes
        };
    let block: [u8; 60] = array(bytes, 0x28);
    if file_type == FileType::Symlink && links > 0 && length == 0 {
        return Err(Fault::Field { field: "the length of a symbolic link's target", value: length });
    }
    // The target of a fast link ends at its length, and at a zero byte, as Linux checks before anything else.
    if fast_symlink && links > 0 && !flags.contains(InodeFlags::ENCRYPT) {
        let ends = block.iter().position(|&byte| byte == 0).map(to_u64);
        if length == 0 || ends != Some(length) {
            return Err(Fault::Field { field: "the length of a symbolic link's target", value: length });
        }
    }
    // An inode that claims to have no extra fields has room for the kernel's.
    let fields = GOOD_OLD_SIZE.saturating_add(if extra == 0 { room.min(EXTRA_DEFAULT) } else { extra });
    let optional = |at: usize| (at.saturating_add(4) <= fields).then(|| le32(bytes, at));
    let time = |seconds: u32, extra_at: usize| timestamp(seconds, optional(extra_at).unwrap_or(0));
    Ok(Inode {
        ino,
        mode,
        file_type,
        uid: u32::from(le16(bytes, 2)) | u32::from(le16(bytes, 0x78)) << 16,
        gid: u32::from(le16(bytes, 0x18)) | u32::from(le16(bytes, 0x7a)) << 16,
        nlink: links,
        size: length,
        sectors,
        atime: time(le32(bytes, 8), 0x8c),
        ctime: time(le32(bytes, 0xc), 0x84),
        mtime: time(le32(bytes, 0x10), 0x88),
        crtime: optional(0x90).map(|seconds| time(seconds, 0x94)),
        flags,
        generation,
        project: optional(0x9c).filter(|_| superblock.ro_compat.contains(RoCompat::PROJECT)).unwrap_or(0),
        file_acl,
        dtime: le32(bytes, 0x14),
        block,
        xattr_body: body.into(),
        checksum_seed: seed,
        inline_data,
        fast_symlink,
    })
}

/// Flags that contradict each other or the features, and sizes that no file can have.
fn check(flags: InodeFlags, size: u64, superblock: &Superblock) -> Result<(), Fault> {
    if flags.contains(InodeFlags::INLINE_DATA | InodeFlags::EXTENTS) {
        return Err(Fault::Rule("the flags for inline data and for extents are both set"));
    }
    if flags.contains(InodeFlags::CASEFOLD) && !superblock.incompat.contains(Incompat::CASEFOLD) {
        return Err(Fault::Rule("the flag for case folding is set, and the file system does not have the feature"));
    }
    let indexed = superblock.compat.contains(Compat::DIR_INDEX);
    if flags.contains(InodeFlags::INDEX) && !indexed && superblock.has_metadata_csum() {
        return Err(Fault::Rule("the flag for an index is set, and the file system does not have the feature"));
    }
    let limit = match flags.contains(InodeFlags::EXTENTS) {
        true => superblock.max_size_of_extents(),
        false => superblock.max_size_of_block_map(),
    };
    if size > limit {
        return Err(Fault::Limit { field: "the size", value: size, limit });
    }
    Ok(())
}

fn verify_checksum(bytes: &[u8], extra: usize, seed: u32) -> Result<(), Fault> {
    let crc = crc32c(crc32c(seed, &bytes[..0x7c]), &[0, 0]);
    let mut wanted = crc32c(crc, &bytes[0x7e..0x80]);
    let mut found = u32::from(le16(bytes, 0x7c));
    if bytes.len() > GOOD_OLD_SIZE {
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
    let seconds = i64::from(seconds.cast_signed()).saturating_add(i64::from(extra & 3) << 32);
    let nanoseconds = extra >> 2;
    // The field has room for more nanoseconds than a second has.
    match nanoseconds.checked_sub(1_000_000_000) {
        Some(rest) => Timestamp { seconds: seconds.saturating_add(1), nanoseconds: rest },
        None => Timestamp { seconds, nanoseconds },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where each epoch begins and ends: the table of the kernel's documentation (inodes.rst).
    #[test]
    fn epoch_bits() {
        let seconds = |low: i32, epoch| timestamp(low.cast_unsigned(), epoch).seconds;
        assert_eq!(seconds(i32::MIN, 0), -0x8000_0000);
        assert_eq!(seconds(-1, 0), -1);
        assert_eq!(seconds(i32::MAX, 0), 0x7fff_ffff);
        assert_eq!(seconds(i32::MIN, 1), 0x8000_0000);
        assert_eq!(seconds(0, 1), 0x1_0000_0000);
        assert_eq!(seconds(i32::MAX, 3), 0x3_7fff_ffff);
        let nanoseconds = |ns: u32| timestamp(5, ns << 2);
        assert_eq!(nanoseconds(999_999_999), Timestamp { seconds: 5, nanoseconds: 999_999_999 });
        assert_eq!(nanoseconds(1_000_000_001), Timestamp { seconds: 6, nanoseconds: 1 });
    }
}
