//! The hash that an index orders a directory's entries by, and that Linux puts into no-key names.
//!
//! The versions are numbered as in the superblock and in an index's root. The hash is of the name's bytes
//! as they are on disk (ciphertext in an encrypted directory), four to a word after a pad made of the length. The
//! functions are described in the kernel's documentation, `Documentation/filesystems/ext4/directory.rst`: a cut MD4
//! (RFC 1320) of three rounds of eight operations, the Tiny Encryption Algorithm, and an older one of ext3's.

use super::bytes::{low32, to_u64, to_usize};
use super::directory::DirHash;
use super::error::Result;
use super::features::Compat;
use super::filesystem::Ext4;
use super::htree::parse_htree_root;
use super::inode::{Inode, InodeFlags};

/// Superblock flag: characters are hashed as unsigned.
const FLAG_UNSIGNED_HASH: u32 = 2;
/// Added to versions 0 to 2 if characters are unsigned.
const UNSIGNED: u8 = 3;
/// If the seed is zero: the initial state of MD4.
const DEFAULT_SEED: [u32; 4] = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476];
/// The highest hash marks the end of a directory for telldir, so that no name may have it.
const END_OF_DIRECTORY: u32 = 0x7fff_ffff << 1;

/// How the names of one directory are hashed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameHash {
    /// Not at all: the directory has no index and is not about to get one. Hashes are zero.
    None,
    /// The hash is stored with each entry, since it cannot be computed without the key.
    Stored,
    /// A function of the name's bytes.
    Computed {
        /// 0 legacy, 1 half MD4, 2 TEA; 3 to 5 the same with unsigned characters.
        version: u8,
        /// The superblock's seed.
        seed: [u32; 4],
    },
}

impl Ext4 {
    /// How Linux hashes the names in directory `dir` when it lists it (`is_dx_dir` and `ext4_htree_fill_tree`).
    pub fn name_hash(&self, dir: &Inode) -> Result<NameHash> {
        if dir.is_encrypted() && dir.is_casefolded() {
            return Ok(NameHash::Stored);
        }
        let superblock = self.superblock();
        let indexed = dir.flags.contains(InodeFlags::INDEX);
        let one_block = dir.size == u64::from(superblock.block_size);
        if !superblock.compat.contains(Compat::DIR_INDEX) || !(indexed || one_block || dir.has_inline_data()) {
            return Ok(NameHash::None);
        }
        let mut version = superblock.def_hash_version;
        if indexed && !dir.has_inline_data() {
            let mut block = vec![0; to_usize(superblock.block_size)];
            self.read_metadata(dir, &mut block)?;
            if let Some(root) = parse_htree_root(&block) {
                version = root.hash_version;
            }
        }
        if version < UNSIGNED && superblock.flags & FLAG_UNSIGNED_HASH != 0 {
            version = version.saturating_add(UNSIGNED);
        }
        Ok(NameHash::Computed { version, seed: superblock.hash_seed })
    }
}

impl NameHash {
    /// The hash and the minor hash of an entry: of its name as it is on disk, or those stored with it.
    pub fn of(&self, name: &[u8], stored: Option<DirHash>) -> (u32, u32) {
        match self {
            NameHash::None => (0, 0),
            NameHash::Stored => stored.map_or((0, 0), |hash| (hash.hash, hash.minor_hash)),
            NameHash::Computed { version, seed } => hash_name(*version, *seed, name),
        }
    }
}

/// The hash and minor hash of a name; zeros for a version that is not a function of the name alone.
pub fn hash_name(version: u8, seed: [u32; 4], name: &[u8]) -> (u32, u32) {
    let unsigned = version >= UNSIGNED;
    let mut state = if seed == [0; 4] { DEFAULT_SEED } else { seed };
    let (hash, minor) = match version % UNSIGNED {
        _ if version >= UNSIGNED.saturating_mul(2) => return (0, 0),
        0 => (legacy(name, unsigned), 0),
        1 => {
            let mut rest = name;
            while !rest.is_empty() {
                half_md4(&mut state, &words::<8>(rest, unsigned));
                rest = rest.get(32..).unwrap_or(&[]);
            }
            (state[1], state[2])
        }
        _ => {
            let mut rest = name;
            while !rest.is_empty() {
                tea(&mut state, &words::<4>(rest, unsigned));
                rest = rest.get(16..).unwrap_or(&[]);
            }
            (state[0], state[1])
        }
    };
    (clear_reserved(hash), minor)
}

/// A hash without bit 0, which an index uses to mark a hash that continues in the next block.
pub(crate) fn clear_reserved(hash: u32) -> u32 {
    let hash = hash & !1;
    if hash == END_OF_DIRECTORY { END_OF_DIRECTORY.saturating_sub(2) } else { hash }
}

fn widen(byte: u8, unsigned: bool) -> u32 {
    if unsigned { byte.into() } else { i32::from(byte.cast_signed()).cast_unsigned() }
}

