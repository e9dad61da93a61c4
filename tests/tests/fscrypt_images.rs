//! Every image of `images/fscrypt`, made by real kernels: with the key it reads as what was put in; without, its listing
//! is the kernel's; its digests are those that the kernel measured, and its contents verify.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use postread::ErrorKind;
use postread::image::{Image, Names};
use postread::{Engine, EngineConfig, Plan, QueuePolicy};
use postread_fscrypt::{Keyring, MasterKey, NameKey};
use postread_fsimage::ext4::{FileType, Options};
use postread_io::{MemorySource, ReadAtSource};
use postread_tests::unpack_image;
use sha2::{Digest, Sha256};

/// The images, and which key opens them.
const IMAGES: [(&str, Key); 22] = [
    ("xts-pad4", Key::Key64),
    ("xts-pad8", Key::Key64),
    ("xts-pad16", Key::Key64),
    ("xts-pad32", Key::Key64),
    ("v1-xts", Key::Descriptor(64)),
    ("lblk64", Key::Key64),
    ("lblk32", Key::Key64),
    ("no-extents", Key::Key64),
    ("inline-data", Key::Key64),
    ("bigalloc", Key::Key64),
    ("data-unit-512", Key::Key64),
    ("v1-cbc", Key::Descriptor(32)),
    ("v1-adiantum", Key::Descriptor(32)),
    ("v1-direct", Key::Descriptor(32)),
    ("cbc128", Key::Key32),
    ("adiantum", Key::Key32),
    ("direct", Key::Key32),
    ("casefold-enc", Key::Key64),
    ("casefold", Key::None),
    ("verity-enc", Key::Key64),
    ("verity-adiantum", Key::Key32),
    ("verity", Key::None),
];

#[derive(Clone, Copy, PartialEq)]
enum Key {
    None,
    Key64,
    Key32,
    /// A v1 policy's key of so many bytes.
    Descriptor(usize),
}

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("images/fscrypt")
}

