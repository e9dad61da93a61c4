//! What kind of file system a file is on, and how full it is.

use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

/// A file system's kind, from the magic number that `statfs(2)` gives (constants of `<linux/magic.h>`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FsKind {
    /// ext2, ext3 and ext4 share a number.
    Ext,
    /// f2fs.
    F2fs,
    /// btrfs.
    Btrfs,
    /// XFS.
    Xfs,
    /// EROFS.
    Erofs,
    /// SquashFS.
    Squashfs,
    /// tmpfs: files live in the page cache, and there is nothing to drop or to read in.
    Tmpfs,
    /// ramfs, as tmpfs.
    Ramfs,
    /// overlayfs, on top of another file system.
    Overlay,
    /// 9p.
    NineP,
    /// NFS.
    Nfs,
    /// FUSE.
    Fuse,
    /// Another, by its number.
    Other(u64),
}

impl FsKind {
    /// The kind with this magic number.
    pub fn from_magic(magic: u64) -> FsKind {
        match magic {
            0xEF53 => FsKind::Ext,
            0xF2F5_2010 => FsKind::F2fs,
            0x9123_683E => FsKind::Btrfs,
            0x5846_5342 => FsKind::Xfs,
            0xE0F5_E1E2 => FsKind::Erofs,
            0x7371_7368 => FsKind::Squashfs,
            0x0102_1994 => FsKind::Tmpfs,
            0x8584_58F6 => FsKind::Ramfs,
            0x794C_7630 => FsKind::Overlay,
            0x0102_1997 => FsKind::NineP,
            0x6969 => FsKind::Nfs,
            0x6573_5546 => FsKind::Fuse,
            other => FsKind::Other(other),
        }
    }

    /// Do its files live in memory only, so that a cold read cannot be measured on it?
    pub fn is_memory(self) -> bool {
        matches!(self, FsKind::Tmpfs | FsKind::Ramfs)
    }
}

impl fmt::Display for FsKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FsKind::Ext => "ext2/ext3/ext4",
            FsKind::F2fs => "f2fs",
            FsKind::Btrfs => "btrfs",
            FsKind::Xfs => "xfs",
            FsKind::Erofs => "erofs",
            FsKind::Squashfs => "squashfs",
            FsKind::Tmpfs => "tmpfs",
            FsKind::Ramfs => "ramfs",
            FsKind::Overlay => "overlayfs",
            FsKind::NineP => "9p",
            FsKind::Nfs => "nfs",
            FsKind::Fuse => "fuse",
            FsKind::Other(magic) => return write!(f, "file system {magic:#x}"),
        })
    }
}

/// The result of `statfs(2)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct FsStat {
    /// The kind.
    pub kind: FsKind,
    /// Block size in bytes.
    pub block_size: u64,
    /// Size of the file system in bytes.
    pub total: u64,
    /// Bytes that the caller may still write.
    pub available: u64,
}

/// Of the file system that holds an open file.
pub fn of_file(file: impl AsFd) -> io::Result<FsStat> {
    Ok(convert(rustix::fs::fstatfs(file)?))
}

/// Of the file system that holds a path.
pub fn of_path(path: &Path) -> io::Result<FsStat> {
    Ok(convert(rustix::fs::statfs(path)?))
}

fn convert(stat: rustix::fs::StatFs) -> FsStat {
    // The kernel's fields are longs on most architectures: the magic number of f2fs and others has its top bit set.
    let block_size = u64::try_from(stat.f_bsize).unwrap_or(0);
    FsStat {
        kind: FsKind::from_magic(u64::from(stat.f_type as u32)),
        block_size,
        total: block_size.saturating_mul(stat.f_blocks),
        available: block_size.saturating_mul(stat.f_bavail),
    }
}
