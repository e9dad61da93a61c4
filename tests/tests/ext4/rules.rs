//! One image for each rule that Linux follows when it reads ext4 (`mutations` compares both over random damage).

use std::process::Command;
use std::sync::Arc;

use postread_fsimage::ext4::{Error, Ext4, Inode, JournalPolicy, Options, Warning};
use postread_tests::{noise, require_tool, run};
use tempfile::TempDir;

/// A small image that `debugfs` can change.
struct Lab {
    dir: TempDir,
}

impl Lab {
    /// Makes an image with these options, and runs requests of `debugfs`. The files `value` (5000 bytes) and `text`
    /// (`hello`) are there to be written into it.
    fn new(options: &str, requests: &[&str]) -> Option<Self> {
        let lab = Self { dir: TempDir::new().unwrap() };
        std::fs::write(lab.dir.path().join("value"), noise(5000, 5)).unwrap();
        std::fs::write(lab.dir.path().join("text"), "hello").unwrap();
        std::fs::File::create(lab.image()).unwrap().set_len(8 << 20).unwrap();
        let mut mke2fs = Command::new(require_tool("mke2fs")?);
        run(mke2fs.current_dir(&lab.dir).args(["-q", "-F"]).args(options.split(' ')).arg("image"));
        lab.debugfs(requests)?;
        Some(lab)
    }

    fn image(&self) -> std::path::PathBuf {
        self.dir.path().join("image")
    }

    fn debugfs(&self, requests: &[&str]) -> Option<()> {
        let tool = require_tool("debugfs")?;
        std::fs::write(self.dir.path().join("requests"), requests.join("\n") + "\n").unwrap();
        run(Command::new(tool).current_dir(&self.dir).args(["-w", "-f", "requests", "image"]));
        Some(())
    }

    fn bytes(&self) -> Vec<u8> {
        std::fs::read(self.image()).unwrap()
    }

    fn load(&self) -> Ext4 {
        Ext4::load(Arc::new(self.bytes())).unwrap()
    }

    /// Changes the image's bytes.
    fn poke(&self, change: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = self.bytes();
        change(&mut bytes);
        std::fs::write(self.image(), bytes).unwrap();
    }

    /// Where an inode is in the image.
    fn inode_at(&self, path: &str) -> usize {
        let fs = self.load();
        let superblock = fs.superblock();
        let index = fs.resolve(path.as_bytes()).unwrap().ino - 1;
        let group = u64::from(index / superblock.inodes_per_group);
        let table = fs.group_descriptor(group).unwrap().inode_table as usize * superblock.block_size as usize;
        table + (index % superblock.inodes_per_group) as usize * superblock.inode_size as usize
    }
}

fn contents(fs: &Ext4, path: &str) -> Result<Vec<u8>, Error> {
    let inode = fs.resolve(path.as_bytes())?;
    let mut bytes = vec![0; inode.size as usize];
    fs.open_raw(&inode)?.read_raw_at(&mut bytes, 0)?;
    Ok(bytes)
}

fn names(fs: &Ext4, dir: &Inode) -> (Vec<String>, Vec<String>) {
    let (mut names, mut errors) = (Vec::new(), Vec::new());
    for entry in fs.read_dir(dir).unwrap() {
        match entry {
            Ok(entry) => names.push(String::from_utf8_lossy(&entry.name).into_owned()),
            Err(error) => errors.push(error.to_string()),
        }
    }
    (names, errors)
}

const PLAIN: &str = "-t ext4 -b 1024 -O ^metadata_csum,^has_journal";

/// A file has a block of each kind of metadata: by extents, and by a block map.
#[test]
fn no_file_has_blocks_of_metadata() {
    for options in ["-t ext4 -b 1024 -O ^metadata_csum,^64bit", "-t ext3 -b 1024"] {
        let Some(lab) = Lab::new(options, &["write text f"]) else { return };
        let fs = lab.load();
        let descriptor = fs.group_descriptor(0).unwrap();
        let good = fs.extents(&fs.resolve(b"f").unwrap()).unwrap()[0].physical / 1024;
        // The journal's blocks are read from its own inode, number 8.
        let at = descriptor.inode_table as usize * 1024 + 7 * fs.superblock().inode_size as usize + 0x28;
        let bytes = lab.bytes();
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        let journal = u64::from(if options.contains("ext4") { word(at + 20) } else { word(at) });
        let place = lab.inode_at("f") + 0x28 + if options.contains("ext4") { 20 } else { 0 };
        assert_eq!(u64::from(word(place)), good, "{options}");
        for (what, block) in [
            ("descriptors", 2),
            ("reserved descriptors", 2 + 1),
            ("block bitmap", descriptor.block_bitmap),
            ("inode bitmap", descriptor.inode_bitmap),
            ("inode table", descriptor.inode_table + 3),
            ("journal", journal + 9),
            ("past the end", 8192),
        ] {
            lab.poke(|bytes| bytes[place..place + 4].copy_from_slice(&(block as u32).to_le_bytes()));
            let error = contents(&lab.load(), "f").unwrap_err().to_string();
            let wanted = ["holds file system metadata", "a block number is"];
            assert!(wanted.iter().any(|wanted| error.contains(wanted)), "{options}, {what} {block}: {error}");
        }
        lab.poke(|bytes| bytes[place..place + 4].copy_from_slice(&(good as u32).to_le_bytes()));
        assert_eq!(contents(&lab.load(), "f").unwrap(), b"hello");
    }
}

