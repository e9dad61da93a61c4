//! However a file is cut into pieces, holes and parts, its tree is the same.

use std::ops::Range;

use crate::common::{build, noise, params};
use postread_verity::{
    BuildError, GeometryError, HashAlg, MerkleTreeParams, NoTree, PartBuilder, PartError, TreeBuilder, TreeGeometry,
    TreeInMemory, TreeSink,
};
use proptest::prelude::*;

/// A sink that several parts write to: blocks may come in any order.
struct Positioned<'a> {
    geometry: &'a TreeGeometry,
    bytes: &'a mut Vec<u8>,
}

impl TreeSink for Positioned<'_> {
    type Error = std::convert::Infallible;

    fn blocks(&mut self, level: usize, first: u64, blocks: &[u8]) -> Result<(), Self::Error> {
        let at = (self.geometry.level_start(level) + first) as usize * self.geometry.block_size();
        self.bytes[at..at + blocks.len()].copy_from_slice(blocks);
        Ok(())
    }
}

/// Data with the given ranges zeroed.
fn with_holes(len: usize, seed: u64, holes: &[Range<usize>]) -> Vec<u8> {
    let mut data = noise(len, seed);
    for hole in holes {
        let (start, end) = (hole.start.min(len), hole.end.min(len));
        data[start..end].fill(0);
    }
    data
}

