//! Parity is what `veritysetup` writes; damage within the code's capacity is always repaired.

use std::fs;
use std::process::Command;

use postread_tests::{Random, noise, require_tool, run};
use postread_verity::dm_verity::Params;
use postread_verity::fec::{CODEWORD, Decoder, Encoder, Layout, correct_codeword};
use proptest::prelude::*;

use crate::build;

/// The parity of a whole message.
fn parity(layout: &Layout, message: &[u8]) -> Vec<u8> {
    let width = layout.row_blocks() as usize * layout.block_size();
    let mut encoder = Encoder::new(layout.roots(), width);
    let mut rows = message.chunks(width);
    for _ in 0..layout.rows() {
        encoder.push_row(rows.next().unwrap_or_default());
    }
    encoder.parity()
}

/// The number of roots and of blocks, in one file and in separate ones.
#[test]
fn parity_is_veritysetup_s() {
    if require_tool("veritysetup").is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = |name| dir.path().join(name);
    for roots in 2..=24u32 {
        let (blocks, block_size) = [(1, 4096), (129, 4096), (16, 4096), (300, 512), (1000, 1024)][roots as usize % 5];
        let params = Params::new(
            postread_verity::dm_verity::HashType::Normal,
            postread_verity::HashAlg::Sha256,
            block_size,
            block_size,
            b"salt",
        )
        .unwrap();
        let data = noise(blocks * block_size as usize, roots.into());
        fs::write(path("data"), &data).unwrap();
        for name in ["hash", "fec"] {
            let _ = fs::remove_file(path(name));
        }
        let arguments = [
            format!("--data-block-size={block_size}"),
            format!("--hash-block-size={block_size}"),
            format!("--fec-roots={roots}"),
            format!("--salt={}", hex::encode("salt")),
        ];
        let mut command = Command::new("veritysetup");
        command.arg("format").args([path("data"), path("hash")]).args(&arguments);
        run(command.arg(format!("--fec-device={}", path("fec").display())));
        let message = [data.clone(), build(&params, &data).1].concat();
        let layout = Layout::new(roots, block_size as usize, (message.len() / block_size as usize) as u64).unwrap();
        let ours = parity(&layout, &message);
        assert_eq!(ours.len() as u64, layout.parity_size());
        assert!(ours == fs::read(path("fec")).unwrap(), "{roots} roots, {blocks} blocks of {block_size}");

        // All in one file. Blocks between the tree and the parity belong to the message.
        let file = path("all");
        // A superblock, the tree and three blocks of something else.
        let fec_offset = (message.len() + 4 * block_size as usize) as u64;
        fs::write(&file, [data.clone(), noise(fec_offset as usize - data.len(), 9)].concat()).unwrap();
        let mut command = Command::new("veritysetup");
        command.arg("format").args([&file, &file]).args(&arguments);
        command.args([format!("--data-blocks={blocks}"), format!("--hash-offset={}", data.len())]);
        run(command.args([format!("--fec-device={}", file.display()), format!("--fec-offset={fec_offset}")]));
        let written = fs::read(&file).unwrap();
        let hash_area = data.len() + block_size as usize;
        let message = [&data, &written[hash_area..fec_offset as usize]].concat();
        let layout = Layout::new(roots, block_size as usize, (message.len() / block_size as usize) as u64).unwrap();
        assert!(parity(&layout, &message) == written[fec_offset as usize..], "{roots} roots in one file");
    }
}

/// A codeword of noise, as message and parity.
fn codeword(roots: usize, seed: u64) -> Vec<u8> {
    let mut word = noise(CODEWORD - roots, seed);
    let mut encoder = Encoder::new(roots, 1);
    for byte in &word {
        encoder.push_row(&[*byte]);
    }
    word.extend(encoder.parity());
    word
}

