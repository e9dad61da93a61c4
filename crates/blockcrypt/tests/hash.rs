//! Digests against published vectors and somebody else's digests (see `common/oracle.rs`), at every CPU level that this
//! machine has.

mod common;

use common::oracle::{self, digest_by_crate};
use common::{Bytes, levels};
use postread_blockcrypt::hash::{BlockHasher, Digest, HashAlg, Hasher, digest};
use proptest::prelude::*;

/// FIPS 180-4's examples ("", "abc", 448 bits, 896 bits, a million times "a"), as NIST's "Example Algorithms" pages
/// and "Secure Hash Standard Validation System" give them, then the first short messages of the SHAVS.
const TWO_BLOCKS_256: &str = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
const TWO_BLOCKS_512: &str =
    "abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu";

fn vectors() -> Vec<(HashAlg, Vec<u8>, &'static str)> {
    let million = vec![b'a'; 1_000_000];
    let text = |s: &str| s.as_bytes().to_vec();
    let (sha256, sha512) = (HashAlg::Sha256, HashAlg::Sha512);
    vec![
        (sha256, text(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
        (sha256, text("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
        (sha256, text(TWO_BLOCKS_256), "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"),
        (sha256, text(TWO_BLOCKS_512), "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1"),
        (sha256, million.clone(), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"),
        (sha256, vec![0xd3], "28969cdfa74a12c82f3bad960b0b000aca2ac329deea5c2328ebc6f2ba9802c1"),
        (sha256, vec![0x11, 0xaf], "5ca7133fa735326081558ac312c620eeca9970d1e70a4b95533d956f072d1f98"),
        (sha256, vec![0xb4, 0x19, 0x0e], "dff2e73091f6c05e528896c4c831b9448653dc2ff043528f6769437bc7b975c2"),
        (
            sha512,
            text(""),
            "cf83e1357eefb8bdf1542850d66d8007d620e4050b5715dc83f4a921d36ce9ce47d0d13c5d85f2b0ff8318d2877eec2f63b931bd47417a81a538327af927da3e",
        ),
        (
            sha512,
            text("abc"),
            "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f",
        ),
        (
            sha512,
            text(TWO_BLOCKS_256),
            "204a8fc6dda82f0a0ced7beb8e08a41657c16ef468b228a8279be331a703c33596fd15c13b1b07f9aa1d3bea57789ca031ad85c7a71dd70354ec631238ca3445",
        ),
        (
            sha512,
            text(TWO_BLOCKS_512),
            "8e959b75dae313da8cf4f72814fc143f8f7779c6eb9f7fa17299aeadb6889018501d289e4900f7e4331b99dec4b5433ac7d329eeb6dd26545e96e55b874be909",
        ),
        (
            sha512,
            million,
            "e718483d0ce769644e2e42c7bc15b4638e1f98b13b2044285632a803afa973ebde0ff244877ea60a4cb0432ce577c31beb009c5c2c49aa2e4eadb217ad8cc09b",
        ),
        (HashAlg::Sha1, text("abc"), "a9993e364706816aba3e25717850c26c9cd0d89d"),
        // RFC 7693's parameters with a digest of 32 bytes.
        (HashAlg::Blake2b256, text("abc"), "bddd813c634239723171ef3fee98579b94964e3bb1cb3e427262c8c068d52319"),
    ]
}

/// Message counts by the edge they probe: none, one, around a SHA-NI group, around each number of lanes and twice it.
const COUNTS: [usize; 17] = [0, 1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 15, 16, 17, 31, 32, 33];
/// Message lengths: around one compression block of either hash and its last one that has room for the padding.
const LENGTHS: [usize; 17] = [0, 1, 55, 56, 63, 64, 65, 111, 112, 119, 127, 128, 239, 240, 4095, 4096, 4097];
/// Prefix lengths around a compression block of either hash.
const PREFIXES: [usize; 10] = [0, 1, 32, 63, 64, 65, 127, 128, 129, 256];

fn noise(len: usize, seed: u64) -> Vec<u8> {
    Bytes(seed).take(len)
}

#[test]
fn published_vectors() {
    for (alg, message, wanted) in vectors() {
        assert_eq!(format!("{}", digest(alg, &message)), wanted, "{alg} of {} bytes", message.len());
        for level in levels() {
            let hasher = BlockHasher::new(alg).with_platform(level);
            assert_eq!(format!("{:x}", hasher.hash_one(&message)), wanted, "{alg} at {level}");
            // In each lane, and split into prefix, block and suffix.
            let many = vec![&message[..]; 17];
            let mut out = vec![0; many.len() * alg.digest_size()];
            hasher.hash_many(&many, &mut out);
            assert_eq!(hex::encode(out), wanted.repeat(many.len()), "{alg} at {level}");
            let (prefix, rest) = message.split_at(message.len() / 3);
            let (block, suffix) = rest.split_at(rest.len() / 2);
            let split = hasher.with_prefix(prefix).with_suffix(suffix).hash_one(block);
            assert_eq!(format!("{split:?}"), wanted, "{alg} at {level}, split");
        }
    }
}

#[test]
fn every_length_class_agrees_with_the_oracle() {
    let data = noise(33 * 4097 + 512, 2024);
    for &alg in HashAlg::ALL {
        for length in LENGTHS {
            let blocks: Vec<&[u8]> = (0..33).map(|i| &data[i * length..][..length]).collect();
            for prefix in PREFIXES {
                let (prefix, suffix) = (&data[3..3 + prefix], &data[..if prefix % 2 == 1 { 32 } else { 0 }]);
                let wanted: Vec<u8> =
                    blocks.iter().flat_map(|block| oracle::digest(alg, &[prefix, block, suffix])).collect();
                let size = alg.digest_size();
                assert_eq!(
                    wanted[..size],
                    digest_by_crate(alg, &[prefix, blocks[0], suffix]),
                    "{} and RustCrypto agree",
                    oracle::NAME
                );
                for level in levels() {
                    let hasher = BlockHasher::new(alg).with_platform(level).with_prefix(prefix).with_suffix(suffix);
                    for count in COUNTS {
                        let mut out = vec![0; count * size];
                        hasher.hash_many(&blocks[..count], &mut out);
                        assert_eq!(
                            out,
                            wanted[..count * size],
                            "{alg} at {level}: {count} blocks of {length}, prefix {}, suffix {}",
                            prefix.len(),
                            suffix.len()
                        );
                        if length > 0 {
                            out.fill(0);
                            hasher.hash_blocks(&data[..count * length], length, &mut out);
                            assert_eq!(out, wanted[..count * size], "{alg} at {level}: {count} contiguous of {length}");
                        }
                    }
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_shape_agrees_with_the_oracle(
        alg in prop::sample::select(HashAlg::ALL.to_vec()),
        lengths in prop::collection::vec((0_usize..600, 1_usize..20), 1..4),
        prefix in 0_usize..300,
        suffix in 0_usize..300,
        seed in any::<u64>(),
    ) {
        let data = noise(20_000, seed);
        let (prefix, suffix) = (&data[..prefix], &data[400..400 + suffix]);
        // Runs of equal length, of different lengths, from different places.
        let blocks: Vec<&[u8]> = lengths
            .iter()
            .flat_map(|&(length, count)| (0..count).map(move |i| (length, i)))
            .map(|(length, i)| &data[i * 777..][..length])
            .collect();
        let wanted: Vec<u8> = blocks.iter().flat_map(|block| oracle::digest(alg, &[prefix, block, suffix])).collect();
        for level in levels() {
            let hasher = BlockHasher::new(alg).with_platform(level).with_suffix(suffix).with_prefix(prefix);
            let mut out = vec![0; wanted.len()];
            hasher.hash_many(&blocks, &mut out);
            prop_assert_eq!(&out, &wanted, "{} at {}, seed {}", alg, level, seed);
        }
        // The same message in pieces.
        let mut pieces = Hasher::new(alg);
        blocks.iter().for_each(|block| pieces.update(block));
        let digest = pieces.finalize();
        prop_assert_eq!(digest.as_bytes(), &oracle::digest(alg, &blocks)[..]);
    }
}

#[test]
fn a_later_prefix_replaces_the_earlier_one() {
    for &alg in HashAlg::ALL {
        let plain = BlockHasher::new(alg);
        let again = plain.clone().with_prefix(&[1; 100]).with_suffix(&[2; 9]).with_prefix(&[]).with_suffix(&[]);
        assert_eq!(plain.hash_one(b"block"), again.hash_one(b"block"));
        assert_ne!(plain.hash_one(b"block"), plain.with_prefix(b"x").hash_one(b"block"));
    }
}

#[test]
fn digests_compare_by_all_their_bytes() {
    let one = digest(HashAlg::Sha512, b"1");
    assert_eq!(one, digest(HashAlg::Sha512, b"1"));
    assert_ne!(one, digest(HashAlg::Sha512, b"2"));
    let short: Digest = digest(HashAlg::Sha1, b"1");
    assert_ne!(one, short);
    assert_eq!((one.len(), short.len()), (64, 20));
}

#[test]
fn names_round_trip() {
    for &alg in HashAlg::ALL {
        assert_eq!(alg.to_string().parse(), Ok(alg));
        assert_eq!(digest(alg, b"").len(), alg.digest_size());
    }
    assert!("md5".parse::<HashAlg>().is_err());
}

#[test]
#[should_panic(expected = "room for the digests")]
fn room_for_too_few_digests_is_refused() {
    BlockHasher::new(HashAlg::Sha256).hash_blocks(&[0; 8192], 4096, &mut [0; 32]);
}

#[test]
#[should_panic(expected = "bytes of blocks of 4096")]
fn half_a_block_is_refused() {
    BlockHasher::new(HashAlg::Sha256).hash_blocks(&[0; 6144], 4096, &mut [0; 32]);
}
