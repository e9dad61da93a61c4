//! What is written is what `veritysetup format` writes.

use std::fs;
use std::path::Path;
use std::process::Command;

use postread_tests::{noise, require_tool, run};
use postread_verity::HashAlg;
use postread_verity::dm_verity::{BuildError, BuildSizeError, DataHasher, HashType, Params, Superblock, TreeBuilder};

use crate::build;

const UUID: &str = "00112233-4455-6677-8899-aabbccddeeff";
const UUID_BYTES: [u8; 16] =
    [0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff];

/// The published roots of 8 MiB of zeros (cryptsetup, `tests/verity-compat-test`).
#[test]
fn published_roots() {
    let salt = hex::decode("e48da609055204e89ae53b655ca2216dd983cf3cb829f34f63a297d106d53e2d").unwrap();
    let normal = HashType::Normal;
    let cases: [(HashType, HashAlg, u32, &[u8], &str); 7] = [
        (normal, HashAlg::Sha256, 512, &salt, "9de18652fe74edfb9b805aaed72ae2aa48f94333f1ba5c452ac33b1c39325174"),
        (normal, HashAlg::Sha256, 1024, &salt, "54d92778750495d1f80832b486ebd007617d746271511bbf0e295e143da2b3df"),
        (normal, HashAlg::Sha256, 4096, &salt, "e522df0f97da4febb882ac40f30b37dc0b444bf6df418929463fa25280f09d5c"),
        (
            HashType::ChromeOs,
            HashAlg::Sha256,
            4096,
            &salt,
            "cbbf4ebd004ef65e29b935bb635a39cf754d677f3fa10b0126da725bbdf10f7d",
        ),
        (normal, HashAlg::Sha256, 4096, b"", "ef29c902d87350f1da4bfa536e16cebc162a909bf89abe448b81ec500d4fb9bf"),
        (normal, HashAlg::Sha1, 1024, &salt, "d0e9163ca8844aaa2e88fe5265a8c5d9ee494a99"),
        (normal, HashAlg::Sha256, 4096, &[0xda; 3], "1821c076042babe557f7dfef89ca8eb5d36c268cc16d94c4d34c4ac58a552503"),
    ];
    for (hash_type, alg, block_size, salt, wanted) in cases {
        let params = Params::new(hash_type, alg, block_size, block_size, salt).unwrap();
        assert_eq!(hex::encode(build(&params, &vec![0; 8 << 20]).0), wanted, "{params:?}");
    }
}

struct Case {
    params: Params,
    data: Vec<u8>,
}

impl Case {
    fn arguments(&self) -> Vec<String> {
        let p = &self.params;
        let salt = if p.salt().is_empty() { "-".to_owned() } else { hex::encode(p.salt()) };
        [
            ("format", p.hash_type().number().to_string()),
            ("hash", p.alg().to_string()),
            ("data-block-size", p.data_block_size().to_string()),
            ("hash-block-size", p.hash_block_size().to_string()),
            ("salt", salt),
            ("uuid", UUID.to_owned()),
        ]
        .into_iter()
        .map(|(name, value)| format!("--{name}={value}"))
        .collect()
    }

    /// What veritysetup makes of it: the root hash, and the hash device.
    fn by_veritysetup(&self, dir: &Path, more: &[&str]) -> (String, Vec<u8>) {
        let (data, hash) = (dir.join("data"), dir.join("hash"));
        fs::write(&data, &self.data).unwrap();
        let _ = fs::remove_file(&hash);
        let mut command = Command::new("veritysetup");
        command.arg("format").args([&data, &hash]).args(self.arguments()).args(more);
        let output = String::from_utf8(run(&mut command).stdout).unwrap();
        let root = output.lines().find_map(|line| line.strip_prefix("Root hash:")).expect("a root hash").trim();
        (root.to_owned(), fs::read(&hash).unwrap())
    }

    fn superblock(&self) -> Superblock {
        let data_blocks = (self.data.len() / self.params.data_block_size()) as u64;
        Superblock { params: self.params.clone(), data_blocks, uuid: UUID_BYTES }
    }

    /// What we make of it.
    fn by_us(&self) -> (String, Vec<u8>) {
        let (root, tree) = build(&self.params, &self.data);
        let superblock = self.superblock();
        let mut device = superblock.to_bytes().to_vec();
        device.resize(superblock.hash_area_offset(0).unwrap() as usize, 0);
        device.extend_from_slice(&tree);
        (hex::encode(root), device)
    }

    fn check(&self, dir: &Path) {
        let (root, device) = self.by_veritysetup(dir, &[]);
        let (our_root, our_device) = self.by_us();
        assert_eq!(our_root, root, "{:?}, {} bytes", self.params, self.data.len());
        assert!(our_device == device, "{:?}, {} bytes: the hash devices differ", self.params, self.data.len());
        assert_eq!(Superblock::parse(&device), Ok(self.superblock()));
    }
}

/// Formats, algorithms, salts and sizes around the edges of hash blocks.
#[test]
fn hash_devices_of_every_format_and_size() {
    if require_tool("veritysetup").is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for hash_type in [HashType::ChromeOs, HashType::Normal] {
        // veritysetup has no BLAKE2b; the kernel is the judge of it.
        for alg in [HashAlg::Sha1, HashAlg::Sha256, HashAlg::Sha512] {
            for (salt, blocks) in [(0, 1), (1, 2), (32, 127), (256, 128), (20, 129), (64, 1000)] {
                let params = Params::new(hash_type, alg, 4096, 4096, &noise(salt, 3)).unwrap();
                Case { params, data: noise(blocks * 4096, 7) }.check(dir.path());
            }
        }
    }
}

