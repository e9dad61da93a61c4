//! A tree that has one of everything, made through a kernel mount.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, chown, symlink};
use std::path::Path;
use std::time::{Duration, SystemTime};

use postread_tests::noise;
use postread_tests::run;
use rustix::fs::{FallocateFlags, Mode, XattrFlags, fallocate, lsetxattr, mknodat};

/// What an image can hold.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Abilities {
    /// Files may be allocated ahead (extents only).
    pub(crate) fallocate: bool,
    /// Attribute values may be larger than a block.
    pub(crate) large_values: bool,
    /// Bytes of attributes that fit in a block.
    pub(crate) attribute_room: usize,
}

/// Fills the file system mounted at `root`.
pub(crate) fn populate(root: &Path, abilities: Abilities) {
    sizes(root);
    mapped(root, abilities);
    names(root);
    kinds(root);
    attributes(root, abilities);
    times(root);
}

fn sizes(root: &Path) {
    let dir = root.join("sizes");
    fs::create_dir(&dir).unwrap();
    for size in [
        0, 1, 15, 59, 60, 61, 100, 120, 155, 156, 157, 200, 1023, 1024, 1025, 2048, 4095, 4096, 4097, 65535, 65536,
        65537, 1_048_589,
    ] {
        fs::write(dir.join(format!("f{size}")), noise(size, size as u64 + 1)).unwrap();
    }
}

fn mapped(root: &Path, abilities: Abilities) {
    let dir = root.join("mapped");
    fs::create_dir(&dir).unwrap();
    let sparse = File::create(dir.join("sparse")).unwrap();
    for at in [0u64, 100 << 12, 5 << 20, (70 << 20) + 123, 6 << 30] {
        sparse.write_all_at(&noise(5000, at + 7), at).unwrap();
    }
    sparse.set_len(8 << 30).unwrap();
    let empty = File::create(dir.join("all-hole")).unwrap();
    empty.set_len(1 << 40 | 12345).unwrap_or_else(|_| empty.set_len(1 << 30).unwrap());
    // Two files written in turn, each block apart from the last.
    let files = [File::create(dir.join("comb-a")).unwrap(), File::create(dir.join("comb-b")).unwrap()];
    for i in 0..1500u64 {
        for (file, seed) in files.iter().zip([0, 1 << 32]) {
            file.write_all_at(&noise(4096, i + seed), i * 8192).unwrap();
        }
        if i % 100 == 0 {
            files.iter().for_each(|file| file.sync_all().unwrap());
        }
    }
    if abilities.fallocate {
        let ahead = File::create(dir.join("ahead")).unwrap();
        fallocate(&ahead, FallocateFlags::empty(), 0, 3 << 20).unwrap();
        ahead.write_all_at(&noise(10_000, 3), 1 << 20).unwrap();
        let past = File::create(dir.join("past-the-end")).unwrap();
        past.write_all_at(&noise(5000, 4), 0).unwrap();
        fallocate(&past, FallocateFlags::KEEP_SIZE, 0, 1 << 20).unwrap();
        let punched = File::create(dir.join("punched")).unwrap();
        punched.write_all_at(&noise(1 << 20, 5), 0).unwrap();
        fallocate(&punched, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 65536, 200_000).unwrap();
    }
    let cut = File::create(dir.join("cut")).unwrap();
    cut.write_all_at(&noise(300_000, 6), 0).unwrap();
    cut.sync_all().unwrap();
    cut.set_len(100_001).unwrap();
}

fn names(root: &Path) {
    let dir = root.join("names");
    fs::create_dir(&dir).unwrap();
    for name in ["naïve ☃ name", "a\nb\t\u{1b}[31m", "*", " ", "-rf", "ÄÖÜ.TXT", &"x".repeat(255)] {
        fs::write(dir.join(name), name).unwrap();
    }
    let many = root.join("many");
    fs::create_dir(&many).unwrap();
    for i in 0..1200 {
        fs::write(many.join(format!("{i:05}-{}", "n".repeat(i % 80))), i.to_string()).unwrap();
    }
    // Gone entries must stay gone.
    for i in (0..1200).step_by(3) {
        fs::remove_file(many.join(format!("{i:05}-{}", "n".repeat(i % 80)))).unwrap();
    }
    let few = root.join("few");
    fs::create_dir(&few).unwrap();
    for i in 0..3 {
        fs::write(few.join(format!("f{i}")), "few").unwrap();
    }
    fs::remove_file(few.join("f1")).unwrap();
    let mut deep = root.join("deep");
    for i in 0..60 {
        fs::create_dir(&deep).unwrap();
        fs::write(deep.join("here"), format!("{i}")).unwrap();
        deep.push(format!("d{i}"));
    }
}

