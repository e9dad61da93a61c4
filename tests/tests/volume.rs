//! Partition tables and Android sparse images that the usual tools made.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::sync::Arc;

use postread_io::ReadAt;
use postread_tests::{require, require_root, require_tool, run, seed};
use postread_volume::partition::{PartType, TableKind};
use postread_volume::{Magic, SparseImage, detect, partition};
use tempfile::NamedTempFile;

const MIB: u64 = 1 << 20;

fn image(len: u64) -> NamedTempFile {
    let image = NamedTempFile::new().unwrap();
    image.as_file().set_len(len).unwrap();
    image
}

/// Feeds sfdisk a script; `None` where there is no sfdisk, or no loop device that has larger sectors.
fn sfdisk(image: &NamedTempFile, script: &str, sector_size: u32) -> Option<()> {
    let sfdisk = require_tool("sfdisk")?;
    let mut target = image.path().to_owned();
    if sector_size != 512 {
        require_root()?;
        let losetup = Command::new("losetup")
            .args(["--sector-size", &sector_size.to_string(), "-f", "--show"])
            .arg(image.path())
            .output()
            .map_err(|error| error.to_string())
            .and_then(|output| match output.status.success() {
                true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
                false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
            });
        target = require("losetup", losetup)?.into();
    }
    let mut child = Command::new(sfdisk)
        .args(["-q", "--no-reread", "--no-tell-kernel"])
        .arg(&target)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    let status = child.wait().unwrap();
    if target != image.path() {
        run(Command::new("losetup").arg("-d").arg(&target));
    }
    assert!(status.success());
    Some(())
}

fn places(table: &partition::Table) -> Vec<(u32, u64, u64)> {
    table.parts.iter().map(|part| (part.number, part.offset, part.len)).collect()
}

#[test]
fn mbr_with_logical_partitions() {
    let image = image(64 * MIB);
    // Sectors of 512 bytes; an extended partition with three logical ones.
    let script =
        "label: dos\n2048,20480,83\n24576,40960,5\n69632,2048,82\n73728,2048,c\n26624,2048,83\n30720,4096,83\n";
    let Some(()) = sfdisk(&image, script, 512) else { return };
    let table = partition::read(image.as_file()).unwrap();
    assert_eq!(table.kind, TableKind::Mbr);
    assert_eq!(detect(image.as_file()).unwrap(), Some(Magic::Mbr));
    let listed = run(Command::new("sfdisk").args(["-d"]).arg(image.path())).stdout;
    let listed = String::from_utf8(listed).unwrap();
    let field = |line: &str, name: &str| -> u64 {
        line.split(name).nth(1).unwrap().split(',').next().unwrap().trim().parse().unwrap()
    };
    let wanted: Vec<_> = listed
        .lines()
        // The extended partition is the room of the logical ones: there is nothing to read in it.
        .filter(|line| line.contains("start=") && !line.contains("type=5"))
        .map(|line| (field(line, "start=") * 512, field(line, "size=") * 512))
        .collect();
    assert_eq!(table.parts.iter().map(|part| (part.offset, part.len)).collect::<Vec<_>>(), wanted);
    assert!(wanted.len() >= 5, "{listed}");
    assert_eq!(table.part(5).unwrap().kind, PartType::Mbr(0x83));
}

#[test]
fn gpt_and_its_backup() {
    for sector_size in [512, 4096] {
        let image = image(64 * MIB);
        let script = "label: gpt\nsize=10MiB,name=\"first\"\nsize=5MiB,type=U,name=\"zweite Partition ü\"\n,\n";
        let Some(()) = sfdisk(&image, script, sector_size) else { return };
        let table = partition::read(image.as_file()).unwrap();
        assert_eq!((table.kind, table.sector_size), (TableKind::Gpt, sector_size));
        assert_eq!(places(&table)[..2], [(1, MIB, 10 * MIB), (2, 11 * MIB, 5 * MIB)]);
        let second = table.part(2).unwrap();
        assert_eq!(second.name, "zweite Partition ü");
        assert_eq!(second.kind.to_string(), "c12a7328-f81f-11d2-ba4b-00a0c93ec93b", "an EFI system partition");
        assert_eq!(detect(image.as_file()).unwrap(), Some(Magic::Gpt));
        // One byte of the primary header, then of the primary entries: the backup takes over.
        for at in [u64::from(sector_size) + 40, 2 * u64::from(sector_size) + 32] {
            let mut byte = [0];
            ReadAt::read_exact_at(image.as_file(), &mut byte, at).unwrap();
            image.as_file().write_all_at(&[byte[0] ^ 1], at).unwrap();
            let backup = partition::read(image.as_file()).unwrap();
            assert_eq!((backup.kind, &backup.parts), (TableKind::GptBackup, &table.parts));
            image.as_file().write_all_at(&byte, at).unwrap();
        }
        // Both: an error that says so, not another reading of the disk.
        let last = 64 * MIB - u64::from(sector_size) + 40;
        image.as_file().write_all_at(&[0xff; 4], last).unwrap();
        image.as_file().write_all_at(&[0xff; 4], u64::from(sector_size) + 40).unwrap();
        assert!(matches!(partition::read(image.as_file()), Err(partition::Error::Corrupt { .. })));
    }
}

