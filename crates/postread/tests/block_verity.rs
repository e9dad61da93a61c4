//! dm-verity devices: against `veritysetup` and the real kernel, and damage that is repaired or not.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::num::NonZeroUsize;
use std::process::Command;
use std::sync::Mutex;

use postread::block_verity::{
    Area, Cause, Device, Fec, Message, RepairReport, Threads, encode_fec, format, repair, verify,
};
use postread_io::ReadAt;
use postread_tests::{Random, Uml, noise, require_tool, run};
use postread_verity::HashAlg;
use postread_verity::dm_verity::{HashType, Params, Superblock, Verifier};

const TWO: Threads = Threads(NonZeroUsize::new(2).unwrap());

/// A formatted device, and its parity.
struct Formatted {
    params: Params,
    data: Vec<u8>,
    tree: Vec<u8>,
    root: Vec<u8>,
    roots: u32,
    parity: Vec<u8>,
}

impl Formatted {
    fn new(params: Params, blocks: usize, roots: u32, seed: u64) -> Self {
        let data = noise(blocks * params.data_block_size(), seed);
        let mut tree = Vec::new();
        let root = format(&data, &params, blocks as u64, TWO, &mut |offset, bytes| {
            let end = offset as usize + bytes.len();
            tree.resize(tree.len().max(end), 0);
            tree[offset as usize..end].copy_from_slice(bytes);
            Ok(())
        })
        .unwrap();
        let device = Device { data: &data, hash: &tree, hash_area: 0 };
        let message = Message::new(device, blocks as u64, tree.len() as u64, params.data_block_size(), roots).unwrap();
        let parity = Mutex::new(vec![0; message.layout().parity_size() as usize]);
        encode_fec(&message, TWO, &|offset, bytes| {
            parity.lock().unwrap()[offset as usize..][..bytes.len()].copy_from_slice(bytes);
            Ok(())
        })
        .unwrap();
        Self { params, tree, root, roots, parity: parity.into_inner().unwrap(), data }
    }

    fn blocks(&self) -> u64 {
        (self.data.len() / self.params.data_block_size()) as u64
    }

    fn verifier(&self) -> Verifier {
        Verifier::new(&self.params, self.blocks(), &self.root).unwrap()
    }

    fn repair(&self, data: &dyn ReadAt, tree: &dyn ReadAt, parity: &[u8]) -> RepairReport {
        let device = Device { data, hash: tree, hash_area: 0 };
        let size = self.params.data_block_size();
        let message = Message::new(device, self.blocks(), self.tree.len() as u64, size, self.roots).unwrap();
        let parity = parity.to_vec();
        let fec = Fec { message, parity: &parity, offset: 0 };
        repair(&device, &self.verifier(), Some(&fec), &[], TWO)
    }

    /// All that was repaired is as it was.
    fn check(&self, report: &RepairReport) {
        let size = self.params.data_block_size();
        for block in &report.repaired {
            let (from, start) = match block.area {
                Area::Data => (&self.data, 0),
                Area::Hash { level } => (&self.tree, self.verifier().geometry().level_offset(level) as usize),
                _ => panic!("{block:?}"),
            };
            let start = start + block.index as usize * size;
            assert!(block.bytes == from[start..start + size], "{:?} {}", block.area, block.index);
        }
    }
}

fn small(blocks: usize, roots: u32, seed: u64) -> Formatted {
    let params = Params::new(HashType::Normal, HashAlg::Sha256, 512, 512, b"salt").unwrap();
    Formatted::new(params, blocks, roots, seed)
}

#[test]
fn all_bad_ranges_are_found_by_any_number_of_threads() {
    for (data_size, hash_size, blocks) in [(512, 512, 40_000), (4096, 1024, 2000), (512, 65536, 9000), (4096, 4096, 1)]
    {
        let params = Params::new(HashType::ChromeOs, HashAlg::Sha1, data_size, hash_size, b"").unwrap();
        let f = Formatted {
            params: params.clone(),
            ..if data_size == hash_size { Formatted::new(params, blocks, 2, 1) } else { unmixed(params, blocks) }
        };
        let mut data = f.data.clone();
        let mut wanted = BTreeSet::new();
        for block in [0, 1, 2, blocks / 2, blocks - 1] {
            if block < blocks {
                data[block * data_size as usize + 7] ^= 1;
                wanted.insert(block as u64);
            }
        }
        for threads in [1, 2, 5] {
            let threads = Threads(NonZeroUsize::new(threads).unwrap());
            let good = Device { data: &f.data, hash: &f.tree, hash_area: 0 };
            assert!(verify(&good, &f.verifier(), threads).bad.is_empty());
            let bad = verify(&Device { data: &data, ..good }, &f.verifier(), threads).bad;
            let found: Vec<u64> = bad.iter().flat_map(|run| run.first..run.first + run.count).collect();
            assert_eq!(found, wanted.iter().copied().collect::<Vec<_>>());
            assert!(bad.iter().all(|run| run.area == Area::Data && matches!(run.cause, Cause::Mismatch { .. })));
        }
    }
}

