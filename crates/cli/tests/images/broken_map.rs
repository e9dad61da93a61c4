//! Files whose map is damaged in part: the rest of them is read, decrypted and verified.

use std::fs;
use std::path::Path;
use std::process::Command;

use postread_tests::{noise, require_tool, run};

use crate::common::*;

const BLOCK: usize = 1024;

/// An image of one file `f` of many extents, or of many indirect blocks; and what the file holds.
fn image(dir: &Path, options: &str) -> Option<Vec<u8>> {
    fs::create_dir(dir.join("tree")).unwrap();
    let file = fs::File::create(dir.join("tree/f")).unwrap();
    // Every other block is a hole, so that each extent is one block.
    for i in 0..300 {
        std::os::unix::fs::FileExt::write_all_at(&file, &noise(BLOCK, i), i * 2 * BLOCK as u64).unwrap();
    }
    fs::write(dir.join("image"), "").unwrap();
    let mut mke2fs = Command::new(require_tool("mke2fs")?);
    run(mke2fs
        .current_dir(dir)
        .args(["-q", "-F", "-b", "1024", "-d", "tree"])
        .args(options.split(' '))
        .args(["image", "8M"]));
    fs::read(dir.join("tree/f")).ok()
}

/// Damages the second node that the root of the map leads to. Returns the file's blocks that it maps.
fn damage(dir: &Path) -> std::ops::Range<usize> {
    let mut bytes = fs::read(dir.join("image")).unwrap();
    let (_, inode) = locate(&bytes, "f", None);
    let table = open(&bytes, None).fs().group_descriptor(0).unwrap().inode_table as usize;
    let at = table * BLOCK + (inode.ino as usize - 1) * 256 + 0x28;
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
    let extents = bytes[at..at + 2] == [0x0a, 0xf3];
    let (node, blocks) = match extents {
        true => {
            assert!(bytes[at + 6] == 1 && bytes[at + 2] > 2, "a tree with several leaves");
            (word(at + 28), word(at + 24)..word(at + 36))
        }
        // The double indirect block, up to the end of the file.
        false => (word(at + 13 * 4), 12 + BLOCK / 4..599),
    };
    let place = node * BLOCK;
    match extents {
        true => bytes[place + 13] ^= 1,
        // The block itself cannot be wrong: it is put where no block is.
        false => bytes[at + 13 * 4..at + 14 * 4].fill(0x7f),
    }
    fs::write(dir.join("image"), bytes).unwrap();
    blocks
}

#[test]
fn what_a_damaged_map_does_not_cover_is_extracted() {
    for options in ["-t ext4 -O ^metadata_csum,^has_journal", "-t ext4 -O metadata_csum", "-t ext3"] {
        let dir = tempfile::tempdir().unwrap();
        let Some(mut contents) = image(dir.path(), &format!("-I 256 {options}")) else { return };
        let lost = damage(dir.path());
        let lost = lost.start * BLOCK..(lost.end * BLOCK).min(contents.len());
        // As damage that a checksum finds, or as a contradiction.
        let status = if options.contains(" metadata_csum") { 1 } else { 2 };

        let output = postread(dir.path(), &["extract", "image", "-C", "refused"]);
        expect(&output, status);
        assert!(!dir.path().join("refused/f").exists());

        let output = postread(dir.path(), &["cat", "image", "/f"]);
        assert_eq!(output.status.code(), Some(status), "{options}: {}", stderr(&output));
        assert!(output.stdout == contents[..lost.start], "{options}: {} bytes", output.stdout.len());
        assert!(stderr(&output).contains("/f: at byte "), "{}", stderr(&output));
        // What comes after can be read too.
        if lost.end < contents.len() {
            let range = format!("{}..", lost.end);
            let output = postread(dir.path(), &["cat", "image", "/f", "--range", &range]);
            assert!(expect_bytes(&output) == &contents[lost.end..], "{options}");
        }

        let output = postread(dir.path(), &["extract", "image", "-C", "out", "--keep-going"]);
        expect(&output, status);
        assert_eq!(stderr(&output).lines().count(), 1, "{}", stderr(&output));
        contents[lost].fill(0);
        assert!(fs::read(dir.path().join("out/f")).unwrap() == contents, "{options}");
        // A later run that can read no more keeps the file.
        let output = postread(dir.path(), &["extract", "image", "-C", "out", "--keep-going"]);
        expect(&output, status);
        assert!(fs::read(dir.path().join("out/f")).unwrap() == contents, "{options}");
    }
}

fn expect_bytes(output: &std::process::Output) -> &[u8] {
    assert_eq!(output.status.code(), Some(0), "{}", stderr(output));
    &output.stdout
}