fn kinds(root: &Path) {
    let dir = root.join("kinds");
    fs::create_dir(&dir).unwrap();
    for len in [1, 58, 59, 60, 61, 200, 1000] {
        symlink("t".repeat(len), dir.join(format!("link{len}"))).unwrap();
    }
    let node = |name: &str, kind, device| {
        mknodat(rustix::fs::CWD, dir.join(name), kind, Mode::from_raw_mode(0o640), device).unwrap();
    };
    node("fifo", rustix::fs::FileType::Fifo, 0);
    node("socket", rustix::fs::FileType::Socket, 0);
    node("null", rustix::fs::FileType::CharacterDevice, rustix::fs::makedev(1, 3));
    node("large-minor", rustix::fs::FileType::BlockDevice, rustix::fs::makedev(259, 0x4_5678));
    fs::write(dir.join("one"), "linked").unwrap();
    fs::hard_link(dir.join("one"), dir.join("two")).unwrap();
    fs::write(dir.join("owned"), "owned").unwrap();
    chown(dir.join("owned"), Some(70_000), Some(4_000_000_000)).unwrap();
    run(std::process::Command::new("chmod").arg("6751").arg(dir.join("owned")));
}

fn attributes(root: &Path, abilities: Abilities) {
    let dir = root.join("attributes");
    fs::create_dir(&dir).unwrap();
    let set = |file: &str, name: &str, value: &[u8]| {
        let path = dir.join(file);
        if !path.exists() {
            fs::write(&path, file).unwrap();
        }
        lsetxattr(&path, name, value, XattrFlags::empty()).unwrap_or_else(|error| panic!("{file} {name}: {error}"));
    };
    set("small", "user.small", b"s");
    set("small", "user.empty", b"");
    set("small", "trusted.hidden", b"t");
    set("small", "security.label", b"x\0y");
    set("block", "user.block", &noise(abilities.attribute_room / 2, 20));
    for i in 0..10 {
        set("several", &format!("user.number-{i}"), &noise(20 + i, 30 + i as u64));
    }
    // Two files with the same attributes share a block.
    for file in ["shared-a", "shared-b"] {
        set(file, "user.shared", &noise(abilities.attribute_room / 2, 21));
    }
    if abilities.large_values {
        set("large", "user.large", &noise(20_000, 22));
        set("large", "user.larger", &noise(60_000, 23));
    }
    // An access control list as setxattr takes it: owner rw, user 1000 r, group r, mask r, others none.
    let mut acl = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in
        [(1u16, 6u16, u32::MAX), (2, 4, 1000), (4, 4, u32::MAX), (8, 5, 100_000), (16, 5, u32::MAX), (32, 0, u32::MAX)]
    {
        acl.extend_from_slice(&tag.to_le_bytes());
        acl.extend_from_slice(&permissions.to_le_bytes());
        acl.extend_from_slice(&id.to_le_bytes());
    }
    set("access-list", "system.posix_acl_access", &acl);
    fs::create_dir(dir.join("defaults")).unwrap();
    set("defaults", "system.posix_acl_default", &acl);
}

fn times(root: &Path) {
    let dir = root.join("times");
    fs::create_dir(&dir).unwrap();
    for (name, seconds) in [("1960", -315_619_200i64), ("2040", 2_208_988_800), ("2400", 13_569_465_600)] {
        let file = File::create(dir.join(name)).unwrap();
        let moment = match u64::try_from(seconds) {
            Ok(after) => SystemTime::UNIX_EPOCH + Duration::new(after, 123_456_789),
            Err(_) => SystemTime::UNIX_EPOCH - Duration::from_secs(seconds.unsigned_abs()),
        };
        file.set_times(fs::FileTimes::new().set_accessed(moment).set_modified(moment)).unwrap();
    }
}