fn any_params() -> impl Strategy<Value = MerkleTreeParams> {
    (any::<bool>(), 9u32..=13, 0usize..=32).prop_map(|(long, log, salt)| {
        params(if long { HashAlg::Sha512 } else { HashAlg::Sha256 }, 1 << log, &noise(salt, 3))
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn any_pieces_and_holes(
        params in any_params(),
        pieces in prop::collection::vec((0usize..40_000, any::<bool>()), 0..40),
        seed in any::<u64>(),
    ) {
        let mut data = Vec::new();
        let mut builder = TreeBuilder::new(params, TreeInMemory::default());
        for (i, (len, hole)) in pieces.into_iter().enumerate() {
            if hole {
                builder.push_zeros(len as u64).unwrap();
                data.resize(data.len() + len, 0);
            } else {
                let piece = noise(len, seed ^ i as u64);
                builder.push(&piece).unwrap();
                data.extend_from_slice(&piece);
            }
        }
        let (tree, sink) = builder.finish().unwrap();
        let (whole, bytes) = build(params, &data);
        prop_assert_eq!(tree, whole);
        prop_assert!(sink.into_bytes(&tree.geometry).unwrap() == bytes);
    }

    #[test]
    fn parts_put_together(
        params in any_params(),
        len in 1usize..1_500_000,
        level in 0usize..3,
        hole in (0usize..1_500_000, 0usize..1_500_000),
        seed in any::<u64>(),
    ) {
        let hole = hole.0.min(hole.1)..hole.0.max(hole.1);
        let data = with_holes(len, seed, std::slice::from_ref(&hole));
        let (whole, bytes) = build(params, &data);
        let geometry = TreeGeometry::new(&params, len as u64).unwrap();
        if level + 1 >= geometry.num_levels() {
            prop_assert!(PartBuilder::new(params, &geometry, level, 0, NoTree).is_none());
            return Ok(());
        }
        let mut found = vec![0; geometry.tree_size() as usize];
        let mut parts = Vec::new();
        // Backwards: no part needs another.
        for index in (0..geometry.level_blocks(level)).rev() {
            let sink = Positioned { geometry: &geometry, bytes: &mut found };
            let mut part = PartBuilder::new(params, &geometry, level, index, sink).unwrap();
            let range = part.range().start as usize..part.range().end as usize;
            if hole.start <= range.start && range.end <= hole.end {
                part.push_zeros(range.len() as u64).unwrap();
            } else {
                part.push(&data[range]).unwrap();
            }
            parts.push(part.finish().unwrap().0);
        }
        let mut builder = TreeBuilder::new(params, Positioned { geometry: &geometry, bytes: &mut found });
        for part in parts.iter().rev() {
            builder.push_part(part).unwrap();
        }
        let (tree, _) = builder.finish().unwrap();
        prop_assert_eq!(tree, whole);
        prop_assert!(found == bytes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn parts_of_data_blocks(
        params in any_params(),
        len in 1usize..600_000,
        blocks in 1u64..200,
        seed in any::<u64>(),
    ) {
        let data = with_holes(len, seed, std::slice::from_ref(&(len / 3..len / 2)));
        let (whole, bytes) = build(params, &data);
        let geometry = TreeGeometry::new(&params, len as u64).unwrap();
        let mut builder = TreeBuilder::new(params, TreeInMemory::default());
        let mut at = 0;
        while at < geometry.data_blocks() {
            let end = (at + blocks).min(geometry.data_blocks());
            let mut part = PartBuilder::of_blocks(params, &geometry, at..end).unwrap();
            let range = part.range().start as usize..part.range().end as usize;
            if data[range.clone()].iter().all(|&b| b == 0) {
                part.push_zeros(range.len() as u64).unwrap();
            } else {
                part.push(&data[range]).unwrap();
            }
            builder.push_part(&part.finish().unwrap().0).unwrap();
            at = end;
        }
        prop_assert!(PartBuilder::of_blocks(params, &geometry, at..at + 1).is_none());
        let (tree, sink) = builder.finish().unwrap();
        prop_assert_eq!(tree, whole);
        prop_assert!(sink.into_bytes(&tree.geometry).unwrap() == bytes);
    }
}

#[test]
fn a_hole_of_a_tebibyte_takes_no_time() {
    // The digest of 2^40 zero bytes between two bytes that are not, and of as much without them; the second equals
    // what a builder that is given subtrees of zeros computes by hand.
    let params = MerkleTreeParams::default();
    let mut builder = TreeBuilder::new(params, NoTree);
    builder.push(b"x").unwrap();
    builder.push_zeros(1 << 40).unwrap();
    builder.push(b"y").unwrap();
    assert_eq!(builder.finish().unwrap().0.geometry.data_size(), (1 << 40) + 2);

    let mut builder = TreeBuilder::new(params, NoTree);
    builder.push_zeros(1 << 40).unwrap();
    let (tree, _) = builder.finish().unwrap();
    // 2^28 blocks of 2^12 bytes, 2^7 digests a block: four full levels.
    let mut hash = vec![0; 4096];
    for _ in 0..4 {
        hash = postread_verity::Digest::of(HashAlg::Sha256, &hash).as_bytes().repeat(128);
    }
    assert_eq!(tree.root_hash, postread_verity::Digest::of(HashAlg::Sha256, &hash));
}

#[test]
fn limits_of_generic_692() {
    // More than eight levels, in data and as a hole; a file of more than 2^63 - 1 bytes.
    let small = params(HashAlg::Sha512, 512, b"");
    let limit = 8u64.pow(8) * 512;
    let mut builder = TreeBuilder::new(small, NoTree);
    builder.push_zeros(limit).unwrap();
    assert!(builder.finish().is_ok());
    let mut builder = TreeBuilder::new(small, NoTree);
    builder.push_zeros(limit + 1).unwrap();
    let too_many = GeometryError::TooManyLevels { data_size: limit + 1, block_size: 512 };
    assert_eq!(builder.finish().unwrap_err(), BuildError::Geometry(too_many));
    let mut builder = TreeBuilder::new(small, NoTree);
    assert!(matches!(
        builder.push_zeros(i64::MAX as u64),
        Err(BuildError::Geometry(GeometryError::TooManyLevels { .. }))
    ));

    let mut builder = TreeBuilder::new(MerkleTreeParams::default(), NoTree);
    builder.push_zeros(i64::MAX as u64).unwrap();
    let too_large = BuildError::Geometry(GeometryError::FileTooLarge { data_size: 1 << 63 });
    assert_eq!(builder.push_zeros(1), Err(too_large));
    assert_eq!(builder.push(b"x"), Err(too_large));
    assert_eq!(builder.push_zeros(u64::MAX).unwrap_err().to_string(), "a file cannot have 18446744073709551615 bytes");
    assert_eq!(builder.finish().unwrap().0.geometry.num_levels(), 8);
}

#[test]
fn parts_that_do_not_fit() {
    let params = MerkleTreeParams::default();
    let len = 3 * 128 * 4096 - 5;
    let data = noise(len, 1);
    let geometry = TreeGeometry::new(&params, len as u64).unwrap();
    let part = |index| {
        let mut part = PartBuilder::new(params, &geometry, 0, index, NoTree).unwrap();
        part.push(&data[part.range().start as usize..part.range().end as usize]).unwrap();
        part.finish().unwrap().0
    };
    assert!(PartBuilder::new(params, &geometry, 0, 3, NoTree).is_none());
    let short = PartBuilder::new(params, &geometry, 0, 0, NoTree).unwrap().finish();
    assert_eq!(short.unwrap_err(), BuildError::Part(PartError::Size { wanted: 524_288, found: 0 }));

    let mut builder = TreeBuilder::new(params, NoTree);
    let position = PartError::Position { part: 524_288, builder: 0 };
    assert_eq!(builder.push_part(&part(1)), Err(BuildError::Part(position)));
    builder.push_part(&part(0)).unwrap();
    // Data and parts may alternate, as long as parts begin where they must.
    builder.push(&data[524_288..1_048_576]).unwrap();
    builder.push_part(&part(2)).unwrap();
    let after = BuildError::Part(PartError::AfterEnd { at: len as u64 });
    assert_eq!(builder.push(b"x"), Err(after));
    assert_eq!(builder.finish().unwrap().0, build(params, &data).0);

    let mut builder = TreeBuilder::new(params, NoTree);
    builder.push_part(&part(0)).unwrap();
    let size = PartError::Size { wanted: len as u64, found: 524_288 };
    assert_eq!(builder.finish().unwrap_err(), BuildError::Part(size));
    let salted = MerkleTreeParams::new(HashAlg::Sha256, 4096, b"s").unwrap();
    let mut builder = TreeBuilder::new(salted, NoTree);
    assert_eq!(builder.push_part(&part(0)), Err(BuildError::Part(PartError::Params)));
}