/// A device without parity: its block sizes differ.
fn unmixed(params: Params, blocks: usize) -> Formatted {
    let data = noise(blocks * params.data_block_size(), 1);
    let mut tree = BTreeMap::new();
    let root = format(&data, &params, blocks as u64, TWO, &mut |offset, bytes| {
        tree.insert(offset, bytes.to_vec());
        Ok(())
    })
    .unwrap();
    Formatted { params, data, tree: tree.into_values().flatten().collect(), root, roots: 2, parity: Vec::new() }
}

#[test]
fn what_is_beneath_a_bad_hash_block_is_unverifiable() {
    let f = small(1000, 2, 1);
    let verifier = f.verifier();
    let leaf = verifier.geometry().level_offset(0) as usize;
    let mut tree = f.tree.clone();
    tree[leaf + 3 * 512 + 5] ^= 1;
    let report = verify(&Device { data: &f.data, hash: &tree, hash_area: 0 }, &verifier, TWO);
    let summary: Vec<_> = report.bad.iter().map(|run| (run.area, run.first, run.count)).collect();
    assert_eq!(summary, [(Area::Hash { level: 0 }, 3, 1), (Area::Data, 48, 16)]);
    assert_eq!(report.bad[1].cause, Cause::Unverifiable);
    // Nothing is known with a wrong root hash.
    let wrong = Verifier::new(&f.params, 1000, &[0; 32]).unwrap();
    let report = verify(&Device { data: &f.data, hash: &f.tree, hash_area: 0 }, &wrong, TWO);
    assert_eq!(report.bad.last().map(|run| (run.first, run.count, run.cause)), Some((0, 1000, Cause::Unverifiable)));
}

/// A source whose bytes in some ranges cannot be read.
struct Broken<'a>(&'a [u8], Vec<std::ops::Range<u64>>);

impl ReadAt for Broken<'_> {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.len() as u64)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let end = offset + buf.len() as u64;
        if self.1.iter().any(|bad| bad.start < end && offset < bad.end) {
            return Err(io::Error::from_raw_os_error(5));
        }
        self.0.read_at(buf, offset)
    }
}

#[test]
fn blocks_that_cannot_be_read_are_found_and_repaired() {
    let f = small(5000, 4, 1);
    let data = Broken(&f.data, vec![512 * 100..512 * 103 - 1, 512 * 4999 + 5..512 * 4999 + 6]);
    let tree = Broken(&f.tree, std::iter::once(512 * 50..512 * 50 + 1).collect());
    let report = verify(&Device { data: &data, hash: &tree, hash_area: 0 }, &f.verifier(), TWO);
    let unreadable: Vec<_> = report.bad.iter().filter(|run| matches!(run.cause, Cause::Unreadable { .. })).collect();
    let runs: Vec<_> = unreadable.iter().map(|run| (run.area == Area::Data, run.first, run.count)).collect();
    assert_eq!(runs.len(), 3, "{report:?}");
    assert!(runs.contains(&(true, 100, 3)) && runs.contains(&(true, 4999, 1)));
    let report = f.repair(&data, &tree, &f.parity);
    assert_eq!((report.left.len(), report.repaired.len()), (0, 5));
    f.check(&report);
}

