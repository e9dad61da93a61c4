//! What must hold of any bytes that the parsers of LUKS are given. Shared by the fuzz targets and by the ordinary tests that
//! replay their corpora.
#![allow(dead_code)] // Each target uses one of them.

use postread_dmcrypt::luks::{Limits, Luks, luks1, luks2};
use postread_dmcrypt::{CipherSpec, Mapping};

/// Limits under which unlocking takes no time.
fn limits() -> Limits {
    let mut limits = Limits::default();
    limits.argon2_memory_kib = 64;
    limits.argon2_work_kib = 128;
    limits.pbkdf2_iterations = 10;
    limits.key_material = 16384;
    limits
}

/// A device is answered, and so is a passphrase.
fn device(data: &[u8]) {
    if let Ok(luks) = Luks::read(data) {
        let _ = (luks.uuid(), luks.cipher().to_string(), luks.data());
        let _ = luks.unlock(data, b"passphrase", &limits());
    }
}

/// A LUKS1 header, and the device it begins.
pub(crate) fn luks1(data: &[u8]) {
    if let Ok(header) = luks1::Header::parse(data) {
        assert!(header.keyslots.len() <= luks1::SLOTS && header.key_bytes > 0);
    }
    device(data);
}

/// A LUKS2 device; its checksum is made right, so that the fuzzer gets past it.
pub(crate) fn luks2(data: &[u8]) {
    device(data);
    let mut whole = data.to_vec();
    whole.resize(whole.len().max(16384), 0);
    let Ok(binary) = luks2::Binary::parse(&whole, 0) else { return };
    if let Some(header) = whole.get_mut(..binary.header_size as usize) {
        header[448..512].fill(0);
        // Only sha256 is made right: one algorithm is enough to get past it.
        let digest = <sha2::Sha256 as sha2::Digest>::digest(&header[..]);
        header[448..480].copy_from_slice(&digest);
    }
    device(&whole);
}

/// LUKS2 metadata.
pub(crate) fn luks2_json(data: &[u8]) {
    if let Ok(header) = luks2::Header::parse(data) {
        for keyslot in &header.keyslots {
            assert!(keyslot.area_offset.checked_add(keyslot.area_size).is_some());
        }
    }
}

/// A specification that parses comes back from its own text, and takes a key or refuses it.
pub(crate) fn cipher_spec(data: &[u8]) {
    let Some(spec) = std::str::from_utf8(data).ok().and_then(|text| text.parse::<CipherSpec>().ok()) else { return };
    assert_eq!(spec.to_string().parse(), Ok(spec));
    let key: Vec<u8> = (0..64 * spec.key_count).map(|i| i as u8).collect();
    if let Ok(mapping) = Mapping::new(&spec, &key) {
        let mut sector = [1; 512];
        mapping.encrypt(&mut sector, u64::MAX).expect("a whole sector");
        mapping.decrypt(&mut sector, u64::MAX).expect("a whole sector");
        assert_eq!(sector, [1; 512]);
    }
}
