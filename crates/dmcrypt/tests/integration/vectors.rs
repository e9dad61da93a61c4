//! What is known without any tool.

use std::io;
use std::sync::Arc;

use postread_dmcrypt::{CipherSpec, Decrypted, KeyError, Mapping, MappingError};
use postread_io::ReadAt;

fn mapping(spec: &str, key: usize) -> Mapping {
    let spec: CipherSpec = spec.parse().unwrap();
    Mapping::new(&spec, &(0..key).map(|i| i as u8).collect::<Vec<_>>()).unwrap()
}

#[test]
fn what_is_encrypted_is_decrypted_from_any_sector_on() {
    for (spec, key) in [
        ("aes-xts-plain64", 64),
        ("aes-xts-essiv:sha256", 32),
        ("aes-cbc-essiv:sha256", 16),
        ("aes:4-cbc-benbi", 128),
        ("serpent-xts-plain64be", 64),
        ("serpent-cbc-plain", 32),
        ("twofish-xts-null", 32),
        ("twofish-cbc-essiv:sha256", 24),
        ("xchacha12,aes-adiantum-plain64", 32),
        ("xchacha20,aes-adiantum-plain64", 32),
    ] {
        for size in [512, 4096] {
            for large in [false, true] {
                let mapping = mapping(spec, key).with_sector_size(size).unwrap().with_iv_large_sectors(large);
                let mapping = mapping.with_iv_offset(8 * 1000);
                let plain: Vec<u8> = (0..8 * size).map(|i| (i / 7) as u8).collect();
                let mut data = plain.clone();
                mapping.encrypt(&mut data, 80).unwrap();
                assert_ne!(data, plain);
                let per_sector = u64::from(size / 512);
                for sector in [0, 3, 7] {
                    let at = sector as usize * size as usize;
                    let mut rest = data[at..].to_vec();
                    mapping.decrypt(&mut rest, 80 + sector * per_sector).unwrap();
                    assert_eq!(rest, plain[at..], "{spec}, sectors of {size}");
                }
            }
        }
    }
}

/// XTS-AES-128 of IEEE 1619-2007, annex B, vector 4: sector 0 of 512 bytes, bytes 0 to 255 twice.
#[test]
fn ieee_1619_vector_4() {
    let spec: CipherSpec = "aes-xts-plain64".parse().unwrap();
    let key = hex::decode("2718281828459045235360287471352631415926535897932384626433832795").unwrap();
    let mapping = Mapping::new(&spec, &key).unwrap();
    let mut data: Vec<u8> = (0..512).map(|i| i as u8).collect();
    mapping.encrypt(&mut data, 0).unwrap();
    assert_eq!(hex::encode(&data[..32]), "27a7479befa1d476489f308cd4cfa6e2a96e4bbe3208ff25287dd3819616e89c");
}

#[test]
fn keys_and_runs_that_do_not_fit_are_refused() {
    let spec: CipherSpec = "serpent-xts-plain64".parse().unwrap();
    let error = Mapping::new(&spec, &[1; 33]).unwrap_err();
    assert_eq!(error.to_string(), "the key has 33 bytes, but serpent-xts-plain64 takes 32, 48 or 64");
    assert_eq!(Mapping::new(&spec, &[1; 64]).unwrap_err(), KeyError::EqualHalves);
    let spec: CipherSpec = "aes:4-cbc-plain".parse().unwrap();
    let error = Mapping::new(&spec, &[1; 66]).unwrap_err();
    assert_eq!(error.to_string(), "the key has 66 bytes, but aes:4-cbc-plain takes 4 keys of equal length");
    let spec: CipherSpec = "aes-cbc-essiv:sha1".parse().unwrap();
    assert!(Mapping::new(&spec, &[1; 16]).unwrap_err().to_string().contains("a sha1 digest"));

    let mapping = mapping("aes-xts-plain64", 64);
    let mapping = match mapping.with_sector_size(8192) {
        Err(MappingError::SectorSize { size: 8192 }) => {
            self::mapping("aes-xts-plain64", 64).with_sector_size(4096).unwrap()
        }
        other => panic!("{other:?}"),
    };
    let mut data = vec![5; 4096];
    for (len, sector) in [(4095, 0), (512, 0), (4096, 7)] {
        let error = mapping.decrypt(&mut data[..len], sector).unwrap_err();
        assert_eq!((error.len, error.sector, error.size), (len, sector, 4096));
    }
    assert!(data.iter().all(|&byte| byte == 5));
    // No key is printed.
    assert_eq!(
        format!("{mapping:?}"),
        "Mapping { spec: aes-xts-plain64, sector_size: 4096, iv_large_sectors: false, iv_offset: 0, .. }"
    );
}

#[test]
fn a_mapped_device_is_read_at_any_byte() {
    let mapping = Arc::new(mapping("aes-xts-plain64", 64).with_sector_size(4096).unwrap());
    let plain: Vec<u8> = (0..10 * 4096).map(|i| (i / 11) as u8).collect();
    let mut data = plain.clone();
    mapping.encrypt(&mut data, 0).unwrap();
    // Something before it, and part of a sector behind it.
    let source: Arc<dyn ReadAt> = Arc::new([&[9; 1000], &data[..], &[9; 100]].concat());
    let device = Decrypted::new(source.clone(), mapping.clone(), 1000, None).unwrap();
    assert_eq!(device.len().unwrap(), plain.len() as u64);
    for (offset, len) in [(0, plain.len()), (1, 5), (4095, 2), (4096, 4096), (5000, 20_000), (plain.len() - 1, 1)] {
        let mut read = vec![0; len];
        device.read_exact_at(&mut read, offset as u64).unwrap();
        assert!(read == plain[offset..offset + len], "{len} bytes at {offset}");
    }
    assert_eq!(device.read_at(&mut [0; 10], plain.len() as u64).unwrap(), 0);
    assert_eq!(device.read_at(&mut [0; 10], u64::MAX).unwrap(), 0);
    let short = Decrypted::new(source.clone(), mapping.clone(), 1000, Some(8192)).unwrap();
    assert_eq!(short.len().unwrap(), 8192);
    let error = Decrypted::new(source, mapping, 1000, Some(11 * 4096)).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
}
