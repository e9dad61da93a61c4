//! Super partitions.

use std::sync::Arc;

use postread_io::ReadAt;
use postread_tests::super_image::{Extent, image};
use postread_volume::super_partition::{ExtentAt, SuperError, SuperVolume, read};

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