/// Fields that other features or another creator define: all of them are set where the feature is off.
#[test]
fn fields_count_under_their_features_only() {
    let Some(lab) = Lab::new("-t ext2 -b 1024 -I 256 -O ^huge_file", &["write text f"]) else { return };
    let before = lab.load();
    let (superblock, inode) = (before.superblock().clone(), before.resolve(b"f").unwrap());
    let at = lab.inode_at("f");
    lab.poke(|bytes| {
        // Of the inode: the high halves of the blocks and of the attribute block (the Hurd's mode), the project.
        bytes[at + 0x74..at + 0x78].fill(0x5a);
        bytes[at + 0x9c..at + 0xa0].fill(0x5a);
        // Of the superblock: 64bit, the journal, orphan file, metadata_csum_seed, meta_bg, sparse_super2, casefold.
        for (field, len) in [(0x150, 12), (0xd0, 24), (0x280, 4), (0x270, 4), (0x104, 4), (0x24c, 8), (0x27c, 4)] {
            bytes[1024 + field..1024 + field + len].fill(0x5a);
        }
        // Of the group descriptor: checksums, and what is there only with them.
        bytes[2048 + 0x12..2048 + 0x14].fill(0x5a);
        bytes[2048 + 0x1c..2048 + 0x20].fill(0x5a);
    });
    let fs = lab.load();
    assert_eq!(*fs.superblock(), superblock);
    assert_eq!(fs.resolve(b"f").unwrap(), inode);
    assert_eq!(contents(&fs, "f").unwrap(), b"hello");
    assert_eq!((fs.group_descriptor(0).unwrap().flags, fs.warnings().count()), (0, 0));
}

/// Which feature says that entries have types does not change how long a name is.
#[test]
fn names_without_file_types() {
    let Some(lab) = Lab::new(PLAIN, &["write text f", "mkdir d"]) else { return };
    lab.poke(|bytes| bytes[1024 + 0x60] &= !2);
    let fs = lab.load();
    let (names, errors) = names(&fs, &fs.root().unwrap());
    assert_eq!((names.join(" "), errors), ("lost+found f d".into(), vec![]));
    assert!(fs.read_dir(&fs.root().unwrap()).unwrap().all(|entry| entry.unwrap().file_type.is_none()));
}

/// Links are told apart by their blocks: a short target in a block, and a target in the inode that is marked as mapped by
/// extents.
#[test]
fn links_are_where_their_blocks_say() {
    let requests = ["symlink fast target", "set_inode_field fast flags 0x80000", "write text slow"];
    let Some(lab) = Lab::new(PLAIN, &requests) else { return };
    lab.debugfs(&["set_inode_field slow mode 0120777"]).unwrap();
    let fs = lab.load();
    let target = |path: &[u8]| fs.symlink_target(&fs.resolve(path).unwrap()).unwrap();
    assert_eq!((target(b"fast"), target(b"slow")), (b"target".to_vec(), b"hello".to_vec()));
    // A fast link whose length is not that of its target is no link at all to Linux.
    lab.debugfs(&["set_inode_field fast size 4"]).unwrap();
    let error = lab.load().resolve(b"fast").unwrap_err().to_string();
    assert!(error.contains("length of a symbolic link's target"), "{error}");
}

