//! Published vectors: fsverity-utils' `programs/test_compute_digest.c`, xfstests' generic/575, and digests that
//! other projects print in their documentation.

use crate::common::{build, params};
use postread_verity::HashAlg::{self, Sha256, Sha512};
use postread_verity::{Digest, NoTree, TreeBuilder};

/// The file that fsverity-utils' test makes up: byte i is the sum of i modulo 11, 439 and 1103.
fn test_file(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i % 11 + i % 439 + i % 1103) as u8).collect()
}

#[test]
fn fsverity_utils_test_compute_digest() {
    let cases: [(HashAlg, u32, &[u8], usize, &str); 12] = [
        (Sha256, 4096, b"", 1000000, "48df0c462329cd879661bd05b39aa81b05cc16afd27a7196a559da83531d39d9"),
        (Sha256, 4096, b"", 100000, "f2096a36c5cdca4fa33ee8852833150bb324992e5417a9d571f1bffff73b9efc"),
        (Sha256, 4096, b"", 4096, "6ac39979016e3ddf3d39fff6cb984f7c118acdf1852919f5c100c4b142c1818e"),
        (Sha256, 4096, b"", 1, "b803429503d95915829b29fdbc8bbad142f3abfd11b1cadf5526582e685c0551"),
        (Sha256, 4096, b"", 0, "3d248ca542a24fc62d1c43b916eae5016878e2533c88238480b26128a1f1af95"),
        (Sha256, 4096, b"abcd", 1000000, "917900b0d299454aa304d5debc6f39e4af7b5abe33bdbc568d5d8f1e5c4d8652"),
        (
            Sha256,
            4096,
            b"0123456789:;<=>?@ABCDEFGHIJKLMNO",
            1000000,
            "bc2d70324c048c220a2cb190832140863eb268e680427939e5d467bea5ec5ad9",
        ),
        (Sha256, 1024, b"", 1000000, "e9df927c14fcb961d5f51c666d8ae4c14fe4ff98a374c733e898d00c9e74a8e3"),
        (Sha256, 512, b"", 1000000, "0393ee3dfd4a28966e2af4e07cfa5b032c30da5bb8e8ef63b9a55bf963262334"),
        (Sha256, 65536, b"", 1000000, "f3b6418f26d4d0e74728193bae76f15cb4bb2ce9777448d76bd8138b69ec61c2"),
        (
            Sha512,
            4096,
            b"abcd",
            1000000,
            "8425c6d0c94f84ed904c12936845fbb7af9953753789712dcc3be142db3d4b6b47a399ad52aa609256ce29a960bf4bb0e595ec386ca58c06519d546dc5b197bb",
        ),
        (Sha256, 4096, b"", 100000, "f2096a36c5cdca4fa33ee8852833150bb324992e5417a9d571f1bffff73b9efc"),
    ];
    for (alg, block_size, salt, size, wanted) in cases {
        let (tree, _) = build(params(alg, block_size, salt), &test_file(size));
        assert_eq!(tree.descriptor().file_digest().to_hex(), wanted, "{alg} {block_size} {size}");
    }
}

#[test]
fn fsverity_utils_tree_blocks() {
    // 100,000 zeros in blocks of 1024: four leaf blocks, the first three equal, and a root block before them.
    let (tree, bytes) = build(params(Sha256, 1024, b""), &[0; 100_000]);
    assert_eq!(bytes.len(), 5 * 1024);
    let hash = |block: usize| Digest::of(Sha256, &bytes[block * 1024..][..1024]).to_hex();
    assert_eq!(hash(0), "68c538e11958d65d68b6fe8e9fb8ccabecfd928b01d06344e223ed41ddc4544a");
    for block in 1..4 {
        assert_eq!(hash(block), "f789baab53859faf36d6d75d1042064294202d6e13e7716f394fba434ccc4986");
    }
    assert_eq!(hash(4), "00fed03c5d6eab213143f3d96a5ca31c2b89f5684e6c8e07873e5e976517b48f");
    let wanted = "09cbbaeed2a04c2da242c10e1568d96f358a16aa1ebe8cf0286120c13c9366d1";
    assert_eq!(tree.descriptor().file_digest().to_hex(), wanted);
}

