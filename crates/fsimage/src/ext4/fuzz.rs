//! Entry points for fuzzers, as plain functions, so that what fuzzers found runs again as an ordinary test. They take any
//! bytes and return; checksums are not verified, since no fuzzer gets past them.
#![expect(clippy::arithmetic_side_effects, clippy::as_conversions, reason = "it builds small images of known sizes")]

use std::sync::Arc;

use super::casefold::casefold_for_hash;
use super::directory::{DirFormat, parse_dir_block};
use super::extent::parse_extent_node;
use super::filesystem::{Ext4, ROOT_INO};
use super::htree::parse_htree_root;
use super::inode::Inode;
use super::journal;
use super::load::{JournalPolicy, Options};
use super::superblock::Superblock;
use super::xattr::{parse_xattr_block, parse_xattr_body, posix_acl_xattr};

pub(super) const BLOCK: usize = 1024;

/// A superblock, and all that is computed from one.
pub fn superblock(data: &[u8]) {
    if let Ok(superblock) = Superblock::parse(data, false) {
        let groups = superblock.groups_count();
        for group in [0, 1, groups / 2, groups - 1] {
            let _ = (superblock.descriptor_location(group, 1), superblock.base_metadata_blocks(group));
        }
        let _ = superblock.incompat.names();
    }
}

/// An inode, with extended attributes after its fields.
pub fn inode(data: &[u8]) {
    let superblock = Superblock::parse(&template()[BLOCK..], false).expect("the template is sound");
    if let Ok(inode) = Inode::parse(data, 12, &superblock, false) {
        let _ = parse_xattr_body(&inode.xattr_body);
        let _ = inode.device();
        let _ = inode.is_fast_symlink();
    }
}

/// A node of an extent tree.
pub fn extent(data: &[u8]) {
    for extent in parse_extent_node(data, 1 << 32).unwrap_or_default() {
        assert!(extent.len > 0 && extent.logical + extent.len <= 1 << 32 && extent.physical + extent.len <= 1 << 32);
    }
}

/// A directory block, read every way.
pub fn directory(data: &[u8]) {
    for (filetype, hashes) in [(true, false), (true, true), (false, false)] {
        for entry in parse_dir_block(data, DirFormat { filetype, hashes }).unwrap_or_default() {
            assert!((1..=255).contains(&entry.name.len()));
            casefold_for_hash(&entry.name);
        }
    }
    let _ = parse_htree_root(data);
}

/// A block of extended attributes.
pub fn xattr(data: &[u8]) {
    let block = parse_xattr_block(data).unwrap_or_default();
    for attribute in block.iter().chain(&parse_xattr_body(data).unwrap_or_default()) {
        let _ = attribute.full_name();
        let _ = posix_acl_xattr(&attribute.value);
    }
}

/// A journal, block 0 its superblock, inside a small file system that needs it replayed.
pub fn journal(data: &[u8]) {
    whole(with_journal(data));
}

/// The blocks of fast commits, laid over a small file system.
pub fn fast_commit(data: &[u8]) {
    let options = Options { journal: JournalPolicy::Ignore, checksums: false, cache: 0, ..Options::default() };
    let fs = Ext4::load_with(Arc::new(template()), options.clone()).expect("the template is sound");
    if let Ok(fs) = journal::changes_of(&fs, data).and_then(|changes| fs.with_changes(changes, &options)) {
        everything(&fs);
    }
}

fn with_journal(data: &[u8]) -> Vec<u8> {
    let mut image = template();
    let room = (BLOCKS - JOURNAL_START) * BLOCK;
    let len = data.len().min(room);
    image[JOURNAL_START * BLOCK..][..len].copy_from_slice(&data[..len]);
    image
}

/// A whole file system.
pub fn image(data: &[u8]) {
    whole(data.to_vec());
}

/// Reads all there is to read.
fn whole(image: Vec<u8>) {
    let options = Options { checksums: false, cache: 0, ..Options::default() };
    if let Ok(fs) = Ext4::load_with(Arc::new(image), options) {
        everything(&fs);
    }
}

fn everything(fs: &Ext4) {
    let _ = fs.orphans();
    for visit in fs.walk(ROOT_INO) {
        let Ok(inode) = visit.inode else { continue };
        let _ = fs.xattrs(&inode).count();
        let _ = fs.fscrypt_context(&inode);
        let _ = fs.symlink_target(&inode);
        let _ = fs.extents_from(&inode, inode.size / 2).last();
        if let Ok(file) = fs.open_raw(&inode) {
            let _ = file.read_raw_at(&mut [0; 3000], inode.size / 2);
            let _ = fs.verity_location(&inode, |buf, at| file.read_raw_at(buf, at));
        }
    }
}

