//! Compares a whole tree with a kernel's mount of it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

use postread_fsimage::ext4::{Ext4, Extent, ExtentKind, FileType, Inode, ROOT_INO, posix_acl_xattr};
use rustix::fs::{AtFlags, StatxFlags, lgetxattr, llistxattr, statx};

/// Everything below the root of an image by path, and errors.
pub(crate) fn walk(fs: &Ext4) -> (BTreeMap<Vec<u8>, Inode>, Vec<String>) {
    let mut found = BTreeMap::from([(Vec::new(), fs.root().unwrap())]);
    let mut path: Vec<Vec<u8>> = Vec::new();
    let mut errors = Vec::new();
    for visit in fs.walk(ROOT_INO) {
        let Some(entry) = &visit.entry else {
            errors.push(visit.inode.unwrap_err().to_string());
            continue;
        };
        path.truncate(visit.depth);
        path.push(entry.name.to_vec());
        match visit.inode {
            Ok(inode) => {
                assert!(entry.file_type.is_none_or(|kind| kind == inode.file_type));
                assert_eq!(entry.ino, inode.ino);
                assert!(found.insert(path.join(&b'/'), inode).is_none(), "a path twice");
            }
            Err(error) => errors.push(error.to_string()),
        }
    }
    (found, errors)
}

fn kernel_walk(root: &Path, prefix: Vec<u8>, out: &mut Vec<Vec<u8>>) {
    for entry in fs::read_dir(root).unwrap() {
        let entry = entry.unwrap();
        let mut path = prefix.clone();
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(entry.file_name().as_bytes());
        if entry.file_type().unwrap().is_dir() {
            kernel_walk(&entry.path(), path.clone(), out);
        }
        out.push(path);
    }
}

/// Compares the image with the kernel's view of it at `mount`: names, attributes, contents. Returns the number of
/// inodes compared.
pub(crate) fn compare(fs: &Ext4, mount: &Path) -> usize {
    compare_with(fs, mount, false)
}

/// The same, after fast commits: the kernel may have given directories an index, blocks and times of its own,
/// and files' extent trees other nodes.
pub(crate) fn compare_replayed(fs: &Ext4, mount: &Path) -> usize {
    compare_with(fs, mount, true)
}

fn compare_with(fs: &Ext4, mount: &Path, replayed: bool) -> usize {
    let (ours, errors) = walk(fs);
    assert_eq!(errors, Vec::<String>::new());
    let mut theirs = vec![Vec::new()];
    kernel_walk(mount, Vec::new(), &mut theirs);
    theirs.sort();
    let names: Vec<&Vec<u8>> = ours.keys().collect();
    assert!(names == theirs.iter().collect::<Vec<_>>(), "names: ours {} theirs {}", names.len(), theirs.len());
    for (path, inode) in &ours {
        let place = mount.join(std::ffi::OsStr::from_bytes(path));
        compare_inode(fs, inode, &place, replayed);
    }
    ours.len()
}

fn compare_inode(fs: &Ext4, inode: &Inode, place: &Path, replayed: bool) {
    let changed = replayed && inode.is_dir();
    let shown = place.display();
    let meta = fs::symlink_metadata(place).unwrap();
    assert_eq!(u64::from(inode.ino), meta.ino(), "{shown}");
    assert_eq!(u32::from(inode.mode), meta.mode(), "{shown}");
    assert_eq!((inode.uid, inode.gid), (meta.uid(), meta.gid()), "{shown}");
    assert_eq!(u64::from(inode.nlink), meta.nlink(), "{shown}");
    assert!(changed || inode.size == meta.size(), "{shown}: {} {}", inode.size, meta.size());
    // The kernel counts inline data of files as if it took sectors.
    let inline =
        if inode.has_inline_data() && inode.file_type == FileType::Regular { inode.size.div_ceil(512) } else { 0 };
    let nodes = if replayed { 4 * u64::from(fs.superblock().block_size) / 512 } else { 0 };
    let difference = (inode.sectors + inline).abs_diff(meta.blocks());
    assert!(changed || difference <= nodes, "{shown}: {} {}", inode.sectors, meta.blocks());
    for (ours, seconds, nanoseconds) in [
        (inode.atime, meta.atime(), meta.atime_nsec()),
        (inode.mtime, meta.mtime(), meta.mtime_nsec()),
        (inode.ctime, meta.ctime(), meta.ctime_nsec()),
    ] {
        let (ours, theirs) = ((ours.seconds, i64::from(ours.nanoseconds)), (seconds, nanoseconds));
        assert!(changed || ours == theirs, "{shown}: {ours:?} {theirs:?}");
    }
    let full = statx(rustix::fs::CWD, place, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BTIME).unwrap();
    if let Some(birth) = inode.crtime {
        assert_eq!(birth.seconds, full.stx_btime.tv_sec, "{shown}");
        assert_eq!(birth.nanoseconds, full.stx_btime.tv_nsec, "{shown}");
    }
    let kind = meta.file_type();
    match inode.file_type {
        FileType::Symlink => {
            assert_eq!(fs.symlink_target(inode).unwrap(), fs::read_link(place).unwrap().as_os_str().as_bytes());
        }
        FileType::CharDevice | FileType::BlockDevice => {
            assert_eq!(kind.is_block_device(), inode.file_type == FileType::BlockDevice);
            let (major, minor) = inode.device().unwrap();
            assert_eq!(rustix::fs::makedev(major, minor), meta.rdev(), "{shown}");
        }
        FileType::Regular => compare_contents(fs, inode, place),
        _ => {}
    }
    if matches!(inode.file_type, FileType::Regular | FileType::Directory) {
        let flags = rustix::fs::ioctl_getflags(File::open(place).unwrap()).unwrap().bits();
        // Those that the kernel shows as they are on disk.
        let index = if changed { 0 } else { 0x1000 };
        let shown_flags = 0x0000_00ff | 0x800 | index | 0x8_0000 | 0x10_0000 | 0x1000_0000 | 0x4000_0000;
        assert_eq!(inode.flags.bits() & shown_flags, flags & shown_flags, "{shown}");
    }
    compare_xattrs(fs, inode, place);
}

