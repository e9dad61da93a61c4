//! Fast commits: an image copied between two whole transactions reads as the kernel reads it after mounting.

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use postread::image::Image;
use postread::{Engine, EngineConfig};
use postread_fscrypt::{Keyring, MasterKey};
use postread_fsimage::ext4::{Compat, Error, Ext4, JournalPolicy, Options};
use postread_io::MemorySource;
use postread_tests::{Mount, Random, noise, require, require_root, require_tool, run, seed};
use rustix::fs::FallocateFlags;
use tempfile::NamedTempFile;

use crate::compare::{compare, compare_replayed, load, walk};
use crate::differential::mkfs;
use crate::journal::{copy, sync};

/// A mounted file system with fast commits, and some files in it that whole transactions hold.
fn mounted(options: &[&str]) -> Option<(NamedTempFile, Mount)> {
    require_root()?;
    let image = mkfs(64 << 20, &[options, &["-O", "fast_commit"]].concat())?;
    let mount = require("a loop mount of ext4", Mount::image(image.path(), "ext4", ""))?;
    let at = mount.path();
    fs::create_dir(at.join("dir")).unwrap();
    for i in 0..12 {
        fs::write(at.join(format!("file{i}")), noise(9000 * i, i as u64)).unwrap();
    }
    rustix::fs::syncfs(File::open(at).unwrap().as_fd()).unwrap();
    fs::write(at.join("file0"), "a transaction of its own").unwrap();
    sync(&at.join("file0"));
    Some((image, mount))
}

/// Ours against the kernel's; gives the number of fast commits.
fn check(crash: &Path) -> u32 {
    try_check(crash).unwrap_or_else(|error| panic!("the kernel: {error}"))
}

/// The same; an error where the kernel's own replay fails.
fn try_check(crash: &Path) -> Result<u32, String> {
    let before = fs::read(crash).unwrap();
    let ours = load(crash);
    assert!(ours.superblock().compat.contains(Compat::FAST_COMMIT));
    let commits = ours.replay().expect("the journal is not empty").fast_commits;
    let theirs = copy(crash);
    let mount = Mount::image(theirs.path(), "ext4", "noatime")?;
    if commits > 0 {
        compare_replayed(&ours, mount.path());
    } else {
        compare(&ours, mount.path());
    }
    mount.unmount();
    assert!(fs::read(crash).unwrap() == before, "reading changed the image");
    Ok(commits)
}

fn punch(path: &Path, flags: FallocateFlags, offset: u64, len: u64) {
    let file = File::options().write(true).open(path).unwrap();
    rustix::fs::fallocate(&file, flags, offset, len).unwrap();
    file.sync_all().unwrap();
}

fn append(path: &Path, bytes: &[u8]) {
    let mut file = File::options().append(true).open(path).unwrap();
    file.write_all(bytes).unwrap();
    file.sync_all().unwrap();
}

/// Work in a mounted file system.
type Work = fn(&Path);

