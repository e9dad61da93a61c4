//! What the verification primitives say of damaged, cut, long and sparse data. The positions are those of xfstests'
//! generic/574.

use postread_verity::{BadBlock, BlockId, Check, Digest, EofTail, HashAlg, Mismatch, Scratch, Verifier};

use crate::common::{build, noise, params};

/// Verifies one level's worth of tree and `data` from block `first` on.
fn bad_data(verifier: &Verifier, first: u64, data: &[u8], leaves: &[&[u8]], tail: EofTail) -> Vec<BadBlock> {
    let mut bad = Vec::new();
    verifier.verify_data(first, data, leaves, tail, &mut Scratch::default(), |b| bad.push(b));
    bad
}

#[test]
fn positions_of_generic_574() {
    for log in 9..=16 {
        let block_size = 1usize << log;
        let data = noise(131_072, 7);
        let (built, tree) = build(params(HashAlg::Sha256, 1 << log, b""), &data);
        let verifier = Verifier::from_descriptor(&built.descriptor().self_consistent()).unwrap();
        let start = built.geometry.level_start(0) as usize * block_size;
        let leaves: Vec<&[u8]> = tree[start..].chunks(block_size).collect();
        for at in [0, 4091, 65_536, 131_067] {
            let mut damaged = data.clone();
            damaged[at..at + 5].copy_from_slice(b"zzzzz");
            let bad = bad_data(&verifier, 0, &damaged, &leaves, EofTail::Strict);
            let (first, last) = (at / block_size, (at + 4) / block_size);
            let wanted: Vec<BlockId> = (first..=last).map(|i| BlockId::Data { index: i as u64 }).collect();
            assert_eq!(bad.iter().map(|b| b.id).collect::<Vec<_>>(), wanted, "{block_size} {at}");
            for b in bad {
                let BlockId::Data { index } = b.id else { panic!("{b}") };
                let block = &damaged[index as usize * block_size..][..block_size];
                let Mismatch::Digest { wanted, found } = b.mismatch else { panic!("{b}") };
                assert_eq!(found, Digest::of(HashAlg::Sha256, block));
                assert_ne!(wanted, found);
                assert_eq!(b.offset, index * block_size as u64);
                assert!(
                    b.to_string().starts_with(&format!("data block {index} at offset {}: expected sha256:", b.offset))
                );
            }
        }
    }
}

#[test]
fn each_block_of_files_of_one_to_four() {
    for blocks in 1..=4 {
        let data = noise(blocks * 4096, 8);
        let (built, tree) = build(params(HashAlg::Sha512, 4096, b"s"), &data);
        let verifier = Verifier::from_descriptor(&built.descriptor().self_consistent()).unwrap();
        let leaves: Vec<&[u8]> = tree.chunks(4096).collect();
        for index in 0..blocks {
            let mut damaged = data.clone();
            damaged[index * 4096 + 17] ^= 1;
            let bad = bad_data(&verifier, 0, &damaged, &leaves, EofTail::Strict);
            assert_eq!(bad.len(), 1);
            assert_eq!(bad[0].id, BlockId::Data { index: index as u64 });
        }
    }
}

#[test]
fn the_tail_behind_the_end_of_the_file() {
    for len in [1, 5000, 4096 * 130 - 1] {
        let data = noise(len, 9);
        let (built, tree) = build(params(HashAlg::Sha256, 4096, b""), &data);
        let verifier = Verifier::from_descriptor(&built.descriptor().self_consistent()).unwrap();
        let leaves: Vec<&[u8]> = match built.geometry.num_levels() {
            0 => Vec::new(),
            _ => tree[built.geometry.level_start(0) as usize * 4096..].chunks(4096).collect(),
        };
        let last = BlockId::Data { index: built.geometry.data_blocks() - 1 };
        let mut block = data.clone();
        for tail in [EofTail::Strict, EofTail::Lenient] {
            assert_eq!(bad_data(&verifier, 0, &data, &leaves, tail), [], "without a tail");
        }
        block.resize(len.next_multiple_of(4096), 0);
        for tail in [EofTail::Strict, EofTail::Lenient] {
            assert_eq!(bad_data(&verifier, 0, &block, &leaves, tail), [], "a tail of zeros");
        }
        block[len] = 1;
        assert_eq!(bad_data(&verifier, 0, &block, &leaves, EofTail::Strict)[0].id, last);
        assert_eq!(bad_data(&verifier, 0, &block, &leaves, EofTail::Lenient), []);
        // Some of the tail only: whatever is there counts.
        assert_eq!(bad_data(&verifier, 0, &block[..len + 1], &leaves, EofTail::Strict)[0].id, last);
        assert_eq!(bad_data(&verifier, 0, &block[..len + 1], &leaves, EofTail::Lenient), []);
        // Damage within the file is found either way.
        block[len] = 0;
        block[len - 1] ^= 1;
        for tail in [EofTail::Strict, EofTail::Lenient] {
            assert_eq!(bad_data(&verifier, 0, &block, &leaves, tail)[0].id, last);
        }
    }
}

