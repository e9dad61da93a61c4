//! Images that a real kernel left, with what it said of them: names without the key, contents, digests.
//!
//! `POSTREAD_IMAGES` names a further directory of such images.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use postread_fsimage::ext4::{Error, Ext4, ExtentKind, FileType, Inode};
use postread_io::ReadAt;
use postread_tests::{require_tool, run, unpack_image};
use postread_volume::{Magic, detect};
use sha2::{Digest, Sha256, Sha512};

use crate::compare::{load, walk};

/// Every image with the given sort of list: its path and the list.
fn images(extension: &str) -> Vec<(PathBuf, String)> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("images");
    let mut dirs = vec![here.join("fscrypt"), here.join("ext4")];
    dirs.extend(std::env::var_os("POSTREAD_IMAGES").map(PathBuf::from));
    let mut out = Vec::new();
    for dir in dirs {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let name = path.to_string_lossy().into_owned();
            let Some(stem) = name.strip_suffix(".img.zst") else { continue };
            if let Ok(list) = fs::read_to_string(format!("{stem}.{extension}")) {
                out.push((path, list));
            }
        }
    }
    out.sort();
    out
}

fn each(extension: &str, check: impl Fn(&Ext4, &str)) -> usize {
    let mut count = 0;
    for (path, list) in images(extension) {
        let image = unpack_image(&path);
        if detect(image.as_file()).unwrap() == Some(Magic::Ext4) {
            eprintln!("{}", path.display());
            check(&load(image.path()), &list);
            count += 1;
        }
    }
    count
}

/// base64url without padding.
fn decode(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let (mut bits, mut len) = (0u32, 0);
    for byte in text.bytes() {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'-' => 62,
            b'_' => 63,
            _ => panic!("{text}"),
        };
        bits = bits << 6 | u32::from(value);
        len += 6;
        if len >= 8 {
            len -= 8;
            out.push((bits >> len) as u8);
        }
    }
    out
}

/// What a no-key name holds: the hash, up to 149 bytes of ciphertext, and the SHA-256 of the rest.
fn is_no_key_name(text: &str, raw: &[u8]) -> bool {
    let (start, rest) = raw.split_at(raw.len().min(149));
    let mut wanted = start.to_vec();
    if !rest.is_empty() {
        wanted.extend_from_slice(&Sha256::digest(rest));
    }
    decode(text)[8..] == wanted
}

#[test]
fn ciphertext_as_the_kernel_lists_it_without_the_key() {
    let count = each("nokey", |fs, list| {
        let (found, errors) = walk(fs);
        assert_eq!(errors, Vec::<String>::new());
        assert_eq!(contents(fs, &found[&b"plain/f"[..]]), b"plain\n");
        let enc = fs.resolve(b"enc").unwrap();
        let mut entries = BTreeMap::new();
        for visit in fs.walk(enc.ino) {
            let entry = visit.entry.unwrap();
            entries.insert(entry.ino, (visit.depth, entry, visit.inode.unwrap()));
        }
        assert_eq!(entries.len(), list.lines().count());
        for line in list.lines() {
            let (left, target) = line.split_once('\t').unwrap();
            let mut fields = left.splitn(4, ' ');
            let mut field = || fields.next().unwrap();
            let (ino, kind, size, path) = (field(), field(), field(), field());
            let (depth, entry, inode) = &entries[&ino.parse().unwrap()];
            let name = path.rsplit('/').next().unwrap();
            assert_eq!(*depth, path.matches('/').count());
            assert!(is_no_key_name(name, &entry.name), "{line}");
            if let Some(hash) = entry.hash {
                let bytes = [hash.hash.to_le_bytes(), hash.minor_hash.to_le_bytes()].concat();
                assert_eq!(decode(name)[..8], bytes, "{line}");
            }
            assert_eq!(entry.hash.is_some(), fs.inode(visit_dir(fs, enc.ino, ino)).unwrap().is_casefolded());
            assert!(inode.is_encrypted());
            let context = fs.fscrypt_context(inode).unwrap().unwrap();
            assert_eq!(context.len(), if context[0] == 1 { 28 } else { 40 });
            match inode.file_type {
                FileType::Symlink => {
                    let raw = fs.symlink_target(inode).unwrap();
                    let len = usize::from(u16::from_le_bytes([raw[0], raw[1]]));
                    assert!(kind == "l" && is_no_key_name(target, &raw[2..2 + len]), "{line}");
                }
                FileType::Directory => assert_eq!((kind, size.parse()), ("d", Ok(inode.size)), "{line}"),
                _ => assert_eq!((kind, size.parse()), ("f", Ok(inode.size)), "{line}"),
            }
        }
    });
    assert!(count >= 20, "{count}");
}