fn text(file: &str) -> String {
    std::fs::read_to_string(directory().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

fn keyring(key: Key) -> Keyring {
    let bytes: Vec<u8> = (0..64u8).map(|i| i.wrapping_mul(7).wrapping_add(1)).collect();
    let mut keyring = Keyring::new();
    match key {
        Key::None => {}
        Key::Key64 => keyring.add(MasterKey::new(&bytes).unwrap()),
        Key::Key32 => keyring.add(MasterKey::new(&bytes[..32]).unwrap()),
        Key::Descriptor(length) => {
            let descriptor = [0, 0, 0x11, 0x11, 0x22, 0x22, 0x33, 0x33];
            keyring.add_with_descriptor(descriptor, MasterKey::new(&bytes[..length]).unwrap());
        }
    }
    keyring
}

fn unpack(name: &str) -> Vec<u8> {
    let image = unpack_image(&directory().join(format!("{name}.img.zst")));
    std::fs::read(image.path()).unwrap()
}

fn open(name: &str, key: Key) -> Image {
    let bytes = unpack(name);
    let metadata = Arc::new(bytes.clone());
    Image::open(metadata, Arc::new(MemorySource::new(bytes)), 0, keyring(key), Options::default()).unwrap()
}

fn top(image: &Image) -> u32 {
    let name: &[u8] = if image.resolve(b"/enc").is_ok() { b"/enc" } else { b"/v" };
    image.resolve(name).unwrap().ino
}

fn read(engine: &Engine, plan: Plan) -> Vec<u8> {
    let mut bytes = vec![0; plan.len() as usize];
    let reader = engine.open(plan).reader();
    let mut done = 0;
    while done < bytes.len() {
        let n = reader.read_at(&mut bytes[done..], done as u64).unwrap();
        assert_ne!(n, 0);
        done += n;
    }
    bytes
}

fn engine(policy: QueuePolicy) -> Engine {
    Engine::new(EngineConfig::new().policy(policy)).unwrap()
}

#[test]
fn with_the_key_every_image_reads_as_what_was_put_in() {
    let wanted: Vec<String> = text("tree.manifest").lines().map(String::from).collect();
    for (i, (name, key)) in IMAGES.into_iter().enumerate() {
        let engine = engine([QueuePolicy::Inline, QueuePolicy::BOUND, QueuePolicy::UNBOUND][i % 3]);
        let image = open(name, key);
        let (mut files, mut links) = (BTreeMap::new(), BTreeMap::new());
        for visit in image.walk(top(&image)) {
            let inode = visit.inode.unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(!visit.entry.unwrap().no_key);
            let path = [b"./", &visit.path[..]].concat();
            match inode.file_type {
                FileType::Regular => {
                    let bytes = read(&engine, image.contents(&inode).unwrap().plan());
                    files.insert(path, format!("file {} {}", bytes.len(), hex::encode(Sha256::digest(&bytes))));
                }
                FileType::Symlink => {
                    let target = image.link_target(&inode).unwrap();
                    links.insert(path, format!("link {}", String::from_utf8(target.target).unwrap()));
                }
                _ => {}
            }
        }
        let lines = files.into_iter().chain(links);
        let found: Vec<String> =
            lines.map(|(path, line)| format!("{line} {}", String::from_utf8(path).unwrap())).collect();
        assert_eq!(found, wanted, "{name}");
        // Every name can also be looked up.
        let leaf = if matches!(key, Key::None) { &b"/v/sub/deep/er/leaf"[..] } else { b"/enc/sub/deep/er/leaf" };
        assert_eq!(image.resolve(leaf).unwrap().size, 3333, "{name}");
    }
}

#[test]
fn without_the_key_the_listing_is_the_kernels() {
    for (name, _) in IMAGES.into_iter().filter(|(_, key)| *key != Key::None) {
        let image = open(name, Key::None);
        let mut found = BTreeMap::new();
        for visit in image.walk(top(&image)) {
            let (inode, entry) = (visit.inode.unwrap(), visit.entry.unwrap());
            assert!(entry.no_key);
            let (kind, size, target) = match inode.file_type {
                FileType::Regular => ("f", inode.size, String::new()),
                FileType::Directory => ("d", inode.size, String::new()),
                FileType::Symlink => {
                    let target = String::from_utf8(image.link_target(&inode).unwrap().target).unwrap();
                    ("l", target.len() as u64, target)
                }
                other => panic!("{other:?}"),
            };
            let path = String::from_utf8(visit.path).unwrap();
            found.insert(path.clone(), format!("{} {kind} {size} {path}\t{target}", inode.ino));
            let by_path = image.resolve(format!("/enc/{path}").as_bytes()).unwrap();
            assert_eq!(by_path.ino, inode.ino);
            if kind == "f" {
                assert_eq!(image.contents(&inode).unwrap_err().kind(), ErrorKind::Key);
            }
        }
        let wanted: BTreeMap<String, String> = text(&format!("{name}.nokey"))
            .lines()
            .map(|line| (line.splitn(4, ' ').nth(3).unwrap().split('\t').next().unwrap().to_string(), line.to_string()))
            .collect();
        for (path, line) in &wanted {
            // A kernel's size of a symbolic link without its key is that of the ciphertext or of the name shown.
            if line.split(' ').nth(1) == Some("l") {
                let strip =
                    |line: &str| line.splitn(3, ' ').collect::<Vec<_>>()[2].split_once(' ').unwrap().1.to_string();
                assert_eq!(found.get(path).map(|line| strip(line)), Some(strip(line)), "{name}");
            } else {
                assert_eq!(found.get(path), Some(line), "{name}");
            }
        }
        assert_eq!(found.len(), wanted.len(), "{name}");
    }
}

#[test]
fn digests_are_those_that_the_kernel_measured_and_contents_verify() {
    for (name, key) in IMAGES.into_iter().filter(|(name, _)| name.starts_with("verity")) {
        let image = open(name, key);
        let engine = engine(QueuePolicy::UNBOUND);
        let mut count = 0;
        for line in text(&format!("{name}.verity")).lines() {
            let (digest, path) = line.split_once(' ').unwrap();
            let path = format!("{}/{path}", if key == Key::None { "/v" } else { "/enc" });
            let inode = image.resolve(path.as_bytes()).unwrap();
            let verity = image.verity(&inode).unwrap().unwrap();
            assert_eq!(verity.digest().to_string(), digest, "{name} {path}");
            let (plan, _) = verity.self_consistent().plan().unwrap();
            assert_eq!(read(&engine, plan), read(&engine, image.contents(&inode).unwrap().plan()), "{name} {path}");
            count += 1;
        }
        assert_eq!(count, 9);
    }
}

/// A flipped bit of ciphertext, in the data or in the tree, is found behind the decryption.
#[test]
fn a_flipped_bit_of_an_encrypted_verified_file_is_found() {
    for name in ["verity", "verity-enc"] {
        let key = if name == "verity" { Key::None } else { Key::Key64 };
        let image = open(name, key);
        let path: &[u8] = if key == Key::None { b"/v/f65537" } else { b"/enc/f65537" };
        let inode = image.resolve(path).unwrap();
        let tree = image.verity(&inode).unwrap().unwrap().location.tree_offset;
        let sound = unpack(name);
        for (logical, in_tree) in [(0, false), (5000, false), (65535, false), (tree, true), (tree + 17 * 32 - 1, true)]
        {
            let extent =
                image.fs().extents(&inode).unwrap().into_iter().find(|e| e.logical <= logical && logical < e.end());
            let extent = extent.unwrap();
            let mut bytes = sound.clone();
            bytes[(extent.physical + logical - extent.logical) as usize] ^= 0x10;
            let data = Arc::new(ReadAtSource::new(bytes.clone()));
            let damaged = Image::open(Arc::new(bytes), data, 0, keyring(key), Options::default()).unwrap();
            let inode = damaged.resolve(path).unwrap();
            let (plan, _) = damaged.verity(&inode).unwrap().unwrap().self_consistent().plan().unwrap();
            let file = engine(QueuePolicy::Inline).open(plan);
            let mut scan = file.scan(0..65537);
            let bad: Vec<_> = scan.by_ref().collect();
            assert!(!bad.is_empty(), "{name} {logical}");
            assert_eq!(scan.bad_tree().count() > 0, in_tree, "{name} {logical}");
        }
    }
}

/// What this crate encrypts is what the kernel wrote: the archive experiment's files are made so.
#[test]
fn contents_encrypt_to_the_kernels_ciphertext() {
    for (name, key) in IMAGES.into_iter().filter(|(_, key)| *key != Key::None) {
        let image = open(name, key);
        let engine = engine(QueuePolicy::Inline);
        let inode = image.resolve(b"/enc/f65537").unwrap();
        let context = image.context(&inode).unwrap().unwrap();
        let facts = postread_fscrypt::InodeFacts {
            ino: inode.ino.into(),
            fs_uuid: image.fs().superblock().uuid,
            block_size: image.fs().superblock().block_size as usize,
        };
        let keys = image.keys();
        let contents =
            postread_fscrypt::ContentsKey::derive(keys.find(&context.policy).unwrap(), &context, &facts).unwrap();
        let mut bytes = read(&engine, image.contents(&inode).unwrap().plan());
        // The kernel's last block has a plaintext tail of zeros.
        bytes.resize(bytes.len().next_multiple_of(facts.block_size), 0);
        let mut stored = vec![0; bytes.len()];
        image.fs().open_raw(&inode).unwrap().read_raw_at(&mut stored, 0).unwrap();
        contents.encrypt(&mut bytes, 0).unwrap();
        assert!(bytes == stored, "{name}");
        // Names of every length that the tree has, and links' targets.
        for visit in image.walk(top(&image)) {
            let (inode, entry) = (visit.inode.unwrap(), visit.entry.unwrap());
            let parent = visit.path.iter().rposition(|&b| b == b'/').map_or(&[][..], |at| &visit.path[..at]);
            let dir = image.resolve(&[b"/enc/", parent].concat()).unwrap();
            let Names::Decrypted(key) = image.names(&dir).unwrap() else { panic!("{name}: the key is there") };
            assert_eq!(key.encrypt_name(&entry.name).unwrap(), entry.raw_name, "{name}");
            if inode.file_type == FileType::Symlink {
                let context = image.context(&inode).unwrap().unwrap();
                let facts = postread_fscrypt::InodeFacts { ino: inode.ino.into(), ..facts };
                let key = NameKey::derive(keys.find(&context.policy).unwrap(), &context, &facts).unwrap();
                let target = image.link_target(&inode).unwrap().target;
                let mut stored = image.fs().symlink_target(&inode).unwrap();
                stored.truncate(2 + usize::from(u16::from_le_bytes([stored[0], stored[1]])));
                assert_eq!(key.encrypt_symlink(&target, facts.block_size).unwrap(), stored, "{name}");
            }
        }
    }
}