/// The next `N` words of a name: big-endian, and padded with its remaining length.
fn words<const N: usize>(name: &[u8], unsigned: bool) -> [u32; N] {
    let len = low32(to_u64(name.len()));
    let pad = len.wrapping_mul(0x0101) & 0xffff | len << 8;
    let pad = pad | pad << 16;
    let mut out = [pad; N];
    let taken = &name[..name.len().min(N.saturating_mul(4))];
    for (word, bytes) in out.iter_mut().zip(taken.chunks(4)) {
        *word = bytes.iter().fold(pad, |word, &byte| (word << 8).wrapping_add(widen(byte, unsigned)));
    }
    out
}

fn half_md4(state: &mut [u32; 4], input: &[u32; 8]) {
    // The additive constants are RFC 1320's; the order of the words and the shifts are ext4's own.
    type Mix = fn(u32, u32, u32) -> u32;
    let rounds: [(Mix, u32, [usize; 8], [u32; 4]); 3] = [
        (|x, y, z| z ^ (x & (y ^ z)), 0, [0, 1, 2, 3, 4, 5, 6, 7], [3, 7, 11, 19]),
        (|x, y, z| (x & y).wrapping_add((x ^ y) & z), 0x5a82_7999, [1, 3, 5, 7, 0, 2, 4, 6], [3, 5, 9, 13]),
        (|x, y, z| x ^ y ^ z, 0x6ed9_eba1, [3, 7, 2, 6, 1, 5, 0, 4], [3, 9, 11, 15]),
    ];
    let [mut a, mut b, mut c, mut d] = *state;
    for (mix, constant, order, shifts) in rounds {
        for (i, word) in order.into_iter().enumerate() {
            let sum = a.wrapping_add(mix(b, c, d)).wrapping_add(input[word]).wrapping_add(constant);
            (a, b, c, d) = (d, sum.rotate_left(shifts[i & 3]), b, c);
        }
    }
    for (word, added) in state.iter_mut().zip([a, b, c, d]) {
        *word = word.wrapping_add(added);
    }
}

fn tea(state: &mut [u32; 4], key: &[u32; 4]) {
    let mut sum = 0u32;
    let (mut b0, mut b1) = (state[0], state[1]);
    for _ in 0..16 {
        sum = sum.wrapping_add(0x9e37_79b9);
        let mix =
            |v: u32, k0: u32, k1: u32| (v << 4).wrapping_add(k0) ^ v.wrapping_add(sum) ^ (v >> 5).wrapping_add(k1);
        b0 = b0.wrapping_add(mix(b1, key[0], key[1]));
        b1 = b1.wrapping_add(mix(b0, key[2], key[3]));
    }
    state[0] = state[0].wrapping_add(b0);
    state[1] = state[1].wrapping_add(b1);
}

fn legacy(name: &[u8], unsigned: bool) -> u32 {
    let (mut hash0, mut hash1) = (0x12a3_fe2du32, 0x37ab_e8f9u32);
    for &byte in name {
        let mut hash = hash1.wrapping_add(hash0 ^ widen(byte, unsigned).wrapping_mul(7_152_373));
        if hash & 0x8000_0000 != 0 {
            hash = hash.wrapping_sub(0x7fff_ffff);
        }
        (hash1, hash0) = (hash0, hash);
    }
    hash0 << 1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Printed by `debugfs -R "dx_hash -h VERSION -s 00112233-4455-6677-8899-aabbccddeeff NAME"` of e2fsprogs 1.47.0.
    #[test]
    fn as_debugfs_hashes() {
        let seed = [0x3322_1100, 0x7766_5544, 0xbbaa_9988, 0xffee_ddcc];
        let long = "a name of more than thirty-two bytes, with ümläüts";
        for (version, name, wanted) in [
            (0, "a", (0xe74b_53e2, 0)),
            (0, "abcdefgh", (0x730d_f612, 0)),
            (0, long, (0x6d6d_1b80, 0)),
            (1, "a", (0x9375_2ee6, 0x578c_30ba)),
            (1, "abcdefgh", (0xd62f_f68a, 0x379f_a39f)),
            (1, long, (0x318b_bd96, 0x1a9d_841c)),
            (2, "a", (0xf9b9_0e84, 0x2117_95e4)),
            (2, "abcdefgh", (0x4793_0bde, 0x2856_4211)),
            (2, long, (0x3a03_0b36, 0x63ac_0991)),
        ] {
            assert_eq!(hash_name(version, seed, name.as_bytes()), wanted, "version {version}, {name}");
        }
    }

    #[test]
    fn unsigned_versions_differ_only_where_characters_are_negative() {
        for version in 0..3 {
            assert_eq!(hash_name(version, [1; 4], b"plain"), hash_name(version + 3, [1; 4], b"plain"));
            assert_ne!(hash_name(version, [1; 4], b"\xc3\xa4"), hash_name(version + 3, [1; 4], b"\xc3\xa4"));
        }
    }

    #[test]
    fn no_name_has_the_hash_that_ends_a_directory() {
        for name in 0..200_000u32 {
            let (hash, _) = hash_name(1, [0; 4], &name.to_le_bytes());
            assert!(hash & 1 == 0 && hash != END_OF_DIRECTORY);
        }
    }
}
