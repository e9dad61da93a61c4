//! Every changed bit is found, in the right place.

use postread_tests::noise;
use postread_verity::HashAlg;
use postread_verity::dm_verity::{BadBlock, HashType, Params, Verifier, VerifierError};

use crate::build;

/// Checks all of a device, whatever fails.
fn verify_all(verifier: &Verifier, data: &[u8], tree: &[u8]) -> Vec<(Option<usize>, u64)> {
    let g = verifier.geometry();
    let area = |level: usize| {
        let start = g.level_offset(level) as usize;
        let len = g.level_blocks(level) as usize * verifier.params().hash_block_size();
        &tree[start..start + len]
    };
    let mut bad = Vec::new();
    let mut found = |block: BadBlock| bad.push((block.level, block.index));
    for level in (0..g.num_levels()).rev() {
        let parents = if level + 1 < g.num_levels() { area(level + 1) } else { &[] };
        verifier.verify_hash_blocks(level, 0, area(level), parents, &mut found);
    }
    let leaves = if g.num_levels() > 0 { area(0) } else { &[] };
    verifier.verify_data(0, data, leaves, &mut found);
    bad
}

#[test]
fn a_changed_byte_is_found_where_it_is() {
    for (hash_type, alg, data_size, hash_size) in [
        (HashType::Normal, HashAlg::Sha256, 4096, 1024),
        (HashType::ChromeOs, HashAlg::Sha1, 512, 512),
        (HashType::Normal, HashAlg::Blake2b256, 512, 4096),
        (HashType::ChromeOs, HashAlg::Sha512, 1024, 1024),
    ] {
        let params = Params::new(hash_type, alg, data_size, hash_size, b"pepper").unwrap();
        let blocks = 150;
        let data = noise(blocks * data_size as usize, 1);
        let (root, tree) = build(&params, &data);
        let verifier = Verifier::new(&params, blocks as u64, &root).unwrap();
        assert_eq!(verify_all(&verifier, &data, &tree), []);
        for at in [0, data.len() / 3, data.len() - 1] {
            let mut data = data.clone();
            data[at] ^= 0x10;
            assert_eq!(verify_all(&verifier, &data, &tree), [(None, (at / data_size as usize) as u64)]);
        }
        for block in 0..verifier.geometry().hash_blocks() {
            let mut tree = tree.clone();
            // The first digest of the block: its child no longer matches either.
            tree[block as usize * hash_size as usize] ^= 1;
            let (level, index) = verifier.geometry().level_of(block).unwrap();
            let bad = verify_all(&verifier, &data, &tree);
            assert_eq!(bad[0], (Some(level), index));
            assert_eq!(bad.len(), 2);
        }
    }
}

#[test]
fn one_block_is_checked_against_the_root_hash() {
    let params = Params::default();
    let data = noise(4096, 1);
    let (root, tree) = build(&params, &data);
    assert!(tree.is_empty());
    let verifier = Verifier::new(&params, 1, &root).unwrap();
    assert_eq!(verify_all(&verifier, &data, &[]), []);
    assert_eq!(verify_all(&verifier, &noise(4096, 2), &[]), [(None, 0)]);
}

#[test]
fn a_root_hash_of_the_wrong_size_is_refused() {
    let error = Verifier::new(&Params::default(), 1, &[0; 20]).unwrap_err();
    assert_eq!(error.to_string(), "expected a root hash of 32 bytes for sha256, found 20");
    assert!(matches!(error, VerifierError::RootHash { wanted: 32, found: 20, .. }));
}

#[test]
fn blocks_of_zeros_are_known_by_their_digest() {
    let params = Params::default().with_salt(b"x").unwrap();
    let mut data = noise(2 * 4096, 1);
    data.resize(3 * 4096, 0);
    let (root, tree) = build(&params, &data);
    let verifier = Verifier::new(&params, 3, &root).unwrap();
    let zero: Vec<bool> = (0..3).map(|i| verifier.is_zero_block(&verifier.data_digest(i, &tree))).collect();
    assert_eq!(zero, [false, false, true]);
}

/// What no digest covers must be zero, as for `veritysetup verify`.
#[test]
fn spare_space_is_looked_at() {
    for (hash_type, gap) in [(HashType::Normal, 20), (HashType::ChromeOs, 128 * 20)] {
        let params = Params::new(hash_type, HashAlg::Sha1, 4096, 4096, b"").unwrap();
        let (root, tree) = build(&params, &noise(129 * 4096, 1));
        let verifier = Verifier::new(&params, 129, &root).unwrap();
        let spare = |block: usize, at: usize| {
            let mut tree = tree.clone();
            tree[block * 4096 + at] = 1;
            let (level, index) = verifier.geometry().level_of(block as u64).unwrap();
            verifier.nonzero_spare(level, index, &tree[block * 4096..(block + 1) * 4096])
        };
        assert_eq!(spare(1, gap), Some(gap));
        assert_eq!(spare(1, 19), None);
        assert_eq!(spare(2, 64), Some(64));
        assert_eq!(spare(0, 4095), Some(4095));
    }
}