#[test]
fn each_change_alone() {
    let changes: [(&str, Work); 11] = [
        ("create", |at| {
            fs::write(at.join("new"), noise(100_000, 1)).unwrap();
            sync(&at.join("new"));
        }),
        ("append", |at| append(&at.join("file3"), &noise(50_000, 2))),
        ("truncate", |at| {
            File::options().write(true).open(at.join("file9")).unwrap().set_len(30_001).unwrap();
            sync(&at.join("file9"));
        }),
        ("allocate", |at| punch(&at.join("file4"), FallocateFlags::empty(), 200_000, 100_000)),
        ("punch", |at| {
            punch(&at.join("file11"), FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 8192, 40_960);
        }),
        ("attributes", |at| {
            fs::set_permissions(at.join("file5"), fs::Permissions::from_mode(0o4711)).unwrap();
            sync(&at.join("file5"));
        }),
        ("link", |at| {
            fs::hard_link(at.join("file6"), at.join("dir/linked")).unwrap();
            sync(&at.join("file6"));
        }),
        ("unlink", |at| {
            fs::remove_file(at.join("file7")).unwrap();
            append(&at.join("file8"), b"x");
        }),
        ("rename", |at| {
            fs::rename(at.join("file7"), at.join("dir/renamed")).unwrap();
            sync(&at.join("dir/renamed"));
        }),
        ("rename over", |at| {
            fs::rename(at.join("file7"), at.join("file8")).unwrap();
            sync(&at.join("file8"));
        }),
        ("reuse", |at| {
            fs::remove_file(at.join("file10")).unwrap();
            fs::write(at.join("file10"), "again").unwrap();
            sync(&at.join("file10"));
        }),
    ];
    for block_size in ["1024", "4096"] {
        for (what, change) in changes {
            let Some((image, mount)) = mounted(&["-b", block_size]) else { return };
            change(mount.path());
            let crash = copy(image.path());
            mount.unmount();
            eprintln!("{what}, blocks of {block_size}");
            assert!(check(crash.path()) > 0, "{what}");
        }
    }
}

#[test]
fn directories_made_grown_and_removed() {
    let Some((image, mount)) = mounted(&["-b", "4096"]) else { return };
    let at = mount.path();
    fs::create_dir(at.join("made")).unwrap();
    append(&at.join("file1"), b"1");
    let first = copy(image.path());
    fs::write(at.join("made/within"), "within").unwrap();
    fs::create_dir(at.join("made/deeper")).unwrap();
    append(&at.join("file1"), b"2");
    let second = copy(image.path());
    for i in 0..60 {
        File::create(at.join("made").join(format!("{}{i}", "n".repeat(200)))).unwrap();
    }
    append(&at.join("file1"), b"3");
    let third = copy(image.path());
    fs::remove_dir(at.join("made/deeper")).unwrap();
    append(&at.join("file1"), b"4");
    let fourth = copy(image.path());
    mount.unmount();
    let commits: Vec<u32> = [first, second, third, fourth].iter().map(|crash| check(crash.path())).collect();
    eprintln!("{commits:?}");
    assert!(commits.iter().any(|&commits| commits > 0), "{commits:?}");
}

/// Many changes at random, and a crash after each few of them.
#[test]
fn changes_at_random() {
    let mut random = Random::new(seed());
    let Some((image, mount)) = mounted(&["-b", "1024"]) else { return };
    let at = mount.path().to_path_buf();
    let mut files: Vec<PathBuf> = (0..12).map(|i| at.join(format!("file{i}"))).collect();
    let mut crashes = Vec::new();
    for step in 0..150 {
        let i = random.below(files.len());
        let path = files[i].clone();
        match random.below(10) {
            0 | 1 => {
                let new = at.join(["", "dir"][random.below(2)]).join(format!("new{step}"));
                fs::write(&new, noise(random.below(60_000), step)).unwrap();
                files.push(new);
            }
            2 => append(&path, &noise(random.below(20_000), step)),
            3 => {
                let file = File::options().write(true).open(&path).unwrap();
                file.write_all_at(&noise(random.below(5000) + 1, step), random.below(200_000) as u64).unwrap();
            }
            4 => File::options().write(true).open(&path).unwrap().set_len(random.below(100_000) as u64).unwrap(),
            5 => {
                let new = at.join(format!("link{step}"));
                fs::hard_link(&path, &new).unwrap();
                files.push(new);
            }
            6 if files.len() > 4 => {
                fs::remove_file(&path).unwrap();
                files.remove(i);
            }
            7 => {
                let other = files[random.below(files.len())].clone();
                // Two names of one file: nothing happens.
                let same = same_file(&path, &other);
                fs::rename(&path, &other).unwrap();
                if !same {
                    files.remove(i);
                }
            }
            8 => punch(&path, FallocateFlags::empty(), random.below(100_000) as u64, 1 + random.below(30_000) as u64),
            _ => {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                punch(&path, flags, 1024 * random.below(50) as u64, 1024 * (1 + random.below(20) as u64));
            }
        }
        if random.below(3) == 0 {
            sync(&files[random.below(files.len())]);
            if random.below(4) == 0 {
                crashes.push(copy(image.path()));
            }
        }
    }
    mount.unmount();
    // Now and then the kernel's own replay fails, and it does not mount the image: then there is nothing to compare.
    let commits: Vec<Result<u32, String>> = crashes.iter().map(|crash| try_check(crash.path())).collect();
    eprintln!("{commits:?}");
    let compared = commits.iter().filter(|commits| commits.as_ref().is_ok_and(|&commits| commits > 0)).count();
    assert!(compared > commits.len() / 4, "{commits:?}");
}