/// The directory that the entry with inode `ino` stands in.
fn visit_dir(fs: &Ext4, top: u32, ino: &str) -> u32 {
    fs.walk(top).find(|visit| visit.entry.as_ref().unwrap().ino == ino.parse::<u32>().unwrap()).unwrap().dir
}

fn contents(fs: &Ext4, inode: &Inode) -> Vec<u8> {
    let mut out = vec![0; inode.size as usize];
    fs.open_raw(inode).unwrap().read_exact_at(&mut out, 0).unwrap();
    out
}

fn check_manifest(fs: &Ext4, manifest: &str) {
    let (found, errors) = walk(fs);
    assert_eq!(errors, Vec::<String>::new());
    for line in manifest.lines() {
        let mut fields = line.splitn(2, ' ');
        let (kind, rest) = (fields.next().unwrap(), fields.next().unwrap());
        let inode = |path: &str| &found[format!("v/{}", path.strip_prefix("./").unwrap()).as_bytes()];
        if kind == "file" {
            let mut fields = rest.splitn(3, ' ');
            let mut field = || fields.next().unwrap();
            let (size, digest, path) = (field(), field(), field());
            let bytes = contents(fs, inode(path));
            assert_eq!(
                (bytes.len().to_string().as_str(), hex::encode(Sha256::digest(&bytes)).as_str()),
                (size, digest)
            );
        } else {
            let (target, path) = rest.split_at(rest.find(" ./").unwrap());
            assert_eq!(fs.symlink_target(inode(&path[1..])).unwrap(), target.as_bytes());
        }
    }
    let files = found.values().filter(|inode| inode.file_type != FileType::Directory).count();
    assert_eq!(files, manifest.lines().count());
}

#[test]
fn contents_as_the_manifest_says() {
    let tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("images/fscrypt/tree.manifest");
    let tree = fs::read_to_string(tree).unwrap();
    for name in ["casefold", "verity"] {
        let image = unpack_image(&Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("images/fscrypt/{name}.img.zst")));
        let fs = load(image.path());
        check_manifest(&fs, &tree);
        assert_eq!(fs.resolve(b"v").unwrap().is_casefolded(), name == "casefold");
    }
    let image = unpack_image(&Path::new(env!("CARGO_MANIFEST_DIR")).join("images/ext4/ext4-verity.img.zst"));
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("images/ext4/ext4-verity.manifest");
    check_manifest(&load(image.path()), &fs::read_to_string(manifest).unwrap());
}

#[test]
fn verity_metadata_is_where_the_digest_says() {
    let count = each("verity", |fs, list| {
        if fs.resolve(b"v").is_err() {
            // Encrypted: the layer above decrypts.
            return;
        }
        for line in list.lines() {
            let (digest, path) = line.split_once(' ').unwrap();
            let (alg, digest) = digest.split_once(':').unwrap();
            let path = path.strip_prefix("m/v/").unwrap_or(path);
            let inode = fs.resolve(format!("v/{path}").as_bytes()).unwrap();
            let file = fs.open_raw(&inode).unwrap();
            let place = fs.verity_location(&inode, |buf, at| file.read_raw_at(buf, at)).unwrap();
            assert_eq!(place.tree_offset, inode.size.next_multiple_of(65536));
            let mut descriptor = vec![0; place.descriptor_size as usize];
            file.read_raw_at(&mut descriptor, place.descriptor_offset).unwrap();
            let hash = |bytes: &[u8]| match alg {
                "sha512" => Sha512::digest(bytes).to_vec(),
                _ => Sha256::digest(bytes).to_vec(),
            };
            assert_eq!(hex::encode(hash(&descriptor[..256])), digest, "{line}");
            assert_eq!(u64::from_le_bytes(descriptor[8..16].try_into().unwrap()), inode.size);
            // The first block of the tree is its root.
            if inode.size > 4096 {
                let salt_len = usize::from(descriptor[3]);
                let mut block = descriptor[80..80 + salt_len].to_vec();
                block.resize(salt_len.next_multiple_of(if alg == "sha512" { 128 } else { 64 }), 0);
                let start = block.len();
                block.resize(start + 4096, 0);
                file.read_raw_at(&mut block[start..], place.tree_offset).unwrap();
                let root = hash(&block);
                assert_eq!(root, descriptor[16..16 + root.len()], "{line}");
            } else {
                assert_eq!(place.tree_room, 0);
            }
        }
        let plain = fs.resolve(b"v/f17").unwrap();
        let result = fs.verity_location(&plain, |_, _| -> Result<(), Error> { unreachable!() });
        assert!(matches!(result, Err(Error::WrongKind { .. })));
    });
    assert!(count >= 2, "{count}");
}