/// Blocks of a directory that are marked as not written are read; missing ones are reported.
#[test]
fn directories_with_unwritten_and_missing_blocks() {
    let Some(lab) = Lab::new(PLAIN, &["mkdir d", "write text d/f"]) else { return };
    let block = lab.load().extents(&lab.load().resolve(b"d").unwrap()).unwrap()[0].physical / 1024;
    let node = format!("replace_node --uninit 0 1 {block}");
    lab.debugfs(&["extent_open d", "root", "next_sib", &node, "extent_close"]).unwrap();
    let fs = lab.load();
    assert_eq!(names(&fs, &fs.resolve(b"d").unwrap()), (vec!["f".into()], vec![]));
    // The same block once more after a hole of two.
    lab.debugfs(&["set_inode_field d size 4096"]).unwrap();
    let fs = lab.load();
    let (names, errors) = names(&fs, &fs.resolve(b"d").unwrap());
    assert_eq!((names.join(" "), errors.len()), ("f".into(), 1));
    assert!(errors[0].contains("blocks are missing"), "{errors:?}");
}

/// The root is a directory with a size and with blocks.
#[test]
fn the_root_is_a_directory() {
    for (request, expected) in [
        ("mode 0100644", "the root is not a directory"),
        ("size 0", "the root has no blocks"),
        ("blocks 0", "the root has no blocks"),
    ] {
        let Some(lab) = Lab::new(PLAIN, &[&format!("set_inode_field / {request}")]) else { return };
        for error in [lab.load().root().unwrap_err(), lab.load().resolve(b"f").unwrap_err()] {
            assert!(error.to_string().contains(expected), "{error}");
        }
    }
}

/// Inline data is in the inode: an attribute `system.data` that is in another inode makes its owner corrupt, with the
/// feature for such attributes and without it.
#[test]
fn inline_data_is_never_in_another_inode() {
    for feature in ["ea_inode", "^ea_inode"] {
        let options = format!("-t ext4 -b 1024 -I 256 -O inline_data,^metadata_csum,^has_journal,{feature}");
        let Some(lab) = Lab::new(&options, &["write text f"]) else { return };
        assert_eq!(contents(&lab.load(), "f").unwrap(), b"hello");
        let at = lab.inode_at("f");
        lab.poke(|bytes| {
            let entry = at + bytes[at..at + 256].windows(4).position(|window| window == b"data").unwrap() - 16;
            bytes[entry + 4..entry + 8].copy_from_slice(&12u32.to_le_bytes());
        });
        let error = contents(&lab.load(), "f").unwrap_err();
        assert!(error.to_string().contains("corrupt inode"), "{feature}: {error}");
    }
}

/// An entry without a name costs no other.
#[test]
fn an_entry_without_a_name() {
    let Some(lab) = Lab::new(PLAIN, &["write text a", "write text b", "write text c"]) else { return };
    lab.poke(|bytes| {
        let at = bytes.windows(3).position(|window| window == [1, 1, b'b']).unwrap();
        bytes[at] = 0;
    });
    let fs = lab.load();
    let (names, errors) = names(&fs, &fs.root().unwrap());
    assert_eq!((names.join(" "), errors.len()), ("lost+found a c".into(), 1));
    assert!(errors[0].contains("an entry has no name"), "{errors:?}");
}

/// An entry with an inode number that the file system does not have is not listed, and costs no other; a number that is
/// merely reserved is listed. A name after it is found.
#[test]
fn an_entry_with_an_inode_number_out_of_bounds() {
    let Some(lab) = Lab::new(PLAIN, &["write text a", "write text b", "write text c"]) else { return };
    let inodes = lab.load().superblock().inodes_count;
    for (ino, listed) in [(inodes + 1, false), (0xfffe_000c, false), (u32::MAX, false), (7, true), (inodes, true)] {
        lab.poke(|bytes| {
            let at = bytes.windows(3).position(|window| window == [1, 1, b'b']).unwrap();
            bytes[at - 6..at - 2].copy_from_slice(&ino.to_le_bytes());
        });
        let fs = lab.load();
        let (names, errors) = names(&fs, &fs.root().unwrap());
        let expected = if listed { ("lost+found a b c", 0) } else { ("lost+found a c", 1) };
        assert_eq!((names.join(" ").as_str(), errors.len()), expected, "{ino}");
        assert!(errors.iter().all(|error| error.contains("an inode number is")), "{errors:?}");
        assert_eq!(contents(&fs, "c").unwrap(), b"hello");
        assert!(contents(&fs, "b").is_err());
    }
}

