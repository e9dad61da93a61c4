//! What must hold of any bytes that the parsers of dm-verity, FEC and AVB are given. Shared by the fuzz targets and by the
//! ordinary tests that replay their corpora.
#![allow(dead_code)] // Each target uses one of them.

use postread_verity::avb::{FOOTER_SIZE, Footer, Vbmeta};
use postread_verity::dm_verity::{Geometry, Superblock, TreeBuilder};
use postread_verity::fec::{CODEWORD, Encoder, correct_codeword};

/// A superblock that parses comes back from its own bytes, and its tree (unless it is too large) has a shape.
pub(crate) fn superblock(data: &[u8]) {
    let Ok(superblock) = Superblock::parse(data) else { return };
    assert_eq!(Superblock::parse(&superblock.to_bytes()).as_ref(), Ok(&superblock));
    let _ = superblock.hash_area_offset(u64::MAX - data.len() as u64);
    let Ok(geometry) = Geometry::new(&superblock.params, superblock.data_blocks) else { return };
    for level in 0..geometry.num_levels() {
        let last = geometry.level_blocks(level) - 1;
        assert_eq!(geometry.data_blocks_under(level, last).end, superblock.data_blocks);
        assert_eq!(geometry.level_of(geometry.level(level).start), Some((level, 0)));
    }
    assert!(TreeBuilder::new(&superblock.params, superblock.data_blocks).is_ok());
}

/// A partition: its footer is answered, and the image that it points to; so is a vbmeta image by itself.
pub(crate) fn avb(data: &[u8]) {
    let partition = data.len() as u64;
    if let Some(last) = data.last_chunk::<FOOTER_SIZE>()
        && let Ok(footer) = Footer::parse(last, partition)
    {
        let start = footer.vbmeta_offset as usize;
        let _ = Vbmeta::parse(&data[start..start + footer.vbmeta_size as usize]);
    }
    if let Ok(vbmeta) = Vbmeta::parse(data) {
        for tree in vbmeta.hashtrees() {
            assert!(tree.tree_offset >= tree.data_blocks * tree.params.data_block_size() as u64);
        }
    }
}

/// Whatever is corrected becomes a codeword. The first byte says how many roots, the second how many erasures follow.
pub(crate) fn fec_codeword(data: &[u8]) {
    let &[roots, count, ref rest @ ..] = data else { return };
    let roots = 2 + usize::from(roots) % 23;
    let (erasures, rest) = rest.split_at(rest.len().min(usize::from(count) % (roots + 1)));
    let erasures: Vec<usize> = erasures.iter().map(|&at| usize::from(at)).collect();
    let mut word = rest.to_vec();
    word.resize(CODEWORD, 0);
    let remainder = |word: &[u8]| -> Vec<u8> {
        let mut encoder = Encoder::new(roots, 1);
        word[..CODEWORD - roots].iter().for_each(|byte| encoder.push_row(&[*byte]));
        encoder.parity().iter().zip(&word[CODEWORD - roots..]).map(|(a, b)| a ^ b).collect()
    };
    if let Ok(corrections) = correct_codeword(&remainder(&word), &erasures) {
        for (at, value) in corrections {
            word[at] ^= value;
        }
        assert!(remainder(&word).iter().all(|&byte| byte == 0));
    }
}
