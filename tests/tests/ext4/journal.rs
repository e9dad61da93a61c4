//! Images that were not unmounted cleanly: they read as they would after mounting.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use postread_fsimage::ext4::{Error, Ext4, JournalPolicy, Options};
use postread_io::ReadAt;
use postread_tests::{Mount, noise, require, require_root, require_tool, run};
use tempfile::NamedTempFile;

use crate::compare::{compare, load, walk};
use crate::differential::mkfs;

/// The bytes that a journal's own blocks begin with: data that begins so has to be escaped.
const MAGIC: [u8; 4] = [0xc0, 0x3b, 0x39, 0x98];

pub(crate) fn copy(image: &Path) -> NamedTempFile {
    let copy = NamedTempFile::new().unwrap();
    run(Command::new("cp").arg("--sparse=always").args([image, copy.path()]));
    copy
}

pub(crate) fn sync(path: &Path) {
    File::open(path).unwrap().sync_all().unwrap();
}

/// Work whose traces stay in the journal: new directories, removed ones (whose blocks are revoked), blocks used again.
fn work(root: &Path) {
    for round in 0..4 {
        let dir = root.join(format!("dir{round}"));
        fs::create_dir(&dir).unwrap();
        for i in 0..300 {
            let mut data = noise(20 * i, i as u64);
            if i % 7 == 0 {
                data.splice(0..0, MAGIC);
            }
            fs::write(dir.join(format!("file{i}")), data).unwrap();
        }
        sync(&dir.join("file299"));
        if round % 2 == 1 {
            fs::remove_dir_all(root.join(format!("dir{}", round - 1))).unwrap();
            sync(&dir.join("file0"));
            // The blocks that were directories become data.
            fs::write(root.join(format!("again{round}")), [&MAGIC[..], &noise(400_000, round)].concat()).unwrap();
            sync(&root.join(format!("again{round}")));
        }
    }
    fs::rename(root.join("dir1/file5"), root.join("moved")).unwrap();
    let cut = File::options().write(true).open(root.join("dir3/file299")).unwrap();
    cut.set_len(1000).unwrap();
    sync(&root.join("moved"));
}

/// Copies an image while it is mounted and busy, and compares our reading of the copy with the kernel's.
fn dirty(options: &[&str], mount_options: &str) {
    let Some(()) = require_root() else { return };
    let Some(image) = mkfs(64 << 20, options) else { return };
    let mounted = Mount::image(image.path(), "ext4", mount_options);
    let Some(mount) = require("a loop mount of ext4", mounted) else { return };
    work(mount.path());
    let ours = copy(image.path());
    let before = fs::read(ours.path()).unwrap();
    mount.unmount();
    let theirs = copy(ours.path());

    let fs = load(ours.path());
    assert!(fs.superblock().compat.contains(postread_fsimage::ext4::Compat::HAS_JOURNAL));
    let replay = *fs.replay().expect("the journal is not empty");
    assert!(replay.transactions > 1 && replay.blocks > 10, "{replay:?}");
    eprintln!("{options:?} {mount_options}: {replay:?}");
    // Not read-only: the loop device would be, and the kernel could not replay.
    let mount = Mount::image(theirs.path(), "ext4", "noatime").unwrap();
    compare(&fs, mount.path());
    mount.unmount();
    assert!(fs::read(ours.path()).unwrap() == before, "reading changed the image");

    // Without the journal the same image is another one.
    let mut ignore = Options::default();
    ignore.journal = JournalPolicy::Ignore;
    let stale = Ext4::load_with(Arc::new(ours.reopen().unwrap()), ignore).unwrap();
    assert!(stale.replay().is_none());
    let (found, errors) = walk(&stale);
    assert!(!errors.is_empty() || found != walk(&fs).0);
}

#[test]
fn checksums_v3() {
    dirty(&["-b", "4096"], "");
    dirty(&["-b", "1024"], "");
}

#[test]
fn no_checksums_and_32_bits() {
    dirty(&["-b", "1024", "-O", "^64bit,^metadata_csum"], "");
    dirty(&["-t", "ext3", "-b", "4096"], "");
}

#[test]
fn checksums_v1() {
    dirty(&["-b", "4096", "-O", "^metadata_csum"], "journal_checksum");
    dirty(&["-b", "1024", "-O", "^metadata_csum"], "journal_async_commit,data=writeback");
}

#[test]
fn data_in_the_journal_is_unescaped() {
    dirty(&["-b", "4096"], "data=journal");
    dirty(&["-b", "1024", "-O", "^64bit,^metadata_csum"], "data=journal");
}