/// No file has the last block that 32 bits can number: an extent that ends with it makes the whole node corrupt.
#[test]
fn an_extent_that_ends_where_block_numbers_do() {
    let Some(lab) = Lab::new(PLAIN, &["write text f"]) else { return };
    let entry = lab.inode_at("f") + 0x28 + 12;
    for (first, good) in [(u32::MAX - 1, true), (u32::MAX, false)] {
        lab.poke(|bytes| bytes[entry..entry + 4].copy_from_slice(&first.to_le_bytes()));
        assert_eq!(contents(&lab.load(), "f").is_ok(), good, "{first:#x}");
    }
}

/// A value in an inode of its own that is bad costs no other attribute.
#[test]
fn a_bad_attribute_costs_no_other() {
    let requests = ["write text f", "ea_set f user.one 1", "ea_set -f value f user.large", "ea_set f user.two 2"];
    let Some(lab) = Lab::new("-t ext4 -b 1024 -O ea_inode,^metadata_csum", &requests) else { return };
    let found = |lab: &Lab| {
        let fs = lab.load();
        let xattrs: Vec<_> = fs.xattrs(&fs.resolve(b"f").unwrap()).collect();
        (xattrs.iter().filter(|xattr| xattr.is_ok()).count(), xattrs.len())
    };
    assert_eq!(found(&lab), (3, 3));
    let value = noise(5000, 5);
    lab.poke(|bytes| {
        let at = bytes.windows(64).position(|window| window == &value[..64]).unwrap();
        bytes[at] ^= 1;
    });
    assert_eq!(found(&lab), (2, 3));
}

/// A wrong checksum of a group descriptor is a warning, and costs neither its own group nor another.
#[test]
fn a_wrong_checksum_of_a_group() {
    for options in ["-t ext4 -b 1024 -g 2048", "-t ext4 -b 1024 -g 2048 -O ^metadata_csum,uninit_bg"] {
        let Some(lab) = Lab::new(options, &["write text f"]) else { return };
        lab.poke(|bytes| bytes[2048 + 0x1e] ^= 1);
        let fs = lab.load();
        assert_eq!(contents(&fs, "f").unwrap(), b"hello");
        let warnings: Vec<_> = fs.warnings().cloned().collect();
        assert_eq!(warnings, [Warning::GroupChecksum { group: 0 }], "{options}");
    }
}

/// The first blocks are gone: a backup of the superblock, and the descriptors beside it, read everything.
#[test]
fn backups_of_the_superblock() {
    for (options, block, other) in [("-t ext4 -b 1024 -g 2048", 2049, 2049), ("-t ext4 -b 4096 -g 1024", 1024, 4096)] {
        let Some(lab) = Lab::new(options, &["write value f"]) else { return };
        lab.poke(|bytes| bytes[..8192].fill(0x5a));
        assert!(matches!(Ext4::load(Arc::new(lab.bytes())), Err(Error::NotExt4 { .. })));
        for number in [block, other] {
            let mut options = Options::default();
            options.superblock = Some(number);
            let fs = Ext4::load_with(Arc::new(lab.bytes()), options).unwrap();
            assert_eq!(contents(&fs, "f").unwrap(), noise(5000, 5));
            assert_eq!(fs.warnings().next(), Some(&Warning::BackupSuperblock { block: number }));
        }
        let mut wrong = Options::default();
        wrong.superblock = Some(77);
        let error = Ext4::load_with(Arc::new(lab.bytes()), wrong).unwrap_err();
        assert!(matches!(error, Error::NoBackup { block: 77 }), "{error}");
    }
}

