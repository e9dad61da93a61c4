//! Damaged and hostile images give errors, never a panic, a hang or unbounded memory.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

use postread_fsimage::ext4::{Error, Ext4, Options, ROOT_INO, Structure};
use postread_io::ReadAt;
use postread_tests::{seed, unpack_image};

use crate::compare::walk;

/// An image in memory that can change under the reader.
struct Shared(Mutex<Vec<u8>>);

impl ReadAt for Shared {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.lock().unwrap().len() as u64)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        ReadAt::read_at(&*self.0.lock().unwrap(), buf, offset)
    }
}

fn image(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("images/{name}.img.zst"));
    std::fs::read(unpack_image(&path).path()).unwrap()
}

fn unchecked() -> Options {
    let mut options = Options::default();
    options.checksums = false;
    options
}

fn load(bytes: Vec<u8>) -> Result<Ext4, Error> {
    Ext4::load_with(Arc::new(bytes), unchecked())
}

/// Reads everything, and counts failures.
fn exercise(fs: &Ext4) -> usize {
    let mut failed = 0;
    failed += usize::from(fs.orphans().is_err());
    for visit in fs.walk(ROOT_INO) {
        let Ok(inode) = visit.inode else {
            failed += 1;
            continue;
        };
        failed += fs.xattrs(&inode).filter(Result::is_err).count();
        failed += usize::from(fs.fscrypt_context(&inode).is_err());
        failed += usize::from(fs.symlink_target(&inode).is_err() && inode.mode >> 12 == 0xa);
        failed += usize::from(fs.extents_from(&inode, inode.size / 2).any(|extent| extent.is_err()));
        match fs.open_raw(&inode) {
            Ok(file) => {
                for at in [0, inode.size / 2, inode.size.saturating_sub(1000), inode.size] {
                    failed += usize::from(file.read_raw_at(&mut [0; 10_000], at).is_err());
                }
                if inode.is_verity() {
                    let place = fs.verity_location(&inode, |buf, at| file.read_raw_at(buf, at));
                    failed += usize::from(place.is_err());
                }
            }
            Err(_) => failed += 1,
        }
    }
    failed
}

/// Where metadata is: superblock, descriptors, the inodes in use, directories, attribute and extent blocks.
fn metadata(bytes: &[u8]) -> Vec<(usize, usize)> {
    let fs = load(bytes.to_vec()).unwrap();
    let superblock = fs.superblock();
    let block_size = superblock.block_size as usize;
    let mut out = vec![(1024, 1024), (2048, 4096)];
    let table = fs.group_descriptor(0).unwrap().inode_table as usize * block_size;
    for visit in fs.walk(ROOT_INO) {
        let inode = visit.inode.unwrap();
        out.push((table + (inode.ino as usize - 1) * superblock.inode_size as usize, superblock.inode_size as usize));
        if inode.file_acl != 0 {
            out.push((inode.file_acl as usize * block_size, 256));
        }
        if inode.is_dir() {
            let extents = fs.extents(&inode).unwrap();
            out.extend(extents.iter().map(|extent| (extent.physical as usize, (extent.len as usize).min(1024))));
        }
    }
    out
}

#[test]
fn flipped_bytes() {
    let mut state = seed();
    let mut random = |limit: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % limit
    };
    let mut failed = 0;
    for name in ["inline-data", "casefold-enc", "no-extents", "verity", "bigalloc", "xts-pad4"] {
        let good = image(&format!("fscrypt/{name}"));
        let places = metadata(&good);
        let shared = Arc::new(Shared(Mutex::new(good)));
        for _ in 0..150 {
            let mut undo = Vec::new();
            for _ in 0..1 + random(6) {
                let (start, len) = places[random(places.len())];
                let at = start + random(len);
                let mut bytes = shared.0.lock().unwrap();
                undo.push((at, bytes[at]));
                bytes[at] = [0, 0xff, bytes[at] ^ 1 << random(8), random(256) as u8][random(4)];
            }
            match Ext4::load_with(shared.clone(), unchecked()) {
                Ok(fs) => failed += usize::from(exercise(&fs) > 0),
                Err(_) => failed += 1,
            }
            let mut bytes = shared.0.lock().unwrap();
            undo.into_iter().rev().for_each(|(at, byte)| bytes[at] = byte);
        }
        assert_eq!(exercise(&Ext4::load(shared).unwrap()), 0, "{name}");
    }
    assert!(failed > 200, "{failed}");
}

