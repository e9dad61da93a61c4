//! Small images with everything in them that a reader has to understand, and where their metadata is.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use postread_fsimage::ext4::{Ext4, ExtentKind, JournalPolicy, Options, ROOT_INO};
use postread_tests::{noise, require_tool, run};
use tempfile::TempDir;

/// An image, and where its metadata is.
pub(super) struct Base {
    pub(super) name: &'static str,
    pub(super) bytes: Vec<u8>,
    /// Bytes of one kind of structure each: kind, start, length.
    pub(super) places: Vec<(&'static str, usize, usize)>,
    /// Numbers that mean something in this image: of blocks and inodes.
    pub(super) numbers: Vec<u32>,
}

/// The kinds of file systems, with checksums of metadata and without.
const KINDS: [(&str, &str); 8] = [
    ("ext4", "-t ext4 -b 1024 -O ^metadata_csum,^has_journal"),
    ("checksums", "-t ext4 -b 1024 -O metadata_csum,64bit"),
    ("ext2", "-t ext2 -b 1024 -I 128"),
    ("inline", "-t ext4 -b 4096 -O inline_data,^metadata_csum,^has_journal"),
    ("large-values", "-t ext4 -b 1024 -O ea_inode,^metadata_csum"),
    ("group-checksums", "-t ext4 -b 1024 -g 1024 -O ^metadata_csum,uninit_bg,^flex_bg,^64bit,^has_journal"),
    ("meta-bg", "-t ext4 -b 2048 -g 512 -O meta_bg,^resize_inode,^filetype,^metadata_csum,^has_journal"),
    ("clusters", "-t ext4 -b 1024 -C 4096 -O bigalloc,metadata_csum,inline_data,^has_journal"),
];

/// Makes them all; nothing if a tool is missing.
pub(super) fn bases() -> Option<Vec<Base>> {
    for tool in ["mke2fs", "debugfs", "e2fsck"] {
        require_tool(tool)?;
    }
    let dir = TempDir::new().unwrap();
    let tree = dir.path().join("tree");
    plant(&tree);
    fs::write(dir.path().join("value"), noise(3000, 3)).unwrap();
    Some(KINDS.iter().map(|(name, options)| base(name, options, dir.path(), &tree)).collect())
}

fn plant(tree: &Path) {
    for dir in ["", "many", "deep/er/est", "empty", "few"] {
        fs::create_dir_all(tree.join(dir)).unwrap();
    }
    for (name, len) in [("empty-file", 0), ("tiny", 40), ("small", 700), ("medium", 5000), ("large", 90_000)] {
        fs::write(tree.join(name), noise(len, 1)).unwrap();
    }
    // Blocks apart from one another, so that their map needs blocks of its own.
    let sparse = fs::File::create(tree.join("deep/sparse")).unwrap();
    for i in 0..9 {
        std::os::unix::fs::FileExt::write_all_at(&sparse, &noise(4096, i), i * 32_768).unwrap();
    }
    for i in 0..60 {
        fs::write(tree.join(format!("many/a name that is long enough to fill some blocks {i}")), [i as u8]).unwrap();
    }
    for i in 0..3 {
        fs::write(tree.join(format!("few/{i}")), noise(100, i)).unwrap();
    }
    symlink("tiny", tree.join("short-link")).unwrap();
    symlink("l/".repeat(60), tree.join("deep/long-link")).unwrap();
    fs::hard_link(tree.join("small"), tree.join("deep/er/again")).unwrap();
}

fn base(name: &'static str, options: &str, dir: &Path, tree: &Path) -> Base {
    let image = dir.join(name);
    fs::File::create(&image).unwrap().set_len(4 << 20).unwrap();
    let tool = |tool: &str| Command::new(require_tool(tool).expect("looked for before"));
    let size = if name == "ext2" { "" } else { "-I 256" };
    run(tool("mke2fs")
        .args(["-q", "-F", "-N", "256", "-E", "hash_seed=01234567-89ab-cdef-0123-456789abcdef"])
        .args(options.split(' '))
        .args(size.split_whitespace())
        .arg("-d")
        .arg(tree)
        .arg(&image));
    let value = dir.join("value");
    let mut script = String::from("mknod device c 5 300\nmknod pipe p\n");
    for (file, attribute, value) in [
        ("tiny", "user.one", "1".to_owned()),
        ("tiny", "user.two", "2".repeat(60)),
        ("tiny", "trusted.three", "3".repeat(300)),
        ("medium", "user.only", "only".to_owned()),
        ("few", "user.of-a-directory", "yes".repeat(40)),
    ] {
        script += &format!("ea_set {file} {attribute} {value}\n");
    }
    if name == "large-values" {
        script += &format!("ea_set -f {} medium user.large\n", value.display());
    }
    let commands = dir.join("commands");
    fs::write(&commands, script).unwrap();
    run(tool("debugfs").args(["-w", "-f"]).arg(&commands).arg(&image));
    // Indexes the directories, and says with status 1 that it changed something.
    let status = tool("e2fsck").args(["-fyD"]).arg(&image).output().unwrap().status;
    assert!(matches!(status.code(), Some(0 | 1)), "{name}: {status}");
    let bytes = fs::read(&image).unwrap();
    let (places, numbers) = survey(&bytes);
    for kind in ["superblock", "group", "inode", "directory", "root of a map"] {
        assert!(places.iter().any(|place| place.0 == kind), "{name} has no {kind}");
    }
    Base { name, bytes, places, numbers }
}

pub(super) fn load(bytes: Arc<dyn postread_io::ReadAt>) -> Result<Ext4, postread_fsimage::ext4::Error> {
    let mut options = Options::default();
    options.journal = JournalPolicy::Ignore;
    Ext4::load_with(bytes, options)
}

type Survey = (Vec<(&'static str, usize, usize)>, Vec<u32>);

fn survey(bytes: &[u8]) -> Survey {
    let fs = load(Arc::new(bytes.to_vec())).unwrap();
    let superblock = fs.superblock();
    let block_size = superblock.block_size as usize;
    let mut places = vec![("superblock", 1024, 0x180), ("superblock", 1024 + 0x240, 0x60)];
    let mut numbers = BTreeSet::from([0, 1, 2, 8, 11, 12, 255, 256, 257]);
    // A guess that is right for the first groups, and harmless elsewhere.
    let descriptors = if block_size == 1024 { 2048 } else { block_size };
    let groups = superblock.groups_count() as usize;
    places.push(("group", descriptors, groups * superblock.desc_size as usize));
    for group in 0..groups as u64 {
        let descriptor = fs.group_descriptor(group).unwrap();
        numbers.extend([descriptor.inode_table, descriptor.block_bitmap, descriptor.inode_bitmap].map(|n| n as u32));
    }
    let per_group = superblock.inodes_per_group;
    let mut seen = BTreeSet::new();
    let walk = fs.walk(ROOT_INO).map(|visit| visit.inode.unwrap());
    for inode in walk.chain([fs.root().unwrap()]) {
        if !seen.insert(inode.ino) {
            continue;
        }
        let table = fs.group_descriptor(((inode.ino - 1) / per_group).into()).unwrap().inode_table as usize;
        let slot = ((inode.ino - 1) % per_group) as usize;
        let at = table * block_size + slot * superblock.inode_size as usize;
        places.push(("inode", at, 0x28));
        places.push(("root of a map", at + 0x28, 60));
        places.push(("inode", at + 0x64, 28));
        if superblock.inode_size > 128 {
            places.push(("inode", at + 128, 32));
            places.push(("attributes in an inode", at + 160, 96));
        }
        numbers.insert(inode.ino);
        if inode.file_acl != 0 {
            places.push(("attributes in a block", inode.file_acl as usize * block_size, 160));
            numbers.insert(inode.file_acl as u32);
        }
        let extents = fs.extents(&inode).unwrap();
        let written = extents.iter().filter(|extent| extent.kind == ExtentKind::Written);
        for extent in written {
            numbers.insert((extent.physical / block_size as u64) as u32);
            if inode.is_dir() {
                for block in 0..extent.len as usize / block_size {
                    places.push(("directory", extent.physical as usize + block * block_size, block_size));
                }
            } else if inode.file_type == postread_fsimage::ext4::FileType::Symlink {
                places.push(("target", extent.physical as usize, inode.size as usize));
            }
        }
        // Whatever the root of the map leads to: nodes of extent trees, indirect blocks.
        if inode.size > 12 * 1024 && !inode.has_inline_data() {
            let root = &bytes[at + 0x28..at + 0x64];
            let word = |at: usize| u32::from_le_bytes(root[at..at + 4].try_into().unwrap()) as usize;
            let child = match root[0] == 0x0a && root[1] == 0xf3 {
                true if root[6] > 0 => word(16),
                true => 0,
                false => word(48),
            };
            if child != 0 {
                places.push(("node of a map", child * block_size, 128));
                numbers.insert(child as u32);
            }
        }
    }
    (places, numbers.into_iter().collect())
}