/// Data and hash blocks of different sizes, and trees of three levels and more.
#[test]
fn hash_devices_of_mixed_block_sizes() {
    if require_tool("veritysetup").is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let sizes = [(512, 4096, 16385), (4096, 512, 300), (512, 512, 4097), (1024, 65536, 2049), (65536, 1024, 33)];
    for (data, hash, blocks) in sizes {
        for (hash_type, alg) in [(HashType::Normal, HashAlg::Sha256), (HashType::ChromeOs, HashAlg::Sha1)] {
            let params = Params::new(hash_type, alg, data, hash, &noise(32, 3)).unwrap();
            Case { params, data: noise(blocks * data as usize, 7) }.check(dir.path());
        }
    }
    // The largest tree of two levels with the default parameters, and the smallest of three.
    for blocks in [16384, 16385] {
        let params = Params::default().with_salt(&noise(32, 3)).unwrap();
        Case { params, data: noise(blocks * 4096, 7) }.check(dir.path());
    }
}

#[test]
fn a_tree_without_a_superblock_or_on_the_data_s_own_device() {
    if require_tool("veritysetup").is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let params = Params::default().with_salt(&noise(32, 3)).unwrap();
    let case = Case { params, data: noise(200 * 4096, 7) };
    let (root, device) = case.by_veritysetup(dir.path(), &["--no-superblock"]);
    let (our_root, our_tree) = build(&case.params, &case.data);
    assert_eq!(hex::encode(our_root), root);
    assert!(device == our_tree);

    // The same file for both: the tree follows the data, after a superblock that is not at a block's start.
    let file = dir.path().join("both");
    for offset in [200 * 4096, 200 * 4096 + 512] {
        fs::write(&file, &case.data).unwrap();
        let mut command = Command::new("veritysetup");
        command.arg("format").args([&file, &file]).args(case.arguments());
        command.args([format!("--hash-offset={offset}"), "--data-blocks=200".to_owned()]);
        run(&mut command);
        let written = fs::read(&file).unwrap();
        let superblock = Superblock::parse(&written[offset..]).unwrap();
        assert_eq!(superblock, case.superblock());
        let area = superblock.hash_area_offset(offset as u64).unwrap() as usize;
        assert!(written[area..] == our_tree);
    }
}

#[test]
fn a_device_of_no_blocks_is_refused_by_both() {
    assert!(TreeBuilder::new(&Params::default(), 0).is_err());
    if require_tool("veritysetup").is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("data"), b"").unwrap();
    let mut command = Command::new("veritysetup");
    let output = command.arg("format").args([dir.path().join("data"), dir.path().join("hash")]).output().unwrap();
    assert!(!output.status.success());
}

/// However the data arrives, the tree is the same.
#[test]
fn pieces_and_digests_make_the_same_tree() {
    let params = Params::new(HashType::ChromeOs, HashAlg::Sha1, 512, 1024, b"salt").unwrap();
    let data = noise(3000 * 512, 5);
    let whole = build(&params, &data);
    for piece in [1, 511, 512, 513, 70_000] {
        let mut builder = TreeBuilder::new(&params, 3000).unwrap();
        let mut tree = vec![0; whole.1.len()];
        let mut write = |offset: u64, bytes: &[u8]| -> Result<(), ()> {
            tree[offset as usize..offset as usize + bytes.len()].copy_from_slice(bytes);
            Ok(())
        };
        let (first, second) = data.split_at(data.len() / 2);
        for piece in first.chunks(piece) {
            builder.push(piece, &mut write).unwrap();
        }
        let mut digests = Vec::new();
        DataHasher::new(&params).hash(second, &mut digests);
        builder.push_digests(&digests, &mut write).unwrap();
        let root = builder.finish(&mut write).unwrap();
        assert_eq!((root, tree), whole, "pieces of {piece} bytes");
    }
}

#[test]
fn more_or_less_data_than_announced_is_an_error() {
    let mut write = |_: u64, _: &[u8]| -> Result<(), ()> { Ok(()) };
    let new = || TreeBuilder::new(&Params::default(), 10).unwrap();
    let mut builder = new();
    builder.push(&[0; 9 * 4096], &mut write).unwrap();
    assert_eq!(builder.finish(&mut write), Err(BuildError::Size(size_error(10, 9, false))));
    let mut builder = new();
    builder.push(&[0; 9 * 4096 + 1], &mut write).unwrap();
    assert_eq!(builder.push_digests(&[0; 32], &mut write), Err(BuildError::Size(size_error(10, 9, true))));
    let mut builder = new();
    assert_eq!(builder.push(&[0; 11 * 4096], &mut write), Err(BuildError::Size(size_error(10, 11, false))));
    // What the sink says is passed on.
    let mut full = |_: u64, _: &[u8]| Err("full");
    let mut builder = new();
    builder.push(&[0; 10 * 4096], &mut full).unwrap();
    assert_eq!(builder.finish(&mut full), Err(BuildError::Write("full")));
}

fn size_error(wanted: u64, found: u64, partial: bool) -> BuildSizeError {
    BuildSizeError { wanted, found, partial }
}