/// Has debugfs write a journal, and replay it in a copy; gives both images.
fn debugfs(checksums: &str, options: &[&str]) -> Option<(NamedTempFile, NamedTempFile)> {
    let debugfs = require_tool("debugfs")?;
    let image = mkfs(16 << 20, options)?;
    let data = NamedTempFile::new().unwrap();
    let mut bytes = noise(8 * 1024, 5);
    bytes[1024..1028].copy_from_slice(&MAGIC);
    bytes[4096..4100].copy_from_slice(&MAGIC);
    data.as_file().write_all_at(&bytes, 0).unwrap();
    let script = NamedTempFile::new().unwrap();
    let data = data.path().display();
    let open = format!("jo {checksums}");
    let commands = format!(
        "{open}\njw -b 3900-3901 {data}\njw -b 3902 {data}\njw -r 3900\njc\n{open}\njw -b 3903,3904 {data}\njw -b 3901 {data}\njc\n"
    );
    script.as_file().write_all_at(commands.as_bytes(), 0).unwrap();
    run(Command::new(&debugfs).args(["-w", "-f"]).args([script.path(), image.path()]));
    let replayed = copy(image.path());
    run(Command::new(&debugfs).args(["-w", "-R", "jr"]).arg(replayed.path()));
    Some((image, replayed))
}

#[test]
fn debugfs_replays_the_same() {
    for (checksums, options) in [
        ("", &["-b", "4096", "-O", "^metadata_csum"][..]),
        ("", &["-b", "4096", "-O", "^metadata_csum,^64bit"]),
        ("-c -v 2", &["-b", "4096"]),
        ("-c -v 2", &["-b", "4096", "-O", "^64bit"]),
        ("-c -v 3", &["-b", "4096"]),
    ] {
        let Some((image, replayed)) = debugfs(checksums, options) else { return };
        let fs = load(image.path());
        let replay = fs.replay().expect("the journal is not empty");
        assert_eq!((replay.transactions, replay.revoked), (5, 1), "{checksums} {options:?}: {replay:?}");
        for block in 3899..3906u64 {
            let (mut ours, mut theirs) = ([0; 4096], [0; 4096]);
            fs.device().read_exact_at(&mut ours, block * 4096).unwrap();
            ReadAt::read_exact_at(replayed.as_file(), &mut theirs, block * 4096).unwrap();
            assert!(ours == theirs, "block {block} {checksums} {options:?}");
        }
        // Reads that begin and end within replayed blocks.
        let mut part = [0; 5000];
        fs.device().read_exact_at(&mut part, 3901 * 4096 + 2).unwrap();
        let mut theirs = [0; 5000];
        ReadAt::read_exact_at(replayed.as_file(), &mut theirs, 3901 * 4096 + 2).unwrap();
        assert!(part == theirs);
    }
}

#[test]
fn a_damaged_journal_is_an_error() {
    let Some((image, _)) = debugfs("-c -v 3", &["-b", "4096"]) else { return };
    let good = fs::read(image.path()).unwrap();
    // The journal's blocks that hold what was written: those that begin with its magic number, and data.
    let noise = noise(8 * 1024, 5);
    let data = good.chunks(4096).position(|block| block == &noise[..4096]);
    let own: Vec<usize> = good
        .chunks(4096)
        .enumerate()
        .filter(|(_, block)| block.starts_with(&MAGIC) && matches!(block[7], 1 | 2 | 5))
        .map(|(i, _)| i)
        .collect();
    assert!(own.len() >= 6, "{own:?}");
    let mut failed = 0;
    for block in own.into_iter().chain(data) {
        let mut bad = good.clone();
        bad[block * 4096 + 1000] ^= 1;
        match Ext4::load(Arc::new(bad)) {
            Err(Error::Corrupt(corrupt)) => {
                assert_eq!(corrupt.structure().to_string(), "journal");
                failed += 1;
            }
            other => panic!("block {block}: {other:?}"),
        }
    }
    assert!(failed >= 6);
}

#[test]
fn orphans_do_not_show_and_are_listed() {
    for options in [&["-b", "4096"][..], &["-b", "1024", "-O", "orphan_file"]] {
        let Some(()) = require_root() else { return };
        let Some(image) = mkfs(64 << 20, options) else { return };
        let Some(mount) = require("a loop mount of ext4", Mount::image(image.path(), "ext4", "")) else { return };
        let mut open = Vec::new();
        for i in 0..5 {
            let path = mount.path().join(format!("gone{i}"));
            fs::write(&path, noise(10_000, i)).unwrap();
            open.push(File::open(&path).unwrap());
            fs::remove_file(&path).unwrap();
        }
        fs::write(mount.path().join("stays"), "stays").unwrap();
        sync(mount.path());
        sync(&mount.path().join("stays"));
        let ours = copy(image.path());
        let mut inodes: Vec<u32> = open.iter().map(|file| file.metadata().unwrap().ino() as u32).collect();
        drop(open);
        mount.unmount();
        let fs = load(ours.path());
        inodes.sort();
        assert_eq!(fs.orphans().unwrap(), inodes, "{options:?}");
        for ino in inodes {
            assert!(matches!(fs.inode(ino), Err(Error::Deleted { .. })));
        }
        let (found, errors) = walk(&fs);
        assert_eq!((found.len(), errors.len()), (3, 0), "the root, lost+found and one file");
        // After a clean unmount there are none.
        assert!(load(image.path()).orphans().unwrap().is_empty());
    }
}