#[test]
fn cut_short() {
    let good = image("fscrypt/xts-pad8");
    for len in [0, 1, 1024, 1500, 2048, 5000, 20_000, 100_000, 1_000_000, good.len() - 1] {
        if let Ok(fs) = load(good[..len].to_vec()) {
            let failed = exercise(&fs);
            assert!(failed > 0 || len == good.len() - 1, "{len}");
        }
    }
}

/// With checksums, a flipped bit in any inode or directory is found, and costs that part only.
#[test]
fn checksums_find_every_flip() {
    let good = image("fscrypt/verity");
    let before = walk(&load(good.clone()).unwrap()).0.len();
    let fs = load(good.clone()).unwrap();
    let block_size = 4096;
    let table = fs.group_descriptor(0).unwrap().inode_table as usize * block_size;
    for (ino, inode) in walk(&fs).0.values().map(|inode| (inode.ino, inode)) {
        let mut bad = good.clone();
        bad[table + (ino as usize - 1) * 256 + 0x10] ^= 4;
        let fs = Ext4::load(Arc::new(bad)).unwrap();
        let error = fs.inode(ino).unwrap_err().to_string();
        assert!(error.starts_with(&format!("corrupt inode {ino}: expected checksum")), "{error}");
        if ino != ROOT_INO && !inode.is_dir() {
            let visits: Vec<_> = fs.walk(ROOT_INO).filter(|visit| visit.inode.is_ok()).collect();
            assert_eq!(visits.len() + 1, before - 1);
        }
    }
    let dir = fs.resolve(b"v/many").unwrap();
    let block = fs.extents(&dir).unwrap()[0].physical as usize;
    let mut bad = good;
    bad[block + 100] ^= 1;
    let fs = Ext4::load(Arc::new(bad)).unwrap();
    let error = fs.read_dir(&dir).unwrap().next().unwrap().unwrap_err();
    let Error::Corrupt(corrupt) = &error else { panic!("{error}") };
    assert_eq!((corrupt.structure(), corrupt.inode()), (Structure::Directory, Some(dir.ino)));
    assert_eq!(corrupt.block(), Some(block as u64 / 4096));
    assert!(corrupt.is_checksum());
}

/// Where inode `path` is in an image.
fn inode_place(bytes: &[u8], path: &[u8]) -> usize {
    let fs = load(bytes.to_vec()).unwrap();
    let ino = fs.resolve(path).unwrap().ino as usize;
    let table = fs.group_descriptor(0).unwrap().inode_table * u64::from(fs.superblock().block_size);
    table as usize + (ino - 1) * fs.superblock().inode_size as usize
}

#[test]
fn a_directory_inside_itself() {
    let mut bytes = image("fscrypt/verity");
    let fs = load(bytes.clone()).unwrap();
    let (v, deep) = (fs.resolve(b"v").unwrap(), fs.resolve(b"v/sub/deep").unwrap());
    // The entry `er` in `deep` becomes `v`.
    let block = fs.extents(&deep).unwrap()[0].physical as usize;
    bytes[block + 24..block + 28].copy_from_slice(&v.ino.to_le_bytes());
    let (_, errors) = walk(&load(bytes).unwrap());
    assert_eq!(
        errors,
        [format!("corrupt directory block of inode {}: the directory is in two places of the tree", v.ino)]
    );
}