/// What `debugfs` says of an inode that `stat` can't: generation, flags, project, blocks of the file.
#[test]
fn inodes_as_debugfs_shows_them() {
    let Some(debugfs) = require_tool("debugfs") else { return };
    for name in ["fscrypt/xts-pad32", "fscrypt/no-extents", "ext4/ext4-verity"] {
        let image = unpack_image(&Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("images/{name}.img.zst")));
        let fs = load(image.path());
        let script = tempfile::NamedTempFile::new().unwrap();
        let (found, _) = walk(&fs);
        let commands: String = found.values().map(|inode| format!("stat <{0}>\nblocks <{0}>\n", inode.ino)).collect();
        fs::write(script.path(), commands).unwrap();
        let shown = run(Command::new(&debugfs).arg("-f").args([script.path(), image.path()])).stdout;
        let shown = String::from_utf8_lossy(&shown).into_owned();
        let answers: Vec<&str> = shown.split("debugfs: stat ").skip(1).collect();
        assert_eq!(answers.len(), found.len());
        for (inode, answer) in found.values().zip(answers) {
            let number = |key: &str| -> u64 {
                let rest = answer.split(key).nth(1).unwrap_or_else(|| panic!("{key} in {answer}")).trim_start();
                let digits = rest.split(|c: char| !c.is_ascii_alphanumeric()).next().unwrap();
                match digits.strip_prefix("0x") {
                    Some(hex) => u64::from_str_radix(hex, 16).unwrap(),
                    None => digits.parse().unwrap(),
                }
            };
            assert_eq!(number("Inode:"), u64::from(inode.ino));
            assert_eq!(number("Generation:"), u64::from(inode.generation));
            assert_eq!(number("Flags:"), u64::from(inode.flags.bits()));
            assert_eq!(number("Project:"), u64::from(inode.project));
            assert_eq!(number("File ACL:"), inode.file_acl);
            if inode.is_fast_symlink() {
                continue;
            }
            // Blocks of the file, past its end too; debugfs also lists those of the map itself.
            let blocks = answer.split("debugfs: blocks ").nth(1).unwrap().split_once('\n').unwrap().1;
            let blocks: Vec<u64> = blocks.split_whitespace().filter_map(|block| block.parse().ok()).collect();
            let block_size = u64::from(fs.superblock().block_size);
            let ours: Vec<u64> = fs
                .extents(inode)
                .unwrap()
                .into_iter()
                .filter(|extent| extent.kind != ExtentKind::Hole)
                .flat_map(|extent| extent.physical / block_size..(extent.physical + extent.len) / block_size)
                .collect();
            let listed: Vec<u64> = blocks.iter().copied().filter(|block| ours.contains(block)).collect();
            assert_eq!(listed, ours, "inode {}", inode.ino);
            assert!(blocks.len() - ours.len() <= 3 + ours.len() / 80, "inode {}: {blocks:?} {ours:?}", inode.ino);
        }
    }
}

#[test]
fn shared_between_threads() {
    fn is_shared<T: Send + Sync + Clone>(_: &T) {}
    let image = unpack_image(&Path::new(env!("CARGO_MANIFEST_DIR")).join("images/ext4/ext4-v2-xts.img.zst"));
    let fs = load(image.path());
    is_shared(&fs);
    let wanted = walk(&fs).0;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert!(walk(&fs.clone()).0 == wanted));
        }
    });
}
