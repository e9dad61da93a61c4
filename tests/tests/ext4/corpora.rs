//! Runs the corpora of the fuzzers: seeds, and inputs that once failed.

use std::fs;
use std::path::Path;

use postread_fsimage::ext4::fuzz;

#[test]
fn corpora_replay() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus");
    for (target, run) in [
        ("ext4_superblock", fuzz::superblock as fn(&[u8])),
        ("ext4_inode", fuzz::inode),
        ("ext4_extent", fuzz::extent),
        ("ext4_directory", fuzz::directory),
        ("ext4_xattr", fuzz::xattr),
        ("ext4_journal", fuzz::journal),
        ("ext4_fast_commit", fuzz::fast_commit),
        ("ext4_image", fuzz::image),
        ("partition", |data| {
            let _ = postread_volume::partition::read(data);
            let _ = postread_volume::detect(data);
        }),
        ("android_sparse", |data| {
            let _ = postread_volume::SparseImage::open(std::sync::Arc::new(data.to_vec()));
        }),
    ] {
        let mut count = 0;
        for entry in fs::read_dir(corpus.join(target)).unwrap() {
            let data = fs::read(entry.unwrap().path()).unwrap();
            run(&data);
            // Cut short, and with flipped bits.
            run(&data[..data.len() / 2]);
            for at in (0..data.len()).step_by(data.len() / 64 + 1) {
                let mut bad = data.clone();
                bad[at] ^= 1 << (at % 8);
                run(&bad);
            }
            count += 1;
        }
        assert!(count > 0, "{target}");
    }
}