/// Whole blocks of data, as many in each group of columns as there are roots; where hash blocks are among them, half as
/// many, since nothing says at first which blocks below those are bad.
#[test]
fn damage_up_to_the_code_s_capacity_is_repaired() {
    for (round, roots) in [2u32, 3, 8, 13, 24].into_iter().enumerate() {
        let f = small(3000, roots, round as u64);
        let size = 512;
        let (mut data, mut tree) = (f.data.clone(), f.tree.clone());
        let mut message: Vec<(usize, bool)> = (0..data.len() / size).map(|i| (i, true)).collect();
        message.extend((0..tree.len() / size).map(|i| (i, false)));
        let row_blocks = message.len().div_ceil(255 - roots as usize);
        let mut random = Random::new(round as u64);
        let mut damaged = 0;
        for group in 0..row_blocks {
            let mut column: Vec<usize> = (group..message.len()).step_by(row_blocks).collect();
            let with_hashes = group % 2 == 1;
            if !with_hashes {
                column.retain(|&i| message[i].1);
            }
            for _ in 0..if with_hashes { roots / 2 } else { roots } {
                let (block, in_data) = message[column.swap_remove(random.below(column.len()))];
                let from = if in_data { &mut data } else { &mut tree };
                from[block * size..(block + 1) * size].copy_from_slice(&noise(size, block as u64));
                damaged += 1;
            }
        }
        let report = f.repair(&data, &tree, &f.parity);
        assert_eq!((report.left.len(), report.repaired.len()), (0, damaged), "{roots} roots");
        f.check(&report);
    }
}

/// Random damage, far beyond the capacity too, parity included: what comes back is right, and the rest is named.
#[test]
fn nothing_is_repaired_wrongly() {
    for round in 0..10 {
        let mut random = Random::new(round);
        let roots = 2 + random.below(23) as u32;
        let f = small(300, roots, round);
        let (mut data, mut tree, mut parity) = (f.data.clone(), f.tree.clone(), f.parity.clone());
        for _ in 0..random.below(100) {
            let target = match random.below(8) {
                0 => &mut tree,
                1 => &mut parity,
                _ => &mut data,
            };
            let at = random.below(target.len());
            let len = (1 + random.below(700)).min(target.len() - at);
            target[at..at + len].copy_from_slice(&noise(len, round ^ at as u64));
        }
        let report = f.repair(&data, &tree, &parity);
        f.check(&report);
        // With the repairs, what verify finds is what was left.
        for block in &report.repaired {
            let (into, start) = match block.area {
                Area::Data => (&mut data, 0),
                Area::Hash { level } => (&mut tree, f.verifier().geometry().level_offset(level) as usize),
                _ => panic!("{block:?}"),
            };
            into[start + block.index as usize * 512..][..512].copy_from_slice(&block.bytes);
        }
        let after = verify(&Device { data: &data, hash: &tree, hash_area: 0 }, &f.verifier(), TWO);
        assert_eq!(after.bad, report.left);
    }
}

/// Few bytes in more blocks than there are roots; and whole blocks with parity that is damaged too.
#[test]
fn errors_are_corrected_where_erasures_are_too_many() {
    let f = small(250, 4, 1);
    let mut data = f.data.clone();
    for block in 0..100 {
        data[block * 512 + block] ^= 0x55;
    }
    let report = f.repair(&data, &f.tree, &f.parity);
    assert_eq!((report.left.len(), report.repaired.len()), (0, 100));
    f.check(&report);
    let mut parity = f.parity.clone();
    let mut data = f.data.clone();
    data[..1024].fill(0);
    parity[4 * 100] ^= 1;
    let report = f.repair(&data, &f.tree, &parity);
    assert_eq!((report.left.len(), report.repaired.len()), (0, 2));
    f.check(&report);
}

#[test]
fn another_copy_and_parity_help_each_other() {
    let f = small(600, 2, 1);
    let mut data = f.data.clone();
    let mut other = f.data.clone();
    // Four blocks of one group are bad: the copy has two of them.
    let row_blocks = (600 + f.tree.len() / 512).div_ceil(253);
    let group: Vec<usize> = (0..4).map(|i| i * row_blocks).collect();
    for &block in &group {
        data[block * 512..(block + 1) * 512].fill(1);
    }
    for &block in &group[..2] {
        other[block * 512..(block + 1) * 512].fill(2);
    }
    assert_eq!(f.repair(&data, &f.tree, &f.parity).repaired.len(), 0);
    let device = Device { data: &data, hash: &f.tree, hash_area: 0 };
    let copy = Device { data: &other, hash: &f.tree, hash_area: 0 };
    let report = repair(&device, &f.verifier(), None, &[copy], TWO);
    assert_eq!(report.repaired.len(), 2);
    let message = Message::new(device, 600, f.tree.len() as u64, 512, 2).unwrap();
    let fec = Fec { message, parity: &f.parity, offset: 0 };
    let report = repair(&device, &f.verifier(), Some(&fec), &[copy], TWO);
    assert_eq!((report.repaired.len(), report.left.len()), (4, 0));
    f.check(&report);
}

