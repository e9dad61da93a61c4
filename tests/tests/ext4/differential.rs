//! Images made and filled by the kernel that runs the tests, read back by it and by us.

use std::path::Path;
use std::process::Command;

use postread_tests::{Mount, require, require_root, require_tool, run};
use tempfile::NamedTempFile;

use crate::compare::{compare, load};
use crate::populate::{Abilities, populate};

/// Makes an image with mkfs.ext4.
pub(crate) fn mkfs(size: u64, options: &[&str]) -> Option<NamedTempFile> {
    let tool = require_tool("mkfs.ext4")?;
    let image = NamedTempFile::new().unwrap();
    image.as_file().set_len(size).unwrap();
    run(Command::new(tool).args(["-q", "-F"]).args(options).arg(image.path()));
    Some(image)
}

/// Makes, fills, unmounts, and compares.
fn differs_not(options: &[&str], abilities: Abilities) {
    let Some(()) = require_root() else { return };
    let Some(image) = mkfs(192 << 20, options) else { return };
    let Some(mount) = require("a loop mount of ext4", Mount::image(image.path(), "ext4", "")) else { return };
    populate(mount.path(), abilities);
    mount.unmount();
    check(image.path());
}

/// Compares an image with a read-only mount of it.
pub(crate) fn check(image: &Path) -> usize {
    let fs = load(image);
    let mount = Mount::image(image, "ext4", "ro,noatime").unwrap();
    let inodes = compare(&fs, mount.path());
    mount.unmount();
    inodes
}

const FULL: Abilities = Abilities { fallocate: true, large_values: false, attribute_room: 3000 };
const SMALL_BLOCKS: Abilities = Abilities { attribute_room: 700, ..FULL };
const NO_EXTENTS: Abilities = Abilities { fallocate: false, ..FULL };

#[test]
fn blocks_of_1_kib() {
    differs_not(&["-b", "1024"], SMALL_BLOCKS);
}

#[test]
fn blocks_of_2_kib() {
    differs_not(&["-b", "2048"], Abilities { attribute_room: 1500, ..FULL });
}

#[test]
fn blocks_of_4_kib() {
    differs_not(&["-b", "4096"], FULL);
}

#[test]
fn no_extents() {
    differs_not(&["-b", "4096", "-O", "^extents,^64bit"], NO_EXTENTS);
    differs_not(&["-b", "1024", "-O", "^extents,^64bit"], Abilities { attribute_room: 700, ..NO_EXTENTS });
}

#[test]
fn inline_data() {
    differs_not(&["-b", "4096", "-O", "inline_data"], FULL);
    differs_not(&["-b", "1024", "-I", "512", "-O", "inline_data"], SMALL_BLOCKS);
}

#[test]
fn bigalloc() {
    differs_not(&["-b", "4096", "-O", "bigalloc", "-C", "65536"], FULL);
    differs_not(&["-b", "1024", "-O", "bigalloc", "-C", "16384"], SMALL_BLOCKS);
}

#[test]
fn narrow_descriptors() {
    differs_not(&["-b", "4096", "-O", "^64bit"], FULL);
    differs_not(&["-b", "1024", "-O", "^64bit,^metadata_csum,uninit_bg"], SMALL_BLOCKS);
}

#[test]
fn meta_bg() {
    differs_not(&["-b", "1024", "-O", "meta_bg,^resize_inode"], SMALL_BLOCKS);
    differs_not(&["-b", "1024", "-g", "1024", "-O", "meta_bg,^resize_inode,^flex_bg,^64bit"], SMALL_BLOCKS);
}

#[test]
fn attribute_values_in_inodes() {
    differs_not(&["-b", "4096", "-O", "ea_inode"], Abilities { large_values: true, ..FULL });
    differs_not(&["-b", "1024", "-O", "ea_inode,metadata_csum_seed"], Abilities { large_values: true, ..SMALL_BLOCKS });
}

#[test]
fn few_backups_and_no_index() {
    differs_not(&["-b", "1024", "-O", "sparse_super2,^resize_inode,^dir_index"], SMALL_BLOCKS);
    differs_not(&["-b", "1024", "-O", "sparse_super2,^resize_inode,metadata_csum_seed,orphan_file,mmp"], SMALL_BLOCKS);
}

#[test]
fn small_inodes() {
    differs_not(&["-b", "1024", "-I", "128"], SMALL_BLOCKS);
    differs_not(&["-b", "4096", "-I", "1024"], FULL);
}

#[test]
fn as_ext2_and_ext3() {
    differs_not(&["-t", "ext2", "-b", "1024"], Abilities { attribute_room: 700, ..NO_EXTENTS });
    differs_not(&["-t", "ext3", "-b", "4096"], NO_EXTENTS);
    differs_not(&["-b", "1024", "-O", "none"], Abilities { attribute_room: 700, ..NO_EXTENTS });
}
