//! Super partitions of Android devices, made by the layout in AOSP's headers.

use sha2::{Digest, Sha256};

use crate::noise;

/// Where the bytes of logical partitions may begin.
pub const DATA: usize = 1 << 20;

/// An extent: sectors, type, first sector, block device.
pub type Extent = (u64, u32, u64, u32);

/// The metadata of a slot. A partition is a name, its first extent, and how many it has.
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
    header[48..80].copy_from_slice(&Sha256::digest(&tables));
    for (i, place) in places.iter().enumerate() {
        header[80 + 12 * i..92 + 12 * i].copy_from_slice(&words(place));
    }
    let sum = Sha256::digest(&header);
    header[12..44].copy_from_slice(&sum);
    [header, tables].concat()
}

/// A super partition with two slots that hold the same metadata, and noise from 1 MiB on.
pub fn image(extents: &[Extent], partitions: &[(&str, u32, u32)]) -> Vec<u8> {
    let mut out = vec![0; DATA];
    let mut geometry = vec![0; 52];
    for (at, value) in [(0, 0x616c_4467u32), (4, 52), (40, 65536), (44, 2), (48, 4096)] {
        geometry[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }
    let sum = Sha256::digest(&geometry);
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
