//! Footers and vbmeta images, made here by the layout in AOSP's headers.

use postread_verity::HashAlg;
use postread_verity::avb::{Algorithm, Descriptor, Footer, FooterError, HashtreeError, Vbmeta, VbmetaError};

#[path = "avb_image.rs"]
mod image;

use image::{Hashtree, footer, vbmeta};

#[test]
fn a_footer_is_read_and_held_inside_its_partition() {
    let bytes = footer(4096, 8192, 1024);
    let parsed = Footer::parse(&bytes, 65536).unwrap();
    assert_eq!((parsed.original_image_size, parsed.vbmeta_offset, parsed.vbmeta_size), (4096, 8192, 1024));
    assert!(Footer::parse(&bytes, 8192 + 1024 + 64).is_ok());
    let out = FooterError::Range { offset: 8192, size: 1024, partition: 9279 };
    assert_eq!(Footer::parse(&bytes, 8192 + 1024 + 63), Err(out));
    for (original, offset, size) in [(8193, 8192, 64), (0, u64::MAX, 1), (0, 1, u64::MAX), (0, 0, 65537)] {
        assert!(matches!(Footer::parse(&footer(original, offset, size), 1 << 40), Err(FooterError::Range { .. })));
    }
    assert_eq!(Footer::parse(&[0; 64], 65536), Err(FooterError::Magic));
    assert_eq!(Footer::parse(&bytes[..63], 65536), Err(FooterError::Magic));
    let mut other = bytes;
    other[7] = 2;
    assert_eq!(Footer::parse(&other, 65536), Err(FooterError::Version { major: 2, minor: 0 }));
}

#[test]
fn a_hashtree_is_read() {
    let parsed = Vbmeta::parse(&vbmeta(1, &[Hashtree::default().bytes()])).unwrap();
    assert_eq!(parsed.algorithm, Algorithm::Rsa { hash: HashAlg::Sha256, bits: 2048 });
    assert_eq!((parsed.rollback_index, parsed.flags), (7, 0));
    let tree = parsed.hashtrees().next().unwrap();
    assert_eq!(tree.partition_name, "system");
    assert_eq!((tree.data_blocks, tree.tree_offset), (300, 300 * 4096));
    assert_eq!((tree.params.salt(), tree.params.alg()), (&b"salt"[..], HashAlg::Sha256));
    assert_eq!(tree.root_digest, [9; 32]);
    let fec = tree.fec.unwrap();
    assert_eq!((fec.offset, fec.layout.roots(), fec.layout.blocks()), (304 * 4096, 2, 304));
}

#[test]
fn unsigned_images_and_other_descriptors_are_read() {
    let property = [&0u64.to_be_bytes()[..], &24u64.to_be_bytes(), &[0; 24]].concat();
    let parsed = Vbmeta::parse(&vbmeta(0, &[property, Hashtree::default().bytes()])).unwrap();
    assert_eq!(parsed.algorithm, Algorithm::None);
    assert_eq!(parsed.descriptors[0], Descriptor::Other { tag: 0 });
    assert_eq!(parsed.hashtrees().count(), 1);
}

/// A change anywhere in a signed image is found.
#[test]
fn a_changed_bit_is_an_error() {
    let good = vbmeta(5, &[Hashtree::default().bytes()]);
    let parsed = Vbmeta::parse(&good).unwrap();
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1;
        match Vbmeta::parse(&bad) {
            Err(_) => {}
            // The signature, and the padding of its block, are no part of what is digested.
            Ok(same) => assert!(same == parsed && (256..256 + image::auth_size(5)).contains(&at), "byte {at}"),
        }
    }
}

#[test]
fn what_is_out_of_bounds_is_named() {
    let with = |at: usize, value: u64| {
        let mut image = vbmeta(0, &[Hashtree::default().bytes()]);
        image[at..at + 8].copy_from_slice(&value.to_be_bytes());
        Vbmeta::parse(&image).unwrap_err().to_string()
    };
    assert_eq!(
        with(20, u64::MAX),
        "vbmeta image: the auxiliary block of 18446744073709551615 bytes at byte 256 is out of bounds"
    );
    assert_eq!(with(104, 4096), "vbmeta image: the descriptors of 4096 bytes at byte 0 is out of bounds");
    for tail in [17, 8, u64::MAX - 7] {
        let bytes = [&0u64.to_be_bytes()[..], &tail.to_be_bytes()].concat();
        assert_eq!(Vbmeta::parse(&vbmeta(0, &[bytes])), Err(VbmetaError::Descriptor { offset: 0 }));
    }
}

#[test]
fn hashtrees_that_cannot_be_are_refused() {
    let parse = |tree: Hashtree| match Vbmeta::parse(&vbmeta(0, &[tree.bytes()])) {
        Err(VbmetaError::Hashtree(error)) => error,
        other => panic!("{other:?}"),
    };
    let d = Hashtree::default;
    assert!(matches!(parse(Hashtree { version: 2, ..d() }), HashtreeError::Params(_)));
    assert!(matches!(parse(Hashtree { block_size: 1000, ..d() }), HashtreeError::Params(_)));
    assert!(matches!(parse(Hashtree { alg: "md5", ..d() }), HashtreeError::Algorithm { .. }));
    assert!(matches!(parse(Hashtree { digest: vec![1; 20], ..d() }), HashtreeError::RootDigest { .. }));
    assert!(matches!(parse(Hashtree { name: b"\xff", ..d() }), HashtreeError::Name));
    assert!(matches!(parse(Hashtree { image_size: 5, ..d() }), HashtreeError::ImageSize { .. }));
    assert!(matches!(parse(Hashtree { image_size: 0, ..d() }), HashtreeError::Geometry(_)));
    for (offset, size) in
        [(299 * 4096, 4 * 4096), (300 * 4096 + 1, 4 * 4096), (300 * 4096, 3 * 4096), (u64::MAX - 4095, 4 * 4096)]
    {
        let error = parse(Hashtree { tree: (offset, size), ..d() });
        assert!(matches!(error, HashtreeError::Area { what: "a tree", .. }));
    }
    for fec in [(2, 303 * 4096, 16384), (2, 304 * 4096, 8192), (25, 304 * 4096, 1 << 20), (2, u64::MAX, 16384)] {
        let error = parse(Hashtree { fec, ..d() });
        assert!(matches!(error, HashtreeError::Area { what: "FEC data", .. }));
    }
    assert!(matches!(parse(Hashtree { cut: 8, ..d() }), HashtreeError::TooShort { .. }));
}