#[test]
fn blocks_past_the_end_of_the_file_must_be_zeros() {
    // As with 1024-byte blocks in a 4096-byte page: the file ends in the first of four.
    let data = noise(700, 10);
    let (built, _) = build(params(HashAlg::Sha256, 1024, b""), &data);
    let verifier = Verifier::from_descriptor(&built.descriptor().self_consistent()).unwrap();
    let mut page = data.clone();
    page.resize(4096, 0);
    for tail in [EofTail::Strict, EofTail::Lenient] {
        assert_eq!(bad_data(&verifier, 0, &page, &[], tail), []);
        let mut damaged = page.clone();
        damaged[2048 + 7] = 1;
        let bad = bad_data(&verifier, 0, &damaged, &[], tail);
        let mismatch = Mismatch::NotZeroPastEof { at: 7 };
        assert_eq!(bad, [BadBlock { id: BlockId::Data { index: 2 }, offset: 2048, mismatch }]);
        // Asked for from behind the end.
        assert_eq!(bad_data(&verifier, 2, &damaged[2048..], &[], tail), bad);
    }
}

#[test]
fn an_empty_file_has_only_blocks_past_its_end() {
    let (built, tree) = build(params(HashAlg::Sha256, 4096, b""), b"");
    assert!(tree.is_empty());
    let verifier = Verifier::from_descriptor(&built.descriptor().self_consistent()).unwrap();
    assert_eq!(bad_data(&verifier, 0, &[], &[], EofTail::Strict), []);
    assert_eq!(bad_data(&verifier, 0, &[0; 4096], &[], EofTail::Strict), []);
    assert_eq!(bad_data(&verifier, 0, &[1; 1], &[], EofTail::Lenient).len(), 1);
    assert_eq!(verifier.wanted(BlockId::Data { index: 0 }, None), None);
}

#[test]
fn a_file_that_was_cut_is_short_even_where_it_held_zeros() {
    let mut data = noise(3 * 4096, 11);
    data[2 * 4096 + 100..].fill(0);
    let (built, tree) = build(params(HashAlg::Sha256, 4096, b""), &data);
    let verifier = Verifier::from_descriptor(&built.descriptor().self_consistent()).unwrap();
    let bad = bad_data(&verifier, 0, &data[..2 * 4096 + 100], &[&tree], EofTail::Lenient);
    let mismatch = Mismatch::Short { wanted: 4096, found: 100 };
    assert_eq!(bad, [BadBlock { id: BlockId::Data { index: 2 }, offset: 8192, mismatch }]);
    // In the last, partial block too.
    let (built, tree) = build(params(HashAlg::Sha256, 4096, b""), &data[..3 * 4096 - 50]);
    let verifier = Verifier::from_descriptor(&built.descriptor().self_consistent()).unwrap();
    let bad = bad_data(&verifier, 2, &data[2 * 4096..2 * 4096 + 100], &[&tree], EofTail::Strict);
    let mismatch = Mismatch::Short { wanted: 4046, found: 100 };
    assert_eq!(bad, [BadBlock { id: BlockId::Data { index: 2 }, offset: 8192, mismatch }]);
}

