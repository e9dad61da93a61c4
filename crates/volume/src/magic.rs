//! Magic numbers: what a source holds, and what to do about it.

use std::io;

use postread_io::ReadAt;

use crate::bytes::{le16, le32};

/// What a source holds.
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
    /// Logical partitions of an Android device (`super.img`).
    AndroidSuper,
    /// gzip.
    Gzip,
    /// bzip2.
    Bzip2,
    /// xz.
    Xz,
    /// Zstandard.
    Zstd,
    /// LZ4, in its frame format or the older one.
    Lz4,
    /// A ZIP archive.
    Zip,
    /// A 7-Zip archive.
    SevenZip,
    /// A disk image in QEMU's format, version 2 or 3.
    Qcow2,
    /// A VMware disk image.
    Vmdk,
    /// A VirtualBox disk image.
    Vdi,
    /// A Hyper-V disk image, version 2.
    Vhdx,
    /// A Hyper-V disk image, version 1, of the dynamic kind.
    Vhd,
    /// A forensic image in EnCase's format, version 1 or 2.
    E01,
    /// Swap space of Linux.
    Swap,
}

impl Magic {
    /// Its common name.
    pub fn name(self) -> &'static str {
        match self {
            Magic::Ext4 => "an ext2, ext3 or ext4 file system",
            Magic::F2fs => "an f2fs file system",
            Magic::Btrfs => "a btrfs file system",
            Magic::Xfs => "an XFS file system",
            Magic::Erofs => "an EROFS file system",
            Magic::Squashfs => "a SquashFS file system",
            Magic::Luks => "a LUKS volume",
            Magic::DmVerity => "a dm-verity hash device",
            Magic::Lvm2 => "an LVM physical volume",
            Magic::AndroidSparse => "an Android sparse image",
            Magic::AndroidSuper => "an Android super image with logical partitions",
            Magic::Gpt => "a GUID partition table",
            Magic::Mbr => "an MBR partition table",
            Magic::Gzip => "gzip data",
            Magic::Bzip2 => "bzip2 data",
            Magic::Xz => "xz data",
            Magic::Zstd => "zstd data",
            Magic::Lz4 => "LZ4 data",
            Magic::Zip => "a ZIP archive",
            Magic::SevenZip => "a 7-Zip archive",
            Magic::Qcow2 => "a QEMU disk image (qcow2)",
            Magic::Vmdk => "a VMware disk image (VMDK)",
            Magic::Vdi => "a VirtualBox disk image (VDI)",
            Magic::Vhdx => "a Hyper-V disk image (VHDX)",
            Magic::Vhd => "a Hyper-V disk image (VHD)",
            Magic::E01 => "an EnCase forensic image (E01)",
            Magic::Swap => "swap space",
        }
    }

    /// Advice for formats without a supported file system. `None` for ext4 and for formats that may contain it.
    pub fn advice(self) -> Option<&'static str> {
        Some(match self {
            Magic::Ext4 | Magic::AndroidSparse | Magic::Gpt | Magic::Mbr => return None,
            Magic::Luks | Magic::Lvm2 | Magic::AndroidSuper => return None,
            Magic::Gzip => "unpack it first, with gunzip",
            Magic::Bzip2 => "unpack it first, with bunzip2",
            Magic::Xz => "unpack it first, with unxz",
            Magic::Zstd => "unpack it first, with unzstd",
            Magic::Lz4 => "unpack it first, with unlz4",
            Magic::Zip => "unpack it first, with unzip",
            Magic::SevenZip => "unpack it first, with 7z x",
            Magic::Qcow2 | Magic::Vmdk | Magic::Vdi | Magic::Vhdx | Magic::Vhd => {
                "convert it first, with qemu-img convert -O raw"
            }
            Magic::E01 => "convert it to a raw image first, with ewfexport",
            Magic::DmVerity => "it holds hashes only: read the data device",
            Magic::Swap => "it holds no files",
            Magic::Squashfs => "unpack it with unsquashfs, or mount it",
            Magic::F2fs | Magic::Btrfs | Magic::Xfs | Magic::Erofs => "only ext4 is read: mount it instead",
        })
    }
}

/// What `source` holds; `None` if no magic number is known. File systems come before partition tables, since a boot
/// sector may precede a file system.
pub fn detect<S: ReadAt + ?Sized>(source: &S) -> io::Result<Option<Magic>> {
    let mut start = vec![0; 8192];
    let len = fill(source, 0, &mut start)?;
    start.truncate(len);
    if let Some(magic) = detect_start(&start) {
        return Ok(Some(magic));
    }
    let mut btrfs = [0; 8];
    // Android's geometry follows a reserved page.
    if start.get(4096..4100).is_some_and(|bytes| le32(bytes, 0) == 0x616c_4467) {
        return Ok(Some(Magic::AndroidSuper));
    }
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
    if at(4096 - 10, b"SWAPSPACE2") {
        return Some(Magic::Swap);
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
    // The label is in one of the first four sectors.
    if (0..4).any(|sector| at(sector * 512, b"LABELONE") && at(sector * 512 + 24, b"LVM2 001")) {
        return Some(Magic::Lvm2);
    }
    if start.len() >= 2048 && le16(start, 1024 + 0x38) == 0xef53 {
        return Some(Magic::Ext4);
    }
    // Last, since a file system leaves its first sector to boot loaders.
    if word(0x40) == Some(0xbeda_107f) {
        return Some(Magic::Vdi);
    }
    let packed: [(&[u8], Magic); 15] = [
        (b"\x1f\x8b\x08", Magic::Gzip),
        (b"BZh", Magic::Bzip2),
        (b"\xfd7zXZ\0", Magic::Xz),
        (b"\x28\xb5\x2f\xfd", Magic::Zstd),
        (b"\x04\x22\x4d\x18", Magic::Lz4),
        (b"\x02\x21\x4c\x18", Magic::Lz4),
        (b"PK\x03\x04", Magic::Zip),
        (b"7z\xbc\xaf\x27\x1c", Magic::SevenZip),
        (b"QFI\xfb", Magic::Qcow2),
        (b"KDMV", Magic::Vmdk),
        (b"# Disk DescriptorFile", Magic::Vmdk),
        (b"vhdxfile", Magic::Vhdx),
        (b"conectix", Magic::Vhd),
        (b"EVF\x09\x0d\x0a\xff\x00", Magic::E01),
        (b"EVF2\x0d\x0a\x81\x00", Magic::E01),
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
