//! Things of a size: very many entries, very sparse files, deep extent trees.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use postread_fsimage::ext4::{ExtentKind, ROOT_INO, parse_htree_root};
use postread_tests::{Mount, noise, require, require_root};
use rustix::fs::{FallocateFlags, fallocate};

use crate::compare::load;
use crate::differential::{check, mkfs};

#[test]
fn a_directory_of_100_000_entries() {
    let Some(()) = require_root() else { return };
    let Some(image) = mkfs(512 << 20, &["-b", "1024", "-N", "110000", "-O", "large_dir"]) else { return };
    let Some(mount) = require("a loop mount of ext4", Mount::image(image.path(), "ext4", "")) else { return };
    let dir = mount.path().join("many");
    fs::create_dir(&dir).unwrap();
    for i in 0..100_000 {
        File::create(dir.join(format!("{i:06}-{}", "long".repeat(20)))).unwrap();
    }
    mount.unmount();
    assert!(check(image.path()) > 100_000);
    let fs = load(image.path());
    let many = fs.resolve(b"many").unwrap();
    let mut first = [0; 1024];
    fs.open_raw(&many).unwrap().read_raw_at(&mut first, 0).unwrap();
    assert_eq!(parse_htree_root(&first).unwrap().indirect_levels, 2, "three levels of index");
    // An entry by name, early, late and missing.
    for i in [0, 50_000, 99_999] {
        let name = format!("{i:06}-{}", "long".repeat(20));
        let entry = fs.lookup(&many, name.as_bytes()).unwrap();
        assert_eq!(*entry.name, *name.as_bytes());
    }
    assert!(fs.lookup(&many, b"missing").is_err());
    assert_eq!(fs.walk(ROOT_INO).count(), 100_002);
}

#[test]
fn a_file_of_1_tib() {
    let Some(()) = require_root() else { return };
    let Some(image) = mkfs(64 << 20, &["-b", "4096"]) else { return };
    let Some(mount) = require("a loop mount of ext4", Mount::image(image.path(), "ext4", "")) else { return };
    let file = File::create(mount.path().join("sparse")).unwrap();
    let places = [0u64, 12345, 1 << 30, (1 << 39) + 5, (1 << 40) - 100];
    for at in places {
        file.write_all_at(&noise(100, at), at).unwrap();
    }
    drop(file);
    mount.unmount();
    check(image.path());
    let fs = load(image.path());
    let inode = fs.resolve(b"sparse").unwrap();
    assert_eq!(inode.size, 1 << 40);
    let raw = fs.open_raw(&inode).unwrap();
    for at in places {
        let mut bytes = [0; 100];
        raw.read_raw_at(&mut bytes, at).unwrap();
        assert_eq!(bytes[..], noise(100, at));
    }
    let written: u64 =
        raw.extents().iter().filter(|extent| extent.kind == ExtentKind::Written).map(|extent| extent.len).sum();
    assert_eq!(written, 5 * 4096);
}

#[test]
fn an_extent_tree_of_three_levels() {
    let Some(()) = require_root() else { return };
    let Some(image) = mkfs(128 << 20, &["-b", "1024"]) else { return };
    let Some(mount) = require("a loop mount of ext4", Mount::image(image.path(), "ext4", "")) else { return };
    let file = File::create(mount.path().join("comb")).unwrap();
    file.write_all_at(&noise(64 << 20, 1), 0).unwrap();
    file.sync_all().unwrap();
    for i in 0..32 << 10 {
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&file, mode, i * 2048 + 1024, 1024).unwrap();
    }
    drop(file);
    mount.unmount();
    check(image.path());
    let fs = load(image.path());
    let extents = fs.extents(&fs.resolve(b"comb").unwrap()).unwrap();
    assert!(extents.len() > 60_000, "{}", extents.len());
}
