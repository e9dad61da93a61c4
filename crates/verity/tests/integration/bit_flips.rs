//! Every flipped bit of a small file's data, tree and descriptor is caught; of larger files, any that chance picks.

use postread_verity::{BadBlock, BlockId, Descriptor, EofTail, HashAlg, MerkleTreeParams, Scratch, Verifier};
use proptest::prelude::*;

use crate::common::{build, noise, params};

/// Verifies a whole file from the root hash down, using only hash blocks that were verified; a block whose parent is
/// bad counts as neither good nor bad, but the parent is reported.
fn verify_all(verifier: &Verifier, data: &[u8], tree: &[u8]) -> Vec<BadBlock> {
    let geometry = *verifier.geometry();
    let block_size = geometry.block_size();
    let mut scratch = Scratch::default();
    let mut bad = Vec::new();
    let block = |level: usize, index: u64| {
        let at = (geometry.level_start(level) + index) as usize * block_size;
        &tree[at..at + block_size]
    };
    let mut good: Vec<Vec<bool>> =
        (0..geometry.num_levels()).map(|l| vec![false; geometry.level_blocks(l) as usize]).collect();
    for level in (0..geometry.num_levels()).rev() {
        for index in 0..geometry.level_blocks(level) {
            let above = geometry.hash_at_level(level + 1, index).map(|at| at.index);
            if above.is_some_and(|above| !good[level + 1][above as usize]) {
                continue;
            }
            let parent: Option<&[u8]> = above.map(|above| block(level + 1, above));
            let before = bad.len();
            verifier
                .verify_hash_run(level, index, block(level, index), parent.as_slice(), &mut scratch, |b| bad.push(b));
            good[level][index as usize] = bad.len() == before;
        }
    }
    for (i, piece) in data.chunks(block_size).enumerate() {
        let above = geometry.hash_at_leaf(i as u64).map(|at| at.index);
        if above.is_none_or(|above| good[0][above as usize]) {
            let leaf: Option<&[u8]> = above.map(|above| block(0, above));
            verifier.verify_data(i as u64, piece, leaf.as_slice(), EofTail::Strict, &mut scratch, |b| bad.push(b));
        }
    }
    bad
}

fn flip(bytes: &mut [u8], bit: usize) {
    bytes[bit / 8] ^= 1 << (bit % 8);
}

fn exhaustive(params: MerkleTreeParams, len: usize) {
    let mut data = noise(len, 4);
    let (built, mut tree) = build(params, &data);
    let block_size = params.block_size();
    let verifier = Verifier::from_descriptor(&built.descriptor().self_consistent()).unwrap();
    assert_eq!(verify_all(&verifier, &data, &tree), []);

    for bit in 0..data.len() * 8 {
        flip(&mut data, bit);
        let bad = verify_all(&verifier, &data, &tree);
        flip(&mut data, bit);
        let index = (bit / 8 / block_size) as u64;
        assert_eq!(bad.len(), 1, "data bit {bit}: {bad:?}");
        assert_eq!((bad[0].id, bad[0].offset), (BlockId::Data { index }, index * block_size as u64), "data bit {bit}");
    }
    for bit in 0..tree.len() * 8 {
        flip(&mut tree, bit);
        let bad = verify_all(&verifier, &data, &tree);
        flip(&mut tree, bit);
        let (level, index) = built.geometry.level_of((bit / 8 / block_size) as u64).unwrap();
        assert_eq!(bad.len(), 1, "tree bit {bit}: {bad:?}");
        assert_eq!(bad[0].id, BlockId::Hash { level, index }, "tree bit {bit}");
        assert_eq!(bad[0].offset, (bit / 8 / block_size * block_size) as u64, "tree bit {bit}");
    }
    let digest = built.descriptor().file_digest();
    let good = built.descriptor().to_bytes();
    for bit in 0..good.len() * 8 {
        let mut bytes = good;
        flip(&mut bytes, bit);
        let caught = Descriptor::parse(&bytes).map_or(true, |parsed| parsed.file_digest() != digest);
        assert!(caught, "descriptor bit {bit}");
    }
}

#[test]
fn every_bit_of_a_two_level_file() {
    // 17 and a bit blocks of 512: a root block over two leaf blocks.
    exhaustive(params(HashAlg::Sha256, 512, b"salt"), 17 * 512 + 100);
}

#[test]
fn every_bit_of_a_three_level_file_with_sha512() {
    exhaustive(params(HashAlg::Sha512, 512, b""), 65 * 512 - 1);
}

#[test]
fn every_bit_of_files_of_one_block() {
    exhaustive(MerkleTreeParams::default(), 4096);
    exhaustive(params(HashAlg::Sha512, 1024, &[0; 32]), 1);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn any_bit_of_a_larger_file(
        long in any::<bool>(),
        log in 9u32..=14,
        len in 1usize..3_000_000,
        salt in 0usize..=32,
        at in any::<prop::sample::Index>(),
        in_tree in any::<bool>(),
    ) {
        let params = params(if long { HashAlg::Sha512 } else { HashAlg::Sha256 }, 1 << log, &noise(salt, 5));
        let mut data = noise(len, 6);
        let (built, mut tree) = build(params, &data);
        let verifier = Verifier::from_descriptor(&built.descriptor().self_consistent()).unwrap();
        prop_assert_eq!(verify_all(&verifier, &data, &tree), vec![]);
        let wanted = if in_tree && !tree.is_empty() {
            let bit = at.index(tree.len() * 8);
            flip(&mut tree, bit);
            let (level, index) = built.geometry.level_of(((bit / 8) >> log) as u64).unwrap();
            BlockId::Hash { level, index }
        } else {
            let bit = at.index(data.len() * 8);
            flip(&mut data, bit);
            BlockId::Data { index: ((bit / 8) >> log) as u64 }
        };
        let bad = verify_all(&verifier, &data, &tree);
        prop_assert_eq!(bad.len(), 1);
        prop_assert_eq!(bad[0].id, wanted);
    }
}