/// Digests of files of zeros. The large ones are pushed once as data and once as a hole.
#[test]
fn xfstests_generic_575() {
    let salt = hex::decode("f3c93fa6fb828c0e1587e5714ecf6f56").unwrap();
    // 20 digests, 16 of them distinct: an empty salt is no salt.
    let cases: [(HashAlg, u32, &[u8], u64, &str); 16] = [
        (Sha256, 1024, b"", 0, "f2cca36b9b1b7f07814e4284b10121809133e7cb9c4528c8f6846e85fc624ffa"),
        (Sha256, 1024, b"", 4096, "ea08590a4fe9c3d6c9dafe0eedacd9dffff8f24e24f1865ee3af132a495ab087"),
        (Sha256, 1024, b"", 65536, "527496288d703686e31092f5cca7e1306b2467f00b247ad01056ee5ec35a4bb9"),
        (Sha256, 1024, &salt, 100_000_000, "087818b23312acb15dff9ff6e2b4f601406d08bb36013542444cc15248f47016"),
        (Sha256, 4096, b"", 0, "3d248ca542a24fc62d1c43b916eae5016878e2533c88238480b26128a1f1af95"),
        (Sha256, 4096, b"", 4096, "babc284ee4ffe7f449377fbf6692715b43aec7bc39c094a95878904d34bac97e"),
        (Sha256, 4096, b"", 65536, "011e3f2b1dc89b75d78cddcc2a1b85cd8a64b2883e5f20f277ae4c0617e0404f"),
        (Sha256, 4096, &salt, 100_000_000, "9d33cab743468fcbe4edab91a275b30dd543c12dd5e6ce6f2f737f66a1558f06"),
        (
            Sha512,
            1024,
            b"",
            0,
            "8451664f25b2ad3f24391280e0c5681cb843389c180baa719f8fdfb063f5ddfa\
             2d1c4433e55e2b6fbb3ba6aa2df8a4f41bf56cb7e0a3b617b6919a42c80f034c",
        ),
        (
            Sha512,
            1024,
            b"",
            4096,
            "ab3c6444ab377bbe54c604c26cad241b146d85dc29727703a0d8134f70a8172f\
             b3fa67d171355106b69cc0a9e7e9debb335f9461b3aba44093914867f7c73233",
        ),
        (
            Sha512,
            1024,
            b"",
            65536,
            "e6a11353c24dd7b4603cb8ffa50a7041dbea7382d4698474ccbc2d8b34f3a83d\
             8bf16df25c64ed31ee27213a8a3cbd001fb1ccde46384c23b81305c2393c1046",
        ),
        (
            Sha512,
            1024,
            &salt,
            100_000_000,
            "517d573bd50d5f3787f5766c2ac60c7af854b0901b69757b4ef8dd70aa6b30fc\
             c10d81629ce923bdd062a01c20fad0f063a081a2f3b0814ac06547b26bedc0d9",
        ),
        (
            Sha512,
            4096,
            b"",
            0,
            "ccf9e5aea1c2a64efa2f2354a6024b90dffde6bbc017825045dce374474e13d1\
             0adb9dadcc6ca8e17a3c075fbd31336e8f266ae6fa93a6c3bed66f9e784e5abf",
        ),
        (
            Sha512,
            4096,
            b"",
            4096,
            "928922686c4caf32175f5236a7f964e9925d10a74dc6d8344a8bd08b23c228ff\
             5792573987d7895f628f39c4f4ebe39a7367d7aeb16aaa0cd324ac1d53664e61",
        ),
        (
            Sha512,
            4096,
            b"",
            65536,
            "eab7224ce374a0a4babcb2db25e24836247f38b87806ad9be9e5ba4daac2f5b8\
             14fc0cbdfd9f1f8499b3c9a6c1b38fe08974cce49883ab4ccd04462fd2f9507f",
        ),
        (
            Sha512,
            4096,
            &salt,
            100_000_000,
            "f7083a38644880d25539488313e9e5b41a4d431a0e383945129ad2c36e3c1d0f\
             28928a424641bb1363c12b6e770578102566acea73baf1ce8ee15336f5ba2446",
        ),
    ];
    let zeros = vec![0; 1_000_000];
    for (alg, block_size, salt, size, wanted) in cases {
        let mut as_data = TreeBuilder::new(params(alg, block_size, salt), NoTree);
        let mut left = size;
        while left > 0 {
            let now = left.min(zeros.len() as u64);
            as_data.push(&zeros[..now as usize]).unwrap();
            left -= now;
        }
        let mut as_hole = TreeBuilder::new(params(alg, block_size, salt), NoTree);
        as_hole.push_zeros(size).unwrap();
        for (what, builder) in [("data", as_data), ("hole", as_hole)] {
            let (tree, _) = builder.finish().unwrap();
            assert_eq!(tree.descriptor().file_digest().to_hex(), wanted, "{alg} {block_size} {size} as {what}");
        }
    }
}

#[test]
fn digests_in_documentation() {
    // fsverity-utils' README, and composefs-rs.
    let digest = |data: &[u8]| build(params(Sha256, 4096, b""), data).0.descriptor().file_digest().to_string();
    assert_eq!(digest(b""), "sha256:3d248ca542a24fc62d1c43b916eae5016878e2533c88238480b26128a1f1af95");
    assert_eq!(digest(b"hello world"), "sha256:1e2eaa4202d750a41174ee454970b92c1bc2f925b1e35076d8c7d5f56362ba64");
}
