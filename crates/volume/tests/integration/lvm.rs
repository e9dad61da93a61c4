//! Volumes that the kernel wrote (`tests/images/make-lvm`), and metadata that nobody should write.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use postread_blockcrypt::hash::{HashAlg, digest};
use postread_io::ReadAt;
use postread_tests::unpack_image;
use postread_volume::lvm::{Layout, LvmError, LvmVolume, PhysicalVolume, VolumeGroup};

fn images() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/images/lvm")
}

fn image(name: &str) -> Vec<u8> {
    fs::read(unpack_image(&images().join(format!("{name}.img.zst")))).unwrap()
}

fn open(name: &str, pvs: &[&[u8]]) -> Result<LvmVolume, LvmError> {
    let found: Vec<_> = pvs.iter().map(|image| PhysicalVolume::read(*image).unwrap()).collect();
    let group = VolumeGroup::newest(&found)?;
    let sources: Vec<_> = found
        .iter()
        .zip(pvs)
        .map(|(pv, image)| (pv.uuid.clone(), Arc::new(image.to_vec()) as Arc<dyn ReadAt>))
        .collect();
    LvmVolume::open(&group, name, &sources)
}

#[test]
fn volumes_read_as_the_kernel_wrote_them() {
    let (a, b) = (image("a"), image("b"));
    let listed = fs::read_to_string(images().join("volumes.sha256")).unwrap();
    assert_eq!(listed.lines().count(), 3);
    for line in listed.lines() {
        let [sum, name, size] = line.split_whitespace().collect::<Vec<_>>()[..] else { panic!("{line}") };
        // In either order, and by the name that /dev has.
        for (pvs, name) in [([&a[..], &b[..]], name.to_owned()), ([&b, &a], format!("vg/{name}"))] {
            let volume = open(&name, &pvs).unwrap();
            assert_eq!(volume.len().unwrap(), size.parse::<u64>().unwrap());
            let mut data = vec![0; size.parse().unwrap()];
            volume.read_exact_at(&mut data, 0).unwrap();
            assert_eq!(digest(HashAlg::Sha256, &data).to_string(), sum);
            // Pieces at the edges of chunks and extents.
            for offset in [1, 16383, 16384, 65535, 65536, 131_071, data.len() as u64 - 1] {
                let mut piece = vec![0; 40_000.min(data.len() - offset as usize)];
                volume.read_exact_at(&mut piece, offset).unwrap();
                assert!(piece == data[offset as usize..][..piece.len()], "{name} at {offset}");
            }
            assert_eq!(volume.read_at(&mut [0; 10], data.len() as u64).unwrap(), 0);
            assert!(volume.map(data.len() as u64).is_none());
        }
    }
}

#[test]
fn a_group_is_listed() {
    let pv = PhysicalVolume::read(&image("a")[..]).unwrap();
    let group = pv.group.unwrap();
    assert_eq!((group.name.as_str(), group.extent_size, group.pvs.len()), ("vg", 65536, 2));
    assert_eq!(group.pvs[0].uuid, pv.uuid);
    let find = |name| group.volume(name).unwrap();
    assert_eq!(find("lin").segments.len(), 3);
    assert!(matches!(&find("str").segments[0].layout, Layout::Striped { stripes, chunk: 16384 } if stripes.len() == 2));
    assert!(find("one").visible);
    let unsupported: Vec<_> = group.lvs.iter().filter_map(|lv| lv.unsupported()).collect();
    assert_eq!(unsupported, ["snapshot"]);
}

#[test]
fn what_is_missing_or_not_supported_is_named() {
    let (a, b) = (image("a"), image("b"));
    let error = |name, pvs: &[&[u8]]| open(name, pvs).unwrap_err();
    assert!(matches!(error("none", &[&a, &b]), LvmError::NoVolume { .. }));
    let group = PhysicalVolume::read(&a[..]).unwrap().group.unwrap();
    assert!(matches!(error("str", &[&a]), LvmError::MissingPv { uuid, .. } if uuid == group.pvs[1].uuid));
    let snapshot = group.lvs.iter().find(|lv| lv.unsupported().is_some()).unwrap();
    let text = error(&snapshot.name, &[&a, &b]).to_string();
    assert!(text.contains("segments of type \"snapshot\", which is not supported"), "{text}");
    // A device that was cut short.
    let cut = &a[..a.len() / 2];
    assert!(matches!(error("lin", &[cut, &b]), LvmError::OutOfBounds { .. }));
    // A volume that needs one of the two only.
    let Layout::Striped { stripes, .. } = &group.volume("one").unwrap().segments[0].layout else { panic!("striped") };
    assert!(open("one", &[[&a[..], &b[..]][stripes[0].0]]).is_ok());
}