fn same_file(a: &Path, b: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(a).unwrap().ino() == fs::metadata(b).unwrap().ino()
}

/// An encrypted file that fast commits made longer and shorter decrypts to what was written.
#[test]
fn an_encrypted_file() {
    let (Some(()), Some(xfs_io)) = (require_root(), require_tool("xfs_io")) else { return };
    let Some(image) = mkfs(64 << 20, &["-b", "4096", "-O", "encrypt,fast_commit"]) else { return };
    let Some(mount) = require("a loop mount of ext4", Mount::image(image.path(), "ext4", "")) else { return };
    let key: Vec<u8> = (1..=64).collect();
    let master = MasterKey::new(&key).unwrap();
    let mut add = Command::new(&xfs_io)
        .args(["-c", "add_enckey"])
        .arg(mount.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    add.stdin.take().unwrap().write_all(&key).unwrap();
    assert!(add.wait().unwrap().success());
    let dir = mount.path().join("enc");
    fs::create_dir(&dir).unwrap();
    let policy = format!("set_encpolicy -v 2 -c 1 -n 4 -f 3 {}", hex::encode(master.identifier().as_bytes()));
    run(Command::new(&xfs_io).args(["-c", &policy]).arg(&dir));
    let path = dir.join("file");
    fs::write(&path, noise(20_000, 1)).unwrap();
    rustix::fs::syncfs(File::open(&dir).unwrap().as_fd()).unwrap();
    append(&path, &noise(50_000, 2));
    File::options().write(true).open(&path).unwrap().set_len(60_001).unwrap();
    sync(&path);
    let wanted = fs::read(&path).unwrap();
    let crash = copy(image.path());
    mount.unmount();

    let mut keys = Keyring::new();
    keys.add(master);
    let bytes = fs::read(crash.path()).unwrap();
    let data = Arc::new(MemorySource::new(bytes.clone()));
    let image = Image::open(Arc::new(bytes), data, 0, keys, Options::default()).unwrap();
    assert!(image.fs().replay().unwrap().fast_commits > 0);
    let plan = image.contents(&image.resolve(b"/enc/file").unwrap()).unwrap().plan();
    assert_eq!(plan.len(), wanted.len() as u64);
    let engine = Engine::new(EngineConfig::new()).unwrap();
    let reader = engine.open(plan).reader();
    let mut found = vec![0; wanted.len()];
    let mut done = 0;
    while done < found.len() {
        done += reader.read_at(&mut found[done..], done as u64).unwrap();
    }
    assert!(found == wanted);
}

/// Where the fast commits of an image lie: the blocks that begin with a tag of theirs, from the one with the head on.
fn areas(bytes: &[u8], block_size: usize) -> Vec<usize> {
    let head = bytes.chunks(block_size).position(|block| block[..8] == [9, 0, 8, 0, 0, 0, 0, 0]).expect("a head");
    let tags = bytes.chunks(block_size).skip(head).take_while(|block| block[1] == 0 && (1..=9).contains(&block[0]));
    (0..tags.count()).map(|i| (head + i) * block_size).collect()
}

#[test]
fn damaged_and_torn_fast_commits() {
    let Some((image, mount)) = mounted(&["-b", "4096"]) else { return };
    for i in 0..4u8 {
        append(&mount.path().join("file1"), &[i; 5000]);
    }
    let crash = copy(image.path());
    mount.unmount();
    let good = fs::read(crash.path()).unwrap();
    let areas = areas(&good, 4096);
    let commits = check(crash.path());
    assert!(commits >= 4 && areas.len() >= commits as usize, "{commits} {areas:?}");
    // What follows a whole commit is left out where it is damaged; a damaged first one is refused, as the kernel does.
    for (i, &at) in areas.iter().enumerate().take(commits as usize) {
        let mut bad = good.clone();
        bad[at + 30] ^= 1;
        fs::write(crash.path(), &bad).unwrap();
        if i == 0 {
            let error = Ext4::load(Arc::new(bad)).unwrap_err();
            assert!(
                matches!(&error, Error::Corrupt(corrupt) if corrupt.structure().to_string() == "journal"),
                "{error}"
            );
            assert!(Mount::image(copy(crash.path()).path(), "ext4", "").is_err());
            let mut ignore = Options::default();
            ignore.journal = JournalPolicy::Ignore;
            Ext4::load_with(Arc::new(File::open(crash.path()).unwrap()), ignore).unwrap();
        } else {
            assert_eq!(check(crash.path()), i as u32);
        }
    }
    // An area that is empty or holds what is older.
    for (at, bytes) in [(0, [0; 12]), (8, *b"\x01\0\0\0\x06\0\x04\0\x0c\0\0\0")] {
        let mut empty = good.clone();
        empty[areas[0] + at..][..12].copy_from_slice(&bytes);
        fs::write(crash.path(), &empty).unwrap();
        assert_eq!(check(crash.path()), 0);
    }
}

/// Any bytes in place of fast commits give an error or a file system that can be walked.
#[test]
fn hostile_fast_commits() {
    let Some((image, mount)) = mounted(&["-b", "1024"]) else { return };
    fs::create_dir(mount.path().join("made")).unwrap();
    for i in 0..6 {
        fs::write(mount.path().join(format!("made/{i}")), noise(3000, i)).unwrap();
        fs::rename(mount.path().join(format!("file{i}")), mount.path().join(format!("dir/{i}"))).unwrap();
        append(&mount.path().join("file8"), &noise(2000, i));
    }
    let crash = copy(image.path());
    mount.unmount();
    let good = fs::read(crash.path()).unwrap();
    let areas = areas(&good, 1024);
    let mut options = Options::default();
    options.checksums = false;
    let mut random = Random::new(seed());
    let (mut refused, mut walked) = (0, 0);
    let file = Arc::new(File::options().read(true).write(true).open(crash.path()).unwrap());
    let sound = &good[areas[0]..][..areas.len() * 1024];
    for _ in 0..1500 {
        let mut bytes = sound.to_vec();
        for _ in 0..1 + random.below(4) {
            let within = [64, 1024][random.below(2)];
            let at = 1024 * random.below(areas.len()) + random.below(within);
            bytes[at] = [0, 1, 2, 11, 12, 0x7f, 0x80, 0xff, random.below(256) as u8][random.below(9)];
        }
        file.write_all_at(&bytes, areas[0] as u64).unwrap();
        match Ext4::load_with(file.clone(), options.clone()) {
            Err(_) => refused += 1,
            Ok(fs) => {
                let (found, _) = walk_loosely(&fs);
                walked += found;
            }
        }
    }
    assert!(refused > 10 && walked > 1000, "{refused} {walked}");
    file.write_all_at(sound, areas[0] as u64).unwrap();
    assert!(!walk(&load(crash.path())).0.is_empty());
}

fn walk_loosely(fs: &Ext4) -> (usize, usize) {
    let (mut found, mut errors) = (0, 0);
    for visit in fs.walk(postread_fsimage::ext4::ROOT_INO) {
        match visit.inode.and_then(|inode| fs.extents(&inode)) {
            Ok(_) => found += 1,
            Err(_) => errors += 1,
        }
    }
    (found, errors)
}