#[test]
fn an_indirect_block_inside_itself() {
    let mut bytes = image("fscrypt/no-extents");
    let at = inode_place(&bytes, b"plain/f");
    let data = u32::from_le_bytes(bytes[at + 0x28..at + 0x2c].try_into().unwrap());
    let block = data as usize * 1024;
    // The triple indirect block is the data block, which points to itself, and the size is as large as can be.
    for slot in 0..256 {
        bytes[block + 4 * slot..block + 4 * slot + 4].copy_from_slice(&data.to_le_bytes());
    }
    bytes[at + 0x28 + 56..at + 0x28 + 60].copy_from_slice(&data.to_le_bytes());
    let good = bytes.clone();
    // The largest size that 12 + 256 + 256² + 256³ blocks can have.
    let size = (12 + 256 + 256 * 256 + 256 * 256 * 256) * 1024u64;
    bytes[at + 4..at + 8].copy_from_slice(&(size as u32).to_le_bytes());
    bytes[at + 0x6c..at + 0x70].copy_from_slice(&((size >> 32) as u32).to_le_bytes());
    let fs = load(bytes).unwrap();
    let inode = fs.resolve(b"plain/f").unwrap();
    assert_eq!(inode.size, size);
    let error = fs.extents(&inode).unwrap_err().to_string();
    assert!(error.contains("is in two places"), "{error}");
    // The size alone is no error: the rest is a hole.
    let first = fs.extents_from(&inode, 0).next().unwrap().unwrap();
    assert_eq!((first.logical, first.len), (0, 1024));
    // A byte more is one: Linux refuses such an inode.
    let mut bytes = good;
    bytes[at + 4..at + 8].copy_from_slice(&(size as u32 + 1).to_le_bytes());
    bytes[at + 0x6c..at + 0x70].copy_from_slice(&((size >> 32) as u32).to_le_bytes());
    let error = load(bytes).unwrap().resolve(b"plain/f").unwrap_err().to_string();
    assert!(error.contains(&format!("the size is {}, the limit is {size}", size + 1)), "{error}");
}

#[test]
fn an_extent_tree_inside_itself() {
    let mut bytes = image("fscrypt/verity");
    let at = inode_place(&bytes, b"v/f1") + 0x28;
    let data = u32::from_le_bytes(bytes[at + 20..at + 24].try_into().unwrap());
    // A root of depth 5 whose child is a block that claims depth 4 and is its own child.
    let node = |depth: u16, max: u16| {
        let mut node = vec![0x0a, 0xf3, 1, 0];
        node.extend_from_slice(&max.to_le_bytes());
        node.extend_from_slice(&depth.to_le_bytes());
        node.extend_from_slice(&[0; 8]);
        node.extend_from_slice(&data.to_le_bytes());
        node.extend_from_slice(&[0; 4]);
        node
    };
    bytes[at..at + 24].copy_from_slice(&node(5, 4));
    let block = data as usize * 4096;
    bytes[block..block + 24].copy_from_slice(&node(4, 340));
    let fs = load(bytes).unwrap();
    let error = fs.extents(&fs.resolve(b"v/f1").unwrap()).unwrap_err();
    let Error::Corrupt(corrupt) = &error else { panic!("{error}") };
    assert_eq!((corrupt.structure(), corrupt.block()), (Structure::ExtentNode, Some(data.into())));
}

#[test]
fn sizes_past_the_signed_range() {
    let mut bytes = image("fscrypt/verity");
    let at = inode_place(&bytes, b"v/f1");
    bytes[at + 0x6c..at + 0x70].copy_from_slice(&0x8000_0000u32.to_le_bytes());
    let (_, errors) = walk(&load(bytes).unwrap());
    assert_eq!(errors.len(), 1);
    assert!(errors[0].contains("the size is 9223372036854775809"), "{errors:?}");
}

#[test]
fn unknown_features_are_named() {
    let mut bytes = image("fscrypt/verity");
    bytes[1024 + 0x60 + 3] |= 0x40;
    bytes[1024 + 0x60 + 1] |= 0x10;
    let error = load(bytes).unwrap_err().to_string();
    assert!(error.ends_with("not supported: dirdata, FEATURE_I30"), "{error}");
    let error = load(vec![0; 4096]).unwrap_err();
    assert!(matches!(error, Error::NotExt4 { found: 0 }));
}

#[test]
fn a_deleted_inode_does_not_show() {
    let mut bytes = image("fscrypt/verity");
    let at = inode_place(&bytes, b"v/f1");
    bytes[at + 0x1a..at + 0x1c].fill(0);
    let fs = load(bytes).unwrap();
    let entry = fs.lookup(&fs.resolve(b"v").unwrap(), b"f1").unwrap();
    assert!(matches!(fs.inode(entry.ino), Err(Error::Deleted { ino }) if ino == entry.ino));
}