#[test]
fn sparse_image_expands_to_what_was_made_sparse() {
    let Some(img2simg) = require_tool("img2simg") else { return };
    let raw = image(4 * MIB);
    let pattern: Vec<u8> = (0..300_000u32).flat_map(|i| i.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    raw.as_file().write_all_at(&pattern[..70_000], 4096 * 3).unwrap();
    // A block of one repeated word becomes a fill chunk.
    raw.as_file().write_all_at(&[0xde, 0xad, 0xbe, 0xef].repeat(2048), 4096 * 100).unwrap();
    raw.as_file().write_all_at(&pattern[70_000..75_000], 4 * MIB - 5000).unwrap();
    let packed = NamedTempFile::new().unwrap();
    run(Command::new(img2simg).args([raw.path(), packed.path()]));
    assert_eq!(detect(packed.as_file()).unwrap(), Some(Magic::AndroidSparse));
    assert!(packed.as_file().metadata().unwrap().len() < MIB);
    let sparse = SparseImage::open(Arc::new(packed.reopen().unwrap())).unwrap();
    let mut wanted = vec![0; 4 * MIB as usize];
    ReadAt::read_exact_at(raw.as_file(), &mut wanted, 0).unwrap();
    let mut found = vec![1; 4 * MIB as usize];
    assert_eq!(ReadAt::len(&sparse).unwrap(), 4 * MIB);
    sparse.read_exact_at(&mut found, 0).unwrap();
    assert!(found == wanted);
    // Reads that begin and end anywhere, in a fill chunk too.
    for (offset, len) in [(4096 * 100 + 3, 7000), (4096 * 3 - 1, 2), (4 * MIB - 1, 1)] {
        let mut part = vec![0; len];
        sparse.read_exact_at(&mut part, offset).unwrap();
        assert_eq!(part, wanted[offset as usize..offset as usize + len]);
    }
    assert_eq!(sparse.read_at(&mut [0; 4], 4 * MIB).unwrap(), 0);
    // What a plan maps agrees with what is read.
    let (at, run) = sparse.map(4096 * 3);
    let mut stored = vec![0; run.min(70_000) as usize];
    ReadAt::read_exact_at(packed.as_file(), &mut stored, at.unwrap().1).unwrap();
    assert_eq!(stored, wanted[4096 * 3..4096 * 3 + stored.len()]);

    // Flipped and cut: an error or an image, never a panic.
    let good = std::fs::read(packed.path()).unwrap();
    let mut random = seed();
    for _ in 0..3000 {
        let mut bad = good.clone();
        for _ in 0..2 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let at = (random >> 33) as usize % 256;
            bad[at] ^= (random >> 24) as u8;
        }
        bad.truncate((random >> 40) as usize % (2 * good.len()) + 1);
        if let Ok(sparse) = SparseImage::open(Arc::new(bad)) {
            let end = ReadAt::len(&sparse).unwrap();
            for offset in [0, end / 2, end.saturating_sub(1), end] {
                let _ = sparse.read_at(&mut [0; 4096], offset);
            }
        }
    }
}

#[test]
fn file_systems_by_their_magic() {
    for (tool, args, len, wanted) in [
        ("mkfs.ext4", &["-q", "-F"][..], 4 * MIB, Magic::Ext4),
        ("mkfs.f2fs", &["-q"], 64 * MIB, Magic::F2fs),
        ("mkfs.btrfs", &["-q"], 128 * MIB, Magic::Btrfs),
    ] {
        let Some(tool) = require_tool(tool) else { continue };
        let image = image(len);
        run(Command::new(tool).args(args).arg(image.path()));
        assert_eq!(detect(&File::open(image.path()).unwrap()).unwrap(), Some(wanted));
    }
    assert_eq!(detect(&vec![0u8; 8192]).unwrap(), None);
    assert_eq!(detect(&Vec::<u8>::new()).unwrap(), None);
}

#[test]
fn hostile_tables_end() {
    let mut random = seed();
    let image = image(16 * MIB);
    let Some(()) = sfdisk(&image, "label: dos\n2048,2048,83\n4096,16384,5\n6144,2048,83\n", 512) else { return };
    let good = std::fs::read(image.path()).unwrap();
    for _ in 0..500 {
        let mut bad = good.clone();
        for _ in 0..4 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let record = if random & 1 == 0 { 0 } else { 4096 * 512 };
            bad[record + 440 + (random >> 33) as usize % 72] = (random >> 20) as u8;
        }
        let _ = partition::read(&bad);
    }
    // An extended partition that links to itself.
    let mut bad = good;
    let start = u32::from_le_bytes(bad[446 + 16 + 8..446 + 16 + 12].try_into().unwrap()) as usize * 512;
    bad[start + 446 + 16 + 4] = 5;
    bad[start + 446 + 16 + 8..start + 446 + 16 + 16].copy_from_slice(&[0, 0, 0, 0, 1, 0, 0, 0]);
    assert!(matches!(partition::read(&bad), Err(partition::Error::Corrupt { .. })));
}