/// A damaged end of the map of an encrypted file: what is before is decrypted.
#[test]
fn what_is_before_the_damage_is_decrypted() {
    let dir = tempfile::tempdir().unwrap();
    let (name, key_file) = (unpack(dir.path(), "xts-pad16"), key("key64.bin"));
    let key = fs::read(&key_file).unwrap();
    let bytes = fs::read(dir.path().join(&name)).unwrap();
    let good = postread(dir.path(), &["cat", &name, "/enc/f65537", "--key", &key_file]);
    let good = expect_bytes(&good).to_vec();
    let (fs_, inode) = locate(&bytes, "/enc/f65537", Some(&key));
    let superblock = fs_.superblock();
    let index = inode.ino - 1;
    let group = u64::from(index / superblock.inodes_per_group);
    let table = fs_.group_descriptor(group).unwrap().inode_table as usize * superblock.block_size as usize;
    let at = table + (index % superblock.inodes_per_group) as usize * superblock.inode_size as usize + 0x28;
    // The one extent becomes an inner node with two leaves in blocks of their own; the second is not one.
    let extents = fs_.extents(&inode).unwrap();
    assert_eq!(extents.len(), 1, "{extents:?}");
    let block_size = superblock.block_size as usize;
    let (first, half) = ((extents[0].physical as usize / block_size) as u32, 8u32);
    let free = (bytes.len() / block_size - 2) as u32;
    let mut changed = bytes.clone();
    let header =
        |entries: u16, max: u16, depth: u16| [0xf30a, entries, max, depth, 0, 0].map(u16::to_le_bytes).concat();
    let index_entry = |logical: u32, child: u32| [logical, child, 0].map(u32::to_le_bytes).concat();
    let root = [header(2, 4, 1), index_entry(0, free), index_entry(half, free + 1)].concat();
    changed[at..at + root.len()].copy_from_slice(&root);
    let leaf = [header(1, 4, 0), [0, half, first].map(u32::to_le_bytes).concat()].concat();
    let place = free as usize * block_size;
    changed[place..place + 2 * block_size].fill(0);
    changed[place..place + leaf.len()].copy_from_slice(&leaf);
    fs::write(dir.path().join("changed"), changed).unwrap();
    let args = ["--ignore-checksums", "--key", &key_file];
    let output = postread(dir.path(), &[&["cat", "changed", "/enc/f65537"], &args[..]].concat());
    assert!(matches!(output.status.code(), Some(1 | 2)), "{}", stderr(&output));
    assert!(output.stdout == good[..half as usize * block_size], "{} bytes: {}", output.stdout.len(), stderr(&output));
    assert!(stderr(&output).contains("corrupt extent node"), "{}", stderr(&output));
    let output =
        postread(dir.path(), &[&["extract", "changed", "/enc", "-C", "out", "--keep-going"], &args[..]].concat());
    assert!(matches!(output.status.code(), Some(1 | 2)), "{}", stderr(&output));
    let mut wanted = good;
    wanted[half as usize * block_size..].fill(0);
    assert!(fs::read(dir.path().join("out/f65537")).unwrap() == wanted);
    let args = ["extract", "--ciphertext", "changed", "/enc", "-C", "saved", "--ignore-checksums"];
    let output = postread(dir.path(), &args);
    assert!(matches!(output.status.code(), Some(1 | 2)), "{}", stderr(&output));
    let lost = format!("inode {}: bytes 32768 to 69631 are not saved: ", inode.ino);
    assert!(stderr(&output).contains(&lost), "{}", stderr(&output));
    restored(dir.path(), &key_file, &wanted);
}

/// What was saved of `f65537`: refused, or restored with holes.
fn restored(dir: &Path, key_file: &str, wanted: &[u8]) {
    let args = ["extract", "--from-ciphertext", "saved", "--key", key_file, "-C"];
    let output = postread(dir, &[&args[..], &["refused"]].concat());
    expect(&output, 1);
    assert!(stderr(&output).contains("f65537: "), "{}", stderr(&output));
    assert!(!dir.join("refused/f65537").exists() && dir.join("refused/f4096").exists());
    let output = postread(dir, &[&args[..], &["restored", "--keep-going"]].concat());
    expect(&output, 1);
    assert!(stderr(&output).contains("f65537: at byte"), "{}", stderr(&output));
    assert!(fs::read(dir.join("restored/f65537")).unwrap() == wanted);
}

/// Ciphertext that lies past the end of an image that was cut off.
#[test]
fn what_a_truncated_image_has_is_saved() {
    let dir = tempfile::tempdir().unwrap();
    let (name, key_file) = (unpack(dir.path(), "xts-pad16"), key("key64.bin"));
    let good = postread(dir.path(), &["cat", &name, "/enc/f65537", "--key", &key_file]);
    let mut wanted = expect_bytes(&good).to_vec();
    let bytes = fs::read(dir.path().join(&name)).unwrap();
    let (fs_, inode) = locate(&bytes, "/enc/f65537", Some(&fs::read(&key_file).unwrap()));
    let extents = fs_.extents(&inode).unwrap();
    // The last file of the image, in part.
    let end = extents[0].physical as usize + 5 * 4096 + 100;
    // Other files come after it: only this one matters.
    let (mut cut, rest) = (bytes[..end].to_vec(), bytes.len() - end);
    assert!(rest > 0);
    let saved = ["extract", "--ciphertext", "cut", "/enc", "-C", "saved"];
    fs::write(dir.path().join("cut"), &cut).unwrap();
    let output = postread(dir.path(), &saved);
    assert!(output.status.code().is_some_and(|code| (1..=4).contains(&code)), "{output:?}");
    let lost = format!("inode {}: bytes 20480 to 69631 are not saved: ", inode.ino);
    assert!(stderr(&output).contains(&lost), "{}", stderr(&output));
    wanted[5 * 4096..].fill(0);
    let args = ["extract", "--from-ciphertext", "saved", "--key", &key_file, "-C", "restored", "--keep-going"];
    expect(&postread(dir.path(), &args), 1);
    assert!(fs::read(dir.path().join("restored/f65537")).unwrap() == wanted);
    // With the rest of the image at hand the next run saves all of it.
    cut.extend(&bytes[end..]);
    fs::write(dir.path().join("cut"), &cut).unwrap();
    expect(&postread(dir.path(), &saved), 0);
    let args = ["extract", "--from-ciphertext", "saved", "--key", &key_file, "-C", "restored"];
    expect(&postread(dir.path(), &args), 0);
    assert!(fs::read(dir.path().join("restored/f65537")).unwrap() == expect_bytes(&good));
}