#[test]
fn holes_are_compared_without_hashing() {
    let mut data = noise(300 * 4096 + 5, 12);
    data[4096 * 100..4096 * 200].fill(0);
    let (built, tree) = build(params(HashAlg::Sha256, 4096, b"x"), &data);
    let verifier = Verifier::from_descriptor(&built.descriptor().self_consistent()).unwrap();
    let leaves: Vec<&[u8]> = tree[4096..].chunks(4096).collect();
    let holes = |first: u64, count: u64| {
        let mut bad = Vec::new();
        verifier.verify_hole(first, count, &leaves[(first / 128) as usize..], |b| bad.push(b.id));
        bad
    };
    assert_eq!(holes(100, 100), []);
    assert_eq!(holes(199, 2), [BlockId::Data { index: 200 }]);
    // The last block is not zeros; those behind the end are not in the tree.
    assert_eq!(holes(300, 10), [BlockId::Data { index: 300 }]);
}

#[test]
fn runs_across_hash_blocks() {
    // From the middle of one leaf block to the middle of the third; and hash blocks under their parents.
    let data = noise(400 * 4096, 13);
    let (built, tree) = build(params(HashAlg::Sha256, 4096, b""), &data);
    let verifier = Verifier::from_descriptor(&built.descriptor().self_consistent()).unwrap();
    let leaves: Vec<&[u8]> = tree[4096..].chunks(4096).collect();
    let mut damaged = data[100 * 4096..300 * 4096].to_vec();
    damaged[4096 * 28] ^= 1;
    damaged[4096 * 199] ^= 1;
    let bad = bad_data(&verifier, 100, &damaged, &leaves, EofTail::Strict);
    let ids: Vec<BlockId> = bad.iter().map(|b| b.id).collect();
    assert_eq!(ids, [BlockId::Data { index: 128 }, BlockId::Data { index: 299 }]);

    let mut bytes = tree[4096..].to_vec();
    bytes[2 * 4096 + 9] ^= 4;
    let mut bad = Vec::new();
    verifier.verify_hash_run(0, 0, &bytes, &[&tree[..4096]], &mut Scratch::default(), |b| bad.push((b.id, b.offset)));
    assert_eq!(bad, [(BlockId::Hash { level: 0, index: 2 }, 3 * 4096)]);
}

#[test]
fn blocks_of_many_places_in_one_call() {
    let data = noise(200 * 1024, 14);
    let (built, tree) = build(params(HashAlg::Sha256, 1024, b""), &data);
    let verifier = Verifier::from_descriptor(&built.descriptor().self_consistent()).unwrap();
    let geometry = built.geometry;
    let block = |level: usize, index: u64| &tree[(geometry.level_start(level) + index) as usize * 1024..][..1024];
    let mut checks = Vec::new();
    for index in 0..200u64 {
        let id = BlockId::Data { index };
        let leaf = block(0, geometry.hash_at_leaf(index).unwrap().index);
        let bytes = &data[index as usize * 1024..][..1024];
        checks.push(Check { id, bytes, wanted: verifier.wanted(id, Some(leaf)).unwrap() });
    }
    let root = BlockId::Hash { level: 1, index: 0 };
    checks.push(Check { id: root, bytes: block(1, 0), wanted: verifier.wanted(root, None).unwrap() });
    for index in 0..geometry.level_blocks(0) {
        let id = BlockId::Hash { level: 0, index };
        checks.push(Check { id, bytes: block(0, index), wanted: verifier.wanted(id, Some(block(1, 0))).unwrap() });
    }
    let bad = |checks: &[Check<'_>]| {
        let mut bad = Vec::new();
        verifier.verify(checks, &mut Scratch::default(), |b| bad.push(b.id));
        bad
    };
    assert_eq!(bad(&checks), []);
    let (one, two) = (checks[3].bytes, checks[150].bytes);
    checks[3].bytes = two;
    checks[150].bytes = &one[..1000];
    assert_eq!(bad(&checks), [BlockId::Data { index: 3 }, BlockId::Data { index: 150 }]);

    assert_eq!(verifier.wanted(BlockId::Data { index: 200 }, Some(block(0, 0))), None);
    assert_eq!(verifier.wanted(BlockId::Data { index: 3 }, None), None);
    assert_eq!(verifier.wanted(BlockId::Hash { level: 2, index: 0 }, None), None);
    assert_eq!(verifier.wanted(BlockId::Hash { level: 0, index: 7 }, Some(block(1, 0))), None);
}
