//! What something is, by its magic number.

use std::io;

use postread_io::ReadAt;

use crate::bytes::{le16, le32};

/// What a source begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Magic {
    /// ext2, ext3 or ext4.
    Ext4,
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
    /// LUKS, version 1 or 2.
    Luks,
    /// A dm-verity superblock.
    DmVerity,
    /// An LVM2 physical volume.
    Lvm2,
    /// An Android sparse image.
    AndroidSparse,
    /// A GUID partition table, with sectors of 512 or 4096 bytes.
    Gpt,
    /// A master boot record.
    Mbr,
    /// gzip.
    Gzip,
    /// bzip2.
    Bzip2,
    /// xz.
    Xz,
    /// Zstandard.
    Zstd,
    /// A disk image in the format of QEMU, version 2 or 3.
    Qcow2,
}

impl Magic {
    /// Whether an image may be inside that has to be unpacked first.
    pub fn is_packed(self) -> bool {
        matches!(self, Magic::Gzip | Magic::Bzip2 | Magic::Xz | Magic::Zstd | Magic::Qcow2)
    }
}

/// Tells what `source` is; nothing where no magic number is known. File systems come before partition tables, since
/// a boot sector may stand before a file system.
pub fn detect<S: ReadAt + ?Sized>(source: &S) -> io::Result<Option<Magic>> {
    let mut start = vec![0; 8192];
    let len = fill(source, 0, &mut start)?;
    start.truncate(len);
    if let Some(magic) = detect_start(&start) {
        return Ok(Some(magic));
    }
    let mut btrfs = [0; 8];
    if fill(source, 0x1_0040, &mut btrfs)? == 8 && &btrfs == b"_BHRfS_M" {
        return Ok(Some(Magic::Btrfs));
    }
    Ok(detect_table(&start))
}

fn detect_start(start: &[u8]) -> Option<Magic> {
    let at = |offset: usize, magic: &[u8]| start.get(offset..).is_some_and(|rest| rest.starts_with(magic));
    let word = |offset: usize| start.get(offset..offset + 4).map(|bytes| le32(bytes, 0));
    if at(0, b"LUKS\xba\xbe") || at(0, b"SKUL\xba\xbe") {
        return Some(Magic::Luks);
    }
    if at(0, b"verity\0\0") {
        return Some(Magic::DmVerity);
    }
    if word(0) == Some(0xed26_ff3a) {
        return Some(Magic::AndroidSparse);
    }
    if at(0, b"XFSB") {
        return Some(Magic::Xfs);
    }
    if at(0, b"hsqs") {
        return Some(Magic::Squashfs);
    }
    if word(1024) == Some(0xf2f5_2010) {
        return Some(Magic::F2fs);
    }
    if word(1024) == Some(0xe0f5_e1e2) {
        return Some(Magic::Erofs);
    }
    // A label stands in one of the first four sectors.
    if (0..4).any(|sector| at(sector * 512, b"LABELONE") && at(sector * 512 + 24, b"LVM2 001")) {
        return Some(Magic::Lvm2);
    }
    if start.len() >= 2048 && le16(start, 1024 + 0x38) == 0xef53 {
        return Some(Magic::Ext4);
    }
    // Last, since a file system leaves its first sector to whoever boots.
    let packed: [(&[u8], Magic); 5] = [
        (b"\x1f\x8b\x08", Magic::Gzip),
        (b"BZh", Magic::Bzip2),
        (b"\xfd7zXZ\0", Magic::Xz),
        (b"\x28\xb5\x2f\xfd", Magic::Zstd),
        (b"QFI\xfb", Magic::Qcow2),
    ];
    packed.into_iter().find(|(bytes, _)| at(0, bytes)).map(|(_, magic)| magic)
}

fn detect_table(start: &[u8]) -> Option<Magic> {
    if [512, 4096].iter().any(|&at| start.get(at..).is_some_and(|rest| rest.starts_with(b"EFI PART"))) {
        return Some(Magic::Gpt);
    }
    let entries = crate::mbr::parse(start)?;
    entries.iter().any(|entry| entry.kind != 0 && entry.sectors != 0).then_some(Magic::Mbr)
}

fn fill<S: ReadAt + ?Sized>(source: &S, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < buf.len() {
        match source.read_at(&mut buf[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}