#[test]
fn damage_is_found() {
    let good = image("a");
    assert!(matches!(PhysicalVolume::read(&good[..0]), Err(LvmError::NotLvm)));
    assert!(matches!(PhysicalVolume::read(&[0u8; 4096][..]), Err(LvmError::NotLvm)));
    let group = PhysicalVolume::read(&good[..]).unwrap().group;
    let text = good.windows(13).rposition(|w| w.starts_with(b"vg {\nid = \"")).unwrap_or(8192);
    // The label's sector and the metadata's header; each text of the ring but the newest is history.
    for at in (512..1024).chain(4096..4160).chain([text, text + 100]) {
        let mut bad = good.clone();
        bad[at] ^= 1;
        match PhysicalVolume::read(&bad[..]) {
            Err(_) => {}
            Ok(pv) => assert_eq!(pv.group, group, "byte {at}"),
        }
    }
    let mut bad = good.clone();
    bad[4100] ^= 1;
    assert!(matches!(PhysicalVolume::read(&bad[..]), Err(LvmError::Corrupt { what: "metadata area", .. })));
}

/// A group with one physical volume of 10 extents and one volume.
const TEXT: &str = r#"g { id = "x" seqno = 1 extent_size = 8
physical_volumes { pv0 { id = "p" pe_start = 16 pe_count = 10 } }
logical_volumes { v { id = "v" status = ["READ", "VISIBLE"] segment_count = 2
segment1 { start_extent = 0 extent_count = 4 type = "striped" stripe_count = 1 stripes = ["pv0", 6] }
segment2 { start_extent = 4 extent_count = 2 type = "striped" stripe_count = 2 stripe_size = 2
stripes = ["pv0", 0, "pv0", 3] } } } }"#;

#[test]
fn segments_map_where_they_say() {
    let group = VolumeGroup::parse(TEXT.as_bytes()).unwrap();
    let pv: Arc<dyn ReadAt> = Arc::new(vec![0; 16 * 512 + 10 * 4096]);
    let volume = LvmVolume::open(&group, "v", &[("p".into(), pv)]).unwrap();
    let at = |offset| volume.map(offset).map(|run| (run.offset, run.len));
    let extent = |n: u64| 8192 + n * 4096;
    assert_eq!(at(0), Some((extent(6), 16384)));
    assert_eq!(at(16383), Some((extent(10) - 1, 1)));
    assert_eq!(at(16384), Some((extent(0), 1024)));
    assert_eq!(at(16384 + 1024), Some((extent(3), 1024)));
    assert_eq!(at(16384 + 2048 + 5), Some((extent(0) + 1024 + 5, 1019)));
    assert_eq!(at(24575), Some((extent(3) + 4095, 1)));
    assert_eq!(at(24576), None);
}

#[test]
fn metadata_that_cannot_be_is_refused() {
    for (from, to, reason) in [
        ("extent_size = 8", "extent_size = 0", "extent_size is 0"),
        ("extent_size = 8", "extent_size = -8", "extent_size is missing or no number"),
        ("extent_size = 8", "extent_size = 9223372036854775807", "a size exceeds 2^63 bytes"),
        ("pe_count = 10", "pe_count = 9007199254740992", "a size exceeds 2^63 bytes"),
        ("pe_count = 10", "pe_count = 9", "a stripe lies outside the physical volume pv0"),
        ("\"pv0\", 6", "\"pv0\", 9223372036854775807", "a stripe lies outside the physical volume pv0"),
        ("\"pv0\", 6", "\"pv1\", 6", "there is no physical volume pv1"),
        ("\"pv0\", 6", "\"pv0\"", "stripes does not have stripe_count pairs"),
        ("\"pv0\", 6", "6, \"pv0\"", "a stripe is not a name and a number"),
        ("extent_count = 4", "extent_count = 3", "no segment, or two, at byte 12288"),
        ("start_extent = 4", "start_extent = 3", "no segment, or two, at byte 16384"),
        ("start_extent = 0", "start_extent = 9007199254740991", "a size exceeds 2^63 bytes"),
        ("extent_count = 2", "extent_count = 0", "extent_count is 0"),
        ("extent_count = 2", "extent_count = 3", "extent_count is no multiple of stripe_count"),
        ("stripe_size = 2", "stripe_size = 3", "stripe_size does not divide extent_size"),
        ("stripe_size = 2", "stripe_size = 0", "stripe_size does not divide extent_size"),
        ("segment_count = 2", "segment_count = 3", "segment_count is 3, found 2"),
        ("g {", "", "line 6: expected a name"),
    ] {
        assert!(TEXT.contains(from), "{from}");
        let error = VolumeGroup::parse(TEXT.replacen(from, to, 1).as_bytes()).unwrap_err().to_string();
        assert!(error.contains(reason), "{to}: {error}");
    }
}