const BLOCKS: usize = 112;
const INODES: u32 = 16;
pub(super) const INODE_TABLE: usize = 5;
const JOURNAL_START: usize = 64;

/// A file system of 112 blocks of 1 KiB: an empty root directory, and a journal from block 64 to the end.
pub(super) fn template() -> Vec<u8> {
    let mut image = vec![0; BLOCKS * BLOCK];
    let mut put = |at: usize, bytes: &[u8]| image[at..at + bytes.len()].copy_from_slice(bytes);
    let sb = BLOCK;
    for (at, value) in
        [(0, INODES), (4, BLOCKS as u32), (0x14, 1), (0x20, 8192), (0x24, 8192), (0x28, INODES), (0x4c, 1)]
    {
        put(sb + at, &value.to_le_bytes());
    }
    put(sb + 0x38, &0xef53u16.to_le_bytes());
    // has_journal; filetype, needs_recovery and extents; inodes of 128 bytes from number 11; the journal is inode 8.
    for (at, value) in [(0x54, 11), (0x58, 128), (0x5c, 0x4), (0x60, 0x46), (0xe0, 8)] {
        put(sb + at, &u32::to_le_bytes(value));
    }
    put(2 * BLOCK + 8, &(INODE_TABLE as u32).to_le_bytes());
    for (ino, mode, first, blocks) in
        [(ROOT_INO, 0o40755u16, 8, 1), (8, 0o100_600, JOURNAL_START as u32, (BLOCKS - JOURNAL_START) as u16)]
    {
        let at = INODE_TABLE * BLOCK + (ino as usize - 1) * 128;
        put(at, &mode.to_le_bytes());
        put(at + 4, &(u32::from(blocks) * BLOCK as u32).to_le_bytes());
        put(at + 0x1a, &2u16.to_le_bytes());
        put(at + 0x20, &0x8_0000u32.to_le_bytes());
        // A root of an extent tree with one extent.
        put(at + 0x28, &[0x0a, 0xf3, 1, 0, 4, 0, 0, 0]);
        put(at + 0x38, &blocks.to_le_bytes());
        put(at + 0x3c, &first.to_le_bytes());
    }
    put(8 * BLOCK, &[2, 0, 0, 0, 12, 0, 1, 2, b'.', 0, 0, 0, 2, 0, 0, 0, 0xf4, 3, 2, 2, b'.', b'.', 0, 0]);
    image
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_template_is_a_file_system() {
        let options = Options { journal: crate::ext4::JournalPolicy::Ignore, ..Options::default() };
        let fs = Ext4::load_with(Arc::new(template()), options).unwrap();
        assert_eq!(fs.walk(ROOT_INO).count(), 0);
        assert_eq!(fs.superblock().journal_inode, 8);
        // Without a journal's superblock in it, it can't be replayed.
        assert!(Ext4::load(Arc::new(template())).unwrap_err().to_string().contains("corrupt journal of inode 8"));
    }

    /// The seed makes a file, gives it another name and takes its first, makes a directory, and removes the file in it.
    #[test]
    fn the_seed_of_fast_commits_is_applied() {
        let corpus = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/ext4_fast_commit");
        let options = Options { journal: JournalPolicy::Ignore, checksums: false, cache: 0, ..Options::default() };
        let fs = Ext4::load_with(Arc::new(template()), options.clone()).unwrap();
        let seeds = std::fs::read_dir(corpus).unwrap().map(|entry| std::fs::read(entry.unwrap().path()).unwrap());
        let applied = seeds.filter_map(|seed| fs.with_changes(journal::changes_of(&fs, &seed).ok()?, &options).ok());
        let names = applied.map(|fs| fs.walk(ROOT_INO).filter_map(|visit| Some(visit.entry?.name)).collect::<Vec<_>>());
        assert!(names.into_iter().any(|names| names == [b"dir".as_slice().into(), b"other".as_slice().into()]));
    }

    /// Seeds that end at the first check would be of no use.
    #[test]
    fn the_seeds_of_the_journal_are_replayed() {
        let corpus = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/ext4_journal");
        let options = Options { checksums: false, ..Options::default() };
        let mut replayed = 0;
        for entry in std::fs::read_dir(corpus).unwrap() {
            let image = with_journal(&std::fs::read(entry.unwrap().path()).unwrap());
            if let Ok(fs) = Ext4::load_with(Arc::new(image), options.clone()) {
                replayed +=
                    u32::from(fs.replay().is_some_and(|replay| replay.transactions == 2 && replay.revoked == 0));
            }
        }
        assert!(replayed >= 3, "{replayed}");
    }
}
