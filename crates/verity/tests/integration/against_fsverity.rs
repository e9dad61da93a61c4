//! Byte-for-byte equality with `fsverity digest --out-merkle-tree --out-descriptor` (fsverity-utils).

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use crate::common::{build, have_tool, noise, params};
use postread_verity::HashAlg;

const LARGEST: usize = 128 << 20;
/// Up to this size every salt is tried; above it one for each size, in turn.
const SMALL: usize = 300 << 10;

/// 0, 1, around one block, around the edge of each level, and 128 MiB and a block.
fn sizes(alg: HashAlg, block_size: usize) -> Vec<usize> {
    let arity = block_size / alg.digest_size();
    let mut sizes = vec![0, 1, LARGEST + block_size];
    let mut edge = block_size;
    while edge <= LARGEST {
        sizes.extend([edge - 1, edge, edge + 1, edge + block_size]);
        edge *= arity;
    }
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

fn compare(dir: &Path, file: &Path, data: &[u8], alg: HashAlg, block_size: u32, salt: &[u8]) {
    let (tree_file, descriptor_file) = (dir.join("tree"), dir.join("descriptor"));
    let mut command = Command::new("fsverity");
    command.arg("digest").arg(file);
    command.arg(format!("--hash-alg={alg}")).arg(format!("--block-size={block_size}"));
    if !salt.is_empty() {
        command.arg(format!("--salt={}", hex::encode(salt)));
    }
    command.arg(format!("--out-merkle-tree={}", tree_file.display()));
    command.arg(format!("--out-descriptor={}", descriptor_file.display()));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    let what = format!("{alg}, blocks of {block_size}, salt of {}, {} bytes", salt.len(), data.len());
    let (tree, bytes) = build(params(alg, block_size, salt), data);
    let descriptor = tree.descriptor();
    let line = format!("{} {}\n", descriptor.file_digest(), file.display());
    assert_eq!(String::from_utf8_lossy(&output.stdout), line, "{what}");
    assert!(fs::read(&descriptor_file).unwrap() == descriptor.to_bytes(), "descriptor: {what}");
    assert!(fs::read(&tree_file).unwrap() == bytes, "tree: {what}");
}

fn matrix(test: &str, alg: HashAlg) {
    if !have_tool("fsverity", "--version", test) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data");
    let data = noise(LARGEST + (64 << 10), 1);
    let salts: Vec<Vec<u8>> = [0, 1, 16, 31, 32].iter().map(|&len| noise(len, 2)).collect();
    fs::write(&path, &data).unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    let mut cases: Vec<(usize, u32)> = Vec::new();
    for log in 9..=16 {
        cases.extend(sizes(alg, 1 << log).into_iter().map(|size| (size, 1 << log)));
    }
    // Largest first, so that the one file need only be cut.
    cases.sort_by(|a, b| b.cmp(a));
    for (turn, (size, block_size)) in cases.into_iter().enumerate() {
        file.set_len(size as u64).unwrap();
        for (i, salt) in salts.iter().enumerate() {
            if size <= SMALL || i == turn % salts.len() {
                compare(dir.path(), &path, &data[..size], alg, block_size, salt);
            }
        }
    }
}

#[test]
fn sha256() {
    matrix("sha256", HashAlg::Sha256);
}

#[test]
fn sha512() {
    matrix("sha512", HashAlg::Sha512);
}
