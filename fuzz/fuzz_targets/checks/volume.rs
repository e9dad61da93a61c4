//! What must hold of any bytes that the parsers of logical volumes are given. Shared by the fuzz targets and by the ordinary
//! tests that replay their corpora.
#![allow(dead_code)] // Each target uses one of them.

use std::sync::Arc;

use postread_io::ReadAt;
use postread_volume::lvm::{LvmVolume, PhysicalVolume, VolumeGroup};
use postread_volume::super_partition::{self, SuperVolume};

/// Reads at a volume's edges.
fn probe(volume: &dyn ReadAt) {
    let len = volume.len().expect("a volume knows its length");
    for offset in [0, len / 2, len.saturating_sub(1), len, u64::MAX] {
        let n = volume.read_at(&mut [0; 512], offset).unwrap_or(0) as u64;
        assert!(n == 0 || offset + n <= len);
    }
}

/// Opens all volumes of a group on one physical volume.
fn volumes(group: &VolumeGroup, source: &Arc<dyn ReadAt>) {
    let pvs: Vec<_> = group.pvs.iter().map(|pv| (pv.uuid.clone(), source.clone())).collect();
    for lv in group.lvs.iter().take(64) {
        if let Ok(volume) = LvmVolume::open(group, &lv.name, &pvs) {
            probe(&volume);
        }
    }
}

/// A physical volume.
pub(crate) fn lvm(data: &[u8]) {
    if let Ok(PhysicalVolume { group: Some(group), .. }) = PhysicalVolume::read(data) {
        volumes(&group, &(Arc::new(data.to_vec()) as Arc<dyn ReadAt>));
    }
}

/// Text metadata.
pub(crate) fn lvm_metadata(data: &[u8]) {
    if let Ok(group) = VolumeGroup::parse(data) {
        volumes(&group, &(Arc::new(vec![0u8; 1 << 16]) as Arc<dyn ReadAt>));
    }
}

/// A super partition.
pub(crate) fn super_partition(data: &[u8]) {
    let source: Arc<dyn ReadAt> = Arc::new(data.to_vec());
    for slot in 0..2 {
        let Ok(metadata) = super_partition::read(data, slot) else { continue };
        for partition in metadata.partitions.iter().take(64) {
            if let Ok(volume) = SuperVolume::open(source.clone(), &metadata, &partition.name) {
                probe(&volume);
            }
        }
    }
}
