//! Super partitions, made here by the layout in AOSP's headers.

use std::sync::Arc;

use postread_blockcrypt::hash::{HashAlg, digest};
use postread_io::ReadAt;
use postread_tests::noise;
use postread_volume::super_partition::{ExtentAt, SuperError, SuperVolume, read};

const DATA: usize = 1 << 20;

/// An extent: sectors, type, first sector, block device.
type Extent = (u64, u32, u64, u32);

fn metadata(extents: &[Extent], partitions: &[(&str, u32, u32)]) -> Vec<u8> {
    let name = |text: &str| {
        let mut field = text.as_bytes().to_vec();
        field.resize(36, 0);
        field
    };
    let mut tables = Vec::new();
    let mut places = Vec::new();
    let mut table = |entries: Vec<Vec<u8>>, size: u32| {
        places.push([tables.len() as u32, entries.len() as u32, size]);
        tables.extend(entries.concat());
    };
    let words = |words: &[u32]| words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>();
    table(partitions.iter().map(|&(n, first, count)| [name(n), words(&[1, first, count, 0])].concat()).collect(), 52);
    table(
        extents
            .iter()
            .map(|&(sectors, kind, at, device)| {
                [sectors.to_le_bytes().to_vec(), words(&[kind]), at.to_le_bytes().to_vec(), words(&[device])].concat()
            })
            .collect(),
        24,
    );
    table(vec![[name("default"), words(&[0, 0, 0])].concat()], 48);
    table(
        vec![[vec![0; 24], name("super"), words(&[0])].concat(), [vec![0; 24], name("other"), words(&[0])].concat()],
        64,
    );
    let mut header = vec![0; 128];
    header[..4].copy_from_slice(&0x414c_5030u32.to_le_bytes());
    header[4] = 10;
    header[8..12].copy_from_slice(&128u32.to_le_bytes());
    header[44..48].copy_from_slice(&(tables.len() as u32).to_le_bytes());
    header[48..80].copy_from_slice(&digest(HashAlg::Sha256, &tables));
    for (i, place) in places.iter().enumerate() {
        header[80 + 12 * i..92 + 12 * i].copy_from_slice(&words(place));
    }
    let sum = digest(HashAlg::Sha256, &header);
    header[12..44].copy_from_slice(&sum);
    [header, tables].concat()
}

/// A super partition with two slots that hold the same metadata, and noise from 1 MiB on.
fn image(extents: &[Extent], partitions: &[(&str, u32, u32)]) -> Vec<u8> {
    let mut out = vec![0; DATA];
    let mut geometry = vec![0; 52];
    for (at, value) in [(0, 0x616c_4467u32), (4, 52), (40, 65536), (44, 2), (48, 4096)] {
        geometry[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }
    let sum = digest(HashAlg::Sha256, &geometry);
    geometry[8..40].copy_from_slice(&sum);
    for at in [4096, 8192] {
        out[at..at + 52].copy_from_slice(&geometry);
    }
    let metadata = metadata(extents, partitions);
    for copy in 0..4 {
        let at = 12288 + copy * 65536;
        out[at..at + metadata.len()].copy_from_slice(&metadata);
    }
    out.extend(noise(DATA, 1));
    out
}

const EXTENTS: [Extent; 4] = [(16, 0, 2048, 0), (8, 1, 0, 0), (4, 0, 3000, 0), (2, 0, 100, 1)];

fn good() -> Vec<u8> {
    image(&EXTENTS, &[("system_a", 0, 3), ("system_b", 0, 0), ("far", 3, 1)])
}

#[test]
fn logical_partitions_read_where_their_extents_lie() {
    let image = good();
    let metadata = read(&image[..], 0).unwrap();
    assert_eq!(metadata.devices, ["super", "other"]);
    let names: Vec<_> = metadata.partitions.iter().map(|p| (p.name.as_str(), p.group.as_str(), p.len())).collect();
    assert_eq!(names, [("system_a", "default", 28 * 512), ("system_b", "default", 0), ("far", "default", 1024)]);
    assert_eq!(metadata.partitions[0].extents[1].at, ExtentAt::Zero);
    let source: Arc<dyn ReadAt> = Arc::new(image.clone());
    let volume = SuperVolume::open(source.clone(), &metadata, "system_a").unwrap();
    let mut data = vec![1; 28 * 512];
    volume.read_exact_at(&mut data, 0).unwrap();
    let wanted = [&image[2048 * 512..2064 * 512], &[0; 4096], &image[3000 * 512..3004 * 512]].concat();
    assert!(data == wanted);
    assert_eq!(volume.map(16 * 512 + 1), Some((None, 8 * 512 - 1)));
    assert_eq!(volume.map(28 * 512), None);
    assert!(SuperVolume::open(source.clone(), &metadata, "system_b").unwrap().is_empty().unwrap());
    assert!(
        matches!(SuperVolume::open(source.clone(), &metadata, "far"), Err(SuperError::OtherDevice { device, .. }) if device == "other")
    );
    assert!(matches!(SuperVolume::open(source, &metadata, "x"), Err(SuperError::NoPartition { .. })));
    let cut: Arc<dyn ReadAt> = Arc::new(image[..3002 * 512].to_vec());
    assert!(matches!(SuperVolume::open(cut, &metadata, "system_a"), Err(SuperError::OutOfBounds { .. })));
}

/// Geometry and metadata have copies; a changed bit in one costs nothing, in both it is found.
#[test]
fn either_copy_will_do() {
    let good = good();
    let metadata = read(&good[..], 1).unwrap();
    for at in [0, 5, 9, 41, 45] {
        let mut bad = good.clone();
        bad[4096 + at] ^= 1;
        assert_eq!(read(&bad[..], 1).unwrap(), metadata);
        bad[8192 + at] ^= 1;
        assert!(read(&bad[..], 1).is_err());
    }
    for at in [0, 4, 8, 13, 44, 50, 81, 130, 300] {
        let mut bad = good.clone();
        bad[12288 + 65536 + at] ^= 1;
        assert_eq!(read(&bad[..], 1).unwrap(), metadata);
        bad[12288 + 3 * 65536 + at] ^= 1;
        assert!(matches!(read(&bad[..], 1), Err(SuperError::Corrupt { .. })));
        assert_eq!(read(&bad[..], 0).unwrap(), metadata);
    }
    assert!(matches!(read(&good[..], 2), Err(SuperError::NoSlot { slot: 2, count: 2 })));
    assert!(matches!(read(&[0u8; 9000][..], 0), Err(SuperError::NotSuper)));
}

#[test]
fn metadata_that_cannot_be_is_refused() {
    let error = |extents: &[Extent], partition| read(&image(extents, &[partition])[..], 0).unwrap_err().to_string();
    assert!(error(&EXTENTS, ("x", 3, 2)).contains("a partition's extents do not exist"));
    assert!(error(&EXTENTS, ("x", u32::MAX, 1)).contains("a partition's extents do not exist"));
    assert!(error(&[(u64::MAX, 0, 0, 0)], ("x", 0, 1)).contains("an extent is too large"));
    assert!(error(&[(1 << 53, 0, 1 << 54, 0)], ("x", 0, 1)).contains("an extent is too large"));
    assert!(error(&[(1 << 53, 1, 0, 0); 2], ("x", 0, 2)).contains("an extent is too large"));
    assert!(error(&[(1, 2, 0, 0)], ("x", 0, 1)).contains("an extent's type is unknown"));
    assert!(error(&[(1, 0, 0, 2)], ("x", 0, 1)).contains("an extent's block device does not exist"));
}