/// A journal on another device is replayed from there; without it the image can be read as it is, with a warning.
#[test]
fn external_journals() {
    let (Some(mke2fs), Some(debugfs)) = (require_tool("mke2fs"), require_tool("debugfs")) else { return };
    for block_size in ["1024", "4096"] {
        let dir = TempDir::new().unwrap();
        let at = |name: &str| dir.path().join(name);
        let journal = |name: &str, uuid: &str| {
            std::fs::File::create(at(name)).unwrap().set_len(8 << 20).unwrap();
            let mut command = Command::new(&mke2fs);
            command.args(["-q", "-F", "-b", block_size, "-U", uuid, "-O", "journal_dev"]);
            run(command.arg(at(name)));
        };
        let uuid = "01234567-89ab-cdef-0123-456789abcdef";
        journal("journal", uuid);
        journal("other", "11234567-89ab-cdef-0123-456789abcdef");
        // mke2fs takes devices only as journals: the superblock is made by hand, as debugfs allows.
        std::fs::File::create(at("image")).unwrap().set_len(8 << 20).unwrap();
        run(Command::new(&mke2fs)
            .args(["-q", "-F", "-t", "ext4", "-b", block_size, "-O", "^has_journal,^metadata_csum"])
            .arg(at("image")));
        let requests = format!("feature has_journal needs_recovery\nset_super_value journal_uuid {uuid}\n");
        std::fs::write(at("requests"), requests).unwrap();
        run(Command::new(&debugfs).args(["-w", "-f"]).arg(at("requests")).arg(at("image")));
        let read = |name: &str| Arc::new(std::fs::read(at(name)).unwrap());

        let error = Ext4::load(read("image")).unwrap_err();
        assert!(matches!(error, Error::ExternalJournal { .. }) && error.to_string().contains(uuid), "{error}");
        let mut ignore = Options::default();
        ignore.journal = JournalPolicy::Ignore;
        let fs = Ext4::load_with(read("image"), ignore).unwrap();
        assert_eq!(fs.warnings().next(), Some(&Warning::JournalIgnored));

        let with = |name: &str| {
            let mut options = Options::default();
            options.external_journal = Some(read(name));
            Ext4::load_with(read("image"), options)
        };
        assert!(with("journal").unwrap().replay().is_none(), "an empty journal");
        assert!(matches!(with("other"), Err(Error::WrongJournal(_))));
        assert!(matches!(with("image"), Err(Error::WrongJournal(_))));

        // A transaction that renames the label: the block with the superblock, written by hand.
        let (size, label_at) = (block_size.parse::<usize>().unwrap(), 1024 + 0x78);
        let mut log = std::fs::read(at("journal")).unwrap();
        let image = std::fs::read(at("image")).unwrap();
        let (block, first) = (1024 / size, if size == 1024 { 3 } else { 2 });
        let sb = (first - 1) * size;
        assert_eq!(log[sb..sb + 4], [0xc0, 0x3b, 0x39, 0x98], "the journal's superblock");
        let mut copy = image[block * size..][..size].to_vec();
        copy[label_at - block * size..][..4].copy_from_slice(b"new\0");
        let head = |kind: u32| [0xc03b_3998u32, kind, 7].map(u32::to_be_bytes).concat();
        let mut put = |at: usize, bytes: &[u8]| log[at..at + bytes.len()].copy_from_slice(bytes);
        put(sb + 24, &7u32.to_be_bytes());
        put(sb + 28, &(first as u32).to_be_bytes());
        // A descriptor with one tag (the same UUID, the last one), the copy, the commit.
        put(first * size, &[head(1), [block as u32, 0x0a].map(u32::to_be_bytes).concat()].concat());
        put((first + 1) * size, &copy);
        put((first + 2) * size, &head(2));
        std::fs::write(at("journal"), &log).unwrap();
        let fs = with("journal").unwrap();
        assert_eq!((fs.replay().unwrap().transactions, fs.replay().unwrap().blocks), (1, 1));
        assert!(fs.superblock().volume_name.starts_with(b"new\0"));
    }
}

/// An index entry and the node that it leads to begin with the same file block; what a leaf maps past its part is not
/// reached; and a corrupt part of a map costs only itself.
#[test]
fn index_and_leaf_agree() {
    let dir = TempDir::new().unwrap();
    let file = std::fs::File::create(dir.path().join("sparse")).unwrap();
    for i in 0..200u64 {
        std::os::unix::fs::FileExt::write_all_at(&file, &noise(1024, i), i * 2048).unwrap();
    }
    let write = format!("write {} f", dir.path().join("sparse").display());
    let Some(lab) = Lab::new("-t ext4 -b 1024 -O ^metadata_csum,^has_journal", &[&write]) else { return };
    let good = contents(&lab.load(), "f").unwrap();
    let root = lab.inode_at("f") + 0x28;
    let bytes = lab.bytes();
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    assert!(bytes[root + 6] == 1 && bytes[root + 2] > 1, "a tree with several leaves");
    let start = word(root + 24) as u64 * 1024;
    // The first block of the second leaf.
    let leaf = word(root + 28) as usize * 1024;
    lab.poke(|bytes| bytes[leaf + 12] += 2);
    let fs = lab.load();
    let inode = fs.resolve(b"f").unwrap();
    let error = fs.extents(&inode).unwrap_err().to_string();
    assert!(error.contains("the first file block is"), "{error}");
    let raw = fs.open_raw(&inode).unwrap();
    // Up to the last block that the first leaf maps; a hole of one block follows.
    let end = start as usize - 1024;
    let mut before = vec![0; end];
    raw.read_raw_at(&mut before, 0).unwrap();
    assert!(before == good[..end]);
    assert!(raw.read_raw_at(&mut [0; 10], start).is_err());
}