/// The difference between the parity of what was read and the parity that was read.
fn remainder(word: &[u8], roots: usize) -> Vec<u8> {
    let (message, stored) = word.split_at(CODEWORD - roots);
    let mut encoder = Encoder::new(roots, 1);
    for byte in message {
        encoder.push_row(&[*byte]);
    }
    encoder.parity().iter().zip(stored).map(|(a, b)| a ^ b).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// `e` errors and `f` erasures with `2 e + f` up to the number of roots, anywhere in the codeword, parity included.
    #[test]
    fn damage_within_capacity_is_repaired(roots in 2usize..=24, seed: u64, share in 0.0..=1.0f64) {
        let good = codeword(roots, seed);
        let mut random = Random::new(seed ^ 1);
        let erased = ((roots as f64 * share) as usize).min(roots);
        let errors = (roots - erased) / 2;
        let mut positions: Vec<usize> = (0..CODEWORD).collect();
        for i in 0..erased + errors {
            let other = i + random.below(CODEWORD - i);
            positions.swap(i, other);
        }
        let mut bad = good.clone();
        for (i, &at) in positions[..erased + errors].iter().enumerate() {
            // An erasure may hold the right byte by chance; an error does not.
            let change = if i < erased { random.below(256) } else { 1 + random.below(255) };
            bad[at] ^= change as u8;
        }
        let corrections = correct_codeword(&remainder(&bad, roots), &positions[..erased]).unwrap();
        for (at, value) in corrections {
            bad[at] ^= value;
        }
        prop_assert_eq!(bad, good);
    }

    /// Beyond the capacity a codeword is refused, or becomes another valid codeword: that is what digests are checked for.
    #[test]
    fn too_much_damage_is_refused_or_gives_a_valid_codeword(roots in 2usize..=24, seed: u64, more in 1usize..60) {
        let mut bad = codeword(roots, seed);
        let mut random = Random::new(seed ^ 1);
        for _ in 0..roots / 2 + more {
            bad[random.below(CODEWORD)] = random.below(256) as u8;
        }
        if let Ok(corrections) = correct_codeword(&remainder(&bad, roots), &[]) {
            prop_assert!(corrections.len() <= roots / 2);
            for (at, value) in corrections {
                bad[at] ^= value;
            }
            prop_assert!(remainder(&bad, roots).iter().all(|&b| b == 0));
        }
    }

    /// Whole rows at a time agree with a codeword at a time.
    #[test]
    fn erased_rows_are_repaired_in_all_columns(roots in 2usize..=24, seed: u64, erased in 0usize..=24, width in 1usize..1100) {
        let mut random = Random::new(seed);
        let rows = CODEWORD - roots;
        let message: Vec<Vec<u8>> = (0..rows).map(|row| noise(width, seed ^ row as u64)).collect();
        let mut encoder = Encoder::new(roots, width);
        message.iter().for_each(|row| encoder.push_row(row));
        let mut lost: Vec<usize> = (0..erased.min(roots)).map(|_| random.below(rows)).collect();
        lost.sort_unstable();
        lost.dedup();
        let mut read = message.clone();
        for &row in &lost {
            read[row] = noise(width, seed ^ 0xffff ^ row as u64);
        }
        // One more error, in one column: found where a root is left to find it with.
        let (error_row, error_column) = (random.below(rows), random.below(width));
        let hit = roots > lost.len() && !lost.contains(&error_row);
        if hit {
            read[error_row][error_column] ^= 0x55;
        }
        let mut decoder = Decoder::new(roots, width);
        read.iter().for_each(|row| decoder.push_row(row));
        decoder.set_parity(&encoder.parity());
        prop_assert_eq!(decoder.is_clean(), lost.is_empty() && !hit);
        let repair = decoder.erasures(&lost).unwrap();
        let inconsistent: Vec<usize> = repair.inconsistent().collect();
        prop_assert_eq!(&inconsistent, &if hit { vec![error_column] } else { vec![] });
        for &row in &lost {
            let fixed: Vec<u8> = read[row].iter().zip(repair.correction(row).unwrap()).map(|(a, b)| a ^ b).collect();
            for column in (0..width).filter(|column| !inconsistent.contains(column)) {
                prop_assert_eq!(fixed[column], message[row][column]);
            }
        }
        if hit && lost.len() + 2 <= roots {
            let corrections = decoder.correct_column(error_column, &lost).unwrap();
            prop_assert!(corrections.contains(&(error_row, 0x55)));
            for (row, value) in corrections {
                prop_assert_eq!(read[row][error_column] ^ value, message[row][error_column]);
            }
        }
    }
}

#[test]
fn impossible_erasures_are_refused() {
    let mut decoder = Decoder::new(2, 8);
    decoder.set_parity(&[1; 16]);
    assert!(decoder.erasures(&[0, 1, 2]).is_none());
    assert!(decoder.erasures(&[253]).is_none());
    assert!(decoder.erasures(&[7, 7]).is_none());
    assert!(correct_codeword(&[1, 2], &[0, 1, 2]).is_err());
    assert!(correct_codeword(&[1, 2], &[255]).is_err());
}