fn compare_xattrs(fs: &Ext4, inode: &Inode, place: &Path) {
    let mut ours = BTreeMap::new();
    for attribute in fs.xattrs(inode).map(Result::unwrap) {
        let value = match attribute.index {
            2 | 3 => posix_acl_xattr(&attribute.value).unwrap(),
            _ => attribute.value.clone(),
        };
        if let Some(name) = attribute.full_name() {
            ours.insert(name, value);
        }
    }
    let mut names = vec![0; 65536];
    let len = llistxattr(place, &mut names).unwrap();
    let mut theirs = BTreeMap::new();
    for name in names[..len].split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0; 65536];
        let len = lgetxattr(place, name, &mut value).unwrap();
        value.truncate(len);
        theirs.insert(name.to_vec(), value);
    }
    assert!(ours == theirs, "{}: {ours:?} {theirs:?}", place.display());
}

/// Compares all bytes of small files, and those of large ones where either side has data.
fn compare_contents(fs: &Ext4, inode: &Inode, place: &Path) {
    let file = File::open(place).unwrap();
    let raw = fs.open_raw(inode).unwrap();
    let extents = fs.extents(inode).unwrap();
    check_extents(fs, inode, &extents);
    let mut ranges = Vec::new();
    if inode.size <= 16 << 20 {
        ranges.push((0, inode.size));
    } else {
        let written = extents.iter().filter(|extent| extent.kind == ExtentKind::Written);
        ranges.extend(written.map(|extent| (extent.logical, extent.end().min(inode.size))));
        let mut at = 0;
        while let Ok(data) = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(at)) {
            let hole = rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(data)).unwrap();
            ranges.push((data, hole));
            at = hole;
        }
        (&file).seek(SeekFrom::Start(0)).unwrap();
    }
    for (mut start, end) in ranges {
        while start < end {
            let len = (end - start).min(1 << 20) as usize;
            let (mut ours, mut theirs) = (vec![0; len], vec![0; len]);
            raw.read_raw_at(&mut ours, start).unwrap();
            FileExt::read_exact_at(&file, &mut theirs, start).unwrap();
            assert!(ours == theirs, "{} at {start}", place.display());
            start += len as u64;
        }
    }
}

/// Extents have no gaps, are joined, and reach the end of the file at least; a walk that begins in the middle of one gives
/// the same.
fn check_extents(fs: &Ext4, inode: &Inode, extents: &[Extent]) {
    let mut at = 0;
    for pair in extents.windows(2) {
        let merged = pair[0].kind == pair[1].kind
            && (pair[0].kind == ExtentKind::Hole || pair[0].physical + pair[0].len == pair[1].physical);
        assert!(!merged, "{pair:?}");
    }
    for extent in extents {
        assert_eq!(extent.logical, at);
        assert!(extent.len > 0);
        at = extent.end();
    }
    if fs.inline_data(inode).unwrap().is_none() {
        assert!(at >= inode.size, "{at} {}", inode.size);
    }
    let block_size = u64::from(fs.superblock().block_size);
    for extent in extents.iter().step_by(extents.len() / 50 + 1) {
        let middle = extent.logical + extent.len / 2 / block_size * block_size;
        let first = fs.extents_from(inode, middle).next().unwrap().unwrap();
        assert_eq!((first.logical, first.end(), first.kind), (middle, extent.end(), extent.kind));
    }
}

/// Loads an image file.
pub(crate) fn load(image: &Path) -> Ext4 {
    Ext4::load(Arc::new(File::open(image).unwrap())).unwrap()
}
