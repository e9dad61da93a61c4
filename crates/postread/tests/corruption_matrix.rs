//! xfstests generic/574, as far as it reads: where a byte is flipped, the read of it fails, whatever the read's shape;
//! and every single-bit flip of a small file, its tree and its descriptor is caught.

mod common;

use std::sync::Arc;

use common::{Protected, engine, memory, pattern, policies};
use postread::{OpenFile, QueuePolicy};
use postread_io::FailureKind;
use postread_io::testing::{Faulty, Flip};
use postread_verity::{Descriptor, EofTail, HashAlg, MerkleTreeParams};

const BLOCK_SIZES: [u32; 4] = [1024, 2048, 4096, 65536];

fn params(block_size: u32) -> MerkleTreeParams {
    MerkleTreeParams::new(HashAlg::Sha256, block_size, b"").expect("sound")
}

/// The whole file in one read, by small reads, and the byte alone.
fn must_fail(what: &str, file: &OpenFile, at: u64, good_before: u64) {
    let len = file.len();
    let mut buf = vec![0; len as usize];
    let mut got = 0;
    let error = loop {
        match file.reader().read_at(&mut buf[got..], got as u64) {
            Ok(0) => panic!("{what}: read to the end"),
            Ok(n) => got += n,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), FailureKind::Corrupt, "{what}: {error}");
    assert!(error.offset >= good_before && error.offset <= at.min(len - 1), "{what}: {error}");
    assert!(file.reader().read_at(&mut [0], at.min(len - 1)).is_err(), "{what}: the byte alone");
    assert!(file.scan(0..len).count() >= 1, "{what}: a scan");
}

#[test]
fn a_byte_of_the_file() {
    for policy in [QueuePolicy::Inline, QueuePolicy::UNBOUND] {
        let engine = engine(policy);
        for block_size in BLOCK_SIZES {
            let mut cases: Vec<(usize, u64)> = [0, 4091, 65536, 131_067].map(|at| (131_072, at)).to_vec();
            let bs = block_size as usize;
            for blocks in 1..=4 {
                cases.extend((0..blocks).map(|b| (blocks * bs, (b * bs + 17) as u64)));
            }
            for (len, at) in cases {
                let p = Protected::new(pattern(len, 1), params(block_size));
                let data = Faulty::new(p.data.clone());
                data.flip(at, 0xff, Flip::Always);
                let file = p.open_over(&engine, Arc::new(data), memory(&p.tree));
                let before = at / u64::from(block_size) * u64::from(block_size);
                must_fail(&format!("{policy} block {block_size} len {len} at {at}"), &file, at, before);
            }
        }
    }
}

#[test]
fn a_byte_of_the_tree() {
    let engine = engine(QueuePolicy::Inline);
    // Dense, and a file that is one hole but for its ends.
    let mut sparse = vec![0; 200_000];
    sparse[0] = 1;
    sparse[199_999] = 1;
    for bytes in [pattern(200_000, 2), sparse] {
        for block_size in [1024, 4096] {
            let p = Protected::new(bytes.clone(), params(block_size));
            for block in 0..p.tree.len() / block_size as usize {
                let tree = Faulty::new(p.tree.clone());
                tree.flip((block * block_size as usize + 33) as u64, 0x80, Flip::Always);
                let file = p.open_over(&engine, memory(&p.data), Arc::new(tree));
                let mut scan = file.scan(0..u64::MAX);
                assert!(scan.by_ref().count() >= 1, "block {block} of {block_size}");
                let bad: Vec<_> = scan.bad_tree().map(|c| c.position).collect();
                assert_eq!(bad, [(block * block_size as usize) as u64]);
            }
        }
    }
}

/// Bytes behind the end of the file in its last block: refused as they are, or not looked at, as one chooses.
#[test]
fn bytes_behind_the_end() {
    for policy in policies() {
        let engine = engine(policy);
        let p = Protected::of_len(130_999);
        let mut on_disk = p.data.clone();
        on_disk.resize(131_072, 0);
        for (flip, tail) in [(false, EofTail::Strict), (true, EofTail::Strict), (true, EofTail::Lenient)] {
            let mut bytes = on_disk.clone();
            if flip {
                bytes[131_000] = 7;
            }
            let layer = p.layer().tail(tail);
            let blocks = layer.hash_blocks(common::linear(memory(&p.tree), p.tree.len() as u64), Vec::new());
            // The mapping reaches to the end of the block, as a file system's extents do.
            let plan = postread::Plan::new(common::linear(memory(&bytes), 131_072), 130_999);
            let file = engine.open(layer.protect(plan, blocks).expect("same size"));
            let result = common::read_all(&file);
            if flip && tail == EofTail::Strict {
                assert_eq!(result.expect_err("bytes behind the end").offset, 126_976);
            } else {
                assert!(result.expect("good") == p.data, "nothing behind the end is given out");
            }
        }
    }
}

#[test]
fn every_single_bit_of_a_small_file() {
    let engine = engine(QueuePolicy::Inline);
    let params = MerkleTreeParams::new(HashAlg::Sha256, 512, b"salt").expect("sound");
    let p = Protected::new(pattern(512 * 17 + 100, 3), params);
    let digest = p.descriptor.file_digest();
    for bit in 0..p.data.len() * 8 {
        let mut data = p.data.clone();
        data[bit / 8] ^= 1 << (bit % 8);
        let file = p.open_over(&engine, memory(&data), memory(&p.tree));
        assert!(file.reader().read_at(&mut [0], (bit / 8) as u64).is_err(), "bit {bit} of the data");
    }
    for bit in 0..p.tree.len() * 8 {
        let mut tree = p.tree.clone();
        tree[bit / 8] ^= 1 << (bit % 8);
        let file = p.open_over(&engine, memory(&p.data), memory(&tree));
        assert!(file.scan(0..u64::MAX).next().is_some(), "bit {bit} of the tree");
    }
    let bytes = p.descriptor.to_bytes();
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes;
        flipped[bit / 8] ^= 1 << (bit % 8);
        let same = Descriptor::parse(&flipped).is_ok_and(|d| d.file_digest() == digest);
        assert!(!same, "bit {bit} of the descriptor");
    }
}