/// 13 roots, 8 blocks, 8 bytes zeroed at 4088: what kernels got wrong once.
#[test]
fn parity_of_veritysetup_repairs() {
    if require_tool("veritysetup").is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let good = noise(8 * 4096, 1);
    fs::write(path("data"), &good).unwrap();
    let mut command = Command::new("veritysetup");
    command.arg("format").args([path("data"), path("hash")]);
    let output = run(command.arg(format!("--fec-device={}", path("fec").display())).arg("--fec-roots=13"));
    let text = String::from_utf8(output.stdout).unwrap();
    let root = text.lines().find_map(|line| line.strip_prefix("Root hash:")).unwrap().trim();
    let mut data = good.clone();
    data[4088..4096].fill(0);
    let (hash, parity) = (fs::read(path("hash")).unwrap(), fs::read(path("fec")).unwrap());
    let params = Superblock::parse(&hash).unwrap().params;
    let device = Device { data: &data, hash: &hash, hash_area: 4096 };
    let verifier = Verifier::new(&params, 8, &hex(root)).unwrap();
    let message = Message::new(device, 8, hash.len() as u64 - 4096, 4096, 13).unwrap();
    let fec = Fec { message, parity: &parity, offset: 0 };
    let report = repair(&device, &verifier, Some(&fec), &[], TWO);
    assert_eq!((report.repaired.len(), report.left.len()), (1, 0));
    assert!(report.repaired[0].bytes == good[..4096]);
}

fn hex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect()
}

/// The kernel opens what we format, reads it, refuses what we call bad, and repairs with our parity.
#[test]
fn the_kernel_agrees() {
    let (Some(uml), Some(_)) = (Uml::new(), require_tool("dmsetup")) else { return };
    let cases = [
        (HashType::Normal, HashAlg::Sha256, 4096, 4096, &b"salt"[..]),
        (HashType::Normal, HashAlg::Blake2b256, 4096, 4096, &[7; 256]),
        (HashType::ChromeOs, HashAlg::Sha1, 1024, 4096, &[1; 20]),
        (HashType::Normal, HashAlg::Sha512, 512, 1024, &[]),
    ];
    let mut script = "set -e\nexport DM_DISABLE_UDEV=1\ncd /mnt/out\n".to_owned();
    for (i, (hash_type, alg, data_size, hash_size, salt)) in cases.into_iter().enumerate() {
        let params = Params::new(hash_type, alg, data_size, hash_size, salt).unwrap();
        let blocks = (300 * 4096 / data_size) as usize;
        let f = if data_size == hash_size { Formatted::new(params, blocks, 2, 1) } else { unmixed(params, blocks) };
        let mut bad = f.data.clone();
        bad[5 * data_size as usize + 9] ^= 1;
        for (name, bytes) in [("good", &f.data), ("bad", &bad), ("tree", &f.tree), ("fec", &f.parity)] {
            fs::write(uml.dir().join(format!("{name}{i}")), bytes).unwrap();
        }
        let salt = if salt.is_empty() { "-".to_owned() } else { salt.iter().map(|b| format!("{b:02x}")).collect() };
        let root: String = f.root.iter().map(|b| format!("{b:02x}")).collect();
        let sectors = f.data.len() / 512;
        let table = |data: &str, options: &str| {
            format!(
                "0 {sectors} verity {} {data} $t {data_size} {hash_size} {blocks} 0 {alg} {root} {salt}{options}",
                hash_type.number()
            )
        };
        script += &format!(
            "t=$(losetup -r -f --show tree{i}); g=$(losetup -r -f --show good{i}); b=$(losetup -r -f --show bad{i})
             dmsetup create -r x --table \"{}\"
             cmp /dev/mapper/x good{i}; dmsetup remove --retry x
             dmsetup create -r x --table \"{}\"
             if cat /dev/mapper/x > /dev/null 2>&1; then echo corrupt data was read; exit 1; fi
             dd if=/dev/mapper/x of=/dev/null bs={data_size} count=4 iflag=direct status=none
             dmsetup remove --retry x\n",
            table("$g", ""),
            table("$b", "")
        );
        if !f.parity.is_empty() {
            let options = format!(
                " 8 use_fec_from_device $f fec_roots 2 fec_blocks {} fec_start 0",
                blocks + f.tree.len() / 4096
            );
            script += &format!(
                "f=$(losetup -r -f --show fec{i})
                 dmsetup create -r x --table \"{}\"
                 cmp /dev/mapper/x good{i}; dmsetup remove --retry x\n",
                table("$b", &options)
            );
        }
    }
    let run = uml.run(&script).success();
    assert!(run.log.is_empty(), "{}", run.log);
}
